"""Attacks of parties that carry messages between clients and servers, or ask in their name."""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager
from typing import Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from scripts.attacks.result import (
    AttackResult,
    honest_plan,
    honest_round,
    ratio,
    ratio_of,
    switched,
)
from scripts.parties import bench_plan, close_and_verify, plain_plan, sealed_servers, two_servers
from torchfsl.crypto import aead, kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error, ProtocolError, RejectedSubmission
from torchfsl.fsl import bodies, costs, messages
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import keys
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.fsl.uploads import UPLOADS, ReportBody, ReportCommit, TreesBody, TreesCommit
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Array, Bytes, Indices

ASKING: Final = 5
ROWS: Final = (3, 40, 77)
_SHAPE: Final = (100, 4)


def retrieving_plan() -> Plan:
    """One retrieving segment."""
    spec = SegmentSpec(
        "rows", "rows", (TensorSpec("rows", _SHAPE),), tau=_SHAPE[1], k_max=3, retrieve=True
    )
    return bench_plan([spec], encoding=FixedPoint(32, 16, 4.0), max_clients=4)


def make_rows() -> Array:
    """A model whose rows are all different."""
    return np.random.default_rng(0).normal(size=_SHAPE).astype(np.float32)


def sealed_answers(*, on: bool) -> AbstractContextManager[object]:
    """Whether answers are sealed; off, they travel in the clear, as long as sealed ones."""
    clear = {
        "seal_once": lambda key, text: bytes(text) + bytes(aead.SEAL_BYTES),
        "unseal": lambda key, sealed: bytes(sealed[: -aead.SEAL_BYTES]),
    }
    return switched(mock.patch.multiple(aead, **clear), on=on)


def rows_in(first: bytes, second: bytes) -> set[int]:
    """The rows of the model that the XOR of two answers holds."""
    parts = [np.frombuffer(answer, np.uint8) for answer in (first, second)]
    both = (parts[0] ^ parts[1]).tobytes()
    return {number for number, row in enumerate(make_rows()) if row.tobytes() in both}


def rows_in_answers(*, on: bool) -> set[int]:
    """Which rows of the victim server 0 reads off both answers, in one process."""
    plan = retrieving_plan()
    servers = two_servers(plan, {"rows": make_rows()})
    begin_round(servers, 1)
    with sealed_answers(on=on):
        taking = Client(plan, servers, client_id=ASKING).start_round(1, indices={"rows": ROWS})
        assert taking.retrieve()["rows"][0].tolist() == list(ROWS)
        own, other = (server.reply(Kind.ANSWER, 1, ASKING) for server in servers)
    return rows_in(own[HEADER_BYTES:], other[HEADER_BYTES:])


def times_answered() -> int:
    """How often one client is answered in one round."""
    plan = retrieving_plan()
    servers = two_servers(plan, {"rows": make_rows()})
    begin_round(servers, 1)
    Client(plan, servers, client_id=ASKING).start_round(1, indices={"rows": ROWS})
    sent = set()
    for count in range(100):
        try:
            sent.add(servers[1].reply(Kind.ANSWER, 1, ASKING))
        except RejectedSubmission:
            assert len(sent) == 1, "the same bytes each time"
            return count
    return 100


def read_answers() -> AttackResult:
    """Server 0 gets the other server's answers too, and so the rows that a client asked for.

    It holds the clients' authority, so that it can ask for a client's answer in the client's name,
    or it merely carries the answers (a load balancer that ends TLS). Answers in the clear XOR to
    the rows. With the defence on each is sealed under a key from the master seed that its own
    sender got. Besides a client's answer is sent a few times only, the same bytes each time.
    """
    read = {on: rows_in_answers(on=on) for on in (False, True)}
    return AttackResult(
        name="answers read by who carries them, or who can ask for them",
        off=f"all {len(ROWS)} rows that a client asked for, among those of "
        f"{len(read[False]) - len(ROWS)} dummies",
        on=f"{len(read[True])} rows; a client is answered {times_answered()} times at most",
        worked_off=set(ROWS) <= read[False],
        worked_on=bool(read[True]),
        extra_bytes=0,  # 32 more come down
        time_ratio=ratio_of(sealed_answers),
    )


_TREES: Final = (Kind.TREES, Kind.TREES_COMMIT)


class Keeping(InProcess):
    """Carries a client's messages and keeps what it needs."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        super().__init__(*servers)
        self._plan = plan
        self._seeds: dict[int, tuple[bytes, bytes]] = {}
        self._answers: dict[int, AnswerBody] = {}

    def send(self, party: int, message: bytes) -> None:
        """Deliver."""
        decoded = messages.decode(self._plan, message, *UPLOADS)
        if decoded.kind in _TREES:
            body = UPLOADS[decoded.kind].decode(self._plan, decoded.body)
            assert isinstance(body, TreesBody | TreesCommit)
            self._seeds[party] = body.nonce, body.seed
        super().send(party, message)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch."""
        data = super().fetch(party, kind, round_number, client)
        if kind is Kind.ANSWER:
            self._answers[party] = AnswerBody.read(self._plan, data)
        return data

    def read(self) -> set[int]:
        """The rows in what was carried of one client in round 1; empty if it cannot be opened."""
        opened = []
        for party, (nonce, seed) in sorted(self._seeds.items()):
            key = TreeContext(self._plan, 1, ASKING, nonce).answer_key(seed[:16], party, 1)
            try:
                opened.append(b"".join(self._answers[party].unseal(self._plan, key)))
            except Error:
                return set()
        return rows_in(*opened)


def rows_behind_seeds(*, on: bool) -> set[int]:
    """Which rows of the victim the carrier reads."""
    plan = retrieving_plan()
    if on:
        plan, servers = sealed_servers(plan, {"rows": make_rows()})
    else:
        servers = two_servers(plan, {"rows": make_rows()})
    begin_round(servers, 1)
    carrier = Keeping(plan, servers)
    taking = Client(plan, carrier, client_id=ASKING).start_round(1, indices={"rows": ROWS})
    assert taking.retrieve()["rows"][0].tolist() == list(ROWS)
    return carrier.read()


def _time_ratio() -> float:
    plan = honest_plan()
    return ratio(lambda: honest_round(plan), lambda: honest_round(*sealed_servers(plan)))


def read_seeds() -> AttackResult:
    """A party that carries the traffic to both servers in the clear reads the master seeds.

    A party that ends TLS is in this place. Both master seeds open everything that a client sends,
    and both answers. With the defence on, the client seals each seed to the public key of its
    server, which the plan names.
    """
    read = {on: rows_behind_seeds(on=on) for on in (False, True)}
    plain = retrieving_plan()
    sealed = sealed_servers(plain, {"rows": make_rows()})[0]
    return AttackResult(
        name="master seeds read by what ends TLS",
        off=f"all {len(ROWS)} rows that a client asked for, and all that it sends",
        on=f"{len(read[True])} rows",
        worked_off=set(ROWS) <= read[False],
        worked_on=bool(read[True]),
        extra_bytes=costs.client_bytes(sealed) - costs.client_bytes(plain),
        time_ratio=_time_ratio(),
    )


VALUES: Final = {2: 11, 3: 23, 5: 42}
"""What each client sends everywhere; client 2 is the only one of its half."""
_SIZE: Final = 5
_HONEST: Final = ReportContext.dense_mask


def dense_plan() -> Plan:
    """One dense segment."""
    segment = TreeSegment("rest", "dense", (TensorSpec("rest", (_SIZE,)),), _SIZE, 1, _SIZE)
    return plain_plan(segment, max_clients=4, min_clients=3)


class Reader(InProcess):
    """Delivers, and adds up the masked values that pass, by addressee."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        super().__init__(*servers)
        self._plan = plan
        self.masked = np.zeros((2, _SIZE), dtype="<u4")

    def send(self, party: int, message: bytes) -> None:
        """Deliver."""
        if messages.peek(message).kind is Kind.REPORT:
            body = ReportBody.read(self._plan, message)
            self.masked[party] += np.frombuffer(body.masked[0], "<u4")
        super().send(party, message)


def both_masks(*, on: bool) -> AbstractContextManager[object]:
    """Whether masked values also contain the mask of their addressee."""

    def one_mask(context: ReportContext, segment: TreeSegment, seed: bytes, party: int) -> Bytes:
        mask = _HONEST(context, segment, seed, party)
        return np.zeros_like(mask) if party == context.trees.public_party else mask

    off = mock.patch.object(ReportContext, "dense_mask", one_mask)
    return switched(off, on=on)


def read_halves(*, on: bool) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The carrier's results for the sums of even-numbered and of odd-numbered clients."""
    plan, servers = sealed_servers(dense_plan(), {"rest": np.zeros(_SIZE, np.float32)})
    reader = Reader(plan, servers)
    begin_round(servers, 1)
    with both_masks(on=on):
        for client, value in VALUES.items():
            update = SegmentUpdate(None, np.full((_SIZE, 1), value))
            Client(plan, reader, client_id=client).start_round(1).submit({"rest": update})
        shares = _shares(plan, servers)
    masked = reader.masked
    even, odd = (shares[1 - p] - masked[1 - p] + masked[p] for p in (0, 1))
    return even.view("<i4"), odd.view("<i4")


def _shares(plan: Plan, servers: tuple[Server, Server]) -> list[npt.NDArray[np.uint32]]:
    """The servers' SHARE messages, which a carrier between them sees."""
    one, two = servers
    close_and_verify(servers)
    commitments = one.commit(), two.commit()
    said = one.reveal(commitments[1]), two.reveal(commitments[0])
    assert np.all(one.open(said[1]).sums["rest"] == sum(VALUES.values()))
    return [np.frombuffer(bodies.ShareBody.read(plan, share).sums, "<u4") for share in said]


def carried_masks() -> AttackResult:
    """A party that carries all messages, also those between servers, splits the dense sum.

    With one mask alone, a server's share of a dense sum has two parts. They are the masks of half
    of the clients, and the masked values of the other half. The carrier has seen all masked values,
    and subtracts them. It gets the sums of even-numbered and of odd-numbered clients.

    If the carrier held back all clients of a half except one, the sum of that half is this client's
    update. Here the carrier only reads. With the defence on, masked values also contain a mask of
    their addressee.
    """
    off, on = (read_halves(on=on)[0] for on in (False, True))
    return AttackResult(
        "a dense sum split by who carries it",
        off=f"client 2 sent {off.tolist()}, with min_clients = 3",
        on="noise" if np.any(on != VALUES[2]) else "the same",
        worked_off=bool(np.all(off == VALUES[2])),
        worked_on=bool(np.any(on == VALUES[2])),
        time_ratio=ratio_of(both_masks),
    )


VICTIM: Final = 2
SENT_ROWS: Final = (1, 6, 11)
_NUM_ROWS: Final = 16
_ROUND: Final = 1


def trees_plan() -> Plan:
    """Scalars in trees over all of them, as many as a client may select."""
    tensor = TensorSpec("rows", (_NUM_ROWS,))
    segment = TreeSegment(
        "rows",
        "scalars",
        (tensor,),
        _NUM_ROWS,
        1,
        len(SENT_ROWS),
        stash=len(SENT_ROWS),
        check_bytes=CHECK_BYTES,
    )
    return plain_plan(segment, max_clients=8)


class Altering(InProcess):
    """Between one client and both servers: holds the commitment back until it has the report."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        super().__init__(*servers)
        self._plan = plan
        self._held: ReportCommit | None = None

    def send(self, party: int, message: bytes) -> None:
        """Deliver what fits the plan, altered."""
        decoded = messages.decode(self._plan, message, *UPLOADS)
        body = UPLOADS[decoded.kind].decode(self._plan, decoded.body)
        if isinstance(body, ReportCommit):
            self._held = body
            return
        assert isinstance(body, ReportBody)
        assert self._held is not None
        public = flip_hints(self._plan, body.public[0])
        trees = TreeContext(self._plan, _ROUND, VICTIM, body.nonce)
        fitting = ReportContext(trees, _ROUND, body.hint_nonce).commitment(public)
        forged = {
            party: dataclasses.replace(body, public=(public,)),
            1 - party: dataclasses.replace(self._held, commitment=fitting),
        }
        for to in (1 - party, party):
            super().send(to, forged[to].message(self._plan, to, _ROUND, VICTIM))


def flip_hints(plan: Plan, public: bytes | memoryview) -> bytes:
    """The public share with a high bit of every hint flipped."""
    (segment,) = plan.segments
    altered = np.frombuffer(public, np.uint8).copy()
    hints = altered[segment.tree_bytes :].view("<u4")
    hints ^= np.uint32(1 << 30)
    return altered.tobytes()


def tagged_uploads(*, on: bool) -> AbstractContextManager[object]:
    """Whether uploads carry tags; off, they carry as many zeros."""
    off = mock.patch.object(keys, "upload_tag", return_value=bytes(kdf.SEED_BYTES))
    return switched(off, on=on)


def attacked_round(*, on: bool) -> Opened:
    """The aggregate, if other clients send 9 to each row, and the victim to three rows."""
    plan, servers = sealed_servers(trees_plan(), {"rows": np.zeros(_NUM_ROWS, np.float32)})
    begin_round(servers, _ROUND)
    with tagged_uploads(on=on):
        for number, first in enumerate(range(0, _NUM_ROWS, len(SENT_ROWS))):
            rows = np.arange(first, min(first + len(SENT_ROWS), _NUM_ROWS))
            _send(Client(plan, InProcess(*servers), client_id=10 + number), rows)
        with contextlib.suppress(RejectedSubmission):
            _send(Client(plan, Altering(plan, servers), client_id=VICTIM), np.array(SENT_ROWS))
        return finish_round(servers)


def _send(client: Client, rows: Indices) -> None:
    values = np.full((len(rows), 1), 9)
    client.start_round(_ROUND).submit({"rows": SegmentUpdate(rows.astype(np.int64), values)})


def rows_read(opened: Opened) -> set[int]:
    """The rows that are zero in the aggregate, although a client sent to every row."""
    return set(np.flatnonzero(opened.sums["rows"][:, 0] == 0).tolist())


def altered_on_the_way() -> AttackResult:
    """A party that ends TLS before both servers alters a report, and reads its rows.

    A commitment needs no secret, so the party makes one that fits the altered report. A hint adds
    its value at the selected position, and adds nothing elsewhere. A party that flips a high bit of
    every hint marks the positions that the client selected. They show in the aggregate or, as here,
    in the rows that the check of ranges sets to zero.

    With the defence on, each upload carries a tag under the master seed, which is sealed to its
    server.
    """
    off, on = (attacked_round(on=on) for on in (False, True))
    return AttackResult(
        "a report altered before both servers",
        off=f"rows {sorted(rows_read(off))} of the client, which sent at {list(SENT_ROWS)}",
        on="refused, the others' sum is exact" if VICTIM not in on.clients else "accepted",
        worked_off=rows_read(off) == set(SENT_ROWS),
        worked_on=VICTIM in on.clients or bool(rows_read(on)),
        extra_bytes=4 * kdf.SEED_BYTES,
        time_ratio=ratio_of(tagged_uploads),
    )


_CLIENTS: Final = range(3)


class Showing(InProcess):
    """Shows every client but the victim a huge model, with digests to fit."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        super().__init__(*servers)
        self._plan = plan

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch, altered."""
        data = super().fetch(party, kind, round_number, client)
        if client == VICTIM:
            return data
        size = sum(tensor.numel for tensor in self._plan.clear_tensors)
        clear = np.full(size, 1e30, dtype="<f4").tobytes()
        digests = bodies.ModelDigest.of(clear, b"")
        body = digests if kind is Kind.MODEL_DIGEST else bodies.ModelBody(digests, clear)
        return body.message(self._plan, party, round_number, client)


def take_part(client: Client) -> None:
    """Download, train, send; training fails on a model beyond reason, like any user's code."""
    with client.start_round(1) as client_round:
        model = client_round.download()["rest"]
        if np.abs(model.astype(np.float64)).max() > 1e6:
            raise OverflowError("the loss is not finite")
        client_round.submit({"rest": SegmentUpdate(None, np.full((model.size, 1), 7))})


def alone_in_the_sum(*, on: bool) -> bool:
    """Whether the servers open a sum that holds the victim's update and no other."""
    plan, servers = sealed_servers(dense_plan(), {"rest": np.zeros(5, np.float32)})
    carrier = Showing(plan, servers)
    begin_round(servers, 1)
    with tagged_uploads(on=on):
        for number in _CLIENTS:
            with contextlib.suppress(OverflowError, Error):
                take_part(Client(plan, carrier, client_id=number))
        try:
            opened = finish_round(servers)
        except ProtocolError:
            return False
    return bool(np.all(opened.sums["rest"] == 7))


def another_model() -> AttackResult:
    """A carrier of messages shows all clients except one a model on which training fails.

    Training may also fail because of a client's own values, so a client whose training fails sends
    a dummy report. This report counts towards `min_clients`, and the aggregate is the update of the
    remaining client. With the defence on, the tag of each report, also of a dummy, covers the
    digests of the model that the client received.
    """
    off, on = (alone_in_the_sum(on=on) for on in (False, True))
    return AttackResult(
        "dummies by a model that others are shown",
        off="one client's update, with min_clients = 3 of 3" if off else "nothing",
        on="its update" if on else "nothing is opened",
        worked_off=off,
        worked_on=on,
        time_ratio=ratio_of(tagged_uploads),
    )

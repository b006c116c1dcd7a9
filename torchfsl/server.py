"""One of the two aggregation servers: the round machine.

    OPEN -> CLOSED -> AGREED -> COMMITTED -> REVEALED -> opened, back to IDLE

A round opens once: both servers first agree on the set of reports, then commit to their shares of
the gathered sum, and only then reveal them. There is no second set and no second opening. Nothing
of a report leaves a server but the relayed public part, answers to its own client, and the
gathered sum over the agreed set. The aggregation path imports no torch.
"""

from __future__ import annotations

import logging
from enum import Enum

import numpy as np
import numpy.typing as npt

from torchfsl import kdf, messages, psr, ring
from torchfsl.config import DIGEST_BYTES, SEED_BYTES
from torchfsl.dpf import Trees, split
from torchfsl.entropy import random_bytes
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.messages import Kind
from torchfsl.opened import Opened
from torchfsl.plan import Plan, Segment
from torchfsl.reports import Report, ReportBook
from torchfsl.server_model import ServerModel
from torchfsl.ssa import Accumulator

log = logging.getLogger("torchfsl.server")
Bytes = npt.NDArray[np.uint8]


class RoundState(Enum):
    """Where the server stands in a round."""

    IDLE = "idle"
    OPEN = "open"
    CLOSED = "closed"
    AGREED = "agreed"
    COMMITTED = "committed"
    REVEALED = "revealed"


class Server:
    """Server `party` (0 or 1) of a task.

    Args:
        party: 0 or 1.
        plan: equal at both servers and all clients.
        model: this server's copy of the model; both servers start from the same bits.
    """

    def __init__(self, party: int, *, plan: Plan, model: ServerModel) -> None:
        """Check that the model fits the plan."""
        assert party in (0, 1)
        model.check(plan)
        self.party, self.plan, self.model = party, plan, model
        self.state = RoundState.IDLE
        self.last_round = -1
        self._book = ReportBook(plan, party, 0)
        self._tables: dict[str, list[Bytes]] | None = None
        self._model_body = b""
        self._agreed: tuple[int, ...] = ()
        self._set_digest = self._share = self._salt = self._peer_commitment = b""

    # --- a round, in the order of its steps ---------------------------------------------------

    def open_round(self, round_number: int) -> None:
        """Accept messages for `round_number`, which must be above every earlier one."""
        self._expect(RoundState.IDLE)
        if round_number <= self.last_round:
            raise ProtocolError(f"round {round_number} is not above {self.last_round}: opened once")
        self.last_round = round_number
        self._book = ReportBook(self.plan, self.party, round_number)
        self._tables, self._model_body = None, b""
        self.state = RoundState.OPEN

    def receive(self, message: bytes) -> bytes | None:
        """Take a client's message or the peer's relay; see `ReportBook.receive`."""
        self._expect(RoundState.OPEN)
        kinds = (Kind.TREES, Kind.TREES_COMMIT, Kind.TREES_RELAY,
                 Kind.REPORT, Kind.REPORT_COMMIT, Kind.REPORT_RELAY)  # fmt: skip
        return self._book.receive(messages.decode(self.plan, message, *kinds), message)

    def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """MODEL, MODEL_DIGEST or ANSWER for a client of the open round."""
        self._expect(RoundState.OPEN)
        if round_number != self._book.round_number:
            raise RejectedSubmission(f"round {round_number} is not open")
        if kind is Kind.ANSWER:
            body = self._answer(client)
        elif kind in (Kind.MODEL, Kind.MODEL_DIGEST):
            body = self._model(kind)
        else:
            raise RejectedSubmission(f"{kind.name} is nothing a client can ask for")
        return messages.encode(self.plan, kind, self.party, round_number, client, body)

    def close_round(self) -> bytes:
        """Take no more reports; the list of complete ones, for the peer."""
        self._expect(RoundState.OPEN)
        self.state = RoundState.CLOSED
        entries = [
            messages.SET_ENTRY.pack(client, self._book.digest(report))
            for client, report in sorted(self._book.complete().items())
        ]
        return self._to_peer(Kind.REPORT_SET, b"".join(entries))

    def agree(self, peer_set: bytes) -> tuple[int, ...]:
        """Keep the reports that both servers hold with equal digests.

        Raises:
            ProtocolError: fewer than `min_clients`; the round ends unopened.
        """
        self._expect(RoundState.CLOSED)
        entries = dict(messages.SET_ENTRY.iter_unpack(self._from_peer(Kind.REPORT_SET, peer_set)))
        own = self._book.complete()
        self._agreed = tuple(
            client
            for client in sorted(own)
            if entries.get(client) == self._book.digest(own[client])
        )
        if len(self._agreed) < self.plan.min_clients:
            self._end()
            raise ProtocolError(
                f"{len(self._agreed)} complete reports, the plan wants {self.plan.min_clients}: "
                "the round closes unopened"
            )
        parts = [self._book.digest(own[client]) for client in self._agreed]
        self._set_digest = kdf.digest(kdf.LABEL_REPORT_SET, self.plan.digest, *parts)
        self.state = RoundState.AGREED
        return self._agreed

    def commit(self) -> bytes:
        """Aggregate the agreed reports; a commitment to this server's share, for the peer."""
        self._expect(RoundState.AGREED)
        self._share = self._aggregate()
        self._salt = random_bytes(DIGEST_BYTES)
        self.state = RoundState.COMMITTED
        return self._to_peer(
            Kind.SHARE_COMMIT, self._commitment(self.party, self._salt, self._share)
        )

    def reveal(self, peer_commitment: bytes) -> bytes:
        """Once the peer has committed: this server's share, for the peer."""
        self._expect(RoundState.COMMITTED)
        self._peer_commitment = bytes(self._from_peer(Kind.SHARE_COMMIT, peer_commitment))
        self.state = RoundState.REVEALED
        return self._to_peer(Kind.SHARE, self._salt, self._share)

    def open(self, peer_share: bytes) -> Opened:
        """Add the peer's share: the exact sums. Ends the round and wipes its reports.

        Raises:
            ProtocolError: the share is not the one committed to, or over another set.
        """
        self._expect(RoundState.REVEALED)
        body = self._from_peer(Kind.SHARE, peer_share)
        salt, share = bytes(body[:DIGEST_BYTES]), bytes(body[DIGEST_BYTES:])
        own, agreed, expected = self._share, self._agreed, self._peer_commitment
        fits = kdf.digests_equal(expected, self._commitment(1 - self.party, salt, share))
        self._end()
        if not fits:
            raise ProtocolError("the peer's share does not fit its commitment: nothing is applied")
        return self._decode_shares(own, share, agreed)

    def apply(self, opened: Opened) -> None:
        """Update this server's model with the opened sums."""
        self._expect(RoundState.IDLE)
        self.model.apply(self.plan, opened)

    # --- what the steps above are made of -----------------------------------------------------

    def _expect(self, state: RoundState) -> None:
        if self.state is not state:
            raise ProtocolError(f"the round is {self.state.value}, this step needs {state.value}")

    def _end(self) -> None:
        self._book = ReportBook(self.plan, self.party, self.last_round)
        self._share, self._salt, self._tables, self._model_body = b"", b"", None, b""
        self.state = RoundState.IDLE

    def _to_peer(self, kind: Kind, *parts: bytes) -> bytes:
        return messages.encode(self.plan, kind, 1 - self.party, self.last_round, 0, *parts)

    def _from_peer(self, kind: Kind, data: bytes) -> memoryview:
        message = messages.decode(self.plan, data, kind)
        if (message.party, message.round_number) != (self.party, self.last_round):
            raise ProtocolError("the peer's message is for another server or round")
        return message.body

    def _commitment(self, party: int, salt: bytes, share: bytes) -> bytes:
        return kdf.digest(kdf.LABEL_SHARE, bytes([party]), self._set_digest, salt, share)

    def _model(self, kind: Kind) -> bytes:
        if not self._model_body:
            clear = b"".join(
                np.ascontiguousarray(self.model.state[t.name]).tobytes()
                for t in self.plan.clear_tensors
            )
            rows = b"".join(self.model.rows(s).tobytes() for s in messages.retrieving(self.plan))
            self._model_body = messages.model_digests(clear, rows) + clear
        return self._model_body if kind is Kind.MODEL else self._model_body[: 2 * DIGEST_BYTES]

    def _answer(self, client: int) -> bytes:
        """Retrieval; nothing leaves before the trees have passed the commitment check."""
        report = self._book.get(client)
        assert report.master_seed is not None
        assert report.trees.public is not None
        if self._tables is None:
            self._tables = {
                s.name: psr.bin_tables(self.plan, s, self.model.rows(s))
                for s in messages.retrieving(self.plan)
            }
        context = self._book.context(report)
        parts = []
        trees = _decode_trees(messages.retrieving(self.plan), report.trees.public)
        for segment in messages.retrieving(self.plan):
            roots = context.roots(segment, report.master_seed, self.party)
            key, tables = context.tree_key(segment), self._tables[segment.name]
            parts.append(psr.answer(segment, key, roots, trees[segment.name], tables).tobytes())
        return b"".join(parts)

    def _aggregate(self) -> bytes:
        """This server's share of the sums over the agreed set, gathered into index order."""
        reports = [self._book.complete()[client] for client in self._agreed]
        shares = []
        for segment in messages.with_hints(self.plan):
            accumulator = Accumulator(self.plan, segment, self.party)
            for report in reports:
                self._add(accumulator, segment, report)
            shares.append(accumulator.gather().tobytes())
        for segment in messages.dense(self.plan):
            shares.append(self._sum_dense(segment, reports).tobytes())
        return b"".join(shares)

    def _add(self, accumulator: Accumulator, segment: Segment, report: Report) -> None:
        assert report.master_seed is not None
        assert report.report.public is not None
        context, public = self._book.context(report), report.report.public
        late = messages.late_trees(self.plan)
        source = report.trees.public if segment.retrieve else public
        assert source is not None
        trees = _decode_trees(messages.retrieving(self.plan) if segment.retrieve else late, source)
        start = sum(s.tree_bytes for s in late)
        for other in messages.with_hints(self.plan):
            if other.name == segment.name:
                break
            start += self.plan.hint_bytes(other)
        size = self.plan.hint_bytes(segment)
        hints = np.frombuffer(public, dtype=np.uint8, count=size, offset=start)
        hint_nonce = report.report.nonces[SEED_BYTES:]
        accumulator.add(
            context.tree_key(segment),
            context.convert_key(segment, hint_nonce),
            context.roots(segment, report.master_seed, self.party),
            trees[segment.name],
            hints.reshape(segment.num_trees, -1),
        )

    def _sum_dense(self, segment: Segment, reports: list[Report]) -> Bytes:
        width = self.plan.encoding.ring_bits // 8
        total = np.zeros((self.plan.dense_values(segment), width), dtype=np.uint8)
        start = 0
        for other in messages.dense(self.plan):
            if other.name == segment.name:
                break
            start += self.plan.dense_bytes(other)
        for report in reports:
            assert report.master_seed is not None
            context = self._book.context(report)
            if context.public_party == self.party:
                share = np.frombuffer(report.masked, np.uint8, total.size, start)
                share = share.reshape(total.shape)
            else:
                hint_nonce = report.report.nonces[SEED_BYTES:]
                share = context.dense_mask(segment, report.master_seed, hint_nonce)
            total = ring.add(total, share)
        return total

    def _decode_shares(self, own: bytes, peer: bytes, clients: tuple[int, ...]) -> Opened:
        plan, width = self.plan, self.plan.encoding.ring_bits // 8
        first = np.frombuffer(own, dtype=np.uint8).reshape(-1, width)
        second = np.frombuffer(peer, dtype=np.uint8).reshape(-1, width)
        total = ring.to_int64(ring.add(first, second))
        sums: dict[str, npt.NDArray[np.int64]] = {}
        lanes: dict[str, npt.NDArray[np.int64]] = {}
        weight, start = len(clients), 0
        for segment in messages.with_hints(plan):
            count = segment.m * (segment.tau + plan.lanes)
            values = total[start : start + count].reshape(segment.m, -1)
            if plan.lanes:
                lanes[segment.name] = values[:, 0]
            sums[segment.name] = values[:, plan.lanes :]
            start += count
        for segment in messages.dense(plan):
            count = plan.dense_values(segment)
            values = total[start : start + count]
            if plan.lane == "weight":
                weight, values = int(values[0]), values[1:]
            sums[segment.name] = values[:, None]
            start += count
        return Opened(sums, lanes, len(clients), weight, clients)


def _decode_trees(segments: list[Segment], public: bytes) -> dict[str, list[Trees]]:
    """Trees of the segments in order, from the start of a public part."""
    view, start = memoryview(public), 0
    trees: dict[str, list[Trees]] = {}
    for segment in segments:
        trees[segment.name] = []
        for group, _ in split(segment):
            trees[segment.name].append(Trees.decode(group, view[start : start + group.tree_bytes]))
            start += group.tree_bytes
    return trees

"""Who carries the traffic to both servers in the clear, as what ends TLS does, reads the seeds.

Both master seeds open everything that a client sends, and both answers. With the defence on each
seed is sealed to the public key of its server, which the plan names.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from scripts.attacks import timing
from scripts.attacks.read_answers import ROWS, VICTIM, make_plan, make_rows, rows_in
from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import Error
from torchfsl.fsl import costs, messages
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf.keys import TreeContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.fsl.uploads import UPLOADS, TreesBody, TreesCommit
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array

_TREES: Final = (Kind.TREES, Kind.TREES_COMMIT)


class Carrier(InProcess):
    """Carries a client's messages and keeps what it needs."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        """Nothing is carried yet."""
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
            key = TreeContext(self._plan, 1, VICTIM, nonce).answer_key(seed[:16], party, 1)
            try:
                opened.append(b"".join(self._answers[party].unseal(self._plan, key)))
            except Error:
                return set()
        return rows_in(*opened)


def sealed_servers(plan: Plan, state: dict[str, Array]) -> tuple[Plan, tuple[Server, Server]]:
    """The plan with keys of its servers, and these."""
    keys = SealKey.generate(), SealKey.generate()
    plan = dataclasses.replace(plan, server_keys=tuple(key.public.hex() for key in keys))
    first, second = (
        Server(party, plan=plan, model=ServerModel(state), key=keys[party]) for party in (0, 1)
    )
    return plan, (first, second)


def read_rows(*, on: bool) -> set[int]:
    """Which rows of the victim the carrier reads."""
    plan = make_plan()
    if on:
        plan, servers = sealed_servers(plan, {"rows": make_rows()})
    else:
        servers = two_servers(plan, {"rows": make_rows()})
    begin_round(servers, 1)
    carrier = Carrier(plan, servers)
    taking = Client(plan, carrier, client_id=VICTIM).start_round(1, indices={"rows": ROWS})
    assert taking.retrieve()["rows"][0].tolist() == list(ROWS)
    return carrier.read()


def _time_ratio() -> float:
    keys = SealKey.generate(), SealKey.generate()
    plain = timing.honest_plan()
    plan = dataclasses.replace(plain, server_keys=tuple(key.public.hex() for key in keys))
    return timing.ratio(lambda: timing.honest_round(plain), lambda: timing.honest_round(plan, keys))


def run() -> AttackResult:
    """Rows read off everything that a client and the servers exchanged."""
    read = {on: read_rows(on=on) for on in (False, True)}
    plain = make_plan()
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

"""Costs of an audit, as ratios of processor time in one run.

    python -m scripts.bench.audit --clients 20 --repeats 5 [--din]

A recommender's shape (a table of 12,101 x 18 of which a client takes 200 rows, and 20,000 dense
values) or DIN's published one, norm proofs, no noise. A client's time is that of `submit`. A round
is everything that both servers do from the first report to the applied model. The ratio of plans
without an audit compares this commit with another one: see `scripts.bench.checkouts`.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scripts.parties import bench_plan, random_update, zeros
from scripts.program import Options, option, program
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.signing import SignKey
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.audit.replay import Auditor
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel

_KEYS: Final = tuple(
    SignKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(1, 5)
)


def make_plan(clients: int, *, audited: bool, din: bool = False) -> Plan:
    """The shapes above."""
    rows, k_max, dense = (197_372, 419, 64_327) if din else (12_101, 200, 20_000)
    table, rest = TensorSpec("table", (rows, 18)), TensorSpec("rest", (dense,))
    specs = [
        SegmentSpec("table", "rows", (table,), tau=18, k_max=k_max, retrieve=True),
        SegmentSpec("rest", "dense", (rest,)),
    ]
    options = {"max_clients": clients, "l2_bound": 1 << 20}
    plan = bench_plan(specs, encoding=FixedPoint(32, 16, 4.0), **options)
    keys = tuple(key.public.hex() for key in _KEYS)
    fields = {"audit": "open", "audit_keys": keys[:2], "auditors": keys[2:]}
    return dataclasses.replace(plan, **fields) if audited else plan  # type: ignore[arg-type]


class Watch:
    """Processor time of this process, by what it is for."""

    def __init__(self) -> None:
        """Nothing was measured."""
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def note(self, what: str) -> None:
        """The time since the last call was for this."""
        now = time.process_time()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._last
        self._last = now


class _Timed(InProcess):
    """The servers, whose time is not the client's."""

    def __init__(self, watch: Watch, *servers: Server) -> None:
        super().__init__(*servers)
        self._watch = watch

    def send(self, party: int, message: bytes) -> None:
        self._watch.note("clients")
        super().send(party, message)
        self._watch.note("servers")

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        self._watch.note("clients")
        reply = super().fetch(party, kind, round_number, client)
        self._watch.note("servers")
        return reply


def play(plan: Plan, clients: int) -> dict[str, float]:
    """Processor seconds of one round: clients, both servers, transcripts, one replay."""
    one, two = (
        Server(party, plan=plan, model=ServerModel(zeros(plan)), sign_key=_KEYS[party])
        for party in (0, 1)
    )
    judge = Auditor(plan, 0, _KEYS[2]) if plan.audited else None
    watch = Watch()
    begin_round((one, two), 1)
    link = _Timed(watch, one, two)
    watch.note("servers")
    for number in range(clients):
        update = random_update(plan, number, 9)
        client = Client(plan, link, client_id=number)
        wanted = {"table": update["table"].positions}
        watch.note("other")
        with client.start_round(1, indices=wanted) as client_round:
            client_round.download()
            client_round.retrieve()
            watch.note("clients before")
            client_round.submit(update)
            watch.note("clients")
    lists = one.close_round(), two.close_round()
    folds = one.agree(lists[1]), two.agree(lists[0])
    one.verify(folds[1])
    two.verify(folds[0])
    commits = one.commit(), two.commit()
    watch.note("servers")
    if judge is None:
        shares = one.reveal(commits[1]), two.reveal(commits[0])
        one.open(shares[1])
        two.open(shares[0])
        watch.note("servers")
        return watch.seconds
    shown = [b"".join(transcript.parts(*p)) for p in zip((one, two), commits, strict=True)]
    watch.note("transcripts")
    found = judge.replay(shown[0])
    watch.note("replay")
    assert not found.step
    watch.seconds["bytes"] = len(shown[0])
    return watch.seconds


@program(
    option("--clients", type=int, default=20),
    option("--repeats", type=int, default=5),
    option("--din", False, "DIN's published shape"),
)
def main(options: Options) -> dict[str, float]:
    """Interleaved rounds with an audit and without."""
    without: list[dict[str, float]] = []
    with_it: list[dict[str, float]] = []
    for _ in range(options.repeats + 1):
        for audited, rounds in ((False, without), (True, with_it)):
            plan = make_plan(options.clients, audited=audited, din=options.din)
            rounds.append(play(plan, options.clients))

    def median(rounds: list[dict[str, float]], what: str) -> float:
        return statistics.median(one[what] for one in rounds[1:])

    more = median(with_it, "clients") - median(without, "clients")
    both, replay = median(without, "servers"), median(with_it, "replay")
    print(f"a client: {1e3 * more / options.clients:+.3f} ms")
    print(
        f"both servers without an audit: {both:.3f} s; with it {median(with_it, 'servers'):.3f} s"
    )
    print(f"replay of one server: {replay:.3f} s, {100 * replay / both:.0f} % of both servers")
    print(f"transcripts: {median(with_it, 'transcripts'):.3f} s for both")
    print(f"bytes per report: {median(with_it, 'bytes') / options.clients:,.0f}")
    return {
        "client_ms": 1e3 * more / options.clients,
        "servers_seconds": both,
        "replay_seconds": replay,
        "replay_ratio": replay / both,
    }

"""Clients that write more than an honest one may, under plans with proofs: what each of them tries.

Where a lie (`lies`) makes a false statement, the client proves it with the honest code, which is
the best that is known.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import numpy as np

from scripts.attacks.lies import HONEST, KINDS, TAU, Lie, plan_to, plan_with
from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.crypto.flp_same import ZeroOrSame
from torchfsl.fsl.client import proof, report
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import carries
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Statement
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.submodel.norm_bound import four_squares
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Whole

CLIENTS: Final = 5
"""Honest ones."""


@contextlib.contextmanager
def lying(lie: Lie) -> Iterator[None]:
    """Within, clients' reports carry the lie."""
    real_carried, real_whole = report._carried, report._whole
    extra: list[Whole] = []

    def claimed(weight: int) -> int:
        return weight if lie.weight is None else lie.weight

    def whole(trees: Any, segment: TreeSegment, part: Any, weight: int) -> Whole:
        values = real_whole(trees, segment, part, claimed(weight))
        if lie.claim is not None:
            values[0] = lie.claim
        return values

    def sent(*given: Any) -> proof.Sent:
        return proof.Sent(*given[:-1], claimed(given[-1]))

    def carried(trees: Any, segment: TreeSegment, part: Any, weight: int) -> Any:
        data = real_carried(trees, segment, part, claimed(weight))
        if lie.values is None:
            return data
        bits = 8 * data.shape[-1]
        return ring.from_int64(lie.values(ring.to_int64(data)), bits)

    def slack(statement: Statement, true: Any, weight: int) -> Whole:
        found = _slack_of(statement, true, weight)
        return found if lie.slack is None else lie.slack(found)

    def grow(statement: Statement, context: Any, seeds: Any, wrapped: Whole) -> Any:
        wanted = wrapped if lie.wraps is None else lie.wraps(wrapped.copy())
        extra[:] = [wanted - wrapped]
        extra[0][1] += lie.twice
        return _GROW(statement, context, seeds, wanted)

    def hints(key: bytes, leaves: Any, values: Any) -> Any:
        values[0, 1] += np.uint64(lie.twice)
        return _HINTS(key, leaves, values)

    def inputs(self: Statement, parts: Any, sums: Any, bits: Any) -> Any:
        if lie.bits is not None:
            bits[:] = lie.bits(list(bits))
        if lie.proven is not None:
            parts = [(lie.proven(parts[0][0].copy()), 1)]
        if extra:  # what the servers will read: the client proves the best it can
            parts = [*parts, (extra.pop(), -(1 << self.ring_bits))]
        return _INPUTS(self, parts, sums, bits)

    def prove(self: Any, given: Any, seeds: Any) -> list[int]:
        made = _PROVE(self, given, seeds)
        return made if lie.proof is None else lie.proof(made)

    def of_weights(self: Any, values: Any, same: int, seeds: Any) -> list[int]:
        made = _PROVE_SAME(self, values, same, seeds)
        return made if lie.proof_of_weights is None else lie.proof_of_weights(made)

    with (
        mock.patch.object(ZeroOrSame, "prove", of_weights),
        mock.patch.object(report, "_whole", whole),
        mock.patch.object(report, "Sent", sent),
        mock.patch.object(report, "_carried", carried),
        mock.patch.object(proof, "_slack", slack),
        mock.patch.object(carries, "grow", grow),
        mock.patch.object(carries, "_hints", hints if lie.twice else _HINTS),
        mock.patch.object(Statement, "inputs", inputs),
        mock.patch.object(type(_SHAPE), "prove", prove),
    ):
        yield


_GROW: Final = carries.grow
_SLACK: Final = proof._slack
_HINTS: Final = carries._hints
_INPUTS: Final = Statement.inputs
_SHAPE: Final = plan_with("norm").statement.shape  # type: ignore[union-attr]
_PROVE: Final = type(_SHAPE).prove
_PROVE_SAME: Final = ZeroOrSame.prove


def _slack_of(statement: Statement, true: Any, weight: int) -> Whole:
    """Honest slack, zeros where a bound is exceeded, and the ring's largest where it is too far."""
    most = (1 << (statement.ring_bits - 1)) - 1

    def squares(left: int) -> list[int]:
        return [min(root, most) for root in four_squares(max(left, 0))]

    with mock.patch.object(proof, "four_squares", squares):
        return _SLACK(statement, true, weight)


def round_with(plan: Plan, lie: Lie | None) -> Opened:
    """A round of honest clients and, at the same row, of one that lies."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    link = InProcess(*servers)
    update = {
        "table": SegmentUpdate(np.array([3]), np.full((1, TAU), HONEST)),
        "bias": SegmentUpdate(None, np.ones((3, 1), dtype=np.int64)),
    }
    weight = min(2, plan.max_weight)
    for number in range(CLIENTS):
        Client(plan, link, client_id=number).start_round(1).submit(update, weight=weight)
    if lie is not None:
        with lying(lie):
            Client(plan, link, client_id=CLIENTS).start_round(1).submit(update, weight=weight)
    return finish_round(servers)


def run() -> AttackResult:
    """Whether each lie gets into the sum, without proofs and with them."""
    off = [CLIENTS in round_with(plan_to(lies, "none"), lie).clients
           for lies in KINDS for lie in lies.values()
           if not lie.wraps and (lie.values or lie.weight is not None or lie.claim is not None)
           ]  # fmt: skip
    on = [CLIENTS in round_with(plan_to(lies, "norm"), lie).clients
          for lies in KINDS for lie in lies.values()]  # fmt: skip
    plan = plan_with("norm")
    statement = plan.statement
    assert statement is not None
    ratio = _seconds(plan) / _seconds(plan_with("none"))
    return AttackResult(
        "clients that write too much",
        off=f"{sum(off)} of {len(off)} lies about values, counts and weights are in the sum",
        on=f"{sum(on)} of {len(on)} lies, about carries, slack and proofs, too",
        worked_off=all(off),
        worked_on=any(on),
        extra_bytes=statement.public_bytes + statement.private_bytes,
        time_ratio=ratio,
    )


def _seconds(plan: Plan) -> float:
    """Processor time of the fastest of some honest rounds."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        round_with(plan, None)
        seconds.append(time.process_time() - start)
    return min(seconds)

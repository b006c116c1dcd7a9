"""Plays clients that write more than an honest client may, under plans with proofs.

If a lie (`lies`) makes a false statement, the client proves the statement with the honest code. No
better method is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from scripts.attacks.forged_reports import Forgery, forge, grow, make_plan
from scripts.attacks.lies import HONEST, KINDS, TAU, Lie, plan_to, plan_with
from scripts.attacks.result import AttackResult, fastest
from scripts.parties import two_servers
from torchfsl.crypto.flp import ZeroOrSame
from torchfsl.fsl.client import proof, report
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import carries
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Statement
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import ranges
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.submodel.norm_bound import four_squares
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Whole

CLIENTS: Final = 5
"""Honest ones."""
ROW: Final = 3
HONEST_ROWS: Final = (ROW,) * CLIENTS


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


def round_with(
    plan: Plan, lie: Lie | AbstractContextManager[object] | None, rows: Sequence[int] = HONEST_ROWS
) -> Opened:
    """A round of honest clients at these rows and, at `ROW`, of one that lies or is altered."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    link, weight = InProcess(*servers), min(2, plan.max_weight)

    def submit(client: int, row: int) -> None:
        values = SegmentUpdate(np.array([row]), np.full((1, TAU), HONEST))
        update = {"table": values, "bias": SegmentUpdate(None, np.ones((3, 1), dtype=np.int64))}
        Client(plan, link, client_id=client).start_round(1).submit(update, weight=weight)

    for client, row in enumerate(rows):
        submit(client, row)
    if lie is not None:
        with lying(lie) if isinstance(lie, Lie) else lie:
            submit(CLIENTS, ROW)
    return finish_round(servers)


def lying_clients() -> AttackResult:
    """Whether each lie gets into the sum, without proofs and with them."""
    told = [(lies, lie) for lies in KINDS for lie in lies.values()]
    on = [CLIENTS in round_with(plan_to(lies, "norm"), lie).clients for lies, lie in told]
    off = [
        CLIENTS in round_with(plan_to(lies, "none"), lie).clients
        for lies, lie in told
        if not lie.wraps and (lie.values or (lie.weight, lie.claim) != (None, None))
    ]
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
    return fastest(lambda: round_with(plan, None))


_ATTACKS: Final = {"count -4": (-4, 0), "count 2**30": (1 << 30, 0), "value 2**27": (1, 1 << 27)}
"""By name, the count and the value that the attacker sends."""


def out_of_range() -> AttackResult:
    """Clients send what no honest one can: a negative count, a huge one, a value beyond the clip.

    Five honest clients send 80 at one row, under a plan whose mean divides by the count. One
    attacker sends to the same row. A mean above the clip of 100 would move the model by more than
    any honest cohort can; a mean near 0 freezes the row.
    """
    plan = counting_plan()
    off: dict[str, float] = {}
    with mock.patch.object(ranges, "zero_out_of_range", _leave):
        off = {name: mean_of(opened_with(plan, sent)) for name, sent in _ATTACKS.items()}
        seconds = _honest_seconds(plan)
    on = {name: opened_with(plan, sent) for name, sent in _ATTACKS.items()}
    ratio = _honest_seconds(plan) / seconds
    limit = plan.encoding.q_max
    return AttackResult(
        "values out of range",
        off="mean of the row, 80 without attack: "
        + ", ".join(f"{mean:.3g} ({name})" for name, mean in off.items()),
        on="row opened as 0 and counted: "
        + ", ".join(f"{opened.zeroed == {'values': 1}} ({name})" for name, opened in on.items()),
        worked_off=all(not 1 < abs(mean) <= limit for mean in off.values()),
        worked_on=any(_row(opened) != (0, 0) for opened in on.values()),
        time_ratio=ratio,
    )


def counting_plan(ring_bits: int = 32) -> Plan:
    """Eight scalars of magnitude up to 100 with a count of their clients."""
    plan = make_plan(8, 8, 0, 0)
    encoding = dataclasses.replace(plan.encoding, ring_bits=ring_bits)
    return dataclasses.replace(plan, lane="count", encoding=encoding)


def opened_with(plan: Plan, sent: tuple[int, int] | None) -> Opened:
    """A round of the honest clients, and of an attacker that sends (count, value) to the row."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    link = InProcess(*servers)
    for number in range(CLIENTS):
        update = {"values": SegmentUpdate(np.array([ROW]), np.array([[HONEST]]))}
        Client(plan, link, client_id=number).start_round(1).submit(update)
    if sent is not None:
        for party, message in sending(plan, CLIENTS, *sent).messages():
            link.send(party, message)
    return finish_round(servers)


def sending(plan: Plan, client: int, count: int, value: int) -> Forgery:
    """A report of trees that verify, with any count and value at the row."""
    report = forge(plan, client, 1, np.random.default_rng(0))
    whole = np.zeros((len(report.alpha), 2), dtype=np.int64)
    report.alpha[0] = plan.permutations(report.segment)[0][ROW]
    whole[0] = count, value
    report.values = ring.from_int64(whole, plan.encoding.ring_bits)
    grow(report)
    return report


def mean_of(opened: Opened) -> float:
    """The row's mean, as a server takes it."""
    count, total = _row(opened)
    return total / max(count, 1)


def _row(opened: Opened) -> tuple[int, int]:
    return int(opened.lanes["values"][ROW]), int(opened.sums["values"][ROW, 0])


def _leave(
    _plan: Plan, _s: object, _n: int, values: npt.NDArray[np.int64], *_: object
) -> npt.NDArray[np.bool_]:
    """Sums as they are, out of range or not."""
    return np.zeros(len(values), dtype=np.bool_)


def _honest_seconds(plan: Plan) -> float:
    return fastest(lambda: opened_with(plan, None))

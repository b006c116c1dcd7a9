"""The owner plans too few bins: rows that clients trained are left out, as the owner likes.

Under a layout of 6 bins for 6 rows most hash seeds leave some row of a guessed set without a bin.
The owner takes a seed under which the guessed set loses a row, and reads from that row's sum
whether the victim selected the set: alone the row finds a bin.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Indices

_ROWS: Final = 40
_GUESS: Final = np.array([1, 5, 11, 19, 27, 38])
_FLOORS: Final = ClientPolicy(joint_coin=False, sealed=False, min_clients=1)


def run() -> AttackResult:
    """The victim under the owner's plan, without floors and with the default ones."""
    plan = crowded_plan()
    guessed, fewer = _sum_of(plan, _GUESS), _sum_of(plan, _GUESS[:1])
    lost = [row for row in _GUESS.tolist() if not guessed[row]]
    try:
        _FLOORS.check(plan)
        seen = "the plan was accepted"
    except ParameterError as error:
        seen = f"refused: {error}"
    return AttackResult(
        "a layout that loses rows",
        off=f"the sum lacks row {lost} of a guessed set, so the victim selected the set",
        on=seen,
        worked_off=bool(lost) and bool(fewer[_GUESS[0]]),
        worked_on=not seen.startswith("refused"),
        cost="a rule, checked once a task",
    )


def crowded_plan() -> Plan:
    """6 bins for 6 rows, under the first hash seed that loses a row of the guess."""
    segment = TreeSegment(
        "t", "scalars", (TensorSpec("t", (_ROWS,)),), _ROWS, 1, len(_GUESS),
        num_bins=6, theta=_ROWS // 2, check_bytes=CHECK_BYTES,
    )  # fmt: skip
    plan = Plan(
        session=bytes(16).hex(), hash_seed=bytes(32).hex(), encoding=FixedPoint(), max_clients=2,
        min_clients=1, segments=(segment,),
    )  # fmt: skip
    for attempt in range(1000):
        seed = kdf.digest(b"attempt", attempt.to_bytes(2, "little")).hex()
        plan = dataclasses.replace(plan, hash_seed=seed)
        table = plan.permutations(segment)
        placed = cuckoo.place(table, _GUESS, segment.num_bins, segment.theta, segment.stash)
        if len(placed.unmatched):
            return plan
    raise AssertionError("every seed fits: the layout is not crowded")


def _sum_of(plan: Plan, rows: Indices) -> Indices:
    """What a round opens in which the victim sends ones on these rows."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    ones = np.ones((len(rows), 1), dtype=np.int64)
    Client(plan, servers, client_id=0).start_round(1).submit({"t": SegmentUpdate(rows, ones)})
    return finish_round(servers).sums["t"].reshape(-1)

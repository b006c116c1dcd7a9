"""Attacks of the coordinator by the plan that it makes, alone or with a server or client."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from itertools import count
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

import torchfsl
from scripts.attacks.forged_reports import flip_correction_words, forge, make_plan
from scripts.attacks.result import AttackResult, fastest, honest_plan, honest_round, ratio
from scripts.parties import plain_plan, two_servers
from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine import fetched
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl import costs
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.cuckoo.placement import Placement, Slots
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round, run_round
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.service.state.coins import CoinBook
from torchfsl.service.state.ledger import Ledger
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Indices

_WANTED: Final = "000"
_SEED_FLOORS: Final = ClientPolicy(sealed=False, min_clients=1)


def chosen_coin() -> AttackResult:
    """The coordinator and server 0 choose the hash seed after server 1 has shown its coin.

    With the defence off, the seed is a digest of both coins, and the servers do not commit to their
    coins. The party that shows its coin last tries coins until the seed suits. Here the seed suits
    if it begins with twelve zero bits. The party could search in the same way for a seed under
    which a guessed set of rows does not fit.

    With the defence on, both servers commit first.
    """
    plan = make_plan(8, 8, 0, 0)
    template = coin.template_of(plan)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "state.sqlite")
        honest = CoinBook(ledger, 1)
        honest.toss(template)
        said = coin.commitment(template, 0, bytes(coin.COIN_BYTES))
        shown = honest.reveal(template, said)
        chosen, tries = _chosen(plan, shown)
        _SEED_FLOORS.check(coin.with_coins(plan, chosen), coins=chosen)  # two coins make this seed
        try:
            honest.check(coin.with_coins(plan, chosen), chosen)
            seen = "server 1 accepts the seed"
        except ParameterError as error:
            seen = f"refused by server 1: {error}"
        again = (bytes(coin.COIN_BYTES), shown)
        honest.check(coin.with_coins(plan, again), again)
        ledger.close()
    return AttackResult(
        "a hash seed chosen by who speaks last",
        off=f"a seed of the owner's choice after {tries} tries",
        on=seen,
        worked_off=coin.with_coins(plan, chosen).hash_seed.startswith(_WANTED),
        worked_on=not seen.startswith("refused"),
        cost="three messages more, once a task",
    )


def _chosen(plan: Plan, shown: bytes) -> tuple[coin.Coins, int]:
    """A coin of server 0 that makes a wanted seed, and after how many tries."""
    for tries in count(1):
        coins = tries.to_bytes(coin.COIN_BYTES, "little"), shown
        if coin.with_coins(plan, coins).hash_seed.startswith(_WANTED):
            return coins, tries
    raise AssertionError("count() ends")


_FLOORS = ClientPolicy(joint_coin=False, sealed=False, min_clients=1)


def unverified_plan() -> AttackResult:
    """A plan without check words: a malicious client writes to rows that it may not touch.

    The plan states whether servers check trees, and the coordinator alone makes the plan. The
    client alters correction words of its report. Every leaf below such a word becomes garbage in
    the sum.
    """
    plan = make_plan(64, 64, 0, 1, verified=False)
    ruined = _ruined_rows(plan)
    seen = outcome(plan)
    checked, unchecked = (honest_plan(malicious_security=on) for on in (True, False))
    return AttackResult(
        "a plan without check words",
        off=f"one report of {plan.segments[0].num_trees} trees ruined {ruined} rows",
        on=seen,
        worked_off=ruined > plan.segments[0].num_trees,
        worked_on=not seen.startswith("refused"),
        extra_bytes=costs.client_bytes(checked) - costs.client_bytes(unchecked),
        time_ratio=ratio(lambda: honest_round(unchecked), lambda: honest_round(checked)),
    )


def outcome(plan: Plan) -> str:
    """A client's verdict on a plan, by the minimum requirements `_FLOORS`."""
    try:
        _FLOORS.check(plan)
    except ParameterError as error:
        return f"refused: {error}"
    return "the plan was accepted"


def _ruined_rows(plan: Plan) -> int:
    """Rows of the aggregate that no honest clients could make."""
    rng = np.random.default_rng(1)
    servers = two_servers(plan)
    begin_round(servers, 1)
    report = forge(plan, 0, 1, rng)
    for tree in report.trees:  # the first levels of the first trees: much lies below them
        tree.cw[0] ^= 0x10
    flip_correction_words(report, rng)
    wire = InProcess(*servers)
    for party, message in report.messages():
        wire.send(party, message)
    opened = finish_round(servers)  # what is out of range is zeroed, and counted
    return opened.zeroed["values"]


_ROWS: Final = 40
_GUESS: Final = np.array([1, 5, 11, 19, 27, 38])


def crowded_layout() -> AttackResult:
    """The coordinator plans too few bins, so that rows of its choice are missing in the sum.

    Under a layout of 6 bins for 6 rows, most hash seeds leave some row of a guessed set without a
    bin. The coordinator takes a seed under which the guessed set loses a row. From that row's sum
    it reads whether the victim selected the set, because the row alone finds a bin.
    """
    plan = crowded_plan()
    guessed, fewer = _sum_of(plan, _GUESS), _sum_of(plan, _GUESS[:1])
    lost = [row for row in _GUESS.tolist() if not guessed[row]]
    seen = outcome(plan)
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
    sizes = {"num_bins": 6, "theta": _ROWS // 2, "check_bytes": CHECK_BYTES}
    tensor = TensorSpec("t", (_ROWS,))
    segment = TreeSegment("t", "scalars", (tensor,), _ROWS, 1, len(_GUESS), **sizes)
    plan = plain_plan(segment, encoding=FixedPoint(), max_clients=2)
    for attempt in range(1000):
        seed = kdf.digest(b"attempt", attempt.to_bytes(2, "little")).hex()
        plan = dataclasses.replace(plan, hash_seed=seed)
        table = plan.permutations(segment)
        placed = cuckoo.place(table, _GUESS, segment.num_bins, segment.theta, segment.stash)
        if len(placed.unmatched):
            return plan
    raise AssertionError("every seed fits: the layout is not crowded")


def _sum_of(plan: Plan, rows: Indices) -> Indices:
    """The aggregate of a round in which the victim sends ones on these rows."""
    ones = np.ones((len(rows), 1), dtype=np.int64)
    update = {"t": SegmentUpdate(rows, ones)}
    return run_round(two_servers(plan), {0: update}, round_number=1).sums["t"].reshape(-1)


_SIGMA: Final = 3
_ROUNDS: Final = 900
_ALLOWED: Final = 10
_VALUES: Final = np.array([[3], [-7], [0], [12], [5], [-1], [9], [2]])


def many_rounds() -> AttackResult:
    """The coordinator opens more rounds than the noise was made for, and takes their mean.

    This mean is the plain value. The victim sends the same update in every round, and a sybil sends
    zeros. The noise of one round hides the update, but the noise of many rounds averages out.
    """
    segment = TreeSegment("d", "dense", (TensorSpec("d", (8,)),), 8, 1, 8)
    fields = {"encoding": FixedPoint(64, 0, 100.0), "l2_bound": 30, "noise_sigma": _SIGMA}
    plan = plain_plan(segment, max_clients=2, min_clients=2, **fields)
    free, right = _mean(plan)
    bound, of_bound = _mean(dataclasses.replace(plan, max_rounds=_ALLOWED))
    return AttackResult(
        "more rounds than the budget",
        off=f"{right} of 8 values read exactly from {free} rounds",
        on=f"refused after {bound} rounds, {of_bound} of 8 values right by chance",
        worked_off=right == len(_VALUES),
        worked_on=bound > _ALLOWED or of_bound == len(_VALUES),
        cost="a rule: one number in the ledger",
    )


def _mean(plan: Plan) -> tuple[int, int]:
    """Rounds that the servers opened, and values right in the rounded mean of their sums."""
    rng = np.random.default_rng(7)

    def draw(sigma: int, count: int) -> npt.NDArray[np.int64]:
        return np.rint(rng.normal(0, sigma, count)).astype(np.int64)

    servers = two_servers(plan, draw_noise=draw)
    updates = {
        0: {"d": SegmentUpdate(None, _VALUES)},
        1: {"d": SegmentUpdate(None, np.zeros_like(_VALUES))},
    }
    total, opened = np.zeros_like(_VALUES), 0
    for number in range(_ROUNDS):
        try:
            total += run_round(servers, updates, round_number=number).sums["d"]
        except ProtocolError:
            break
        opened += 1
    return opened, int(np.count_nonzero(np.rint(total / opened) == _VALUES))


_SHARED: Final = 0
_ALONE: Final = 5
_SECRET: Final = 77


def few_contributors() -> AttackResult:
    """The servers open a row that one client alone has touched: the sum is that client's row.

    Three clients share row 0, and one of them alone has row 5. Any server, and any party that sees
    the aggregate, reads row 5 as the client sent it.
    """
    plan = dataclasses.replace(make_plan(8, 8, 0, 0), lane="count")
    guarded = dataclasses.replace(plan, min_contributors=2)
    (off, seconds), (on, guarded_seconds) = _best(plan), _best(guarded)
    return AttackResult(
        "rows of few clients",
        off=f"one client's row opened as {_read(off, _ALONE)}; it sent {_SECRET}",
        on=f"that row opened as {_read(on, _ALONE)}, the shared one as {_read(on, _SHARED)} of 30",
        worked_off=_read(off, _ALONE) == _SECRET,
        worked_on=_read(on, _ALONE) != 0 or _read(on, _SHARED) != 30,
        time_ratio=guarded_seconds / seconds,
    )


def _read(opened: Opened, row: int) -> int:
    return int(opened.sums["values"][row, 0])


def _best(plan: Plan) -> tuple[Opened, float]:
    """The aggregates, and the fastest of some rounds."""
    shared = SegmentUpdate(np.array([_SHARED]), np.array([[10]]))
    both = SegmentUpdate(np.array([_SHARED, _ALONE]), np.array([[10], [_SECRET]]))
    updates = {number: {"values": part} for number, part in enumerate((shared, shared, both))}
    play = functools.partial(run_round, updates=updates, round_number=1)
    return play(two_servers(plan)), fastest(lambda: play(two_servers(plan)))


LOST_ROW: Final = 3
HOLDING, NOT_HOLDING = (1, LOST_ROW, 8), (1, 4, 8)


class _Model(torch.nn.Module):
    """A table and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(30, 2)
        self.out = torch.nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """One number an id."""
        return self.out(self.table(ids))


_place = cuckoo.place


def _place_but_the_guess(
    table: Slots | None, indices: Indices, num_bins: int, theta: int, stash: int
) -> Placement:
    """`cuckoo.place` under a hash seed for which the guessed row finds no bin."""
    placed = _place(table, indices, num_bins, theta, stash)
    lost = np.flatnonzero(indices == LOST_ROW)
    item = np.where(np.isin(placed.item, lost), -1, placed.item)
    return Placement(item, placed.position, np.union1d(placed.unmatched, lost))


def dense_sum_shows(rows: tuple[int, ...], *, on: bool) -> bool:
    """Whether the client's part is missing from the dense sum of a round."""
    model = _Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(
        model, optimizer, max_clients=2, min_clients=1, rows_per_client=8, above_break_even="keep"
    )
    servers = fed.local_servers()
    with contextlib.ExitStack() as patched, servers.round() as result:
        patched.enter_context(mock.patch.object(cuckoo, "place", _place_but_the_guess))
        if not on:
            off = mock.patch.object(fetched, "zeros_for_missing", lambda _, *found: found)
            patched.enter_context(off)
        with contextlib.suppress(ParameterError):
            ids = torch.tensor(rows)
            with fed.round(servers, 0, rows={"table": ids}):
                model(ids).square().sum().backward()
                optimizer.step()
    return not np.any(result.sums["rest"])


def crowded_rows() -> AttackResult:
    """Rows that find no bin, and what the dense sum shows of them.

    Whoever chose the hash seed can choose one under which a guessed row of a client finds no bin
    (here the row is taken out of the placement). With the defence off the client trains on a row of
    NaN, its update cannot be encoded, it sends dummies, and the dense sum lacks it: the guess was
    right. With it on it trains with zeros there, and only that row's update is missing, in the
    residual.
    """
    told = {
        on: dense_sum_shows(HOLDING, on=on) and not dense_sum_shows(NOT_HOLDING, on=on)
        for on in (False, True)
    }
    return AttackResult(
        name="a row without a bin voids the report",
        off="whether the client holds the guessed row, from the dense sum",
        on="the dense sum has the client's part either way",
        worked_off=told[False],
        worked_on=told[True],
        cost="a rule: the row trains as zero",
    )

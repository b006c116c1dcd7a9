"""Sends forged reports to two real servers and compares verdicts with an exact oracle.

    python -m scripts.attacks.attack_reports                  # 100,000 forged and 100,000 honest
    python -m scripts.attacks.attack_reports --count 800 --honest 800 --json attack.json

The attacker is a client. It recomputes the commitment and all framing, so that only the check of
the trees can refuse its report. There are eight classes, with equally many reports each:

    seeds             bits flipped in the master seed that one server gets
    control_bits      bits flipped in control corrections
    correction_words  bits flipped in seed corrections
    check_words       bits flipped in check words
    hints             bits flipped in hints
    merged_keys       trees put together from two honest ones
    two_points        a tree made by hand that selects two leaves
    equal_roots       equal seeds with unequal control bits: every leaf carries the value

The oracle derives the right verdict from both keys, which it expands with the portable reference.
For every tree it finds the leaves at which the servers' states (seed and control bit) differ. It
also finds the blocks of the sum that are not zero. Only a leaf that differs can have such a block.

    1. A tree has more than one nonzero block: the servers must refuse the report.
    2. Every tree has at most one leaf that differs, with unequal control bits. The check word is
       the XOR of the leaf hashes there, or any word if no leaf differs. The servers must accept
       the report, whatever the hints.
    3. Anything else: the servers must also refuse the report, though no tree has more than one
       nonzero block. The check is stricter here than the count of blocks.

Case 3 includes check words that do not fit. It includes a leaf with equal control bits, whose block
is noise that no check word can cover. It also includes two leaves that differ, where one block
happens to be zero. No honest client ever makes one of these trees.

So "at most one block, therefore accepted" holds for all trees that an honest client could have
made, and for all hints. This rule fails on purpose in case 3, and the table counts that case by
class. Flips in hints never change the verdict, because the check certifies trees. Every hint on a
certified tree is a point function.

The program also sends honest reports, and the servers must accept all of them. In other reports it
alters the public share after the commitment, and the servers must refuse all of these by the hash.
The exit code is 1 on any deviation.

The script fails if a check always passes or leaves the control bit out of the hash.
`tests/scripts/test_attack_reports.py` shows that.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.attacks.forged_reports import (
    CLASSES,
    PLANS,
    RECOMPUTES_CHECK,
    Forgery,
    copy_report,
    expand,
    fit_check_words,
    flip,
    forge,
    is_regular,
    make_plan,
)
from scripts.parties import close_and_verify, two_servers
from scripts.program import Found, Options, option, program
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess


@dataclass
class Tally:
    """Counts of one class."""

    reports: int = 0
    refused: int = 0
    more_than_one_block: int = 0
    refused_at_most_one_block: int = 0
    changed_sum: int = 0
    wrong: int = 0

    def add(self, other: Tally) -> None:
        """Sum, field by field."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def accepted_by(servers: tuple[Server, Server], reports: list[Forgery]) -> set[int]:
    """Clients whose reports both servers accept in the open round, which then ends unopened."""
    wire = InProcess(*servers)
    for report in reports:
        for party, message in report.messages():
            wire.send(party, message)
    passed = close_and_verify(servers)
    for server in servers:
        server.abandon_round()
    if passed[0] != passed[1]:
        raise AssertionError("the servers disagree")
    return set(passed[0])


def judge(report: Forgery, original: Forgery, accepted: bool) -> Tally:
    """Compare the servers' verdict on one report with the oracle's."""
    parts = expand(report)
    blocks = max(int(part.carries.sum(axis=1).max()) for part in parts)
    honest = expand(original)
    changed = any(
        not np.array_equal(mine.blocks, true.blocks)
        for mine, true in zip(parts, honest, strict=True)
    )
    regular = is_regular(report, parts)
    wrong = accepted != regular or (accepted and blocks > 1)
    return Tally(1, not accepted, blocks > 1, not accepted and blocks <= 1, changed, wrong)


def _not_a_refusal(record: logging.LogRecord) -> bool:
    return "failed verification" not in record.getMessage()


def play(task: tuple[int, int, tuple[str, ...]]) -> dict[str, Tally]:
    """One round of one report for each class named; `honest` may be among them."""
    seed, shape, names = task
    logging.getLogger("torchfsl.server").addFilter(_not_a_refusal)
    rng = np.random.default_rng(seed)
    plan = make_plan(*PLANS[shape % len(PLANS)], max_clients=len(names) + 1)
    servers = two_servers(plan)
    begin_round(servers, 1)
    originals = [forge(plan, i, 1, rng) for i in range(len(names) + 1)]
    reports = [copy_report(original) for original in originals]
    for name, report in zip(names, reports, strict=False):  # the last one keeps the round open
        if name != "honest":
            CLASSES[name](report, rng)
        if name in RECOMPUTES_CHECK and rng.integers(2):
            fit_check_words(report)
    accepted = accepted_by(servers, reports)
    tallies: dict[str, Tally] = {}
    for i, name in enumerate(names):
        tallies.setdefault(name, Tally()).add(judge(reports[i], originals[i], i in accepted))
    return tallies


def play_relays(task: tuple[int, int]) -> Tally:
    """Honest reports whose public share one server alters before it relays it."""
    seed, count = task
    rng = np.random.default_rng(seed)
    plan = make_plan(*PLANS[seed % len(PLANS)], max_clients=count)
    servers = two_servers(plan)
    begin_round(servers, 1)
    tally = Tally()
    for client in range(count):
        report = forge(plan, client, 1, rng)
        (second, commitment), (first, public) = report.messages()
        servers[second].receive(commitment)
        servers[first].receive(public)
        message = servers[first].relay(messages.Kind.REPORT_RELAY, client)
        relay = np.frombuffer(message, dtype=np.uint8).copy()
        flip(relay[messages.HEADER_BYTES :], rng)
        tally.reports += 1
        tally.changed_sum += 1
        try:
            servers[second].receive(relay.tobytes())
        except RejectedSubmission:
            tally.refused += 1
    tally.wrong = tally.reports - tally.refused
    return tally


# --- the command --------------------------------------------------------------------------------

ROUND = 240


def tasks(count: int, honest: int, seed: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Rounds of `ROUND` reports: `count` forged ones, evenly over the classes, and honest ones."""
    names = [list(CLASSES)[i % len(CLASSES)] for i in range(count)] + ["honest"] * honest
    for number, start in enumerate(range(0, len(names), ROUND)):
        yield seed * 1_000_003 + number, number, tuple(names[start : start + ROUND])


def run(
    count: int, honest: int, relays: int, *, seed: int = 0, processes: int = 1
) -> dict[str, Tally]:
    """Play all rounds; tallies by class, `honest`, and `after_commitment`."""
    rounds = list(tasks(count, honest, seed))
    flips = [(seed + i, min(ROUND, relays - i)) for i in range(0, relays, ROUND)]
    total: dict[str, Tally] = {}
    if processes > 1:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            _collect(total, _progress(pool.imap_unordered(play, rounds), len(rounds)))
            parts = list(pool.imap_unordered(play_relays, flips))
    else:
        _collect(total, _progress(map(play, rounds), len(rounds)))
        parts = [play_relays(task) for task in flips]
    for part in parts:
        total.setdefault("after_commitment", Tally()).add(part)
    return total


def _collect(total: dict[str, Tally], parts: Iterable[dict[str, Tally]]) -> None:
    for part in parts:
        for name, tally in part.items():
            total.setdefault(name, Tally()).add(tally)


def _progress(parts: Iterable[Any], length: int) -> Iterable[Any]:
    if not sys.stderr.isatty():
        return parts
    try:
        from tqdm import tqdm
    except ImportError:
        return parts
    return tqdm(parts, total=length, unit="round")


@program(
    option("--count", 100_000, "forged reports, all classes"),
    option("--honest", int, "honest reports (as --count)"),
    option("--relays", int, "altered relays (a tenth)"),
    option("--seed", 0),
    option("--processes", 1),
)
def main(options: Options) -> Found:
    """Run and print the table; fails if anything deviates."""
    os.environ.setdefault("TORCHFSL_THREADS", "1")
    honest = options.count if options.honest is None else options.honest
    relays = options.count // 10 if options.relays is None else options.relays
    total = run(options.count, honest, relays, seed=options.seed, processes=options.processes)
    print(
        f"{'class':18}{'reports':>9}{'refused':>9}{'>1 block':>10}{'refused, <=1 block':>20}"
        f"{'would change sum':>18}{'wrong':>7}"
    )
    for name, t in total.items():
        print(
            f"{name:18}{t.reports:>9}{t.refused:>9}{t.more_than_one_block:>10}"
            f"{t.refused_at_most_one_block:>20}{t.changed_sum:>18}{t.wrong:>7}"
        )
    wrong = sum(t.wrong for t in total.values())
    print("every verdict is the expected one" if not wrong else f"{wrong} verdicts are wrong")
    classes = {name: dataclasses.asdict(tally) for name, tally in total.items()}
    return {"classes": classes, "wrong": wrong, "ok": not wrong}

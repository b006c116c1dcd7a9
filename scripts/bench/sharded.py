"""Costs of spreading one server's evaluation over shards, compared with one process.

    python -m scripts.bench.sharded [--rows 131072] [--width 8] [--k-max 256] [--reports 64]
                                    [--shards 1 2] [--threads 2] [--repeat 5]
                                    [--grid in-process|ray] [--json FILE]

One server's work on a round has two parts. The first is the answers, of clients who all wait from
the beginning. The second is the rest: taking reports, the check, the share. Both parts go by
windows. The ways are one process with one thread ("local"), one process with `--threads` threads,
and each number of shards of one thread. All ways work on the same reports, by turns, and the
program compares their bytes each time.

The program compares processor seconds of the front and its shards. The time of Ray's own processes
meanwhile, idle or not, has separate lines. Cores that work at once share a cache and memory, so
that the same work takes more processor seconds on two cores than on one. This effect is in
"shards 2 / local" and in "threads 2 / local", not in "shards 2 / threads 2".

Wall seconds are useful on a quiet machine only. `ray` starts a cluster on this machine alone,
without token and TLS. `in-process` shows the cost of cutting and packing without Ray.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from scripts.bench import measure
from scripts.parties import spread_update, two_servers
from scripts.program import Found, Options, option
from torchfsl.crypto.entropy import random_bytes
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.estimates.measuring import rows_plan
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.evaluation import Evaluator, LocalEvaluator
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.transport import InProcess
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.integrations.ray.grid import InProcessGrid

Turn: TypeAlias = tuple[float, float, float, object]
"""Processor seconds of front and shards, those of all else below, wall seconds, result."""


def draw_nothing(sigma: int, count: int) -> Any:
    """The plan has no noise."""
    raise AssertionError((sigma, count))


class Work:
    """Reports at server 0, and what an evaluator does with them."""

    def __init__(self, plan: Plan, reports: int) -> None:
        servers = two_servers(plan)
        begin_round(servers, 0)
        for number in range(reports):
            update = spread_update(plan, number)
            wanted = {s.name: update[s.name].positions for s in plan.retrieving}
            client = Client(plan, InProcess(*servers), client_id=number)
            client.start_round(0, indices=wanted).submit(update)
        self.model = servers[0].model
        self.reports: dict[int, Report] = servers[0].reports.complete()
        self.key = random_bytes(32)

    def answers(self, one: Evaluator) -> object:
        """Answers for all clients."""
        asked = list(self.reports.values())
        said = [
            bytes(one.answer(report, self.model, asked[number:]).sealed)  # the others are answered
            for number, report in enumerate(asked)
        ]
        one.close()
        return said

    def sums(self, one: Evaluator) -> object:
        """All the rest of a round."""
        for report in self.reports.values():
            one.take(report)
        folds = one.folds(self.reports, self.key)
        share = bytes(one.share(list(self.reports.values())))
        one.end()
        return folds, share


def spent_by(processes: Sequence[int]) -> float:
    """Processor seconds of this process and of others."""
    return time.process_time() + sum(map(_spent_by, processes))


def _spent_by(process: int) -> float:
    """As clock_getcpuclockid(3) names the clock of another process on Linux."""
    try:
        return time.clock_gettime(~process << 3 | 2)
    except OSError:
        return 0.0  # it has ended


def descendants(process: int) -> list[int]:
    """All processes below one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue
    found, fresh = [], [process]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


@dataclass
class Way:
    """One way to evaluate.

    Attributes:
        name: of it.
        threads: of this process.
        one: the evaluator.
        shards: processes that work for it.
        turns: by part.
    """

    name: str
    threads: int
    one: Evaluator
    shards: list[int] = field(default_factory=list)
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def turn(self, part: Callable[[Evaluator], object]) -> Turn:
        """Let it do a part of the work."""
        os.environ["TORCHFSL_THREADS"] = str(self.threads)
        others = [process for process in descendants(os.getpid()) if process not in self.shards]
        own, rest, start = spent_by(self.shards), sum(map(_spent_by, others)), time.perf_counter()
        said = part(self.one)
        seconds = time.perf_counter() - start
        spent = spent_by(self.shards) - own
        return spent, sum(map(_spent_by, others)) - rest, seconds, said


def sharded_way(plan: Plan, count: int, grid: str) -> Way:
    """With so many shards, which are started."""
    opened: Any
    if grid == "in-process":
        opened = InProcessGrid(plan, 0, count)
    else:
        from torchfsl.integrations.ray.actors import RayGrid

        opened = RayGrid(plan, 0, count, environment={"TORCHFSL_THREADS": "1"})
    one = ShardedEvaluator(plan, 0, draw_nothing, lambda: None, open_grid=lambda *_: opened)
    processes = [] if grid == "in-process" else [process for process, _ in opened.processes()]
    return Way(f"shards {count}", 1, one, processes)


def compared(figures: dict[str, Any], ways: Sequence[Way], parts: Sequence[str]) -> None:
    """Medians over the turns: of each way, over the first way, and of shards among themselves."""

    def both(way: Way, which: int) -> dict[str, list[float]]:
        found = {part: [float(one[which]) for one in way.turns[part]] for part in parts}  # type: ignore[arg-type]
        return found | {"both": [sum(pair) for pair in zip(*found.values(), strict=True)]}

    def over(name: str, first: Way, second: Way, which: int) -> None:
        left, right = both(first, which), both(second, which)
        for part in left:
            pairs = zip(left[part], right[part], strict=True)
            figures[f"{part}, {name}"] = statistics.median(a / b for a, b in pairs)

    for way in ways:
        for which, what in ((0, ""), (2, ", wall"), (1, ", Ray itself")):
            for part, found in both(way, which).items() if which != 1 or way.shards else ():
                figures[f"{part} {way.name}{what}"] = statistics.median(found)
    local, threads, *sharded = ways
    for way in (threads, *sharded):
        over(f"{way.name} / {local.name}", way, local, 0)
    for way in sharded:
        if way.name == f"shards {threads.threads}":
            over(f"{way.name} / {threads.name}", way, threads, 0)
        if way is not sharded[0]:
            over(f"wall, {sharded[0].name} / {way.name}", sharded[0], way, 2)
    for way in sharded:
        if way.shards:
            figures[f"peak bytes, {way.name}"] = max(
                measure.status_bytes("VmHWM", shard) for shard in way.shards
            )


@measure.benchmark(
    option("--rows", 1 << 17),
    option("--width", 8),
    option("--k-max", 256),
    option("--reports", 64),
    option("--threads", 2),
    option("--repeat", 5),
    option("--shards", [1, 2]),
    option("--grid", "ray", choices=["in-process", "ray"]),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    os.environ["TORCHFSL_THREADS"] = "1"
    plan = rows_plan(options.rows, options.width, options.k_max, options.reports)
    work = Work(plan, options.reports)
    if options.grid == "ray":
        import ray

        quiet: Any = {"include_dashboard": False, "log_to_driver": False}
        ray.init(num_cpus=sum(options.shards), object_store_memory=2 << 30, **quiet)
    ways = [
        Way(name, threads, LocalEvaluator(plan, 0, draw_nothing, lambda: None))
        for name, threads in (("local", 1), (f"threads {options.threads}", options.threads))
    ]
    ways += [sharded_way(plan, count, options.grid) for count in options.shards]
    for number in range(options.repeat + 1):
        for name, part in (("answers", work.answers), ("sums", work.sums)):
            turns = [way.turn(part) for way in ways]
            assert all(turn[3] == turns[0][3] for turn in turns), "the bytes differ"
            if number:  # the first warms memory up
                for way, turn in zip(ways, turns, strict=True):
                    way.turns.setdefault(name, []).append(turn)
    compared(figures, ways, ("answers", "sums"))
    for name in list(figures)[2:]:
        measure.print_figure(name, figures[name])

"""What it costs to spread one server's evaluation over shards, beside one process.

    python -m scripts.bench.sharded [--rows 131072] [--width 8] [--k-max 256] [--reports 64]
                                    [--shards 2] [--repeat 5] [--grid in-process|ray] [--json FILE]

One server's work on a round, in two parts: answers, one call a client and shard, and the rest
(reports taken, the check, the share), which goes by windows. Both ways work on the same reports, by
turns, and their bytes are compared each time. Compared are processor seconds of the front and its
shards; what Ray's own processes took meanwhile, idle or not, has lines of its own. Seconds say
something on a quiet machine only. `ray` starts a cluster on this machine alone, without token and
TLS, whose actors have one thread each; `in-process` shows what cutting and packing cost without it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench import measure
from torchfsl.crypto.entropy import random_bytes
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.estimates.measuring import rows_plan
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.evaluation import Evaluator, LocalEvaluator
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.integrations.ray.grid import Grid, InProcessGrid
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate

TICKS = os.sysconf("SC_CLK_TCK")


def draw_nothing(sigma: int, count: int) -> Any:
    """The plan has no noise."""
    raise AssertionError((sigma, count))


class Work:
    """Reports at server 0, and what an evaluator does with them."""

    def __init__(self, plan: Plan, reports: int) -> None:
        state = {t.name: np.zeros(t.shape, dtype=t.dtype) for s in plan.segments for t in s.tensors}
        servers = tuple(Server(b, plan=plan, model=ServerModel(state)) for b in (0, 1))
        begin_round((servers[0], servers[1]), 0)
        for number in range(reports):
            self._report(plan, InProcess(servers[0], servers[1]), number)
        self.model = servers[0].model
        self.reports: dict[int, Report] = servers[0].reports.complete()
        self.key = random_bytes(32)

    def answers(self, one: Evaluator) -> object:
        """Answers for all clients."""
        asked = list(self.reports.values())  # all wait from the beginning
        said = [bytes(one.answer(r, self.model, asked).sealed) for r in asked]
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

    def _report(self, plan: Plan, link: InProcess, number: int) -> None:
        update = {}
        for s in plan.segments:
            step = s.m // s.k_max
            rows = np.sort((np.arange(s.k_max) * step + number) % s.m).astype(np.int64)
            update[s.name] = SegmentUpdate(rows, np.ones((s.k_max, s.tau), dtype=np.int64))
        wanted = {s.name: update[s.name].positions for s in plan.retrieving}
        Client(plan, link, client_id=number).start_round(0, indices=wanted).submit(update)


def spent_by(processes: Sequence[int]) -> float:
    """Processor seconds of this process and of others."""
    return time.process_time() + sum(map(_spent_by, processes))


def _spent_by(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


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


def peak_bytes(process: int) -> int:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError(process)


Turn = tuple[float, float, float, object]


def turn(part: Callable[[Evaluator], object], one: Evaluator, shards: Sequence[int]) -> Turn:
    """Processor seconds of front and shards, of all else below, seconds, and what was said."""
    others = [process for process in descendants(os.getpid()) if process not in shards]
    own, rest, start = spent_by(shards), sum(map(_spent_by, others)), time.perf_counter()
    said = part(one)
    seconds = time.perf_counter() - start
    return spent_by(shards) - own, sum(map(_spent_by, others)) - rest, seconds, said


def opener(options: Any, grids: list[Any]) -> Callable[[Plan, int], Grid]:
    """Opens the grid that was asked for, and notes it."""

    def open_grid(plan: Plan, party: int) -> Grid:
        if options.grid == "in-process":
            grids.append(InProcessGrid(plan, party, options.shards))
            return grids[-1]
        import ray

        from torchfsl.integrations.ray.actors import RayGrid

        ray.init(num_cpus=options.shards, include_dashboard=False, log_to_driver=False,
                 object_store_memory=2 << 30)  # fmt: skip
        one_thread = {"TORCHFSL_THREADS": "1"}
        grids.append(RayGrid(plan, party, options.shards, environment=one_thread))
        return grids[-1]

    return open_grid


def main() -> None:
    """Measure and print."""
    parser = measure.make_parser(__doc__)
    for name, value in (("rows", 1 << 17), ("width", 8), ("k-max", 256), ("reports", 64),
                        ("shards", 2), ("repeat", 5)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--grid", choices=["in-process", "ray"], default="ray")
    options = parser.parse_args()
    os.environ["TORCHFSL_THREADS"] = "1"
    figures = measure.begin(options)
    plan = rows_plan(options.rows, options.width, options.k_max, options.reports)
    work, grids = Work(plan, options.reports), []  # type: tuple[Work, list[Any]]
    whole = LocalEvaluator(plan, 0, draw_nothing, lambda: None)
    parts = ShardedEvaluator(plan, 0, draw_nothing, lambda: None, open_grid=opener(options, grids))
    rounds: dict[str, list[tuple[Turn, Turn]]] = {"answers": [], "sums": []}
    shards: list[int] = []
    for number in range(options.repeat + 1):
        for name, part in (("answers", work.answers), ("sums", work.sums)):
            first, second = turn(part, whole, shards), turn(part, parts, shards)
            assert first[3] == second[3], "the bytes differ"
            if number:  # the first warms memory up, and starts processes
                rounds[name].append((first, second))
        if options.grid == "ray":
            shards = [process for process, _ in grids[0].processes()]
    for name, pairs in rounds.items():
        for way, who in enumerate(("local", "sharded")):
            figures[f"{name} {who}"] = statistics.median(pair[way][0] for pair in pairs)
            figures[f"{name} {who}, wall"] = statistics.median(pair[way][2] for pair in pairs)
        figures[f"{name}, Ray itself"] = statistics.median(second[1] for _, second in pairs)
        ratio = statistics.median(second[0] / first[0] for first, second in pairs)
        figures[f"{name}, sharded / local"] = ratio
    if options.grid == "ray":
        figures["peak bytes of a shard"] = max(map(peak_bytes, shards))
    for name in list(figures)[2:]:
        measure.print_figure(name, figures[name])
    measure.finish(options, figures)


if __name__ == "__main__":
    main()

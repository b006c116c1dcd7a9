"""Costs of the engine's hooks per training step: DIN, batch 64, 200,000 embedding rows.

    python -m scripts.bench.engine [--steps 40] [--repeats 3] [--threads 1] [--json FILE]

One model trains on each batch twice, once with the hooks and once without them. The order changes
from step to step, so that both see the same memory and the same machine. Times are processor
seconds of this process, which other load changes little. A ratio is the median time with hooks
divided by the median without them, over the steps of a round.

The program repeats each round with a new model and prints the middle ratio with the lowest and the
highest. It draws ids uniformly from the whole tables or by popularity (Zipf). Uniform ids are the
worst case for the hooks, because almost every id is new and the hooks save its row.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from models import DIN
from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl import Federated, Rows
from torchfsl.engine.hooks import Hooks

ITEMS, CATEGORIES, USERS, BATCH, HISTORY = 146_000, 5_000, 49_000, 64, 100
OPTIMIZERS: dict[str, Any] = {
    "SGD": torch.optim.SGD,
    "SGD sparse": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
    "Adam": torch.optim.Adam,
}


def batch(
    generator: torch.Generator, zipf: bool = False
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Uniform ids, or row r with probability about 1 / r."""

    def draw(high: int, *shape: int) -> torch.Tensor:
        if not zipf:
            return torch.randint(0, high, shape, generator=generator)
        return (high ** torch.rand(shape, generator=generator, dtype=torch.float64)).long() - 1

    inputs = {
        "user": draw(USERS, BATCH),
        "target": draw(ITEMS, BATCH),
        "target_category": draw(CATEGORIES, BATCH),
        "history": draw(ITEMS, BATCH, HISTORY),
        "history_category": draw(CATEGORIES, BATCH, HISTORY),
        "mask": torch.ones(BATCH, HISTORY, dtype=torch.bool),
    }
    return inputs, torch.randint(0, 2, (BATCH,), generator=generator)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: Any) -> float:
    """Processor seconds of one training step."""
    inputs, labels = data
    start = time.process_time()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(**inputs), labels).backward()
    optimizer.step()
    return time.process_time() - start


@contextlib.contextmanager
def without_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Take all hooks out for a while."""
    places: list[Any] = [module._forward_pre_hooks for module in model.modules()]
    places += [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    kept = [dict(place) for place in places]
    for place in places:
        place.clear()
    yield
    for place, hooks in zip(places, kept, strict=True):
        place.update(hooks)


def compare(name: str, source: str, find: str, ids: str, steps: int) -> dict[str, Any]:
    """Figures of one round: the same steps with hooks and without them."""
    torch.manual_seed(0)
    model = DIN(items=ITEMS, categories=CATEGORIES, users=USERS)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = name.endswith(" sparse")
    optimizer = OPTIMIZERS[name](model.parameters(), lr=0.01)
    options: dict[str, Any] = {"rows": Rows(find=find), "source": source, "max_clients": 10}
    options |= {"rows_per_client": 200_000, "retrieve": False, "above_break_even": "keep"}
    fed = Federated(model, optimizer, **options)
    generator = torch.Generator().manual_seed(1)
    data = [batch(generator, ids == "zipf") for _ in range(steps)]
    for one in data[:3]:
        step(model, optimizer, one)  # first calls allocate
    fed.hooks.begin_round()
    seconds: tuple[list[float], list[float]] = ([], [])
    for number, one in enumerate(data):
        for hooked in (number % 2, 1 - number % 2):
            with contextlib.nullcontext() if hooked else without_hooks(model, optimizer):
                seconds[hooked].append(step(model, optimizer, one))
    medians = [statistics.median(s) for s in seconds]
    return {
        "optimizer": name,
        "source": source,
        "find": find,
        "ids": ids,
        "steps": steps,
        "step_seconds": medians[0],
        "hooked_step_seconds": medians[1],
        "ratio": medians[1] / medians[0],
        **once_a_round(fed, data[:5]),
        **memory(fed.hooks),
    }


def repeated(case: tuple[str, str, str, str], steps: int, repeats: int) -> dict[str, Any]:
    """The run with the middle ratio, and the ratios of all."""
    runs = sorted((compare(*case, steps) for _ in range(repeats)), key=lambda run: run["ratio"])
    return {**runs[(repeats - 1) // 2], "ratios": [run["ratio"] for run in runs]}


def once_a_round(fed: Federated, data: list[Any]) -> dict[str, float]:
    """Seconds of starting a round and of taking the update of a few steps."""
    hooks = fed.hooks
    start = time.process_time()
    hooks.begin_round()
    begin = time.process_time() - start
    for one in data:
        step(hooks.model, hooks.optimizers[0], one)
    start = time.process_time()
    hooks.update(fed.plan)
    return {"begin_seconds": begin, "update_seconds": time.process_time() - start}


def memory(hooks: Hooks) -> dict[str, int]:
    """Touched rows and saved bytes of the round, and the size of the tables."""
    status = hooks.status()
    return {
        "touched_rows": sum(status.saved_rows.values()),
        "saved_bytes": sum(status.saved_bytes.values()),
        "table_bytes": sum(t.weight.nbytes for t in hooks.inventory.all_tables),
    }


@measure.benchmark(
    option("--steps", 40, "steps of the round (default 40)"),
    option("--repeats", 3, "runs of each case (default 3)"),
    option("--threads", 1, "torch threads (default 1)"),
)
def main(options: Options, figures: Found) -> None:
    """Print a table."""
    torch.set_num_threads(options.threads)
    print(
        f"{'optimizer':11}{'source':7}{'find':7}{'ids':8}{'step':>8}{'hooked':>9}{'ratio':>8}{'':12}"
        f"{'begin':>9}{'update':>9}{'touched':>9}{'saved':>9}{'tables':>9}"
    )
    figures |= {"torch": torch.__version__, "results": []}
    names = ("Adagrad", "Adam", "SGD", "SGD sparse")
    cases = [(name, "delta", "hooks", ids) for name in names for ids in ("uniform", "zipf")]
    for case in [*cases, ("Adagrad", "delta", "scan", "uniform")]:
        r = repeated(case, options.steps, options.repeats)
        figures["results"].append(r)
        name, source, find, ids = case
        print(
            f"{name:11}{source:7}{find:7}{ids:8}{1e3 * r['step_seconds']:6.1f}ms"
            f"{1e3 * r['hooked_step_seconds']:7.1f}ms{r['ratio']:8.3f}"
            f" {r['ratios'][0]:.3f}-{r['ratios'][-1]:.3f}"
            f"{1e3 * r['begin_seconds']:7.1f}ms{1e3 * r['update_seconds']:7.1f}ms"
            f"{r['touched_rows']:9d}{r['saved_bytes'] / 1e6:7.1f}MB{r['table_bytes'] / 1e6:7.1f}MB",
            flush=True,
        )

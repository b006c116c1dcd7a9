"""Private queries: bytes and processor seconds by party, next to the paper's figures.

    python -m scripts.bench.querying                               # networks of the paper's sizes
    python -m scripts.bench.querying --comparison tables trees --batch 1 4 16
    python -m scripts.bench.querying --networks cnet mlp --batch 128 256 512 1024 2048
    python -m scripts.bench.querying --mode published              # the paper's protocol, ours
    python -m scripts.bench.querying --precision --data cifar10    # what the ring costs

One querying party, one answering party and the server run in one process on one thread. Seconds are
processor seconds by party, of the best run. The program counts the bytes on every link, headers
included. They must equal the plan's prediction to the byte, except under `--mode published`. The
process keeps freed memory, as `python -m training privhfl` does.

There is no network: a network would add the time of the plan's round trips. The paper does not give
the widths of its networks; ours are those of `models.heterogeneous`. The paper's seconds are of
unnamed hardware and, for one query, of table 3.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import models
from scripts.attacks.published import PublishedQuerying
from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl.privhfl import Querying, QueryPlan, Ring, make_plan
from torchfsl.privhfl.network import read_network
from torchfsl.privhfl.relay import Cost
from training.data.prf import Stream
from training.privhfl.allocator import keep_freed_memory
from training.privhfl.distillation import train_baseline
from training.privhfl.settings import Settings
from training.privhfl.tasks import RECIPES, build_model, load_population

IMAGE, DIGIT = (3, 32, 32), (1, 28, 28)


def cnet() -> nn.Module:
    """CryptoNets with ReLU: a convolution of 5 maps, 100 hidden units."""
    first, hidden = nn.Conv2d(1, 5, 5, stride=2, padding=1), nn.Linear(845, 100)
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), hidden, nn.ReLU(), nn.Linear(100, 10))


def mlp() -> nn.Module:
    """Two hidden layers of 128 units."""
    first, second, last = nn.Linear(784, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "vgg7": (models.VGG7, IMAGE),
    "resnet8": (models.resnet8, IMAGE),
    "resnet10": (models.resnet10, IMAGE),
    "cnet": (cnet, DIGIT),
    "mlp": (mlp, DIGIT),
}

PAPER = {"vgg7": (1.03, 66.61), "resnet8": (1.63, 73.85), "resnet10": (2.00, 105.88)}
"""Table 3, CPU: seconds and MB of one prediction."""

BOUNDS = {"vgg7": (0.06, 18.0), "resnet8": (0.08, 21.0), "resnet10": (0.11, 25.0)}
"""What we ask of ourselves at 32 bits with tables: seconds of one quiet core and MB a query."""


def plan_of(module: nn.Module, shape: tuple[int, ...], **options: Any) -> QueryPlan:
    """Of two parties with one network, of whom one answers."""
    options = {"max_answering": 1} | options
    return make_plan({0: module, 1: module}, shape, min_answering=1, **options)


def cost_row(name: str, comparison: str, batch: int, options: Options) -> dict[str, Any]:
    """Cost of a batch, a query."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = make().eval()
    bits = 64 if options.mode == "published" else options.ring_bits
    ring = Ring() if bits == 32 else Ring(64, 20, 20)
    plan = plan_of(module, shape, ring=ring, batch=batch, comparison=comparison)
    images = torch.rand(batch, *shape)
    querying: Querying | PublishedQuerying
    if options.mode == "published":
        querying = PublishedQuerying(plan, leaky_on_purpose=True)
    else:
        querying = Querying(plan, mode="secure")
    querying.load(1, module, images[:4])
    costs = [querying.ask(0, [1], images, number).cost for number in range(options.repeat)]
    best = min(costs, key=lambda cost: sum(cost.seconds.values()))
    if options.mode != "published":
        _compare_with_plan(plan, costs)
    row: dict[str, Any] = {"network": name, "comparison": comparison, "batch": batch}
    row |= {"ring_bits": ring.bits, "weights_MB": costs[0].phase_bytes("setup") / 1e6}
    row |= {f"{p}_MB": best.phase_bytes(p) / batch / 1e6 for p in ("offline", "online")}
    row |= {f"{p}_s": float(s) / batch for p, s in best.seconds.items()}
    row["all_s"] = sum(best.seconds.values()) / batch
    row["round_trips"] = len(plan.steps(1)) // 2 + 1 if options.mode != "published" else None
    row["float32_s"] = _float_seconds(module, images) / batch
    row["all_MB"] = row["offline_MB"] + row["online_MB"]
    return row


def _compare_with_plan(plan: QueryPlan, costs: list[Cost]) -> None:
    """Counted bytes are those that the plan predicts."""
    predicted = plan.phase_bytes(1)
    sums = 64 + plan.sum_bytes()
    for number, cost in enumerate(costs):
        assert cost.phase_bytes("setup") == (0 if number else predicted["setup"])
        assert cost.phase_bytes("offline") == predicted["offline"]
        assert cost.phase_bytes("online") == predicted["online"] + sums


@torch.no_grad()
def _float_seconds(module: nn.Module, images: torch.Tensor) -> float:
    return measure.best_seconds(lambda: module(images), 3)


def print_row(row: dict[str, Any]) -> None:
    """One line, with the paper's figure and our bound where there are some."""
    name = row["network"]
    line = (
        f"{name:9} {row['comparison']:6} l={row['ring_bits']} batch {row['batch']:<5}"
        f"s a query: P_Q {row['querying_s']:.4f} P_A {row['answering_s']:.4f} "
        f"S {row['server_s']:.4f} all {row['all_s']:.4f}  MB a query: offline "
        f"{row['offline_MB']:.2f} online {row['online_MB']:.2f} all {row['all_MB']:.2f}, "
        f"weights once {row['weights_MB']:.2f}"
    )
    if row["round_trips"]:
        line += f"  round trips {row['round_trips']}"
    if name in PAPER:
        seconds, size = PAPER[name]
        line += f"  (paper {seconds} s, {size} MB"
        if row["comparison"] == "tables" and row["ring_bits"] == 32:
            most_seconds, most = BOUNDS[name]
            kept = row["all_MB"] <= most, row["all_s"] <= most_seconds
            line += f"; bound {most_seconds} s {'kept' if kept[1] else 'EXCEEDED'}, {most:g} MB "
            line += "kept" if kept[0] else "EXCEEDED"
        line += ")"
    print(line, flush=True)


def precision(options: Options) -> list[dict[str, Any]]:
    """Errors of the ring's logits compared with floats, for CIFAR-10 networks on test images."""
    settings = Settings(
        task="cifar10", data=options.data, clients=3, private=1000, test=options.images
    )
    population = load_population(settings)
    rows = []
    for client in range(3):
        private = population.clients[client]
        module = build_model(settings, client)
        stream = Stream(settings.seed, "privhfl baseline", client)
        train_baseline(module, private, RECIPES["cifar10"], stream)
        module.eval()
        with torch.no_grad():
            plain = copy.deepcopy(module).double()(population.test.images.double())
        for ring in (Ring(), Ring(64, 20, 20), Ring(32, 10, 10), Ring(32, 8, 8)):
            shape = tuple(private.images.shape[1:])
            sizes = {"batch": 50, "max_answering": options.answering}
            plan = plan_of(module, shape, ring=ring, session="precision of rings", **sizes)
            querying = Querying(plan, mode="fixed", seed=b"precision of rings")
            querying.load(1, module, private.images)
            logits = querying.ask(0, [1], population.test.images).logits
            error = (logits - plain).abs()
            choices = logits.argmax(1), plain.argmax(1)
            row = {"network": read_name(module), "ring_bits": ring.bits}
            row |= {"frac_bits": ring.frac_bits, "answering": options.answering}
            row["agreement"] = float((choices[0] == choices[1]).double().mean())
            row |= {"max_error": float(error.max()), "mean_error": float(error.mean())}
            row["largest_logit"] = float(plain.abs().max())
            row["accuracy"] = float((choices[1] == population.test.labels).double().mean())
            rows.append(row)
            shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
            print(", ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
    return rows


def read_name(module: nn.Module) -> str:
    """A network's class and size."""
    graph = read_network(module, (3, 24, 24)).graph
    return f"{type(module).__name__} of {graph.num_weights} weights"


@measure.benchmark(
    option("--networks", list(PAPER), choices=NETWORKS),
    option("--comparison", ["tables"], choices=("tables", "trees")),
    option("--batch", [4]),
    option("--ring-bits", 32, choices=(32, 64)),
    option("--mode", "secure", choices=("secure", "published")),
    option("--repeat", 5, "runs, of which the best counts"),
    option("--precision", False),
    option("--data", "", "of --precision: a folder, or a Hub name"),
    option("--images", 1000, "of --precision: test images"),
    option("--answering", 1, "of --precision: summands planned"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    os.environ["TORCHFSL_THREADS"] = "1"
    figures["kept_memory"] = keep_freed_memory()
    if options.precision:
        figures["precision"] = precision(options)
    else:
        figures["rows"] = rows = []
        for name in options.networks:
            for comparison in options.comparison:
                for batch in options.batch:
                    rows.append(cost_row(name, comparison, batch, options))
                    print_row(rows[-1])

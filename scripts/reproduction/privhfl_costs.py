"""What private queries cost: tables 2, 3 and 4 and figure 8 of the PrivHFL paper.

Networks of the paper's kind and random weights, one answering party, all parties in one process on
one core. Widths of the paper's networks are not printed; ours are in `models.heterogeneous`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

import models
from scripts.bench import measure as bench_measure
from scripts.bench.querying import cnet, mlp
from torchfsl.privhfl import Querying, make_plan
from torchfsl.privhfl.messages import Kind, kind_of
from torchfsl.privhfl.query_server import QueryServer
from torchfsl.privhfl.querying_party import QueryingParty
from training.privhfl.allocator import keep_freed_memory

CIFAR: dict[str, Callable[[], nn.Module]] = {
    "VGG-7": models.VGG7,
    "ResNet-8": models.resnet8,
    "ResNet-10": models.resnet10,
}
BATCHES = {"tables": (1, 4, 8), "trees": (1, 2)}
"""Queries at once: a plan refuses more than 256 MB of a batch in one message."""

TINY: dict[str, tuple[int, ...]] = {
    "ResNet-14": (2, 2, 1, 1),
    "ResNet-16": (2, 2, 2, 1),
    "ResNet-18": (2, 2, 2, 2),
}
"""Residual blocks by stage; of Tiny ImageNet, with random weights."""
FIGURE8 = (1, 4, 8, 16, 32, 64)
"""Batches of figure 8 and table 2, of which those from 16 on are dealt in parts."""
REPEATS = 3
"""Batches, of which the quickest counts: others work on the same processor."""

MNIST_BATCHES = (128, 256, 512, 1024, 2048)
PARTIES = ("querying", "answering", "server")


def privhfl_costs() -> dict[str, Any]:
    """Bytes and processor seconds of a query."""
    _alone()
    networks: dict[str, dict[str, Any]] = {}
    for name, build in CIFAR.items():
        torch.manual_seed(0)
        module = build().eval()
        networks[name] = {"parameters": sum(p.numel() for p in module.parameters())}
        for comparison, batches in BATCHES.items():
            networks[name][comparison] = {
                str(batch): cost(module, (3, 32, 32), batch, comparison) for batch in batches
            }
    return {
        "environment": bench_measure.environment(),
        "networks": networks,
        "mnist": {
            name: {
                str(batch): cost(build().eval(), (1, 28, 28), batch, "tables")
                for batch in MNIST_BATCHES
            }
            for name, build in (("CNet2 (ReLU)", cnet), ("MLP", mlp))
        },
    }


def tiny() -> dict[str, Any]:
    """A query of Tiny ImageNet's networks with random weights, whose costs are those of any."""
    _alone()
    networks = {}
    for name, pairs in TINY.items():
        torch.manual_seed(0)
        module = models.resnet_of_pairs(pairs).eval()
        found = cost(module, (3, 64, 64), 1, "tables")
        networks[name] = {"parameters": sum(p.numel() for p in module.parameters()), **found}
    return {"environment": bench_measure.environment(), "networks": networks}


def batches() -> dict[str, Any]:
    """A query by batch and network; and the most memory that the process has held."""
    _alone()
    networks: dict[str, Any] = {}
    for name, build in CIFAR.items():
        torch.manual_seed(0)
        module = build().eval()
        networks[name] = {
            str(batch): cost(module, (3, 32, 32), batch, "tables") for batch in FIGURE8
        }
    peak = bench_measure.peak_memory_bytes()
    environment = bench_measure.environment()
    return {"environment": environment, "networks": networks, "peak_memory_bytes": peak}


STEPS = {
    "CIFAR-10": (models.VGG7, (3, 32, 32), 8),
    "Tiny ImageNet": (lambda: models.resnet_of_pairs(TINY["ResNet-14"]), (3, 64, 64), 1),
}
"""By data set a network, the shape of a picture and the batch; neither step depends on layers."""


def steps() -> dict[str, Any]:
    """Processor seconds of a query in the first and third step of table 2, by data set.

    `share` masks the picture at the querying party and again at the server. `aggregate` adds the
    masked answers at the server and takes the masks off at the querying party.
    """
    _alone()
    found: dict[str, Any] = {}
    for data, (build, shape, batch) in STEPS.items():
        torch.manual_seed(0)
        found[data] = _steps(build().eval(), shape, batch)
        print(f"  {data}: {found[data]}", flush=True)
    return {"environment": bench_measure.environment(), "steps": found}


def _steps(module: nn.Module, shape: tuple[int, int, int], batch: int) -> dict[str, float]:
    """Of eight batches, after one that warms up."""
    plan = make_plan({1: module, 2: module}, shape, batch=batch, max_answering=1, min_answering=1)
    querying = Querying(plan)
    images = torch.randn(8 * batch, *shape, generator=torch.Generator().manual_seed(1))
    querying.load(1, module, images)
    querying.load(2, module, images)
    spent: Counter[str] = Counter()

    def timed(method: Callable[..., Any], step: Callable[..., str]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.process_time()
            try:
                return method(*args)
            finally:
                spent[step(*args)] += time.process_time() - start  # type: ignore[assignment]

        return run

    asked = timed(QueryingParty.query, lambda *_: "share")
    closed = timed(QueryServer.close, lambda *_: "aggregate")
    passed = timed(
        QueryServer.receive,
        lambda *a: "share" if kind_of(a[-1]) == Kind.QUERY else "other",
    )
    taken = timed(
        QueryingParty.receive,
        lambda *a: "aggregate" if kind_of(a[-1]) == Kind.SUM else "other",
    )
    with (
        mock.patch.multiple(QueryingParty, query=asked, receive=taken),
        mock.patch.multiple(QueryServer, close=closed, receive=passed),
    ):
        querying.ask(1, [2], images[:batch], iteration=0)
        spent.clear()
        querying.ask(1, [2], images, iteration=1)
    return {step: spent[step] / len(images) for step in ("share", "aggregate")}


def _alone() -> None:
    """One thread."""
    torch.set_num_threads(1)
    os.environ["TORCHFSL_THREADS"] = "1"
    keep_freed_memory()


def cost(
    module: nn.Module, shape: tuple[int, int, int], batch: int, comparison: str
) -> dict[str, Any]:
    """The quickest of some batches by the protocol; bytes and seconds of a query."""
    one = {"batch": batch, "comparison": comparison, "max_answering": 1, "min_answering": 1}
    plan = make_plan({1: module, 2: module}, shape, **one)
    querying = Querying(plan)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, *shape, generator=generator)
    querying.load(1, module, images)
    first = querying.ask(2, [1], images, iteration=0)
    again = [querying.ask(2, [1], images, iteration=1 + n).cost for n in range(REPEATS)]
    sent = min(again, key=lambda one: sum(one.seconds.values()))
    result: dict[str, Any] = {
        "seconds": {party: sent.seconds[party] / batch for party in PARTIES},
        "offline_bytes": sent.phase_bytes("offline") / batch,
        "online_bytes": sent.phase_bytes("online") / batch,
        "setup_bytes": first.cost.phase_bytes("setup"),
    }
    total = sum(result["seconds"].values())
    print(f"  {comparison}, batch {batch}: {total:.4f} s a query", flush=True)
    return result

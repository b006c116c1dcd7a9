"""What private queries cost: tables 2, 3 and 4 and figure 8 of the PrivHFL paper.

Networks of the paper's kind and random weights, one answering party, all parties in one process on
one core. Widths of the paper's networks are not printed; ours are in `models.heterogeneous`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import models
from scripts.bench import measure as bench_measure
from scripts.bench.querying import cnet, mlp
from torchfsl.privhfl import Querying, make_plan
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
LARGE = (16, 32, 64)
"""Batches of figure 8 that are dealt in parts."""

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
    """A query in large batches, by network; and the most memory that the process has held."""
    _alone()
    networks: dict[str, Any] = {}
    for name, build in CIFAR.items():
        torch.manual_seed(0)
        module = build().eval()
        networks[name] = {str(batch): cost(module, (3, 32, 32), batch, "tables") for batch in LARGE}
    peak = bench_measure.peak_memory_bytes()
    environment = bench_measure.environment()
    return {"environment": environment, "networks": networks, "peak_memory_bytes": peak}


def _alone() -> None:
    """One thread."""
    torch.set_num_threads(1)
    os.environ["TORCHFSL_THREADS"] = "1"
    keep_freed_memory()


def cost(
    module: nn.Module, shape: tuple[int, int, int], batch: int, comparison: str
) -> dict[str, Any]:
    """One batch by the protocol, after one that warms up; bytes and seconds of a query."""
    one = {"batch": batch, "comparison": comparison, "max_answering": 1, "min_answering": 1}
    plan = make_plan({1: module, 2: module}, shape, **one)
    querying = Querying(plan)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, *shape, generator=generator)
    querying.load(1, module, images)
    first = querying.ask(2, [1], images, iteration=0)
    found = querying.ask(2, [1], images, iteration=1)
    sent = found.cost
    result: dict[str, Any] = {
        "seconds": {party: sent.seconds[party] / batch for party in PARTIES},
        "offline_bytes": sent.phase_bytes("offline") / batch,
        "online_bytes": sent.phase_bytes("online") / batch,
        "setup_bytes": first.cost.phase_bytes("setup"),
    }
    total = sum(result["seconds"].values())
    print(f"  {comparison}, batch {batch}: {total:.4f} s a query", flush=True)
    return result

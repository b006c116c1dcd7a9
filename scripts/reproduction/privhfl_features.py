"""Figures 11a and 11b of PrivHFL: how much of the feature space expanded pictures cover.

The paper shows pictures of points and no figure. Here a grid lies over the two principal components
of a client's features, and cells that hold a point are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scripts.bench import measure as bench_measure
from scripts.reproduction.privhfl_cells import BASE, Cell
from training.data.prf import Stream
from training.privhfl.distillation import train_baseline
from training.privhfl.expansion import expand
from training.privhfl.settings import Settings
from training.privhfl.tasks import CLASSES, RECIPES, architecture, build_model, load_population

GRID = 20
EXPANDED = 5000
CLIENTS = 3
"""One of each architecture."""


def features(data: Path | None) -> dict[str, Any]:
    """By architecture of CIFAR-10 the shares that `coverage` gives, of one client and seed 0."""
    torch.set_num_threads(1)
    settings = Cell("cifar10", "mixup").settings(0, data)
    return {
        "environment": bench_measure.environment(),
        "private": BASE["cifar10"].private,
        "expanded": EXPANDED,
        "grid": GRID,
        "clients": {
            architecture(settings, client): of_client(settings, client) for client in range(CLIENTS)
        },
    }


def of_client(settings: Settings, client: int) -> dict[str, dict[str, float]]:
    """Coverage by a client's own pictures, and by as many and by `EXPANDED` mixtures of them."""
    recipe, population = RECIPES[settings.task], load_population(settings)
    own, stream = population.clients[client], Stream(settings.seed, "privhfl features", client)
    model = build_model(settings, client)
    train_baseline(model, own, recipe, Stream(settings.seed, "privhfl baseline", client))
    mixed = expand("mixup", own.images, own.labels, EXPANDED, stream, classes=CLASSES).images
    found = coverage(
        {
            "own": _features(model, own.images),
            "mixup, as many": _features(model, mixed[: len(own.images)]),
            "mixup": _features(model, mixed),
        },
        _features(model, population.test.images),
    )
    print(f"  client {client}: {found}", flush=True)
    return found


def coverage(sets: Mapping[str, Tensor], test: Tensor) -> dict[str, dict[str, float]]:
    """Cells of a grid that hold a point, and the share of test points in these cells.

    Args:
        sets: by name float `[n, d]`.
        test: float `[n, d]`, points of pictures that no client trained on.

    Returns:
        By name `cells`, of `GRID**2`, and `test`, in [0, 1].
    """
    every = torch.cat([*sets.values(), test]).double()
    middle = every.mean(dim=0)
    axes = torch.linalg.svd(every - middle, full_matrices=False).Vh[:2]
    flat = (every - middle) @ axes.T
    low, high = flat.min(dim=0).values, flat.max(dim=0).values

    def cells(points: Tensor) -> Tensor:
        placed = ((points.double() - middle) @ axes.T - low) / (high - low)
        row, column = (placed * GRID).long().clamp(max=GRID - 1).T
        return row * GRID + column

    there = cells(test)
    return {
        name: {
            "cells": len(cells(points).unique()),
            "test": float(torch.isin(there, cells(points)).double().mean()),
        }
        for name, points in sets.items()
    }


def _features(model: nn.Module, images: Tensor) -> Tensor:
    """The input of the last layer, `[n, d]`."""
    model.eval()
    layers = model.get_submodule("features")
    with torch.no_grad():
        return torch.cat([layers(part) for part in torch.split(images, 500)])

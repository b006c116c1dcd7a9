"""The table of docs/optimizers.md: every optimizer with every feature, each cell tried out.

`python tests/support/engine_features.py` prints the table; `--write` puts it into the page.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.support.engine_models import (
    Recommender,
    engine_plan,
    loss_of,
    make_batch,
    parameters_of,
    scatter,
    train,
)
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockTopK, Dense, RestPolicy, Rows, TopK
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError
from torchfsl.submodel.update import quantise

PAGE = Path(__file__).resolve().parents[2] / "docs" / "optimizers.md"
BEGIN, END = "<!-- optimizer table -->", "<!-- end of optimizer table -->"

Batches = list[dict[str, torch.Tensor]]
BATCHES: Batches = [make_batch(1, 0, 12), make_batch(2, 4, 20)]
TABLES = {"item.weight": ("item", "history"), "user.weight": ("user",), "words.weight": ("words",)}

_o = torch.optim
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (_o.SGD, {"lr": 0.1}),
    "SGD, momentum": (_o.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD, Nesterov": (_o.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD, weight decay": (_o.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "Adagrad": (_o.Adagrad, {"lr": 0.1}),
    "Adam": (_o.Adam, {"lr": 0.05}),
    "Adam, weight decay": (_o.Adam, {"lr": 0.05, "weight_decay": 0.1}),
    "AdamW": (_o.AdamW, {"lr": 0.05}),
    "RMSprop": (_o.RMSprop, {"lr": 0.02}),
    "RMSprop, momentum": (_o.RMSprop, {"lr": 0.02, "momentum": 0.9}),
    "SparseAdam": (_o.SparseAdam, {"lr": 0.05}),
    "Adadelta": (_o.Adadelta, {"lr": 1.0}),
    "NAdam": (_o.NAdam, {"lr": 0.05}),
    "Adamax": (_o.Adamax, {"lr": 0.05}),
    "RAdam": (_o.RAdam, {"lr": 0.05}),
    "Rprop": (_o.Rprop, {"lr": 0.05}),
    "LBFGS": (_o.LBFGS, {"lr": 0.05}),
}
DECAYING = ("SGD, weight decay", "Adam, weight decay", "AdamW")


def closure_steps(model: nn.Module, optimizers: list[Any], batches: Batches) -> None:
    for batch in batches:
        for optimizer in optimizers:

            def closure(optimizer: Any = optimizer, batch: Any = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)


def accumulated_steps(model: nn.Module, optimizers: list[Any], batches: Batches) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)
    for batch in batches:
        loss_of(model, batch).backward()
    for optimizer in optimizers:
        optimizer.step()


def scaled_steps(model: nn.Module, optimizers: list[Any], batches: Batches) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


def compiled_steps(model: nn.Module, optimizers: list[Any], batches: Batches) -> None:
    call = torch.compile(model, backend="eager")
    train(call, optimizers, batches)


@dataclass(frozen=True)
class Feature:
    """One column: how the model is built, trained and attached."""

    rows: Rows | None = field(default_factory=lambda: Rows(untouched="restrict"))
    rest: RestPolicy = field(default_factory=Dense)
    source: str = "delta"
    steps: Callable[[nn.Module, list[Any], Batches], None] = train
    sparse: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    groups: bool = False
    dtype: torch.dtype = torch.float32
    retrieve: bool = False
    resume: bool = False
    top: bool = False
    help: str = ""


FEATURES: dict[str, Feature] = {
    "delta": Feature(Rows(), help="rows, `delta`, policy `reject`"),
    "gradient": Feature(Rows(), source="gradient", help="rows, `gradient`, policy `reject`"),
    "restrict": Feature(help="rows, policy `restrict`"),
    "touched": Feature(Rows(untouched="touched"), help="rows, policy `touched`"),
    "top rows": Feature(
        Rows(top=6, find="scan", untouched="restrict"), top=True, help="`Rows(top=, find='scan')`"
    ),
    "top-k": Feature(None, TopK(0.2), top=True, help="tables and rest in `TopK`"),
    "blocks": Feature(None, BlockTopK(0.2, block=8), top=True, help="the same in `BlockTopK`"),
    "dense": Feature(None, Dense(), help="the same in `Dense`"),
    "sparse": Feature(sparse=True, help="`sparse=True` tables"),
    "foreach": Feature(options={"foreach": True}, help="`foreach=True`"),
    "fused": Feature(options={"fused": True}, help="`fused=True`"),
    "groups": Feature(groups=True, help="two parameter groups with separate rates"),
    "closure": Feature(steps=closure_steps, help="`step(closure)`"),
    "accumulate": Feature(
        steps=accumulated_steps, help="gradient accumulation, `zero_grad(set_to_none=False)`"
    ),
    "scaler": Feature(steps=scaled_steps, help="`torch.autocast` and `GradScaler`"),
    "compile": Feature(steps=compiled_steps, help="`torch.compile`, attached before any call"),
    "bfloat16": Feature(dtype=torch.bfloat16, help="bfloat16 parameters"),
    "retrieval": Feature(retrieve=True, help="rows not retrieved are NaN"),
    "resume": Feature(resume=True, help="stop and resume between rounds, in every bit"),
}


class TorchCannot(Exception):
    """torch itself has no such combination."""


def build(name: str, feature: Feature) -> tuple[nn.Module, list[Any]]:
    """A model and its optimizers; SparseAdam needs sparse tables and a second optimizer."""
    torch.manual_seed(0)
    kind, options = OPTIMIZERS[name]
    sparse = feature.sparse or name == "SparseAdam"
    model = Recommender(sparse=sparse).to(feature.dtype)
    names = dict(model.named_parameters())
    tables = [p for n, p in names.items() if n in TABLES]
    others = [p for n, p in names.items() if n not in TABLES]
    options = options | feature.options
    if feature.dtype is torch.bfloat16 and "eps" in kind.__init__.__annotations__:
        options["eps"] = 1e-3
    try:
        if name == "SparseAdam":
            groups = [{"params": tables[:1], "lr": 0.1}, {"params": tables[1:]}]
            mine = kind(groups if feature.groups else tables, **options)
            return model, [mine, torch.optim.SGD(others, lr=options["lr"])]
        if feature.groups and name != "LBFGS":
            groups = [{"params": tables, "lr": 0.07}, {"params": others}]
            return model, [kind(groups, **options)]
        return model, [kind(model.parameters(), **options)]
    except TypeError as error:
        raise TorchCannot(str(error)) from error


def plainly(name: str, feature: Feature) -> dict[str, np.ndarray]:
    """What the same training does without the engine: differences, or gradients."""
    model, optimizers = build(name, feature)
    before = parameters_of(model)
    try:
        if feature.source == "gradient":
            loss_of(model, BATCHES[0]).backward()
            return {n: dense(p.grad) for n, p in model.named_parameters()}
        feature.steps(model, optimizers, BATCHES)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise TorchCannot(str(error)) from error
    return {
        n: (p.detach().double() - before[n].double()).numpy() for n, p in model.named_parameters()
    }


def dense(gradient: torch.Tensor | None) -> np.ndarray:
    assert gradient is not None
    gradient = gradient.coalesce().to_dense() if gradient.is_sparse else gradient
    return gradient.double().numpy()


def touched(batches: Batches) -> dict[str, torch.Tensor]:
    rows = {n: torch.cat([b[k].flatten() for b in batches for k in ks]) for n, ks in TABLES.items()}
    rows["item.weight"] = rows["item.weight"][rows["item.weight"] != 0]
    return {name: torch.unique(ids) for name, ids in rows.items()}


def attached(name: str, feature: Feature) -> dict[str, np.ndarray]:
    """What the engine sends for the same training."""
    model, optimizers = build(name, feature)
    settings = Settings(rows=feature.rows, rest=feature.rest, source=feature.source)  # type: ignore[arg-type]
    hooks = Hooks(model, optimizers, settings)
    plan = engine_plan(hooks, None if feature.top or feature.rows is None else 80)
    present = None
    if feature.retrieve:
        present = touched(BATCHES)
        for table in hooks.inventory.all_tables:
            kept = table.weight.detach()[present[table.name]].clone()
            with torch.no_grad():
                table.weight[1 if table.padding == 0 else 0 :] = torch.nan
                table.weight[present[table.name]] = kept
    hooks.begin_round(present)
    feature.steps(model, optimizers, BATCHES[:1] if feature.source == "gradient" else BATCHES)
    return scatter(plan, hooks.update(plan, residual=hooks.residual))


def resumed(name: str, feature: Feature) -> None:
    """Two rounds in one go, and with a stop between them."""
    runs = []
    for stop in (False, True):
        model, optimizers = build(name, feature)
        hooks = Hooks(model, optimizers, Settings(rows=feature.rows, rest=TopK(0.2)))
        plan = engine_plan(hooks, 10)
        for number in range(2):
            if stop and number == 1:
                state = copy.deepcopy(
                    (model.state_dict(), [o.state_dict() for o in optimizers], hooks.state_dict())
                )
                model, optimizers = build(name, feature)
                model.load_state_dict(state[0])
                for optimizer, one in zip(optimizers, state[1], strict=True):
                    optimizer.load_state_dict(one)
                hooks = Hooks(model, optimizers, Settings(rows=feature.rows, rest=TopK(0.2)))
                hooks.load_state_dict(state[2])
            hooks.begin_round()
            train(model, optimizers, [make_batch(3 + number)])
            raw = hooks.update(plan, residual=hooks.residual)
            hooks.residual.settle(raw, quantise(plan, raw)[1])
        runs.append(scatter(plan, raw))
    for tensor in runs[0]:
        np.testing.assert_array_equal(runs[0][tensor], runs[1][tensor])


def compare(feature: Feature, sent: dict[str, np.ndarray], full: dict[str, np.ndarray]) -> None:
    """The update holds the change of every touched row and of everything else, exactly."""
    for tensor, value in full.items():
        if feature.top:
            assert np.all((sent[tensor] == value) | (sent[tensor] == 0)), tensor
            continue
        expected = value.copy()
        if feature.rows is not None and tensor in TABLES and feature.source == "delta":
            others = np.setdiff1d(np.arange(len(value)), touched(BATCHES)[tensor])
            expected[others] = 0
        np.testing.assert_array_equal(sent[tensor], expected, err_msg=tensor)
    assert any(part.any() for part in sent.values())


@functools.cache
def cell(name: str, column: str) -> tuple[str, str]:
    """Try one cell.

    Returns:
        ("yes", ""), ("torch", why torch has no such combination) or ("no", the engine's message).
        Raises where the engine accepts but sends something else than what training did.
    """
    feature = FEATURES[column]
    try:
        model, optimizers = build(name, feature)
    except TorchCannot as error:
        return "torch", str(error)
    try:
        Hooks(
            model, optimizers, Settings(rows=feature.rows, rest=feature.rest, source=feature.source)
        )
    except ParameterError as error:
        return "no", str(error)
    try:
        full = plainly(name, feature)
        torch.compiler.reset()  # else the hooked model runs what was compiled without hooks
    except TorchCannot as error:
        return "torch", str(error)
    if feature.resume:
        resumed(name, feature)
    else:
        compare(feature, attached(name, feature), full)
    return "yes", ""


def table() -> str:
    """The whole table in Markdown, with the messages of what is rejected."""
    notes: list[str] = []
    lines = ["| | " + " | ".join(FEATURES) + " |", "|---" * (len(FEATURES) + 1) + "|"]
    for name in OPTIMIZERS:
        cells = []
        for column in FEATURES:
            verdict, message = cell(name, column)
            if verdict == "no":
                if message not in notes:
                    notes.append(message)
                cells.append(f"({notes.index(message) + 1})")
            else:
                cells.append({"yes": "✓", "torch": "-"}[verdict])
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "✓ tested: the update is what training did, in every bit. - torch itself has no "
              "such combination. Numbers are rejections, with their message:", ""]  # fmt: skip
    lines += [f"{i}. `{note}`" for i, note in enumerate(notes, 1)]
    lines += ["", "Columns:", ""]
    lines += [f"- **{column}**: {feature.help}" for column, feature in FEATURES.items()]
    return "\n".join(lines)


def page_with(text: str) -> str:
    """The page with the table replaced by `text`."""
    page = PAGE.read_text()
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:start]}\n{text}\n{page[stop:]}"


def main() -> None:
    torch.set_num_threads(1)
    if "--write" in sys.argv:
        PAGE.write_text(page_with(table()))
    else:
        print(table())


if __name__ == "__main__":
    main()

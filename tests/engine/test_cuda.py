"""Parameters on a GPU: everything stays there, and nothing waits for it while training."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.engine_models import (
    CASES,
    Case,
    Recommender,
    engine_plan,
    exact_difference,
    make_batch,
    parameters_of,
    scatter,
    train,
)
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockTopK, Rows, TopK
from torchfsl.engine.settings import Settings
from torchfsl.submodel.update import quantise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def waits(act: Callable[[], None]) -> int:
    """How often `act` waits for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            act()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(w.message) for w in caught)


def on_gpu(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.cuda() for name, value in batch.items()}


@pytest.mark.parametrize(
    "case", [c for c in CASES if not c.moves_all], ids=lambda c: c.name.replace(" ", "-")
)
def test_the_update_is_the_difference_of_all_parameters(case: Case) -> None:
    torch.manual_seed(0)
    model = Recommender(sparse=case.sparse).cuda()
    optimizers = case.make(model)
    hooks = Hooks(model, optimizers)
    plan = engine_plan(hooks)
    for number in range(2):
        before = {n: p.cpu() for n, p in parameters_of(model).items()}
        hooks.begin_round()
        train(model, optimizers, [on_gpu(make_batch(number)), on_gpu(make_batch(number + 5))])
        sent = scatter(plan, hooks.update(plan))
        after = {n: p.cpu() for n, p in parameters_of(model).items()}
        for name, value in exact_difference(after, before).items():
            np.testing.assert_array_equal(sent[name], value, err_msg=name)
        hooks.restore()
        for name, value in parameters_of(model).items():
            assert torch.equal(value.cpu(), before[name])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_hooks_do_not_wait_for_the_device(optimizer: type[torch.optim.Optimizer]) -> None:
    batches = [on_gpu(make_batch(number)) for number in range(4)]
    counts = []
    for hooked in (False, True):
        model = Recommender().cuda()
        mine = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        train(model, [mine], batches[:1])
        if hooked:
            hooks = Hooks(model, mine)
            hooks.begin_round()
        train(model, [mine], batches[:1])  # makes room for the rows of this size of batch
        counts.append(waits(functools.partial(train, model, [mine], batches[1:])))
    assert hooks.status().steps == 4
    assert counts[1] == counts[0]


def test_residual_and_saved_rows_stay_on_the_device() -> None:
    model = Recommender().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer, Settings(rows=Rows(top=3), rest=BlockTopK(2, block=4)))
    plan = engine_plan(hooks, None)
    hooks.begin_round()
    train(model, [optimizer], [on_gpu(make_batch(1))])
    raw = hooks.update(plan, residual=hooks.residual)
    hooks.residual.settle(raw, quantise(plan, raw)[1])
    for part in hooks.residual.state_dict()["parts"].values():
        assert all(t.is_cuda for t in part.values())


@pytest.mark.parametrize("source", ["delta", "gradient"])
@pytest.mark.parametrize("fused", [False, True])
def test_half_precision_with_a_loss_scaler(source: str, fused: bool) -> None:
    model = Recommender().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    settings = Settings(rest=TopK(1.0), source=source)  # type: ignore[arg-type]
    hooks = Hooks(model, optimizer, settings)
    plan = engine_plan(hooks)
    before = {n: p.cpu() for n, p in parameters_of(model).items()}
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    hooks.begin_round()
    batch = on_gpu(make_batch(1))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (model(batch).float() - batch["label"]).square().mean()
    scaler.scale(loss).backward()
    scaled = {n: p.grad.double().cpu().numpy() for n, p in model.named_parameters()}
    scaler.step(optimizer)
    scaler.update()
    sent = scatter(plan, hooks.update(plan))
    after = {n: p.cpu() for n, p in parameters_of(model).items()}
    moved = exact_difference(after, before)
    for name in moved:
        if source == "gradient":
            np.testing.assert_array_equal(sent[name], scaled[name] / 2**10)
            assert not moved[name].any()
        else:
            np.testing.assert_array_equal(sent[name], moved[name])

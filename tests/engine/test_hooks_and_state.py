"""What hooks accept and refuse, and what the checks at the end of a round notice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchfsl
from tests.support.engine_models import (
    CASES,
    WIDE,
    Recommender,
    engine_plan,
    exact_difference,
    loss_of,
    make_batch,
    parameters_of,
    scatter,
    train,
)
from tests.support.engine_setup import plan_of
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockTopK, Dense, Fixed, RandomK, Rows, TopK, Untouched
from torchfsl.engine.residual import Residual
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.submodel.update import RawSegment, quantise


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


# --- what is in a plan ---------------------------------------------------------------------------


def test_tables_of_equal_width_form_one_segment_and_tied_ones_count_once() -> None:
    model = Recommender()
    segments = Hooks(model, sgd(model), Settings(buffers="average")).exchange.segment_tensors
    names = {s: [t.name for t in tensors] for s, tensors in segments.items()}
    assert names == {
        "rows4": ["item.weight", "user.weight"],
        "rows3": ["words.weight"],
        "rest": ["norm.weight", "norm.bias", "top.weight", "top.bias"],
        "buffers": ["norm.running_mean", "norm.running_var"],
    }


def test_frozen_parameters_are_left_out() -> None:
    model = Recommender()
    model.user.weight.requires_grad_(False)
    model.top.bias.requires_grad_(False)
    hooks = Hooks(model, sgd(model))
    assert hooks.status().frozen == ["user.weight", "top.bias"]
    plan = engine_plan(hooks)
    hooks.begin_round()
    train(model, hooks.optimizers, [make_batch(1)])
    assert "user.weight" not in scatter(plan, hooks.update(plan))


def test_tables_may_be_chosen_by_name() -> None:
    model = Recommender()
    segments = Hooks(model, sgd(model), Settings(rows=Rows(tables=("words.weight",))))
    assert list(segments.exchange.segment_tensors) == ["rows3", "rest"]
    with pytest.raises(
        ParameterError, match=r"'top\.weight', which is not the weight of an nn\.Emb"
    ):
        Hooks(model, sgd(model), Settings(rows=Rows(tables=("top.weight",))))
    with pytest.raises(ParameterError, match="'nothing', which is not a parameter"):
        Hooks(model, sgd(model), Settings(rows=Rows(choose=Fixed({"nothing": [1]}))))


def test_tables_of_equal_width_and_different_dtype_are_kept_apart() -> None:
    model = nn.ModuleList([nn.Embedding(9, 4), nn.Embedding(7, 4).double()])
    hooks = Hooks(model, sgd(model))
    assert set(hooks.exchange.segment_tensors) == {"rows4_float32", "rows4_float64"}


def test_a_budget_is_needed_and_may_come_from_policy_or_plan() -> None:
    model = Recommender()

    def plan(rows: Rows, **options: object) -> dict[str, int]:
        hooks = Hooks(model, sgd(model), Settings(rows=rows, encoding=WIDE))
        made = plan_of(hooks, max_clients=3, above_break_even="keep", **options)  # type: ignore[arg-type]
        return {s.name: s.k_max for s in made.segments if s.policy == "rows"}

    with pytest.raises(ParameterError, match=r"rows4.*rows_per_client.*Rows\(budget="):
        plan(Rows())
    assert plan(Rows(budget=60)) == {"rows4": 60, "rows3": 40}
    assert plan(Rows(), rows_per_client={"rows4": 3, "rows3": 5}) == {"rows4": 3, "rows3": 5}
    assert plan(Rows(top=0.25)) == {"rows4": 20, "rows3": 10}
    fixed = Fixed({"item.weight": [1, 2], "user.weight": [3], "words.weight": [4]})
    assert plan(Rows(choose=fixed)) == {"rows4": 3, "rows3": 1}


def test_every_option_of_a_plan_is_passed_on() -> None:
    model = Recommender()
    noise = {"l2_bound": 1 << 20, "noise_sigma": 1 << 10, "lane_sigma": 3}
    plan = plan_of(
        Hooks(model, sgd(model)), max_clients=3, rows_per_client=9, retrieve=False, lane="count",
        above_break_even="keep", **noise,
    )  # fmt: skip
    assert {name: getattr(plan, name) for name in noise} == noise


def test_plans_of_two_models_with_the_same_public_choices_are_equal() -> None:
    digests = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Recommender()
        digests.add(
            engine_plan(Hooks(model, sgd(model), Settings(rest=BlockTopK(0.2, block=4)))).digest
        )
    assert len(digests) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"rows": "all"},
        {"buffers": "mean"},
        {"source": "weights"},
        {"check": "crc"},
        {"buffers": "average", "source": "gradient"},
    ],
    ids=str,
)
def test_unknown_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        Settings(**options)  # type: ignore[arg-type]


# --- what hooks refuse -------------------------------------------------------------------------


def test_a_table_tied_to_another_layer_is_explained() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(20, 8), "decoder": nn.Linear(8, 20, bias=False)})
    model["decoder"].weight = model["words"].weight
    with pytest.raises(
        ParameterError, match=r"words\.weight is also decoder\.weight.*no lookup touched.*top=1000"
    ):
        Hooks(model, sgd(model))
    Hooks(model, sgd(model), Settings(rows=Rows(top=4, find="scan")))


def test_a_parameter_outside_the_model_is_refused() -> None:
    model = Recommender()
    extra = nn.Parameter(torch.zeros(3))
    with pytest.raises(ParameterError, match=r"group 0 of SGD has a tensor of shape \(3,\)"):
        Hooks(model, torch.optim.SGD([*model.parameters(), extra], lr=0.1))


def test_lazy_and_odd_parameters_are_refused_by_name() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ParameterError, match=r"0\.weight is not initialised.*forward"):
        Hooks(lazy, sgd(lazy))
    odd = nn.ParameterDict({"z": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
    with pytest.raises(ParameterError, match=r"z has dtype torch\.complex64"):
        Hooks(odd, sgd(odd))
    with torch.device("meta"):
        meta = nn.Linear(2, 2)
    with pytest.raises(ParameterError, match="weight is on the meta device"):
        Hooks(meta, sgd(meta))
    with pytest.raises(ParameterError, match="optimizer"):
        Hooks(Recommender(), [])


def test_averaged_sgd_moves_every_row_too() -> None:
    model = Recommender()
    with pytest.raises(
        ParameterError, match=r"item\.weight: ASGD with lambd=0\.0001 also moves rows"
    ):
        Hooks(model, torch.optim.ASGD(model.parameters()))


def test_an_optimizer_without_step_hooks_is_refused() -> None:
    class Odd(torch.optim.SGD):
        def __init__(self, inner: torch.optim.SGD) -> None:
            self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, {}

    model = Recommender()
    with pytest.raises(ParameterError, match=r"item\.weight and .*: Odd did not call.*__init__"):
        Hooks(model, Odd(sgd(model)))


# --- changes after hooks -------------------------------------------------------------------------


def test_parameters_that_come_or_go_after_attach_are_noticed() -> None:
    for change in ("add", "freeze", "replace"):
        model = Recommender()
        optimizer = torch.optim.SGD(
            [p for n, p in model.named_parameters() if n != "top.bias"], 0.1
        )
        hooks = Hooks(model, optimizer)
        hooks.begin_round()
        if change == "add":
            optimizer.add_param_group({"params": [model.top.bias]})
        elif change == "freeze":
            model.user.weight.requires_grad_(False)
        else:
            model.user = nn.Embedding(30, 4)
        with pytest.raises(ParameterError, match=r"new torchfsl\.Federated|pass Federated"):
            hooks.begin_round()
        hooks.remove()


def test_a_module_added_with_its_own_group_works_after_attaching_again() -> None:
    model = Recommender()
    optimizer = sgd(model)
    settings = Settings()
    Hooks(model, optimizer, settings).remove()
    model.more = nn.Embedding(5, 7)
    optimizer.add_param_group({"params": model.more.parameters(), "lr": 0.3})
    hooks = Hooks(model, optimizer, settings)
    assert "rows7" in hooks.exchange.segment_tensors


def test_a_plan_for_another_model_is_refused() -> None:
    model = Recommender()
    settings, other = Settings(), Settings(rows=None)
    hooks = Hooks(model, sgd(model), settings)
    plan = engine_plan(Hooks(model, sgd(model), other), None)
    hooks.begin_round()
    with pytest.raises(ParameterError, match=r"segment .* does not fit this model"):
        hooks.update(plan)


# --- rows that hooks do not see ------------------------------------------------------------------


class Escaping(Recommender):
    """Looks at two rows behind the hooks' back."""

    def __init__(self, how: str, sparse: bool = False) -> None:
        super().__init__(sparse=sparse)
        self.how = how

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out = super().forward(batch)
        ids = torch.tensor([40, 41])
        if self.how == "F.embedding":
            out = out + F.embedding(ids, self.item.weight, sparse=self.item.sparse).sum()
        elif self.how == "weight":
            out = out + self.item.weight[ids].sum()
        elif self.how == "softmax":
            out = out + (self.user.weight @ torch.ones(4)).softmax(0)[0]
        return out


@pytest.mark.parametrize("source", ["delta", "gradient"])
@pytest.mark.parametrize("how", ["F.embedding", "weight", "softmax"])
@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [
        (torch.optim.SGD, "reject"),
        (torch.optim.Adam, "reject"),
        (torch.optim.Adam, "restrict"),
        (torch.optim.AdamW, "restrict"),
    ],
)
def test_uses_outside_the_module_are_caught(
    how: str, source: str, policy: str, optimizer: type[torch.optim.Optimizer]
) -> None:
    model = Escaping(how)
    decay = {"weight_decay": 0.0} if source == "gradient" else {}
    optimizers = [optimizer(model.parameters(), lr=0.1, **decay)]  # type: ignore[call-arg]
    settings = Settings(rows=Rows(untouched=policy), source=source)  # type: ignore[arg-type]
    hooks = Hooks(model, optimizers, settings)
    plan = engine_plan(hooks)
    hooks.begin_round()
    name = "user.weight" if how == "softmax" else "item.weight"

    def train_and_update() -> None:
        train(model, optimizers, [make_batch(1)])
        hooks.update(plan)

    with pytest.raises(ParameterError, match=f"{name}.*outside its embedding module.*scan"):
        train_and_update()


@pytest.mark.parametrize("source", ["delta", "gradient"])
@pytest.mark.parametrize(
    ("how", "sparse"),
    [("F.embedding", False), ("F.embedding", True), ("weight", False), ("softmax", False)],
)
def test_scan_finds_rows_used_outside_the_module(how: str, source: str, sparse: bool) -> None:
    torch.manual_seed(0)
    model = Escaping(how, sparse=sparse)
    optimizers = [sgd(model)]
    settings = Settings(rows=Rows(find="scan"), source=source)  # type: ignore[arg-type]
    hooks = Hooks(model, optimizers, settings)
    plan = engine_plan(hooks)
    before = parameters_of(model)
    hooks.begin_round()
    train(model, optimizers, [make_batch(1)])
    sent = scatter(plan, hooks.update(plan))
    if source == "gradient":
        full = {n: p.grad.to_dense().numpy() for n, p in model.named_parameters()}
    else:
        full = exact_difference(parameters_of(model), before)
    for name in full:
        np.testing.assert_allclose(sent[name], full[name], rtol=1e-6)
    assert not torch.equal(before["top.weight"], model.top.weight) or source == "gradient"


@pytest.mark.parametrize("check", ["checksum", "sample"])
def test_a_write_to_the_table_is_caught(check: str) -> None:
    model = Recommender()
    settings = Settings(check=check)  # type: ignore[arg-type]
    hooks = Hooks(model, sgd(model), settings)
    plan = engine_plan(hooks)
    hooks.begin_round()
    with torch.no_grad():
        model.user.weight[7] += 1e-6
        model.user.weight[8] -= 1e-6
    with pytest.raises(ParameterError, match=r"user\.weight"):
        hooks.update(plan)


def test_gradients_left_from_before_the_round_are_caught() -> None:
    model = Recommender()
    hooks = Hooks(model, sgd(model))
    loss_of(model, make_batch(1)).backward()
    hooks.begin_round()
    loss_of(model, make_batch(2, 20, 25)).backward()
    hooks.optimizers[0].step()
    with pytest.raises(ParameterError, match="zero_grad"):
        hooks.update(engine_plan(hooks))


def test_the_check_can_be_switched_off() -> None:
    model = Escaping("softmax")
    hooks = Hooks(model, sgd(model), Settings(check="off"))
    hooks.begin_round()
    train(model, hooks.optimizers, [make_batch(1)])
    hooks.update(engine_plan(hooks))


# --- training as users write it ------------------------------------------------------------------


def test_gradient_accumulation_and_zero_grad_in_both_styles() -> None:
    for set_to_none in (True, False):
        model = Recommender()
        hooks = Hooks(model, sgd(model))
        before = parameters_of(model)
        hooks.begin_round()
        optimizer = hooks.optimizers[0]
        for step in range(3):
            for part in range(2):
                loss_of(model, make_batch(10 * step + part)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        plan = engine_plan(hooks)
        sent = scatter(plan, hooks.update(plan))
        for name, value in exact_difference(parameters_of(model), before).items():
            np.testing.assert_array_equal(sent[name], value)


def test_several_gradient_steps_add_up_at_the_same_point() -> None:
    model = Recommender().eval()
    hooks = Hooks(model, sgd(model), Settings(source="gradient"))
    plan = engine_plan(hooks)
    hooks.begin_round()
    train(model, hooks.optimizers, [make_batch(1), make_batch(2)])
    sent = scatter(plan, hooks.update(plan))
    hooks.optimizers[0].zero_grad()
    loss_of(model, make_batch(1)).backward()
    loss_of(model, make_batch(2)).backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(sent[name], p.grad.numpy(), atol=1e-6)


def test_a_learning_rate_schedule_keeps_working() -> None:
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    hooks = Hooks(model, optimizer)
    before = parameters_of(model)
    hooks.begin_round()
    for number in range(3):
        train(model, [optimizer], [make_batch(number)])
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    plan = engine_plan(hooks)
    sent = scatter(plan, hooks.update(plan))
    for name, value in exact_difference(parameters_of(model), before).items():
        np.testing.assert_array_equal(sent[name], value)


@pytest.mark.parametrize("source", ["delta", "gradient"])
@pytest.mark.parametrize("fused", [False, True])
def test_autocast_and_a_loss_scaler(source: str, fused: bool) -> None:
    torch.manual_seed(0)
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    settings = Settings(source=source)  # type: ignore[arg-type]
    hooks = Hooks(model, optimizer, settings)
    plan = engine_plan(hooks)
    before = parameters_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    hooks.begin_round()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, make_batch(1))
    scaler.scale(loss).backward()
    scaled = {n: p.grad.clone() for n, p in model.named_parameters()}
    scaler.step(optimizer)
    scaler.update()
    sent = scatter(plan, hooks.update(plan))
    if source == "gradient":
        expected = {n: (g.double() / 2**10).numpy() for n, g in scaled.items()}
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    else:
        expected = exact_difference(parameters_of(model), before)
    for name, value in expected.items():
        np.testing.assert_array_equal(sent[name], value)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_skipped_by_the_scaler_sends_nothing(fused: bool) -> None:
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    hooks = Hooks(model, optimizer, Settings(source="gradient"))
    plan = engine_plan(hooks)
    scaler = torch.amp.GradScaler("cpu")
    hooks.begin_round()
    scaler.scale(loss_of(model, make_batch(1)) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not any(v.any() for v in scatter(plan, hooks.update(plan)).values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_update_applied_to_the_snapshot_gives_the_trained_model(case, dtype) -> None:
    """Exactly on multiples of 2**-frac_bits, elsewhere within half of that."""
    model, _ = case.build()
    model.to(dtype)
    if dtype is torch.float16 and case.sparse:
        pytest.skip("torch has no sparse half-precision arithmetic on CPU")
    optimizers = case.make(model)
    for group in (g for o in optimizers for g in o.param_groups if "eps" in g):
        group["eps"] = 1e-3  # the default is 0 in half precision
    rows = Rows(untouched="restrict" if case.moves_all else "reject")
    hooks = Hooks(model, optimizers, Settings(rows=rows, encoding=WIDE))
    plan = engine_plan(hooks)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p.double() * 2**6).round() / 2**6)
    for on_the_grid in (True, False):
        before = parameters_of(model)
        hooks.begin_round()
        train(model, optimizers, [make_batch(1), make_batch(2)])
        with torch.no_grad():
            for p in model.parameters() if on_the_grid else ():
                p.copy_((p.double() * 2**8).round() / 2**8)
        update, _, report = quantise(plan, hooks.update(plan))
        assert report.num_clipped == 0
        decoded = {
            name: RawSegment(part.indices, plan.encoding.dequantise(part.values))
            for name, part in update.items()
        }
        sent = scatter(plan, decoded)
        for name, value in parameters_of(model).items():
            missing = before[name].double().numpy() + sent[name] - value.double().numpy()
            assert np.abs(missing).max() <= (0 if on_the_grid else 2.0**-31), name


def test_values_between_the_steps_of_the_encoding_are_within_half_a_step() -> None:
    model = Recommender()
    hooks = Hooks(model, sgd(model))
    plan = engine_plan(hooks)
    hooks.begin_round()
    train(model, hooks.optimizers, [make_batch(1)])
    _, errors, _ = quantise(plan, hooks.update(plan))
    assert max(np.abs(e).max() for e in errors.values()) <= 2.0**-17


# --- buffers, restore, order ---------------------------------------------------------------------


def test_averaged_buffers_are_sent_as_their_change() -> None:
    model = Recommender()
    hooks = Hooks(model, sgd(model), Settings(buffers="average"))
    plan = engine_plan(hooks)
    before = model.norm.running_var.clone()
    hooks.begin_round()
    train(model, hooks.optimizers, [make_batch(1)])
    sent = scatter(plan, hooks.update(plan))
    expected = (model.norm.running_var.double() - before.double()).numpy()
    np.testing.assert_array_equal(sent["norm.running_var"], expected)
    assert expected.any()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_restore_puts_everything_back(case) -> None:
    model, optimizers = case.build()
    policy = "restrict" if case.moves_all else "reject"
    hooks = Hooks(model, optimizers, Settings(rows=Rows(untouched=policy)))
    train(model, optimizers, [make_batch(9)])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    hooks.begin_round()
    train(model, optimizers, [make_batch(1, 5, 9), make_batch(2)])
    assert any(not torch.equal(v, before[k]) for k, v in model.state_dict().items())
    hooks.restore()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not hooks.status().open


@pytest.mark.parametrize("untouched", ["reject", "restrict"])
def test_restore_reaches_a_table_that_got_new_storage_in_the_round(untouched: Untouched) -> None:
    model = Recommender()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, weight_decay=0.1 if untouched == "restrict" else 0.0
    )
    hooks = Hooks(model, optimizer, Settings(rows=Rows(untouched=untouched)))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    hooks.begin_round()
    train(model, [optimizer], [make_batch(1, 5, 9)])
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    hooks.restore()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_the_order_of_calls_is_enforced() -> None:
    model = Recommender()
    hooks = Hooks(model, sgd(model))
    plan = engine_plan(hooks)
    with pytest.raises(ProtocolError, match="begin_round"):
        hooks.update(plan)
    hooks.begin_round()
    hooks.update(plan)
    hooks.restore()
    with pytest.raises(ProtocolError, match="begin_round"):
        hooks.update(plan)
    hooks.restore()


def test_one_model_serves_many_clients_with_a_residual_each() -> None:
    model = Recommender()
    hooks = Hooks(model, sgd(model), Settings(rest=TopK(0.2), rows=Rows(top=3)))
    plan = engine_plan(hooks, None)
    residuals = [Residual(), Residual()]
    start = parameters_of(model)
    for residual, seed in zip(residuals, (1, 2), strict=True):
        total = None
        for _ in range(3):
            hooks.begin_round()
            train(model, hooks.optimizers, [make_batch(seed)])
            full = exact_difference(parameters_of(model), start)
            raw = hooks.update(plan, residual=residual)
            _, errors, _ = quantise(plan, raw)
            residual.settle(raw, errors)
            hooks.restore()
            for name, value in parameters_of(model).items():
                assert torch.equal(value, start[name])
            sent = scatter(plan, raw)
            total = sent if total is None else {n: total[n] + sent[n] for n in total}
        owed = residual.dense("rest", (plan.segment("rest").m, 1), torch.device("cpu"))
        rest = [t.name for t in plan.segment("rest").tensors]
        sums = np.concatenate([total[n].reshape(-1) for n in rest]) + owed.numpy().reshape(-1)
        expected = np.concatenate([3 * full[n].reshape(-1) for n in rest])
        np.testing.assert_allclose(sums, expected, atol=2e-5)


def test_not_finite_training_is_refused_by_name() -> None:
    model = Recommender()
    hooks = Hooks(model, sgd(model))
    hooks.begin_round()
    (loss_of(model, make_batch(1)) * float("inf")).backward()
    hooks.optimizers[0].step()
    with pytest.raises(ParameterError, match=r"^item\.weight \(segment 'rows4'\).*NaN or infinite"):
        hooks.update(engine_plan(hooks))


@pytest.mark.parametrize(
    ("parameter", "make", "key", "where", "message"),
    [
        (
            "item.weight",
            "Adam",
            "exp_avg",
            (3, 0),
            r"item\.weight \(segment 'rows4'\): the update has NaN",
        ),
        (
            "user.weight",
            "Adam",
            "exp_avg",
            (3, 0),
            r"user\.weight \(segment 'rows4'\): the update has NaN",
        ),
        ("user.weight", "Adam", "exp_avg_sq", (29, 0), r"user\.weight: the .* 'exp_avg_sq' is NaN"),
        ("item.weight", "Adagrad", "sum", (49, 0), r"item\.weight: the optimizer state 'sum' is"),
        ("top.bias", "Adam", "exp_avg", (0,), r"top\.bias \(segment 'rest'\): the update has NaN"),
    ],
)
def test_a_state_of_the_optimizer_that_is_not_finite_is_refused_by_name(
    parameter: str, make: str, key: str, where: tuple[int, ...], message: str
) -> None:
    model = Recommender()
    optimizer = getattr(torch.optim, make)(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer)
    train(model, [optimizer], [make_batch(1)])
    optimizer.state[dict(model.named_parameters())[parameter]][key][where] = float("nan")
    hooks.begin_round()
    train(model, [optimizer], [make_batch(1)])
    with pytest.raises(ParameterError, match=f"^{message}") as refused:
        hooks.update(engine_plan(hooks))
    assert "optimizer state" in str(refused.value)


# --- other choices of rows -----------------------------------------------------------------------


def test_a_fixed_row_set_is_always_the_same_and_others_are_refused_or_put_back() -> None:
    fixed = Fixed({"item.weight": list(range(30)), "user.weight": [2, 3], "words.weight": [1, 9]})
    model = Recommender()
    hooks = Hooks(model, sgd(model), Settings(rows=Rows(choose=fixed)))
    hooks.begin_round()
    train(model, hooks.optimizers, [make_batch(1)])
    with pytest.raises(ParameterError, match=r"user\.weight.*outside the fixed ids"):
        hooks.update(engine_plan(hooks, None))
    hooks.remove()
    for source in ("delta", "gradient"):
        hooks = Hooks(
            model,
            sgd(model),
            Settings(rows=Rows(choose=fixed, untouched="restrict"), source=source),
        )
        plan = engine_plan(hooks, None)
        before = parameters_of(model)
        hooks.begin_round()
        train(model, hooks.optimizers, [make_batch(1)])
        raw = hooks.update(plan)
        assert raw["rows4"].indices.tolist() == [*range(30), 52, 53]
        assert raw["rows3"].indices.tolist() == [1, 9]
        if source == "delta":
            sent = scatter(plan, raw)
            for name, value in exact_difference(parameters_of(model), before).items():
                np.testing.assert_array_equal(sent[name], value)
        hooks.remove()


def test_fixed_rows_must_name_existing_rows_of_a_table() -> None:
    model = Recommender()
    with pytest.raises(
        ParameterError,
        match=r"item\.weight: row id 50 of Fixed is out of range: pass ids from 0 to 49",
    ):
        Hooks(model, sgd(model), Settings(rows=Rows(choose=Fixed({"item.weight": [50]}))))
    with pytest.raises(ParameterError, match="mapping from table names to row ids"):
        Hooks(model, sgd(model), Settings(rows=Rows(choose=Fixed([1]))))


def test_random_rows_follow_the_public_seed() -> None:
    model = Recommender()
    hooks = Hooks(
        model, sgd(model), Settings(rows=Rows(choose=RandomK(20, seed=5)), rest=RandomK(3, block=4))
    )
    plan = engine_plan(hooks, None)
    for number in range(3):
        hooks.begin_round()
        train(model, hooks.optimizers, [make_batch(number)])
        raw = hooks.update(plan, residual=hooks.residual, round_number=number)
        public = RandomK(20, seed=5).positions(80, 20, number).tolist()
        assert set(raw["rows4"].indices) <= set(public)
        assert len(raw["rest"].indices) == 3
        _, errors, _ = quantise(plan, raw)
        hooks.residual.settle(raw, errors)


def test_dense_is_the_default_rest_policy() -> None:
    assert Settings().rest == Dense()


def test_memory_is_the_touched_rows_and_a_whole_table_only_where_a_policy_needs_it() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(20_000, 16), "top": nn.Linear(16, 1)})
    table_bytes = 20_000 * 16 * 4
    for options, copied in (({"weight_decay": 0.0}, []), ({"weight_decay": 0.1}, ["table.weight"])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        hooks = Hooks(model, optimizer, Settings(rows=Rows(untouched="restrict")))
        assert hooks.status().copied_tables == copied
        hooks.begin_round()
        for seed in range(3):
            ids = torch.randint(0, 100, (200,), generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            model["top"](model["table"](ids)).sum().backward()
            optimizer.step()
        held = hooks.status().saved_bytes["table.weight"] - (table_bytes if copied else 0)
        assert 0 < held <= 100 * (16 * 4 + 2 * 8)
        hooks.remove()


def test_the_explanation_tells_of_copies_of_whole_tables() -> None:
    model = Recommender()
    size = model.item.weight.nbytes
    for options, retrieve, copied, replaced in (
        ({}, True, False, False),
        ({}, False, False, True),
        ({"weight_decay": 0.1}, False, True, True),
        ({"weight_decay": 0.1}, True, False, False),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        hooks = Hooks(model, optimizer, Settings(rows=Rows(untouched="restrict"), rest=TopK(3)))
        plan = plan_of(
            hooks, max_clients=2, rows_per_client=9, retrieve=retrieve, above_break_even="keep"
        )
        text = "\n".join(hooks.explain_memory(plan))
        assert (f"item.weight: the optimizer moves every row, so a round keeps a copy of the "
                f"whole table: {size} bytes" in text) == copied  # fmt: skip
        assert (f"a round keeps what it replaces until the block ends: {size} bytes"
                in text) == replaced  # fmt: skip
        assert f"a residual of {8 * plan.segment('rest').m}" in text
        hooks.remove()


def test_the_explanation_of_a_plan_goes_before_that_of_memory() -> None:
    model = Recommender()
    fed = torchfsl.Federated(model, sgd(model), max_clients=2, rows_per_client=9)
    text = fed.explain()
    assert text.startswith(fed.plan.explain())
    assert "the servers' default optimizer: SGD(2.5, momentum=0.8)" in text
    assert text.endswith("\n".join(fed.hooks.explain_memory(fed.plan)))


def test_hooks_print_the_buffers_that_travel_nowhere() -> None:
    def printed(settings: Settings) -> str:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
        return repr(Hooks(model, torch.optim.SGD(model.parameters(), lr=0.1), settings))

    left = "4 buffers neither sent nor loaded (1.running_mean, 1.running_var, ...)"
    assert left in printed(Settings())
    assert "buffers" not in printed(Settings(buffers="average"))

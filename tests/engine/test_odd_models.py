"""Models and loops off the beaten track: the update is what training did, or a clear refusal."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from tests.support.engine_models import (
    WIDE,
    engine_plan,
    exact_difference,
    scatter,
    start_afresh,
)
from tests.support.engine_rounds import Task, plain_sum
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockTopK, Rows
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError

pytestmark = pytest.mark.filterwarnings("ignore")

Loop = Callable[[nn.Module, Any], None]


def ids(*shape: int, high: int = 20) -> torch.Tensor:
    return torch.randint(0, high, shape)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()


def adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.1)


def check(
    build: Callable[[], nn.Module],
    loop: Loop = steps,
    optimize: Callable[[nn.Module], Any] = adagrad,
    rounds: int = 2,
    **options: Any,
) -> Hooks:
    """In every round all that changed is in the update, bit for bit, and nothing else."""
    torch.manual_seed(0)
    model = build()
    optimizer = optimize(model)
    hooks = Hooks(model, optimizer, Settings(**options))
    plan = engine_plan(hooks)
    moved = False
    for number in range(rounds):
        before = {n: p.detach().clone() for n, p in hooks.model.named_parameters()}
        hooks.begin_round()
        torch.manual_seed(number)
        loop(model, optimizer)
        sent = scatter(plan, hooks.update(plan, residual=hooks.residual))
        hooks.residual.discard()
        after = {n: p.detach() for n, p in hooks.model.named_parameters()}
        for name, value in exact_difference(after, before).items():
            np.testing.assert_array_equal(sent[name], value, err_msg=name)
            moved |= bool(value.any())
    assert moved
    return hooks


class Small(nn.Module):
    """One table, one layer; its batches come from torch's own generator."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(20, 4), nn.Linear(4, 2)
        self.to(dtype)

    def forward(self, x: torch.Tensor | None = None) -> torch.Tensor:
        return self.l(self.e(ids(5) if x is None else x)).square().sum()


# --- models --------------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    """An LSTM whose softmax is its table, as a layer or by hand."""

    def __init__(self, by_hand: bool = False) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(30, 8), nn.LSTM(8, 8, batch_first=True)
        self.out = None if by_hand else nn.Linear(8, 30)
        if self.out is not None:
            self.out.weight = self.words.weight

    def forward(self) -> torch.Tensor:
        state = self.rnn(self.words(ids(4, 6, high=30)))[0]
        logits = F.linear(state, self.words.weight) if self.out is None else self.out(state)
        return F.cross_entropy(logits.flatten(0, 1), ids(24, high=30))


def test_a_tied_lstm_language_model_is_refused_with_a_remedy_that_works() -> None:
    with pytest.raises(ParameterError, match=r"words\.weight is also out\.weight.*find='scan'"):
        check(LanguageModel)
    with pytest.raises(ParameterError, match=r"words\.weight: a row changed.*find='scan'"):
        check(lambda: LanguageModel(by_hand=True))
    for by_hand in (False, True):
        check(lambda by_hand=by_hand: LanguageModel(by_hand), rows=Rows(top=30, find="scan"))
        check(lambda by_hand=by_hand: LanguageModel(by_hand), rows=None)


class WeightedBags(nn.Module):
    """Nested lists of bags with trained weights a sample, int32 ids and offsets."""

    def __init__(self) -> None:
        super().__init__()
        bags = [
            nn.EmbeddingBag(20, 4, mode="sum", include_last_offset=last) for last in (False, True)
        ]
        self.bags = nn.ModuleList(
            [nn.ModuleList(bags), nn.ModuleList([nn.EmbeddingBag(20, 3, mode="sum")])]
        )
        self.weights = nn.Parameter(torch.rand(6))

    def forward(self) -> torch.Tensor:
        x, offsets = ids(6).int(), torch.tensor([0, 2, 2, 6], dtype=torch.int32)
        parts = [bag(x, offsets, self.weights) for group in self.bags for bag in group]
        return sum(part.square().sum() for part in parts)


class Renormed(nn.Module):
    """Lookups that write: max_norm, with padding."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.e = nn.Embedding(20, 4, padding_idx=2, max_norm=0.5, norm_type=1, sparse=sparse)
        self.b = nn.EmbeddingBag(20, 4, max_norm=0.3, padding_idx=1)
        self.l = nn.Linear(4, 1)

    def forward(self) -> torch.Tensor:
        return self.l(self.e(ids(6)) + self.b(ids(6, 2))).sum()


class Often(Small):
    """One table looked up by ids of many shapes, also by none and by a single one."""

    def forward(self) -> torch.Tensor:
        x = self.e(ids(5).int()) + self.e(ids(5)[None, :, None])[0, :, 0]
        x = x + self.e(torch.empty(0, dtype=torch.int32)).sum() + self.e(torch.tensor(3))
        x = x + self.e(ids(1).expand(5)) + self.e(ids(5, 4).t()[::2])[0]
        return (self.l(x) + self.l.weight.sum()).square().sum()


class Recomputed(Small):
    """Activations thrown away and computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self) -> torch.Tensor:
        x, one = ids(5), torch.ones(1, requires_grad=True)
        return checkpoint(
            lambda z: (self.l(self.e(x)) * z).square().sum(), one, use_reentrant=self.reentrant
        )


class ChannelsLast(nn.Module):
    """Parameters that are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.e = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 4)
        self.to(memory_format=torch.channels_last)

    def forward(self) -> torch.Tensor:
        image = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
        return (self.norm(self.conv(image)) * self.e(ids(2, high=5))[:, :, None, None]).tanh().sum()


class Transposed(Small):
    def __init__(self) -> None:
        super().__init__()
        self.e.weight = nn.Parameter(torch.randn(4, 20).t())


class Hollow(nn.Module):
    """Tables without rows, parameters without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.e = nn.Embedding(0, 3), nn.Embedding(4, 3)
        self.l, self.z, self.w = nn.Linear(3, 1), nn.Parameter(torch.empty(0)), nn.Linear(0, 4)

    def forward(self) -> torch.Tensor:
        nothing = self.none(torch.empty(0, dtype=torch.int64)).sum() + self.z.sum()
        return self.l(self.e(ids(2, high=4))).sum() + nothing + self.w(torch.empty(0)).sum()


class Wrapped(nn.Module):
    """As wrappers like DataParallel keep a model."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Small()

    def forward(self) -> torch.Tensor:
        return self.module()


class Normed(Small):
    """The table is computed from other parameters, so it is no table of rows."""

    def __init__(self, old: bool) -> None:
        super().__init__()
        (nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm)(self.e)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "weighted bags": WeightedBags,
    "max_norm": Renormed,
    "looked up often": Often,
    "checkpoint, reentrant": lambda: Recomputed(True),
    "checkpoint": lambda: Recomputed(False),
    "channels last": ChannelsLast,
    "transposed table": Transposed,
    "bfloat16": lambda: Small(torch.bfloat16),
    "float64": lambda: Small(torch.float64),
    "hollow": Hollow,
    "wrapper": Wrapped,
    "parametrized table": lambda: Normed(old=False),
    "table with weight_norm": lambda: Normed(old=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_odd_model_is_followed_exactly(name: str) -> None:
    check(MODELS[name])
    check(MODELS[name], rest=BlockTopK(1.0, block=7))


@pytest.mark.parametrize("name", [*MODELS, "float16"])
@pytest.mark.parametrize("policy", ["reject", "restrict"])
def test_an_odd_model_trains_through_two_servers(name: str, policy: str) -> None:
    decay = 0.01 if policy == "restrict" else 0.0
    task = Task(
        Settings(rows=Rows(untouched=policy), buffers="average", encoding=WIDE),
        build=MODELS.get(name, lambda: Small(torch.float16)),
        optimize=lambda m: torch.optim.SGD(m.parameters(), lr=0.001, weight_decay=decay),
        rows_per_client=60,
    )
    for number in range(2):
        link, updates = task.begin(), []
        for client, hooks in enumerate(task.hooks):
            torch.manual_seed(10 * number + client)
            rows = {t.name: range(t.num_rows) for t in hooks.inventory.all_tables} or None
            with Round(hooks, task.client(link, client), number=number, rows=rows) as rnd:
                steps(hooks.model, hooks.optimizers[0])
            updates.append(rnd.update)
        sums = plain_sum(task.plan, updates)
        for segment, value in task.finish().sums.items():
            np.testing.assert_array_equal(value, sums[segment])
        assert all(np.isfinite(value).all() for value in task.state.values())


def test_max_norm_is_followed_in_evaluation_with_sparse_gradients_and_with_decay() -> None:
    def evaluate_between(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            model()
        steps(model, optimizer)
        with torch.inference_mode():
            model()

    check(Renormed, evaluate_between)
    check(lambda: Renormed(sparse=True), optimize=lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    check(
        Renormed,
        optimize=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1),
        rows=Rows(untouched="restrict"),
    )


def test_data_parallel_goes_by_the_names_of_the_inner_model() -> None:
    inner = Small()
    hooks = check(lambda: nn.DataParallel(inner), lambda m, o: steps(lambda: m(ids(5)), o))
    assert hooks.model is inner


# --- loops ---------------------------------------------------------------------------------------


def accumulate_in_a_closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        for _ in range(3):
            loss = model() / 3
            loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)


def by_functional_call(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    functional_call(model, dict(model.named_parameters()), (ids(5),)).backward()
    optimizer.step()


def by_function_transforms(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    values = {n: p.detach() for n, p in model.named_parameters()}
    gradient = grad(lambda p, x: functional_call(model, p, (x,)))
    single = gradient(values, ids(5))
    several = vmap(gradient, in_dims=(None, 0))(values, ids(6, 5))
    for name, parameter in model.named_parameters():
        parameter.grad = single[name] + several[name].mean(0)
    optimizer.step()


def beside_copies(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    other = copy.deepcopy(model)
    elsewhere = torch.optim.SGD(other.parameters(), lr=1.0)
    other().backward()
    elsewhere.step()
    pickle.loads(pickle.dumps(model))()  # noqa: S301
    average = torch.optim.swa_utils.AveragedModel(model)
    steps(model, optimizer)
    average.update_parameters(model)
    average()
    copy.deepcopy(optimizer)
    pickle.dumps(optimizer)


def after_loading_itself(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.clone())
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(model, optimizer)
    model.e.weight.data = model.e.weight.data.clone()
    steps(model, optimizer)


def in_a_thread(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    thread = threading.Thread(target=steps, args=(model, optimizer))
    thread.start()
    thread.join()


def with_a_compiled_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        optimizer.zero_grad()
        model().backward()
        step()


def while_exported(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.export.export(model, (ids(5),), strict=False)
    steps(model, optimizer)


def while_traced(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.jit.trace(model, (ids(5),))
    steps(model, optimizer)


def frozen_for_a_while(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.e.requires_grad_(False)
    steps(model, optimizer)
    model.e.requires_grad_(True)


def sharpness_aware(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = ids(5)
    model(x).backward()
    climb = [0.05 * p.grad for p in model.parameters()]
    with torch.no_grad():
        for parameter, step in zip(model.parameters(), climb, strict=True):
            parameter.add_(step)
    optimizer.zero_grad()
    model(x).backward()
    with torch.no_grad():
        for parameter, step in zip(model.parameters(), climb, strict=True):
            parameter.sub_(step)
    optimizer.step()
    optimizer.zero_grad()


def after_ids_that_torch_refuses(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for wrong in (torch.tensor([99]), torch.tensor([-1, 3]), torch.tensor([1.5])):
        with pytest.raises((IndexError, RuntimeError)):
            model(wrong)
    steps(model, optimizer)


LOOPS: list[Loop] = [
    sharpness_aware,
    after_ids_that_torch_refuses,
    accumulate_in_a_closure,
    by_functional_call,
    by_function_transforms,
    beside_copies,
    after_loading_itself,
    in_a_thread,
    with_a_compiled_step,
    while_exported,
    while_traced,
    frozen_for_a_while,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_an_odd_loop_is_followed_exactly(loop: Loop) -> None:
    torch.compiler.reset()
    check(Small, loop)


_s = torch.optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "OneCycleLR": lambda o: _s.OneCycleLR(o, 0.1, total_steps=10),
    "CyclicLR": lambda o: _s.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: _s.CosineAnnealingWarmRestarts(o, 2),
    "ReduceLROnPlateau": lambda o: _s.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_rate_and_momentum_keep_working(name: str) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = SCHEDULERS[name](optimizer)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model()
            loss.backward()
            optimizer.step()
            scheduler.step(*([loss.item()] if name == "ReduceLROnPlateau" else []))

    check(Small, loop, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))


@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_optimizers_that_step_inside_the_backward_pass(source: str) -> None:
    gradients: dict[int, torch.Tensor] = {}

    def build_hooks(model: nn.Module) -> list[torch.optim.Optimizer]:
        own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def hook(parameter: nn.Parameter) -> None:
            gradients[id(parameter)] = parameter.grad.clone()
            own[parameter].step()
            own[parameter].zero_grad()

        for parameter in own:
            parameter.register_post_accumulate_grad_hook(hook)
        return list(own.values())

    if source == "delta":
        check(Small, lambda m, _: m().backward(), build_hooks)
        return
    model = Small()
    hooks = Hooks(model, build_hooks(model), Settings(source="gradient"))
    plan = engine_plan(hooks)
    hooks.begin_round()
    model().backward()
    sent = scatter(plan, hooks.update(plan))
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(sent[name], gradients[id(parameter)].double().numpy())


@pytest.mark.parametrize(
    "optimize",
    [
        lambda m: torch.optim.Adafactor(m.parameters(), lr=0.1),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
        lambda m: torch.optim.ASGD(m.parameters(), lr=0.1, lambd=0.0),
    ],
    ids=["Adafactor", "dampening", "ASGD without lambd"],
)
def test_further_optimizers(optimize: Callable[[nn.Module], Any]) -> None:
    check(Small, optimize=optimize, rounds=3)


# --- refusals ------------------------------------------------------------------------------------


def add_a_head(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.head = nn.Embedding(5, 4)
    optimizer.add_param_group({"params": model.head.parameters()})
    start_afresh(optimizer)
    steps(lambda: model() + model.head(ids(2, high=5)).sum(), optimizer)


def replace_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    steps(model, optimizer)
    for module in (model.e, model.l):
        module.weight = nn.Parameter(module.weight.detach().clone())


def convert(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    steps(model, optimizer)
    model.double()


def call_forward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    steps(lambda: model.l(model.e.forward(ids(5))).sum(), optimizer)


def train_the_traced(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    traced = torch.jit.trace(model, (ids(5),))
    steps(lambda: traced(ids(5)), optimizer)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (add_a_head, r"head\.weight .*added.*make a new torchfsl\.Federated"),
        (replace_parameters, r"group 0 of Adagrad .*load_state_dict\(assign=True\) replaces"),
        (
            convert,
            r"e\.weight was torch\.float32 .* is torch\.float64 .*new torchfsl\.Federated",
        ),
        (
            call_forward,
            r"e\.weight: a row changed .*module\.forward.*through the module, by calling it",
        ),
        (train_the_traced, r"e\.weight: a row changed .*traced"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_round_cannot_follow_is_refused_when_it_ends(loop: Loop, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        check(Small, loop, rounds=1)


@pytest.mark.parametrize("find", ["hooks", "scan"])
def test_a_model_compiled_as_one_graph_needs_a_scan_and_is_told_so(find: str) -> None:
    torch.compiler.reset()

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        steps(lambda: compiled(ids(5)), optimizer)

    if find == "scan":
        check(Small, loop, rows=Rows(find="scan"))
    else:
        reason = r"fullgraph=True forbids.*Rows\(find='scan'\)"
        if "reason" not in inspect.signature(torch.compiler.disable).parameters:
            reason = r"disable\(\) wrapped function.*hooks\.py"  # torch before 2.7 takes none
        with pytest.raises(Exception, match=f"(?s){reason}"):
            check(Small, loop)
    torch.compiler.reset()


def test_what_is_no_model_or_no_optimizer_is_refused() -> None:
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ParameterError, match=r"model is of type SGD: pass a torch\.nn\.Module"):
        Hooks(optimizer, model)  # type: ignore[arg-type]
    for wrong in ("sgd", None, model.parameters(), torch.optim.lr_scheduler.StepLR(optimizer, 1)):
        with pytest.raises(
            ParameterError, match=r"expects a torch\.optim\.Optimizer, got a .*: pass"
        ):
            Hooks(model, wrong)  # type: ignore[arg-type]
    assert len(Hooks(model, [optimizer, optimizer]).optimizers) == 1


def test_hooks_do_not_keep_models_alive() -> None:
    model = Small()
    gone = weakref.ref(model)
    Hooks(model, torch.optim.SGD(model.parameters(), lr=0.1))
    del model
    gc.collect()
    assert gone() is None


def test_an_optimizer_keeps_its_hooks_alive_until_they_are_removed() -> None:
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = weakref.ref(Hooks(model, optimizer))
    gc.collect()
    hooks = kept()
    assert hooks is not None
    assert hooks.attached
    hooks.remove()
    del hooks
    gc.collect()
    assert kept() is None

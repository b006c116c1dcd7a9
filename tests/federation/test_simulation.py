"""Rows by a dry pass, budgets from them, and whole federations in one call."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.federation.results import SimulationResult
from torchfsl.submodel.plain import Plain
from torchfsl.types import Array

ITEMS, CLIENTS = 400, 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, 4, padding_idx=0)
        self.users, self.bias = nn.Embedding(CLIENTS, 4), nn.Embedding(ITEMS, 1)
        self.norm, self.drop, self.top = nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.users(user) * self.items(item)))
        return cast(torch.Tensor, (self.top(x) + self.bias(item)).squeeze(1))


def data_of(client: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(client)
    item = torch.randint(0, ITEMS, (2, 8), generator=g)
    return [(torch.full((8,), client), ids, (ids % 2).float()) for ids in item]


def rows_of(batches: Any) -> dict[str, torch.Tensor]:
    item = torch.cat([b[1] for b in batches])
    return {"items": item, "bias": item, "users": batches[0][0]}


def setup(optimizer: Any = torch.optim.Adagrad, **options: Any) -> tuple[Any, Any, Any]:
    """A model, made federated without a plan, and its loop."""
    torch.manual_seed(0)
    model = Model()
    opt = optimizer(model.parameters(), lr=0.1)

    def train(batches: Any) -> float:
        for user, item, label in batches:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), label)
            loss.backward()
            opt.step()
        return float(loss.detach())

    return model, torchfsl.Federated(model, opt, **options), train


DATA = {client: data_of(client) for client in range(CLIENTS)}


def run(
    rounds: int = 3, *, local: tuple[str, ...] = (), plan: Any = None, **options: Any
) -> tuple[SimulationResult, Any]:
    torch.manual_seed(1)
    _, fed, train = setup(local=local, plan=plan, **options.pop("setup", {}))
    torch.manual_seed(2)  # of dropout
    usual: dict[str, Any] = {"rows": rows_of, "server_optimizer": torchfsl.optim.SGD()}
    result = torchfsl.simulate(
        fed, DATA, train, rounds=rounds, progress=False, **{**usual, **options}
    )
    return result, fed


def assert_same(one: SimulationResult, other: SimulationResult) -> None:
    """Both ended with the same bits."""
    assert same(one.model_state, other.model_state)


def same(one: Any, other: Any) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_dry_pass_finds_the_rows_and_changes_nothing() -> None:
    model, fed, _ = setup()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    batches = [(user, item) for user, item, _ in DATA[3]]
    found = fed.rows_of(batches)
    items = torch.cat([b[1] for b in DATA[3]]).unique()
    assert torch.equal(found["items.weight"], items[items != 0])
    assert torch.equal(found["bias.weight"], items)
    assert found["users.weight"].tolist() == [3]
    assert modes == [m.training for m in model.modules()]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(not p.grad_fn and p.grad is None for p in model.parameters())
    keyed = [{"user": user, "item": item} for user, item in batches]
    called = fed.rows_of(DATA[3], call=lambda m, b: m(b[0], b[1]))
    for other in (fed.rows_of(keyed), called, fed.rows_of(DATA[3])):  # the last one with labels
        assert all(torch.equal(other[name], found[name]) for name in found)
    with pytest.raises(ParameterError, match=r"Model failed on a batch.*call=lambda"):
        fed.rows_of([user for user, _ in batches])
    fed.hooks.begin_round()
    with pytest.raises(ProtocolError, match="a round is open"):
        fed.rows_of(batches)


def test_budgets_may_be_named_by_table_and_come_from_quantiles() -> None:
    _, fed, _ = setup(max_clients=3)
    advice = fed.row_counts([rows_of(DATA[c]) for c in DATA])
    widest = fed.suggest_rows(DATA)
    assert widest == advice.rows_per_client() == fed.suggest_rows([rows_of(DATA[c]) for c in DATA])
    assert widest["rows4"] >= 15
    assert fed.suggest_rows(DATA, 0.5)["rows4"] <= widest["rows4"]
    assert "rows4" in str(advice)
    assert "99%" in str(advice)
    by_table = {"items": 16, "users.weight": 1, "bias": 16}
    plan = fed.make_plan(rows_per_client=by_table)
    assert {s.name: s.k_max for s in plan.segments}["rows4"] == 17
    with pytest.raises(
        ParameterError,
        match=r"has no number for 'users', and one for other tables of segment 'rows4'",
    ):
        fed.make_plan(rows_per_client={"items": 16, "bias": 1})
    with pytest.raises(ParameterError, match=r"names \['word'\].*the segments .*items\.weight"):
        fed.make_plan(rows_per_client={**by_table, "word": 1})
    with pytest.raises(ParameterError, match="one client or more"):
        fed.suggest_rows([])


def test_both_protocols_end_with_the_same_bits_and_every_round_matches_the_plain_sum() -> None:
    results = [run(protocol=kind)[0] for kind in ("fsl", "plain")]
    assert_same(*results)
    for result in results:
        assert all(one.matches_plain for one in result.rounds)
        assert result.column("loss")[-1] < result.column("loss")[0]
    assert results[0].column("upload_bytes")[0] > 0


def planned(**options: Any) -> Any:
    """A plan of `setup`'s model in which every client fits."""
    sizes: dict[str, Any] = {"max_clients": CLIENTS, "above_break_even": "keep", "proofs": "none"}
    _, fed, _ = setup(**{**sizes, **options})
    return fed.make_plan(rows_per_client=fed.suggest_rows([rows_of(DATA[c]) for c in DATA]))


def test_weights_count_alike_under_both_protocols_and_in_the_model() -> None:
    weigh = {"weight": lambda batches: 1 + int(batches[0][0][0]) % 3}  # of the client's number
    models: dict[str, Any] = {}
    numpy = {"weight": lambda batches: np.int64(weigh["weight"](batches))}
    for name, average, weight in (
        ("weighted", {"average": "weight", "max_weight": 3}, weigh),
        ("of NumPy", None, numpy),
        ("by default", None, weigh),
        ("all 1", {"average": "weight", "max_weight": 3}, {}),
    ):
        made = {} if average is None else {"plan": planned(**average)}
        found = [run(protocol=kind, **made, **weight)[0] for kind in ("fsl", "plain")]
        assert all(one.matches_plain for result in found for one in result.rounds), name
        assert_same(*found)
        models[name] = found[0].model_state
    assert same(models["of NumPy"], models["by default"])
    assert not same(models["weighted"], models["all 1"])
    weighted = planned(average="weight", max_weight=3)
    for weight_of, plan, message in (
        (lambda _: 4, weighted, r"client 0: weight is 4.*max_weight=3"),
        (lambda _: True, weighted, r"client 0: weight\(\) returned True"),
        (lambda _: 0, None, r"client 0: weight\(\) returned 0"),
        (lambda _: 1.5, None, r"client 0: weight\(\) returned 1.5"),
        (lambda _: 2, planned(), r"every client counts once.*average='weight'"),
    ):
        for kind in ("fsl", "plain"):
            with pytest.raises(ParameterError, match=message):
                run(protocol=kind, plan=plan, weight=weight_of)


def test_counts_that_are_not_those_of_the_clients_do_not_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where what they withhold would fit them."""
    plan, real = planned(average="rows", min_contributors=2), Plain.close_round

    def few(self: Plain) -> Any:
        for lane in self._sum.lanes.values():
            lane[lane > 0] = 1
        return real(self)

    monkeypatch.setattr(Plain, "close_round", few)
    assert not any(one.matches_plain for one in run(protocol="plain", plan=plan)[0].rounds)


def test_values_of_few_are_withheld_alike_under_both_protocols() -> None:
    plan = planned(average="rows", min_contributors=2)
    found = [run(protocol=kind, plan=plan)[0] for kind in ("fsl", "plain")]
    assert all(one.matches_plain for result in found for one in result.rounds)
    assert_same(*found)
    assert not same(found[0].model_state, run(plan=planned(average="rows"))[0].model_state)


@pytest.mark.parametrize("chosen", ["rounding", "blocks"])
def test_chance_is_the_seeds_and_the_same_under_both_protocols(chosen: str) -> None:
    if chosen == "rounding":
        own: Any = {"encoding": torchfsl.FixedPoint(rounding="stochastic")}
    else:
        own = {"rest": torchfsl.policies.BlockSample(2, block=2)}
    found = []
    for kind, seed in (("fsl", 0), ("plain", 0), ("plain", 1)):
        torch.manual_seed(0)
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        fed = torchfsl.Federated(
            model, opt, max_clients=CLIENTS, rows_per_client={"rows4": 20, "rows1": 20},
            above_break_even="keep", **own,
        )  # fmt: skip

        def train(batches: Any, model: Any = model, opt: Any = opt) -> None:
            opt.zero_grad()
            model(*batches[0][:2]).square().sum().backward()
            opt.step()

        torch.manual_seed(2)  # of dropout
        result = torchfsl.simulate(fed, DATA, train, rows=rows_of, rounds=2, protocol=kind,
                                   seed=seed, progress=False)  # fmt: skip
        assert all(one.matches_plain for one in result.rounds)
        found.append(result.model_state)
    assert same(found[0], found[1])
    assert not same(found[1], found[2])


def test_rounds_draw_clients_evaluate_and_report() -> None:
    seen: list[Any] = []
    model, fed, train = setup()

    def evaluate() -> dict[str, float]:
        assert not model.items.weight.isnan().any()
        return {"norm": float(model.items.weight.detach().norm())}

    result = torchfsl.simulate(
        fed, list(DATA.values()), train, rows=rows_of, rounds=5, clients_per_round=3,
        evaluate=evaluate, evaluate_every=3, progress=seen.append,
    )  # fmt: skip
    assert seen == result.rounds
    assert [len(one.clients) for one in seen] == [3] * 5
    assert len({one.clients for one in seen}) > 1
    assert [bool(one.metrics) for one in seen] == [False, False, True, False, True]
    assert len(result.column("norm")) == 2
    state = {name: torch.from_numpy(value) for name, value in result.model_state.items()}
    model.load_state_dict(state, strict=False)
    np.testing.assert_array_equal(model.top.weight.detach().numpy(), state["top.weight"])
    assert same(result.model_state, fed.server_state())


def test_momentum_of_one_client_never_moves_anothers_rows() -> None:
    first = run(setup={"optimizer": torch.optim.Adam})[0]
    again = run(setup={"optimizer": torch.optim.Adam}, optimizer_state="own")[0]
    for result in (first, again):
        assert all(one.matches_plain for one in result.rounds)
    # One round alone starts everybody from nothing, whichever is chosen.
    one = [run(1, setup={"optimizer": torch.optim.Adam}, optimizer_state=kind)[0]
           for kind in ("fresh", "own")]  # fmt: skip
    assert_same(*one)
    assert not same(first.model_state, again.model_state)


def test_personal_parts_go_on_through_a_simulation() -> None:
    result, fed = run(4, local=("users", "norm"), rows=lambda b: {
        name: ids for name, ids in rows_of(b).items() if name != "users"
    })  # fmt: skip
    assert all(one.matches_plain for one in result.rounds)
    assert "users.weight" not in result.model_state
    values = []
    for client in DATA:
        fed.hooks.personal.switch_to(client)
        values.append(fed.model.users.weight.detach().clone())
    start = setup()[0].users.weight.detach()
    for client, value in zip(DATA, values, strict=True):
        moved = (value != start).any(1).nonzero().flatten().tolist()
        assert moved == [client]


def test_what_goes_wrong_names_the_client_and_settings_are_checked() -> None:
    _, fed, _ = setup()

    def fail(batches: Any) -> None:
        raise KeyError("column")

    with pytest.raises(KeyError) as info:
        torchfsl.simulate(fed, DATA, fail, rows=rows_of, rounds=1)
    assert any("This was client 0 in round 0" in note for note in info.value.__notes__)
    with pytest.raises(KeyError) as info:
        torchfsl.simulate(
            fed, DATA, lambda data: None, rows=rows_of, rounds=1, evaluate_client=fail,
            protocol="plain",
        )  # fmt: skip
    assert info.value.__notes__ == ["This was client 0 in an evaluation of simulate()."]
    for options, message in [
        ({"clients_per_round": 7}, r"clients_per_round is 7 and there are 6 clients"),
        ({"rounds": 0}, "1 or more"),
        ({"optimizer_state": "mine"}, "choose 'fresh' or 'own'"),
        ({"protocol": "dense"}, "choose 'fsl'"),
    ]:
        with pytest.raises(ParameterError, match=message):
            run(**options)
    with pytest.raises(ParameterError, match=r"would have 6 clients.*max_clients = 4"):
        run(plan=planned(max_clients=4))
    with pytest.raises(ParameterError, match=r"would have 2 clients.*min_clients = 3"):
        run(plan=planned(min_clients=3), clients_per_round=2)
    with pytest.raises(ParameterError, match="a key of clients is 'a'"):
        torchfsl.simulate(fed, {"a": DATA[0]}, fail, rounds=1)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"sampler": lambda number: [0, 1]}, r"sampler\(round_number, clients, generator\)"),
        ({"evaluate": lambda model: 0.0}, r"evaluate\(\), .* let it take no argument"),
        ({"evaluate_client": lambda: 0.0}, r"evaluate_client\(data\)"),
        ({"weight": lambda: 1}, r"weight\(data\)"),
    ],
)
def test_functions_with_other_arguments_are_refused_before_the_first_round(
    options: dict[str, Any], form: str
) -> None:
    with pytest.raises(ParameterError, match=rf"torchfsl calls {form}"):
        run(**options)


def test_data_in_another_form_is_named_with_both_remedies() -> None:
    _, fed, train = setup()
    table: Any = {"user": torch.tensor([1]), "item": torch.tensor([2])}
    for data, kind in ((table, "dict"), ([torch.zeros(3)], "list")):
        with pytest.raises(ParameterError, match=rf"is of type {kind}, .*rows=, or batches="):
            torchfsl.simulate(fed, [data] * 2, train, rounds=1)


def test_other_seeds_do_not_go_on_and_a_missing_weight_is_told() -> None:
    first, _ = run(1)
    with pytest.raises(ParameterError, match="seed is 9: pass seed=0"):
        run(2, resume=first, seed=9)
    _, fed, train = setup()
    fed = torchfsl.Federated(fed.model, fed.hooks.optimizers, average="weight", max_weight=3)
    with pytest.warns(UserWarning, match=r"without weight=, so every client has weight 1"):
        torchfsl.simulate(fed, DATA, train, rows=rows_of, rounds=1, progress=False)


def test_an_interrupted_simulation_leaves_the_servers_model() -> None:
    """Also in the middle of a block, in which most rows are NaN."""
    whole, _ = run(2)
    for kind in ("fsl", "plain"):
        _, fed, train = setup()
        torch.manual_seed(2)
        calls = []

        def interrupted(batches: Any, train: Any = train, calls: list[int] = calls) -> float:
            if len(calls) == 2 * CLIENTS + 3:
                raise KeyboardInterrupt
            calls.append(1)
            loss: float = train(batches)
            return loss

        with pytest.raises(KeyboardInterrupt):
            torchfsl.simulate(
                fed, DATA, interrupted, rows=rows_of, rounds=5, progress=False, protocol=kind,
                server_optimizer=torchfsl.optim.SGD(),
            )  # fmt: skip
        left: dict[str, Array] = fed.server_state()
        assert all(np.isfinite(values).all() for values in left.values())
        assert same(left, whole.model_state), kind


def test_a_simulation_that_cannot_be_is_refused_before_its_first_round() -> None:
    with pytest.raises(ParameterError, match="rounds is 3, and the plan opens max_rounds = 2"):
        run(plan=planned(max_rounds=2))
    for name, odd in (("rounds", 1.5), ("clients_per_round", 2.5), ("seed", -1)):
        with pytest.raises(ParameterError, match=f"{name} is {odd}"):
            run(**{name: odd})
    with pytest.raises(ParameterError, match=r"evaluate\(\) returns: .* got None"):
        run(1, evaluate=lambda: None)


@pytest.mark.parametrize("odd", [3, [(torch.zeros(2), 1)], [["user"]], {"user": [1]}])
def test_data_of_clients_that_are_no_batches_are_told_how_to_name_them(odd: Any) -> None:
    _, fed, train = setup()
    with pytest.raises(
        ParameterError, match=r"expected a list of batches.*batches=, for example lambda"
    ):
        torchfsl.simulate(fed, [odd, odd], train, rounds=1)
    with pytest.raises((RuntimeError, TypeError, AttributeError, ValueError)) as info:
        torchfsl.simulate(fed, [odd, odd], train, batches=lambda data: data, rounds=1)
    assert "pass batches=" not in str(info.value)


@pytest.mark.parametrize("kind", [torch.float32, torch.int16])
def test_ids_of_another_dtype_are_told_which_one_to_pass(kind: torch.dtype) -> None:
    _, fed, train = setup()
    odd = [tuple(values.to(kind) for values in batch) for batch in data_of(0)]
    with pytest.raises(ParameterError, match=r"ids \(torch\.int64\) first and labels last"):
        torchfsl.simulate(fed, [odd, odd], train, rounds=1)


def test_rows_are_found_by_batches_as_by_ids() -> None:
    by_ids, _ = run(2)
    for batches in ({}, {"batches": lambda data: [(user, item) for user, item, _ in data]}):
        assert_same(by_ids, run(2, rows=None, **batches)[0])


def test_the_servers_optimizer_by_default_is_that_of_the_plans_average() -> None:
    """Momentum on row averages would repeat the steps of rows that several clients sent."""
    for average, momentum in (("clients", 0.8), ("rows", 0.0), ("weight", 0.0)):
        plan = planned(average=average, max_weight=1)
        for fed in (setup(average=average, max_weight=1)[1], setup(plan=plan)[1]):
            assert fed.default_optimizer().momentum == momentum, average
    assert setup(source="gradient")[1].default_optimizer().momentum == 0.0


def test_arguments_in_anothers_place_are_refused() -> None:
    model, fed, train = setup()
    with pytest.raises(ParameterError, match=r"the first argument is .*: call simulate\(fed, "):
        torchfsl.simulate(model, DATA, train, rounds=1)
    with pytest.raises(ParameterError, match=r"expected a plan.*got dict"):
        run(plan={})
    with pytest.raises(ParameterError, match="train is None: pass a function"):
        torchfsl.simulate(fed, DATA, None, rounds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["0.5", {"loss": 1.0}, torch.zeros(2), 1j, [0.5]])
def test_what_train_or_evaluate_return_is_a_number(given: Any) -> None:
    _, fed, train = setup()
    kind = type(given).__name__
    with pytest.raises(ParameterError, match=rf"train\(\) returns: .* got {kind}") as info:
        torchfsl.simulate(
            fed, DATA, lambda batches: (train(batches), given)[1], rows=rows_of, rounds=1
        )
    assert any("This was client 0 in round 0" in note for note in info.value.__notes__)
    value = {"auc": given} if isinstance(given, dict) else given
    for evaluation in ("evaluate", "evaluate_client"):
        with pytest.raises(ParameterError, match=rf"{evaluation}\(\) returns: .* got {kind}"):
            run(1, **{evaluation: lambda *_: value})


def test_a_loss_that_is_no_finite_number_is_left_out_and_named_once() -> None:
    _, fed, train = setup()
    losses = iter([1.0, float("nan"), 3.0, None, float("inf"), 2.0] * 2)

    def odd(batches: Any) -> Any:
        train(batches)
        return next(losses)

    with pytest.warns(UserWarning, match="the loss of client 1 in round 0 is nan") as heard:
        result = torchfsl.simulate(fed, DATA, odd, rows=rows_of, rounds=2, progress=False)
    assert result.column("loss") == [2.0, 2.0]
    assert sum("the loss of client" in str(one.message) for one in heard) == 1


def test_a_model_beyond_16_bits_is_refused_alike_under_both_protocols() -> None:
    told = []
    for kind in ("fsl", "plain"):
        model, fed, train = setup(max_clients=CLIENTS, rows_per_client=20, download="float16")
        with torch.no_grad():
            model.top.bias.fill_(1e5)
        with pytest.raises(
            ProtocolError, match=r"'top\.bias' .*in float16, whose largest value is 65504"
        ) as found:
            torchfsl.simulate(
                fed, DATA, train, rows=rows_of, rounds=1, progress=False, protocol=kind
            )
        told.append(str(found.value))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "rows", [torchfsl.Rows(top=3), torchfsl.Rows(choose=torchfsl.TopK(3)), "fixed"]
)
def test_policies_with_a_budget_of_their_own_need_no_rows(rows: Any) -> None:
    if rows == "fixed":
        fixed = torchfsl.policies.Fixed({n: range(5) for n in ("items", "users")})
        rows = torchfsl.Rows(choose=fixed)
    torch.manual_seed(0)
    model = nn.Sequential()
    model.items, model.users = nn.Embedding(ITEMS, 4), nn.Embedding(CLIENTS, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(client: int) -> None:
        opt.zero_grad()
        scores = model.items(torch.tensor([1, client])) * model.users(torch.tensor(client))
        scores.sum().backward()
        opt.step()

    result = torchfsl.simulate(
        torchfsl.Federated(model, opt, rows=rows), range(4), train, rounds=1, progress=False
    )
    assert result.rounds[0].matches_plain


def test_an_unknown_column_is_refused_with_the_nearest_ones() -> None:
    result, _ = run(1, evaluate=lambda: {"accuracy": 0.5})
    assert result.column("accuracy") == [0.5]
    with pytest.raises(ParameterError, match=r"no round has a column 'acc': .*\baccuracy\b"):
        result.column("acc")
    with pytest.raises(ParameterError, match=r"'zzz': choose one of accuracy, clients, "):
        result.column("zzz")


def test_warnings_name_the_line_of_the_user() -> None:
    _, fed, train = setup()
    options: Any = {"rounds": 1, "rows": rows_of, "progress": False}
    with pytest.warns(UserWarning, match="weight= changes the average") as caught:
        torchfsl.simulate(fed, DATA, train, weight=lambda data: 1, **options)
    with pytest.warns(UserWarning, match="is already in another Federated") as again:
        torchfsl.Federated(fed.model, fed.hooks.optimizers)
    assert {one.filename for one in [*caught, *again]} == {__file__}


def test_a_line_of_a_round_says_that_bytes_are_per_client() -> None:
    result, _ = run(1)
    sent = result.rounds[0].upload_bytes / 1e3
    assert f"up {sent:.1f} kB per client  down " in str(result.rounds[0])

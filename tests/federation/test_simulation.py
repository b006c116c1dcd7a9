"""Rows by a dry pass, budgets from them, and whole federations in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from torchfsl.engine.engine import SubmodelEngine
from torchfsl.engine.simulation import History
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.submodel.plain import Plain

ITEMS, CLIENTS = 400, 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, 4, padding_idx=0)
        self.users, self.bias = nn.Embedding(CLIENTS, 4), nn.Embedding(ITEMS, 1)
        self.norm, self.drop, self.top = nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.users(user) * self.items(item)))
        return (self.top(x) + self.bias(item)).squeeze(1)


def data_of(client: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(client)
    item = torch.randint(0, ITEMS, (2, 8), generator=g)
    return [(torch.full((8,), client), ids, (ids % 2).float()) for ids in item]


def rows_of(batches: Any) -> dict[str, torch.Tensor]:
    item = torch.cat([b[1] for b in batches])
    return {"items": item, "bias": item, "users": batches[0][0]}


def setup(optimizer: Any = torch.optim.Adagrad, **options: Any) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    model = Model()
    opt = optimizer(model.parameters(), lr=0.1)
    engine = SubmodelEngine()

    def train(batches: Any) -> float:
        for user, item, label in batches:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), label)
            loss.backward()
            opt.step()
        return float(loss.detach())

    return model, engine, engine.attach(model, opt, **options), train


DATA = {client: data_of(client) for client in range(CLIENTS)}


def run(rounds: int = 3, *, local: tuple[str, ...] = (), **options: Any) -> tuple[History, Any]:
    torch.manual_seed(1)
    _, engine, handle, train = setup(local=local, **options.pop("setup", {}))
    torch.manual_seed(2)  # of dropout
    rows = options.pop("rows", rows_of)
    history = torchfsl.simulate(
        engine, handle, DATA, train=train, rows=rows, rounds=rounds, progress=False, **options
    )
    return history, handle


def test_a_dry_pass_finds_the_rows_and_changes_nothing() -> None:
    model, _, handle, _ = setup()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    batches = [(user, item) for user, item, _ in DATA[3]]
    found = handle.rows_of(batches)
    items = torch.cat([b[1] for b in DATA[3]]).unique()
    assert torch.equal(found["items.weight"], items[items != 0])
    assert torch.equal(found["bias.weight"], items)
    assert found["users.weight"].tolist() == [3]
    assert modes == [m.training for m in model.modules()]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(not p.grad_fn and p.grad is None for p in model.parameters())
    keyed = [{"user": user, "item": item} for user, item in batches]
    called = handle.rows_of(DATA[3], call=lambda m, b: m(b[0], b[1]))
    for other in (handle.rows_of(keyed), called):
        assert all(torch.equal(other[name], found[name]) for name in found)
    with pytest.raises(ParameterError, match=r"Model does not take the batch.*call=lambda"):
        handle.rows_of(DATA[3])
    handle.begin_round()
    with pytest.raises(ProtocolError, match="a round is open"):
        handle.rows_of(batches)


def test_budgets_may_be_named_by_table_and_come_from_quantiles() -> None:
    _, engine, handle, _ = setup()
    advice = engine.advise(handle, [rows_of(DATA[c]) for c in DATA])
    widest = advice.rows_per_client()
    assert widest["rows4"] >= 15
    assert advice.rows_per_client(0.5)["rows4"] <= widest["rows4"]
    assert "rows4" in str(advice)
    assert "99%" in str(advice)
    options: Any = {"max_clients": 3, "above_break_even": "dense"}
    by_table = {"items": 16, "users.weight": 1, "bias": 16}
    plan = engine.plan(handle, rows_per_client=by_table, **options)
    assert {s.name: s.k_max for s in plan.segments}["rows4"] == 17
    with pytest.raises(ParameterError, match=r"no budget of users, which shares segment 'rows4'"):
        engine.plan(handle, rows_per_client={"items": 16, "bias": 1}, **options)
    with pytest.raises(ParameterError, match=r"names \['word'\].*segments are.*items\.weight"):
        engine.plan(handle, rows_per_client={**by_table, "word": 1}, **options)
    with pytest.raises(ParameterError, match="at least one client"):
        engine.advise(handle, [])


def test_both_aggregations_end_with_the_same_bits_and_every_round_is_exact() -> None:
    histories = [run(aggregation=kind)[0] for kind in ("fsl", "plain")]
    assert histories[0].model.digest() == histories[1].model.digest()
    for history in histories:
        assert all(record.exact for record in history.rounds)
        assert history.column("loss")[-1] < history.column("loss")[0]
    assert histories[0].column("upload_bytes")[0] > 0


def planned(**options: Any) -> Any:
    """A plan of `setup`'s model in which every client fits."""
    _, engine, handle, _ = setup(**options.pop("setup", {}))
    budget = engine.advise(handle, [rows_of(DATA[c]) for c in DATA]).rows_per_client()
    sizes = {"max_clients": CLIENTS, "above_break_even": "keep", "proofs": "none"}
    return engine.plan(handle, rows_per_client=budget, **{**sizes, **options})


def test_weights_count_alike_under_both_aggregations_and_in_the_model() -> None:
    weigh = {"weight": lambda batches: 1 + int(batches[0][0][0]) % 3}  # of the client's number
    digests = {}
    numpy = {"weight": lambda batches: np.int64(weigh["weight"](batches))}
    for name, lane, weight in (
        ("weighted", {"lane": "weight", "max_weight": 3}, weigh),
        ("of NumPy", None, numpy),
        ("by default", None, weigh),
        ("all 1", {"lane": "weight", "max_weight": 3}, {}),
    ):
        made = {} if lane is None else {"plan": planned(**lane)}
        found = [run(aggregation=kind, **made, **weight)[0] for kind in ("fsl", "plain")]
        assert all(record.exact for history in found for record in history.rounds), name
        assert found[0].model.digest() == found[1].model.digest(), name
        digests[name] = found[0].model.digest()
    assert len({digests["weighted"], digests["all 1"]}) == 2
    for weight, plan, message in (
        (lambda _: 4, planned(lane="weight", max_weight=3), r"client 0: weight is 4.*max_weight=3"),
        (lambda _: True, planned(lane="weight", max_weight=3), r"client 0: weight\(\) gives True"),
        (lambda _: 0, None, r"client 0: weight\(\) gives 0"),
        (lambda _: 1.5, None, r"client 0: weight\(\) gives 1.5"),
        (lambda _: 2, planned(), r"lane is 'none'.*lane='weight'"),
    ):
        for kind in ("fsl", "plain"):
            with pytest.raises(ParameterError, match=message):
                run(aggregation=kind, plan=plan, weight=weight)


def test_counts_that_are_not_those_of_the_clients_are_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where what they withhold would fit them."""
    plan, real = planned(lane="count", min_contributors=2), Plain.close_round

    def few(self: Plain) -> Any:
        for lane in self._lanes.values():
            lane[lane > 0] = 1
        return real(self)

    monkeypatch.setattr(Plain, "close_round", few)
    assert not any(r.exact for r in run(aggregation="plain", plan=plan)[0].rounds)


def test_values_of_few_are_withheld_alike_under_both_aggregations() -> None:
    plan = planned(lane="count", min_contributors=2)
    found = [run(aggregation=kind, plan=plan)[0] for kind in ("fsl", "plain")]
    assert all(record.exact for history in found for record in history.rounds)
    assert found[0].model.digest() == found[1].model.digest()
    assert found[0].model.digest() != run(plan=planned(lane="count"))[0].model.digest()


@pytest.mark.parametrize("chosen", ["rounding", "blocks"])
def test_chance_is_the_seeds_and_the_same_under_both_aggregations(chosen: str) -> None:
    if chosen == "rounding":
        own: Any = {"encoding": torchfsl.FixedPoint(rounding="stochastic")}
    else:
        own = {"rest": torchfsl.BlockSample(2, block=2)}
    found = []
    for kind, seed in (("fsl", 0), ("plain", 0), ("plain", 1)):
        torch.manual_seed(0)
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = SubmodelEngine(**own)
        handle = engine.attach(model, opt)

        def train(batches: Any, model: Any = model, opt: Any = opt) -> None:
            opt.zero_grad()
            model(*batches[0][:2]).square().sum().backward()
            opt.step()

        plan = engine.plan(handle, max_clients=CLIENTS, rows_per_client={"rows4": 20, "rows1": 20},
                           above_break_even="keep")  # fmt: skip
        torch.manual_seed(2)  # of dropout
        history = torchfsl.simulate(engine, handle, DATA, train=train, rows=rows_of, rounds=2,
                                    plan=plan, aggregation=kind, seed=seed, progress=False)  # type: ignore[arg-type]  # fmt: skip
        assert all(record.exact for record in history.rounds)
        found.append(history.model.digest())
    assert found[0] == found[1] != found[2]


def test_rounds_draw_clients_evaluate_and_report() -> None:
    seen: list[Any] = []
    model, engine, handle, train = setup()

    def evaluate() -> dict[str, float]:
        assert not model.items.weight.isnan().any()
        return {"norm": float(model.items.weight.norm())}

    history = torchfsl.simulate(
        engine, handle, list(DATA.values()), train=train, rows=rows_of, rounds=5,
        clients_per_round=3, evaluate=evaluate, evaluate_every=3, progress=seen.append,
    )  # fmt: skip
    assert seen == history.rounds
    assert [len(r.clients) for r in seen] == [3] * 5
    assert len({r.clients for r in seen}) > 1
    assert [bool(r.metrics) for r in seen] == [True, False, False, True, True]
    assert len(history.column("norm")) == 3
    state = history.model.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    model.load_state_dict(state, strict=False)
    np.testing.assert_array_equal(model.top.weight.detach().numpy(), state["top.weight"])


def test_momentum_of_one_client_never_moves_anothers_rows() -> None:
    first = run(setup={"optimizer": torch.optim.Adam})[0]
    again = run(setup={"optimizer": torch.optim.Adam}, optimizer_state="own")[0]
    for history in (first, again):
        assert all(record.exact for record in history.rounds)
    # One round alone starts everybody from nothing, whichever is chosen.
    one = [run(1, setup={"optimizer": torch.optim.Adam}, optimizer_state=kind)[0].model.digest()
           for kind in ("fresh", "own")]  # fmt: skip
    assert one[0] == one[1]
    assert first.model.digest() != again.model.digest()


def test_personal_parts_go_on_through_a_simulation() -> None:
    history, handle = run(4, local=("users", "norm"), rows=lambda b: {
        name: ids for name, ids in rows_of(b).items() if name != "users"
    })  # fmt: skip
    assert all(record.exact for record in history.rounds)
    assert "users.weight" not in history.model.state
    values = []
    for client in DATA:
        handle.personal.switch_to(client)
        values.append(handle.model.users.weight.detach().clone())
    start = setup()[0].users.weight.detach()
    for client, value in zip(DATA, values, strict=True):
        moved = (value != start).any(1).nonzero().flatten().tolist()
        assert moved == [client]


def test_what_goes_wrong_names_the_client_and_settings_are_checked() -> None:
    _, engine, handle, _ = setup()

    def fail(batches: Any) -> None:
        raise KeyError("column")

    with pytest.raises(KeyError) as info:
        torchfsl.simulate(engine, handle, DATA, train=fail, rows=rows_of, rounds=1)
    assert any("client 0 in round 0" in note for note in info.value.__notes__)
    for options, message in [
        ({"clients_per_round": 7}, r"7 clients a round of 6"),
        ({"rounds": 0}, "at least 1"),
        ({"optimizer_state": "mine"}, "choose 'fresh' or 'own'"),
        ({"aggregation": "dense"}, "choose 'fsl'"),
    ]:
        with pytest.raises(ParameterError, match=message):
            run(**options)
    with pytest.raises(ParameterError, match="rows"):
        run(rows=None)
    with pytest.raises(ParameterError, match=r"clients_per_round is 6.*max_clients = 4"):
        run(plan=planned(max_clients=4))
    with pytest.raises(ParameterError, match=r"clients_per_round is 2.*min_clients = 3"):
        run(plan=planned(min_clients=3), clients_per_round=2)
    with pytest.raises(ParameterError, match="a key of clients is 'a'"):
        torchfsl.simulate(engine, handle, {"a": DATA[0]}, train=fail, rounds=1)  # type: ignore[dict-item]


def test_an_interrupted_simulation_leaves_the_servers_model() -> None:
    """Also in the middle of a block, in which most rows are NaN."""
    whole, _ = run(2)
    for kind in ("fsl", "plain"):
        _, engine, handle, train = setup()
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
                engine, handle, DATA, train=interrupted, rows=rows_of, rounds=5, progress=False,
                aggregation=kind,
            )  # fmt: skip
        left = handle.server_state()
        assert all(np.isfinite(values).all() for values in left.values())
        assert all(np.array_equal(left[name], whole.model.state[name]) for name in left), kind


def test_a_simulation_that_cannot_be_is_refused_before_its_first_round() -> None:
    with pytest.raises(ParameterError, match="rounds is 3, and the plan opens max_rounds = 2"):
        run(plan=planned(max_rounds=2))
    with pytest.raises(ParameterError, match=r"Pass rows=, .*or a plan= of your own"):
        run(rows=None)
    for name, odd in (("rounds", 1.5), ("clients_per_round", 2.5), ("seed", -1)):
        with pytest.raises(ParameterError, match=f"{name} is {odd}"):
            run(**{name: odd})
    with pytest.raises(ParameterError, match=r"evaluate\(\) gives None"):
        run(1, evaluate=lambda: None)


def test_arguments_in_anothers_place_are_refused() -> None:
    _, engine, handle, train = setup()
    for given, message in [
        ((handle, engine), r"engine is of type Handle: pass a SubmodelEngine first, simulate\("),
        ((engine, engine), "handle is of type SubmodelEngine: pass what engine.attach gave"),
    ]:
        with pytest.raises(ParameterError, match=message):
            torchfsl.simulate(*given, DATA, train=train, rounds=1)
    with pytest.raises(ParameterError, match=r"plan is of type dict: pass what engine\.plan"):
        run(plan={})
    with pytest.raises(ParameterError, match="train is None: pass a function"):
        torchfsl.simulate(engine, handle, DATA, train=None, rounds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["0.5", {"loss": 1.0}, torch.zeros(2), 1j, [0.5]])
def test_what_train_or_evaluate_return_is_a_number(given: Any) -> None:
    _, engine, handle, train = setup()
    kind = type(given).__name__
    with pytest.raises(ParameterError, match=rf"train\(\) gives a value of type {kind}") as info:
        torchfsl.simulate(
            engine, handle, DATA, train=lambda batches: (train(batches), given)[1], rows=rows_of,
            rounds=1,
        )  # fmt: skip
    assert any("client 0 in round 0" in note for note in info.value.__notes__)
    value = {"auc": given} if isinstance(given, dict) else given
    with pytest.raises(ParameterError, match=rf"evaluate\(\) gives a value of type {kind}"):
        run(1, evaluate=lambda: value)


def test_a_loss_that_is_no_finite_number_is_left_out_and_named_once() -> None:
    _, engine, handle, train = setup()
    losses = iter([1.0, float("nan"), 3.0, None, float("inf"), 2.0] * 2)

    def odd(batches: Any) -> Any:
        train(batches)
        return next(losses)

    with pytest.warns(UserWarning, match="client 1: its loss in round 0 is nan") as heard:
        history = torchfsl.simulate(
            engine, handle, DATA, train=odd, rows=rows_of, rounds=2, progress=False
        )
    assert history.column("loss") == [2.0, 2.0]
    assert sum("its loss in round" in str(one.message) for one in heard) == 1


def test_a_model_beyond_16_bits_is_refused_alike_under_both_aggregations() -> None:
    told = []
    for kind in ("fsl", "plain"):
        model, engine, handle, train = setup()
        with torch.no_grad():
            model.top.bias.fill_(1e5)
        plan = engine.plan(handle, max_clients=CLIENTS, min_clients=2, rows_per_client=20,
                           above_break_even="dense", download="float16")  # fmt: skip
        with pytest.raises(ProtocolError, match=r"'top\.bias' .*ends at 65504") as found:
            torchfsl.simulate(
                engine, handle, DATA, train=train, rows=rows_of, plan=plan, rounds=1,
                progress=False, aggregation=kind,
            )  # fmt: skip
        told.append(str(found.value))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "rows", [torchfsl.Rows(top=3), torchfsl.Rows(choose=torchfsl.TopK(3)), "fixed"]
)
def test_policies_with_a_budget_of_their_own_need_no_rows(rows: Any) -> None:
    if rows == "fixed":
        rows = torchfsl.Rows(choose=torchfsl.Fixed({n: range(5) for n in ("items", "users")}))
    torch.manual_seed(0)
    model = nn.Sequential()
    model.items, model.users = nn.Embedding(ITEMS, 4), nn.Embedding(CLIENTS, 4)
    engine, opt = SubmodelEngine(rows=rows), torch.optim.SGD(model.parameters(), lr=0.1)

    def train(client: int) -> None:
        opt.zero_grad()
        scores = model.items(torch.tensor([1, client])) * model.users(torch.tensor(client))
        scores.sum().backward()
        opt.step()

    history = torchfsl.simulate(
        engine, engine.attach(model, opt), range(4), train=train, rounds=1, progress=False
    )
    assert history.rounds[0].exact

"""Which rows a client fetches: batches with labels, classes with their own forward, dry passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import torchfsl
from torchfsl.errors import ParameterError

WORDS = 300


class Positions(nn.Embedding):
    """Learned positions, as in BART, OPT and fairseq."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.arange(input_ids.shape[1]) + 2)


class Shifted(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward((input + 1) % self.num_embeddings)


class Hashed(nn.Embedding):
    """Two rows for each id."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + super().forward((7 * input) % self.num_embeddings)


class Functional(nn.Embedding):
    """Reads the weight past `forward`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.weight[input] + self.weight.mean(dim=0)


class Scaled(nn.Embedding):
    """As in M2M100, Pegasus and Gemma."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 4.0


class OfNumbers(nn.EmbeddingBag):
    def forward(self, input: torch.Tensor, *rest: Any) -> torch.Tensor:  # type: ignore[override]
        return super().forward(input, *rest).tanh()


class Model(nn.Module):
    def __init__(self, kind: Any, *, by_name: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.odd = nn.Embedding(WORDS, 8), kind(WORDS, 8)
        self.head, self.by_name = nn.Linear(8, 1), by_name

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        name = "input_ids" if isinstance(self.odd, Positions) else "input"
        odd = self.odd(**{name: ids}) if self.by_name else self.odd(ids)
        out: torch.Tensor = self.head((self.items(ids) + self._per_word(odd)).mean(1)).squeeze(1)
        return out

    def _per_word(self, values: torch.Tensor) -> torch.Tensor:
        return values.unsqueeze(1) if isinstance(self.odd, nn.EmbeddingBag) else values


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", [Positions, Shifted, Hashed, Functional])
@pytest.mark.filterwarnings("ignore:.*is sent dense, because")
def test_a_class_that_reads_other_rows_is_sent_whole_and_right(kind: Any, by_name: bool) -> None:
    def trained(model: Model, optimizer: Any, ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        functional.mse_loss(model(ids), torch.ones(len(ids))).backward()
        optimizer.step()

    model, own = Model(kind, by_name=by_name), Model(kind, by_name=by_name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.warns(UserWarning, match=r"Rows\(tables=\['items', 'odd'\]\)"):
        fed = torchfsl.Federated(
            model, optimizer, max_clients=2, min_clients=1, rows_per_client=60,
            above_break_even="keep",
        )  # fmt: skip
    assert [s.policy for s in fed.plan.segments] == ["rows", "dense"]
    servers = fed.local_servers(server_optimizer=torchfsl.optim.SGD())
    ids = torch.randint(0, WORDS, (6, 4), generator=torch.Generator().manual_seed(1))
    with servers.round(), fed.round(servers, 0, batches=[ids]):
        trained(model, optimizer, ids)
    trained(own, torch.optim.SGD(own.parameters(), lr=0.5), ids)
    for name, value in own.named_parameters():
        assert torch.allclose(torch.from_numpy(servers.model.state[name]), value, atol=1e-5), name


@pytest.mark.parametrize("kind", [Scaled, OfNumbers, nn.Embedding, nn.EmbeddingBag])
def test_a_class_that_passes_its_ids_on_goes_by_rows(kind: Any, recwarn: Any) -> None:
    model = Model(kind)
    fed = torchfsl.Federated(
        model, torch.optim.SGD(model.parameters(), 0.1), max_clients=2, rows_per_client=60,
        above_break_even="keep",
    )  # fmt: skip
    assert {t.name for t in fed.hooks.inventory.all_tables} == {"items.weight", "odd.weight"}
    assert not recwarn.list


def test_a_named_table_goes_by_rows_whatever_its_class() -> None:
    model = Model(Positions)
    fed = torchfsl.Federated(
        model, torch.optim.SGD(model.parameters(), 0.1), max_clients=2, rows_per_client=60,
        rows=torchfsl.Rows(tables=("items", "odd")), above_break_even="keep",
    )  # fmt: skip
    assert len(fed.hooks.inventory.all_tables) == 2


# --- the dry pass ---------------------------------------------------------------------------------


class Checked(nn.Module):
    """Asserts about its values, of the kinds that users write."""

    def __init__(self, check: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.head, self.check = nn.Embedding(WORDS, 8), nn.Linear(8, 1), check

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = self.items(ids)
        out = self.head(rows.mean(1)).squeeze(1)
        if self.check == "probability":
            return functional.binary_cross_entropy(torch.sigmoid(out), labels)
        if self.check == "finite":
            assert bool(torch.isfinite(rows).all())
        elif self.check == "norm":
            assert bool((rows.norm(dim=2) > 0).all())
        elif self.check == "categorical":
            torch.distributions.Categorical(logits=rows.mean(1))
        elif self.check == "index":
            self.items(torch.nan_to_num(rows.sum(-1), nan=-1.0).mul(0).long())
            if not bool((rows.sum(-1) == rows.sum(-1)).all()):
                raise RuntimeError("not a number")
        return functional.binary_cross_entropy_with_logits(out, labels)


@pytest.mark.parametrize("check", ["probability", "finite", "norm", "categorical", "index"])
def test_the_dry_pass_does_not_fail_in_the_users_checks(check: str) -> None:
    model = Checked(check)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = {
        c: [(torch.randint(0, WORDS, (6, 4), generator=torch.Generator().manual_seed(c)),
             torch.ones(6))]
        for c in range(3)
    }  # fmt: skip

    def train(batches: Any) -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()

    fed = torchfsl.Federated(model, optimizer, max_clients=3, rows_per_client=60)
    result = torchfsl.simulate(fed, data, train, rounds=2, protocol="plain", progress=False)
    assert result.column("matches_plain") == [True, True]


class Pair(nn.Module):
    """Two towers: both inputs are ids."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(WORDS, 4), nn.Embedding(WORDS, 4)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, left: torch.Tensor, right: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.seen += 1
        return scale * (self.left(left) * self.right(right)).sum(-1)


def test_batches_with_labels_as_a_data_loader_gives_them() -> None:
    words, labels = torch.randint(0, WORDS, (8, 4)), torch.zeros(8)
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, 1))
    fed = torchfsl.Federated(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = DataLoader(TensorDataset(words, labels), batch_size=4, shuffle=True)
    want = {"0.weight": torch.unique(words)}
    for batches in (loader, [(words, labels)], [words], [[words, labels]], [{"input": words}],
                    [{"input": words, "label": labels}]):  # fmt: skip
        assert {n: v.tolist() for n, v in fed.rows_of(batches).items()} == {
            n: v.tolist() for n, v in want.items()
        }
    with pytest.raises(ParameterError, match="iterator"):
        fed.rows_of(iter([words]))
    with pytest.raises(ParameterError, match="call=lambda"):
        fed.rows_of([{"words": words}])
    with pytest.raises(ParameterError, match=r"looks up .* with a ndarray, .*torch\.from_numpy"):
        fed.rows_of([words.numpy()])


def test_all_arguments_of_forward_are_given_before_labels_are_dropped() -> None:
    left, right = torch.tensor([1, 2]), torch.tensor([7, 8])
    model = Pair()
    fed = torchfsl.Federated(model, torch.optim.SGD(model.parameters(), 0.1))
    for batch in ((left, right), (left, right, 2.0), (left, right, 2.0, torch.zeros(2)),
                  (left, right, "label"), {"left": left, "right": right, "y": left}):  # fmt: skip
        found = fed.rows_of([batch])
        assert found["left.weight"].tolist() == [1, 2]
        assert found["right.weight"].tolist() == [7, 8]
    assert model.seen == 0  # the pass leaves no trace


def test_the_dry_pass_leaves_random_generators_as_they_are() -> None:
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    fed = torchfsl.Federated(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = DataLoader(TensorDataset(torch.randint(0, WORDS, (8, 4))), shuffle=True)
    before = torch.get_rng_state()
    fed.rows_of(loader)
    assert torch.equal(torch.get_rng_state(), before)


# --- one batch in place of a list of batches, and ids that no table has ---------------------------


def bag() -> tuple[Any, Any]:
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(batch: Any) -> float:
        words, labels = batch
        optimizer.zero_grad()
        loss = functional.mse_loss(model(words), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return torchfsl.Federated(model, optimizer, max_clients=3), train


PAIR = torch.arange(8).reshape(2, 4), torch.zeros(2)
ONE = {
    "tuple": (PAIR, "expected a list of batches, got one batch, a tuple of 2 tensors: put it into"),
    "mapping": ({"input": PAIR[0]}, "expected a list of batches, got one batch, a dict: put it"),
    "tensor": (PAIR[0], r"got one batch, a tensor of shape \[2, 4\]: put it into a list"),
    "list": (list(PAIR), "got a list of 2 tensors, which the model does not take one by one"),
}


@pytest.mark.parametrize("kind", ONE)
def test_one_batch_in_place_of_a_list_is_named(kind: str) -> None:
    fed, _ = bag()
    given, said = ONE[kind]
    fed.make_plan(rows_per_client=20, above_break_even="keep")
    servers = fed.local_servers()
    with (
        pytest.raises(ParameterError, match=said),
        servers.round(),
        fed.round(servers, 0, batches=given),
    ):
        pass
    with pytest.raises(ParameterError, match=said):
        fed.rows_of(given)
    assert fed.rows_of([given])["0.weight"].tolist() == list(range(8))


def test_an_error_of_the_model_on_a_batch_says_what_torchfsl_did() -> None:
    fed, _ = bag()
    fed.make_plan(rows_per_client=20, above_break_even="keep")
    with pytest.raises(RuntimeError, match="Long") as caught:
        fed.rows_of([(PAIR[0].float(), PAIR[1])])
    assert "to find their rows" in caught.value.__notes__[0]


def test_data_of_one_batch_is_named_by_simulate_and_its_remedy_works() -> None:
    fed, train = bag()
    clients = [PAIR] * 3
    with pytest.raises(
        ParameterError, match=r"is of type tuple, expected a list.*lambda data: \[data\]"
    ):
        torchfsl.simulate(fed, clients, train, rounds=1, progress=False)
    result = torchfsl.simulate(
        fed, clients, train, rounds=1, progress=False, batches=lambda data: [data]
    )
    assert result.column("matches_plain") == [True]


@pytest.mark.parametrize("odd", [-1, WORDS])
def test_an_id_that_the_table_does_not_have_is_named(odd: int) -> None:
    fed, train = bag()
    words = torch.tensor([[3, odd, 5, 7]])
    said = rf"0\.weight: id {odd} lies outside \[0, 300\): number the rows from 0"
    with pytest.raises(ParameterError, match=said):
        fed.rows_of([(words, PAIR[1])])
    with pytest.raises(ParameterError, match=said):
        fed.row_counts([{"0": words}])
    with pytest.raises(ParameterError, match=said):
        torchfsl.simulate(fed, [[(words, PAIR[1])]] * 3, train, rounds=1, progress=False)

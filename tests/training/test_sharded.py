"""Networks in shards: the same functions as the plain ones, cut where clients are small."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from models import MLP, CifarCNN, MnistCNN
from models.cnn import ResponseNorm
from tests.training.test_models import count
from torchfsl.sesa import Sharded


class TinyCNN(nn.Module):
    """What the image networks have, small: maps that are flattened, normalised across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 12, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            ResponseNorm(5, alpha=0.5, k=1.0),
            nn.Conv2d(12, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(8 * 9, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(x))
        return logits


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def tiny(*, shards: int = 4, scaled: bool = False) -> Sharded:
    torch.manual_seed(2)
    return Sharded(TinyCNN(), shards=shards, scaled=scaled).double()


SOME = [[2, 0], [3], [1, 3]]


def padded(net: Sharded, taken: list[list[int]]) -> Sharded:
    """A copy that takes all shards, of which those not in `taken` are zeros."""
    full, rows = copy.deepcopy(net), net.rows(taken)
    full.take(None)
    with torch.no_grad():
        for name, parameter in full.named_parameters():
            if name in rows:
                kept = parameter[rows[name]].clone()
                parameter.zero_()
                parameter[rows[name]] = kept
    return full


@pytest.mark.parametrize(
    ("make", "parameters", "shape"),
    [(MLP, 159_010, (2, 1, 28, 28)), (MnistCNN, 1_663_370, (2, 1, 28, 28)),
     (CifarCNN, 1_068_298, (2, 3, 24, 24))],
)  # fmt: skip
def test_all_shards_are_the_plain_network(
    make: type[nn.Module], parameters: int, shape: tuple[int, ...]
) -> None:
    plain = make()
    net = Sharded(plain, shards=4)
    assert count(net) == parameters == count(plain)
    images = inputs(*shape)
    torch.testing.assert_close(net(images), plain(images), rtol=1e-4, atol=1e-5)
    assert all(parameter.device.type == "cpu" for parameter in plain.parameters())


def test_rows_of_the_mlp_are_those_of_the_paper() -> None:
    net = Sharded(MLP(), shards=4)
    assert {n: tuple(p.shape) for n, p in net.named_parameters()} == {
        "bias": (10,), "units.0.weight": (4, 50 * (784 + 1 + 10)),
    }  # fmt: skip


@pytest.mark.parametrize("taken", [SOME, [[0], [0], [0]], [[0, 1, 2, 3], [1], [0, 1, 2]]])
def test_some_shards_are_the_whole_network_padded_with_zeros(taken: list[list[int]]) -> None:
    net = tiny()
    x = inputs(3, 2, 6, 6).double()
    expected = padded(net, taken)(x)
    net.take(taken)
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(tiny()(x), expected)


def test_scaling_multiplies_each_hidden_layer() -> None:
    net, plain = tiny(scaled=True, shards=4), tiny(shards=4)
    x = inputs(3, 2, 6, 6).double()
    torch.testing.assert_close(net(x), plain(x), rtol=0, atol=0)
    net.take([[0, 1], [2], [3]])
    scaled = padded(plain, [[0, 1], [2], [3]])
    modules = scaled._plain[0]
    # With an even factor before each ReLU instead of on weights and biases.
    found = scaled._weights()
    modules = copy.deepcopy(modules).to_empty(device="cpu").double()
    modules.load_state_dict(found)
    for name, factor in {"features.0": 2.0, "features.4": 4.0, "head.0": 4.0}.items():
        modules.get_submodule(name).register_forward_hook(
            lambda module, args, output, factor=factor: output * factor
        )
    torch.testing.assert_close(net(x), modules(x), rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_padded_network_and_stay_in_the_rows_taken() -> None:
    net, rows = tiny(), tiny().rows(SOME)
    x = inputs(3, 2, 6, 6).double()
    full = padded(net, SOME)
    net.take(SOME)
    for model in (net, full):
        (model(x) ** 3).sum().backward()
    for (name, mine), whole in zip(net.named_parameters(), full.parameters(), strict=True):
        grad, expected = mine.grad, whole.grad
        assert grad is not None
        assert expected is not None
        if name in rows:
            assert set(grad.any(dim=1).nonzero().flatten().tolist()) <= set(rows[name].tolist())
            grad, expected = grad[rows[name]], expected[rows[name]]
        assert grad.any()
        torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-12)


def test_forward_reads_the_rows_taken_and_no_others() -> None:
    net, rows = tiny(), tiny().rows(SOME)
    net.take(SOME)
    x = inputs(3, 2, 6, 6).double()
    before = net(x)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name in rows:
                kept = parameter[rows[name]].clone()
                parameter.fill_(torch.nan)
                parameter[rows[name]] = kept
    assert torch.equal(net(x), before)
    with torch.no_grad():
        for name, own in rows.items():
            for row in own:
                spoiled = copy.deepcopy(net)
                spoiled.get_parameter(name)[row] = torch.nan
                assert spoiled(x).isnan().any(), (name, row)


def test_a_width_owns_as_many_rows_as_the_paper_counts() -> None:
    net = tiny()
    for k in (1, 2, 4):
        rows = net.rows([range(k)] * 3)
        assert {n: len(r) for n, r in rows.items()} == {
            f"{kind}.{i}.weight": k**power
            for kind, power, tables in (("units", 1, 3), ("links", 2, 2))
            for i in range(tables)
        }
    every = itertools.product(range(4), repeat=3)
    links = {int(row) for a, b, c in every for row in net.rows([[a], [b], [c]])["links.1.weight"]}
    assert links == set(range(16))
    assert all(torch.equal(r, r.sort().values) for r in net.rows([[3, 0], [2, 1], [1]]).values())


def test_a_shard_for_each_unit_is_a_window_of_units() -> None:
    """FedRolex: shards as fine as units; the order in which they are named does not matter."""
    net = Sharded(MLP(inputs=5, hidden=(6,), classes=3), shards=6)
    net.take([[5, 0, 1]])
    wrapped = net(inputs(2, 5))
    net.take([[0, 1, 5]])
    torch.testing.assert_close(net(inputs(2, 5)), wrapped)
    assert net.units[0].weight.shape == (6, 5 + 1 + 3)


def test_copies_and_state_dicts_carry_everything_but_what_is_taken() -> None:
    net, other = tiny(), Sharded(TinyCNN(), shards=4).double()
    other.load_state_dict(net.state_dict())
    x = inputs(2, 2, 6, 6).double()
    assert torch.equal(other(x), net(x))
    assert sum(math.prod(value.shape) for value in net.state_dict().values()) == count(TinyCNN())


@pytest.mark.parametrize(
    ("taken", "message"),
    [([[0], [1]], "3 lists"), ([[0], [], [1]], "one or more"), ([[0], [4], [1]], "from 0 to 3"),
     ([[0], [1, 1], [1]], "distinct"), ([[-1], [1], [1]], "from 0 to 3")],
)  # fmt: skip
def test_shards_that_are_not_there_are_refused(taken: list[list[int]], message: str) -> None:
    net = tiny()
    for method in (net.take, net.rows):
        with pytest.raises(ValueError, match=message):
            method(taken)


def test_networks_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features\.4 has 8 units, which 3 shards cannot divide"):
        Sharded(TinyCNN(), shards=3)
    with pytest.raises(ValueError, match="cannot divide evenly"):
        Sharded(TinyCNN(), shards=0)
    with pytest.raises(ValueError, match="hidden layer"):
        Sharded(nn.Linear(3, 2), shards=1)
    with pytest.raises(ValueError, match="bias"):
        Sharded(nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2)), shards=2)

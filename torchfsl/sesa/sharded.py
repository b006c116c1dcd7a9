"""Networks in shards: a client of little means trains some units of every hidden layer.

    net = Sharded(plain, shards=4)    # any chain of convolutions and linear layers
    chosen = [[1], [3], [0]]          # of the first, second and third hidden layer
    rows = net.rows(chosen)           # which rows of which tables that are
    net.take(chosen)                  # from now on forward uses no others
    net.take(None)                    # all of them, to evaluate

Each hidden layer's units (or channels) are cut into `shards` equal parts. The weights that belong
to one part, or to a pair of parts of neighbouring layers, are one row of an `nn.Embedding`, so that
whatever handles rows of tables handles parts of networks. A client with the fraction B of the units
of each layer holds `B * shards` rows of tables `units` and `(B * shards)**2` of tables `links`.

The caller chooses which shards a client takes. SESA draws them at random every round, HeteroFL
always takes the first. FedRolex takes a window that moves on by one per round, unit by unit if
`shards` is the number of units.

Shape legend
    K = shards, k = those taken of a layer, U = units of a shard, S = values that one unit passes on
    to one unit of the next layer (a kernel's taps, a pooled map's pixels, 1), O = classes
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from torchfsl.errors import ParameterError

Shards = Sequence[Sequence[int]]
"""For each hidden layer the numbers of shards, distinct."""


class _Layer(NamedTuple):
    """A layer of the plain network, and the shape of its weight, `[out, in, ...]`."""

    name: str
    shape: torch.Size


class Sharded(nn.Module):
    """A plain chain of convolutions and linear layers, its hidden units in shards.

    With all shards it is the function of `plain`, from whose weights it starts. With some it is
    `plain` with zeros in place of all weights into and out of units that are not taken.

    Args:
        plain: applies its `nn.Conv2d` and `nn.Linear` layers one after another, in the order of
            `modules()`, all with biases. Modules between them treat each channel alike, or have an
            attribute `channels`, which `take` sets to the numbers of the channels at hand.
        shards: K, a divisor of the width of every hidden layer.
        scaled: multiply what each hidden layer computes by K / k, as HeteroFL and FedRolex do.
            Activations then keep their size whatever the client's. Without it, small clients learn
            to contribute parts of a sum.

    Attributes:
        units: for each hidden layer a table `[K, ...]`. A row holds the biases of the shard's
            units, in the first layer their weights from the inputs, in the last those to the
            classes.
        links: for each two neighbouring hidden layers a table `[K * K, ...]`: row `a * K + b` holds
            the weights from shard a of the earlier one to shard b of the later one.
        bias: of the classes, `[O]`.

    Raises:
        ParameterError: no hidden layer, one that `shards` does not divide, a layer without bias.
    """

    def __init__(self, plain: nn.Module, *, shards: int, scaled: bool = False) -> None:
        super().__init__()
        found = {n: m for n, m in plain.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
        if len(found) < 2 or any(module.bias is None for module in found.values()):
            raise ParameterError(
                "Sharded expects two or more convolutions or linear layers, each with a bias, got "
                f"the layers {sorted(found)}: add a hidden layer, or set bias=True"
            )
        for name, module in list(found.items())[:-1]:
            if shards < 1 or len(module.weight) % shards:
                raise ParameterError(
                    f"{name} has {len(module.weight)} units, which {shards} shards cannot divide "
                    f"evenly: choose a divisor of {len(module.weight)}"
                )
        self.shards: Final = shards
        self.scaled: Final = scaled
        self._layers = [_Layer(name, module.weight.shape) for name, module in found.items()]
        self.units, self.links = nn.ModuleList(), nn.ModuleList()
        with torch.no_grad():
            self._fill(list(found.values()))
        # In a tuple: what it does is wanted, not its parameters.
        self._plain = (copy.deepcopy(plain).to("meta"),)
        self._taken: tuple[tuple[int, ...], ...] = ()
        self.take(None)

    @property
    def num_hidden(self) -> int:
        """Hidden layers."""
        return len(self._layers) - 1

    def take(self, shards: Shards | None) -> None:
        """Let forward use these shards alone; None for all.

        Raises:
            ParameterError: not one or more distinct shards in [0, K) for every hidden layer.
        """
        everything = [range(self.shards)] * self.num_hidden
        self._taken = self._checked(everything if shards is None else shards)
        layer = -1
        for name, module in self._plain[0].named_modules():
            layer += any(name == known.name for known in self._layers)
            if hasattr(module, "channels"):
                module.channels = torch.cat(
                    [self._unit_numbers(layer, s) for s in self._taken[layer]]
                )

    def rows(self, shards: Shards) -> dict[str, Tensor]:
        """By name of a table's weight the increasing rows, int64, that `take(shards)` uses.

        Raises:
            ParameterError: as in `take`.
        """
        taken = self._checked(shards)
        units = {f"units.{i}.weight": torch.tensor(sorted(own)) for i, own in enumerate(taken)}
        links = {
            f"links.{i}.weight": self._pairs(*pair).flatten().sort().values
            for i, pair in enumerate(itertools.pairwise(taken))
        }
        return units | links

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits `[B, O]` of `inputs`, which are those of the plain network."""
        logits: Tensor = torch.func.functional_call(self._plain[0], self._weights(), (inputs,))
        return logits

    # --- from tables to a narrow network and back ---------------------------------------------

    def _weights(self) -> dict[str, Tensor]:
        """The parameters of the plain network, narrow."""
        device, last, found = self.bias.device, self._layers[-1], {}
        for i, taken in enumerate(self._taken):
            layer = self._layers[i]
            rows = self.units[i](torch.tensor(taken, device=device))  # [k, ...]
            weight, bias, out = rows.split(self._unit_sizes(i), dim=1)
            if i:
                pairs = self.links[i - 1](self._pairs(self._taken[i - 1], taken).to(device))
                weight = self._joined(pairs, i)
            weight, bias = weight.reshape(bias.numel(), -1, *layer.shape[2:]), bias.flatten()
            scale = self.shards / len(taken) if self.scaled else 1.0
            found[f"{layer.name}.weight"] = weight * scale
            found[f"{layer.name}.bias"] = bias * scale
        out_kOUS = out.reshape(len(rows), last.shape[0], -1)
        found[f"{last.name}.weight"] = out_kOUS.transpose(0, 1).reshape(last.shape[0], -1)
        found[f"{last.name}.bias"] = self.bias
        return found

    def _fill(self, layers: list[nn.Conv2d | nn.Linear]) -> None:
        """Make the tables, with the weights of the plain network; inverse of `_weights`."""
        K, last = self.shards, layers[-1]
        for i, layer in enumerate(layers[:-1]):
            parts = [_bias(layer).reshape(K, -1)]
            if i == 0:
                parts.insert(0, layer.weight.reshape(K, -1))
            else:
                U_out, U_in = len(layer.weight) // K, len(layers[i - 1].weight) // K
                pairs = layer.weight.reshape(K, U_out, K, U_in, -1).permute(2, 0, 1, 3, 4)
                self.links.append(_table(pairs.reshape(K * K, -1)))
            if i == self.num_hidden - 1:
                out_OKx = last.weight.reshape(len(last.weight), K, -1)
                parts.append(out_OKx.transpose(0, 1).reshape(K, -1))
            self.units.append(_table(torch.cat(parts, dim=1)))
        self.bias = nn.Parameter(_bias(last).clone())

    def _joined(self, rows: Tensor, layer: int) -> Tensor:
        """Rows of `links[layer - 1]`, `[k_in, k_out, ...]`, as weights `[k_out U_out, ...]`."""
        k_in, k_out = rows.shape[:2]
        U_out, U_in = (self._layers[i].shape[0] // self.shards for i in (layer, layer - 1))
        weights = rows.reshape(k_in, k_out, U_out, U_in, -1).permute(1, 2, 0, 3, 4)
        return weights.reshape(k_out * U_out, -1)

    def _unit_sizes(self, layer: int) -> list[int]:
        """Of the parts of a row of `units[layer]`: weights in, biases, weights out."""
        shape, last = self._layers[layer].shape, self._layers[-1].shape
        U = shape[0] // self.shards
        into = U * math.prod(shape[1:]) if layer == 0 else 0
        out = math.prod(last) // self.shards if layer == self.num_hidden - 1 else 0
        return [into, U, out]

    def _unit_numbers(self, layer: int, shard: int) -> Tensor:
        U = self._layers[layer].shape[0] // self.shards
        return torch.arange(shard * U, (shard + 1) * U)

    def _pairs(self, earlier: Sequence[int], later: Sequence[int]) -> Tensor:
        """Row numbers of a table of links, `[k_in, k_out]`."""
        return torch.tensor(earlier)[:, None] * self.shards + torch.tensor(later)

    def _checked(self, shards: Shards) -> tuple[tuple[int, ...], ...]:
        taken = tuple(tuple(int(number) for number in layer) for layer in shards)
        if len(taken) != self.num_hidden:
            raise ParameterError(
                f"expected one list of shards per hidden layer, {self.num_hidden} lists, got "
                f"{len(taken)}"
            )
        for own in taken:
            if not own or len(set(own)) < len(own) or not set(own) <= set(range(self.shards)):
                raise ParameterError(
                    f"the shards are {own}: choose one or more distinct numbers from 0 to "
                    f"{self.shards - 1}"
                )
        return taken


def _table(rows: Tensor) -> nn.Embedding:
    return nn.Embedding(len(rows), rows.shape[1], _weight=rows.clone())


def _bias(layer: nn.Conv2d | nn.Linear) -> Tensor:
    assert layer.bias is not None
    return layer.bias

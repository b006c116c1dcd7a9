"""Linear, LSTM and embedding layers whose matrices consist of block-Hankel blocks.

They follow Deng, Wang, Meng et al., "A Secure and Efficient Federated Learning Framework for NLP",
section 3.2. A matrix is cut into blocks of b x b. Inside a block, the value at (i, j) depends on
the sum i + j alone, so that 2b - 1 values stand for b**2.

The parameters of the layers here *are* these values. Training in this form, as the paper does,
makes every update as short as the model, in whatever way updates are summed. With b = 1 each layer
is bit-identical to the torch layer of its name.

There are two deviations. The paper does not discuss sizes that are not multiples of b. Here the
last blocks then stand out of the matrix, and values that no entry reads stay as they are
initialised. The paper also prunes a trained update; `project` does so, by the nearest matrix of
that form, but nothing here needs it.

Shape legend
    R, C = blocks down and across, b = side of a block, O, I = rows and columns of the matrix
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional


def num_vectors(rows: int, columns: int, block: int) -> tuple[int, int, int]:
    """The shape `[R, C, 2b - 1]` of the values that stand for a matrix `[rows, columns]`.

    Raises:
        ValueError: a size is below 1.
    """
    if min(rows, columns, block) < 1:
        raise ValueError(
            f"a matrix of {rows} x {columns} in blocks of {block}: choose 1 or more for each of "
            "the three numbers"
        )
    return -(-rows // block), -(-columns // block), 2 * block - 1


def matrix(vectors: Tensor, rows: int, columns: int) -> Tensor:
    """The matrix `[rows, columns]` that these values `[R, C, 2b - 1]` stand for.

    Row i and column j are `vectors[i // b, j // b, i % b + j % b]`. One strided view and one copy;
    the gradient of a value is the sum over its anti-diagonal.
    """
    block = (vectors.shape[2] + 1) // 2
    blocks_RCbb = vectors.unfold(2, block, 1)
    whole = blocks_RCbb.permute(0, 2, 1, 3).reshape(
        vectors.shape[0] * block, vectors.shape[1] * block
    )
    return whole[:rows, :columns]


def project(dense: Tensor, block: int) -> Tensor:
    """The values of the block-Hankel matrix nearest to `dense` in the Frobenius norm.

    They are the means over each anti-diagonal, of the entries that the matrix has; what none reads
    is zero. Projecting the matrix of the result gives it again.

    Args:
        dense: float `[O, I]`.
        block: side b.

    Returns:
        `[R, C, 2b - 1]`, of the dtype of `dense`.
    """
    shape = num_vectors(dense.shape[0], dense.shape[1], block)
    rows, columns = (torch.arange(size, device=dense.device) for size in dense.shape)
    place = (rows // block * shape[1])[:, None] + columns // block
    place = place * shape[2] + (rows % block)[:, None] + columns % block
    sums, counts = (
        torch.zeros(math.prod(shape), dtype=dense.dtype, device=dense.device).index_add_(
            0, place.reshape(-1), values.reshape(-1)
        )
        for values in (dense, torch.ones_like(dense))
    )
    return (sums / counts.clamp(min=1)).reshape(shape)


class HankelLinear(nn.Module):
    """`nn.Linear` with a block-Hankel matrix.

    Args:
        inputs: columns I.
        outputs: rows O.
        block: side b; 1 makes it `nn.Linear`.
    """

    def __init__(self, inputs: int, outputs: int, *, block: int = 1) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.vectors = nn.Parameter(torch.empty(num_vectors(outputs, inputs, block)))
        self.bias = nn.Parameter(torch.empty(outputs))
        # As nn.Linear: every entry of the matrix, and so every value, is uniform in the same range.
        gain = nn.init.calculate_gain("leaky_relu", math.sqrt(5))
        bound = math.sqrt(3.0) * (gain / math.sqrt(inputs))
        nn.init.uniform_(self.vectors, -bound, bound)
        nn.init.uniform_(self.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    @property
    def weight(self) -> Tensor:
        """The matrix `[O, I]`."""
        return matrix(self.vectors, self.outputs, self.inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Float `[..., I]` to `[..., O]`."""
        return functional.linear(x, self.weight, self.bias)


class HankelLSTM(nn.Module):
    """`nn.LSTM(batch_first=True)` with block-Hankel matrices; the state starts at zero.

    The four gates of a layer are one matrix of 4 H rows, as in torch, which is cut as a whole.

    Args:
        inputs: width of what goes in.
        hidden: units H of every layer.
        layers: number of layers.
        block: side b; 1 makes it `nn.LSTM`.
        dropout: probability of dropping an output of a layer but the last, in training.
    """

    def __init__(
        self, inputs: int, hidden: int, *, layers: int = 1, block: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.hidden, self.layers, self.dropout = hidden, layers, dropout
        self._shapes: list[tuple[int, ...]] = []
        self.values = nn.ParameterList()
        bound = 1 / math.sqrt(hidden)
        for layer in range(layers):
            entering = inputs if layer == 0 else hidden
            gates = 4 * hidden
            shapes: list[tuple[int, ...]] = [(gates, entering), (gates, hidden), (gates,), (gates,)]
            for shape in shapes:
                stored = num_vectors(*shape, block) if len(shape) == 2 else shape
                self._shapes.append(shape)
                self.values.append(nn.init.uniform_(torch.empty(stored), -bound, bound))

    def weights(self) -> list[Tensor]:
        """By layer: `[4 H, inputs]`, `[4 H, H]` and two biases `[4 H]`, as `nn.LSTM` has them."""
        return [
            matrix(value, *shape) if len(shape) == 2 else value
            for value, shape in zip(self.values, self._shapes, strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Float `[B, T, inputs]` to `[B, T, H]`."""
        zeros = x.new_zeros(self.layers, x.shape[0], self.hidden)
        output: Tensor = torch._VF.lstm(
            x, (zeros, zeros), self.weights(), True, self.layers, self.dropout, self.training,
            False, True,
        )[0]  # fmt: skip
        return output


class HankelEmbedding(nn.Module):
    """`nn.Embedding` with a block-Hankel matrix.

    Its table is an `nn.Embedding` in which one row holds the values of b neighbouring words, so
    that rows are still what a client's text touches. The vector of a word is that of the word
    before it, shifted by one place, within a block.

    Args:
        words: rows of the matrix.
        width: columns D.
        block: side b; 1 makes it `nn.Embedding`.
    """

    def __init__(self, words: int, width: int, *, block: int = 1) -> None:
        super().__init__()
        self.words, self.width, self.block = words, width, block
        down, self._across, length = num_vectors(words, width, block)
        self.table = nn.Embedding(down, self._across * length)

    @property
    def weight(self) -> Tensor:
        """The matrix `[words, D]`."""
        values = self.table.weight.view(self.table.num_embeddings, self._across, -1)
        return matrix(values, self.words, self.width)

    def forward(self, words: Tensor) -> Tensor:
        """Int64 ids `[...]` to float `[..., D]`: the rows of `weight` with these numbers."""
        rows: Tensor = self.table(words // self.block)
        if self.block == 1:
            return rows
        values = rows.view(*words.shape, self._across, -1)
        places = (words % self.block)[..., None] + torch.arange(self.block, device=words.device)
        places = places[..., None, :].expand(*words.shape, self._across, self.block)
        found: Tensor = values.gather(-1, places).flatten(-2)
        return found[..., : self.width]


def in_blocks(whole: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with blocks of 1, projected to the blocks of another model.

    Args:
        whole: its `state_dict()`.
        model: of the same sizes otherwise.

    Raises:
        ValueError: the models differ in more than their blocks.
    """
    tables = {
        f"{name}.table.weight": module.block
        for name, module in model.named_modules()
        if isinstance(module, HankelEmbedding)
    }
    state = {}
    for name, wanted in model.state_dict().items():
        value = whole.get(name)
        if value is not None and name in tables:
            value = project(value, tables[name]).flatten(1)
        elif value is not None and value.dim() == 3 and value.shape[2] == 1:
            value = project(value[..., 0], (wanted.shape[2] + 1) // 2)
        if value is None or value.shape != wanted.shape:
            found = "no such tensor" if value is None else f"shape {tuple(value.shape)}"
            raise ValueError(
                f"{name} needs a tensor of shape {tuple(wanted.shape)}, and the model to start "
                f"from has {found}: start from a model with blocks of 1 and otherwise equal sizes"
            )
        state[name] = value
    return state

"""Block-Hankel layers and the language models made of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import models
from models.hankel import (
    HankelEmbedding,
    HankelLinear,
    HankelLSTM,
    in_blocks,
    matrix,
    num_vectors,
    project,
)

SIZES = [(8, 8, 4), (7, 10, 4), (5, 3, 8), (33, 20, 32), (4, 6, 1)]
"""Rows, columns, block; most are no multiples."""


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def vectors(rows: int, columns: int, block: int) -> Tensor:
    torch.manual_seed(rows)
    return torch.randn(num_vectors(rows, columns, block), dtype=torch.float64)


@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_entries_are_equal_along_the_anti_diagonals_of_a_block(
    rows: int, columns: int, block: int
) -> None:
    values = vectors(rows, columns, block)
    whole = matrix(values, rows, columns)
    assert whole.shape == (rows, columns)
    for i in range(rows):
        for j in range(columns):
            assert whole[i, j] == values[i // block, j // block, i % block + j % block]


@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_gradients_are_the_sums_over_anti_diagonals(rows: int, columns: int, block: int) -> None:
    values = vectors(rows, columns, block).requires_grad_()
    upstream = torch.randn(rows, columns, dtype=torch.float64)
    (matrix(values, rows, columns) * upstream).sum().backward()
    expected = torch.zeros_like(values)
    for i in range(rows):
        for j in range(columns):
            expected[i // block, j // block, i % block + j % block] += upstream[i, j]
    torch.testing.assert_close(values.grad, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_projection_is_idempotent_and_nearest(rows: int, columns: int, block: int) -> None:
    torch.manual_seed(1)
    dense = torch.randn(rows, columns, dtype=torch.float64)
    nearest = project(dense, block)
    back = matrix(nearest, rows, columns)
    torch.testing.assert_close(project(back, block), nearest)
    # What is left is orthogonal to every matrix of the form, so no other one is nearer.
    for _ in range(20):
        other = matrix(torch.randn_like(nearest), rows, columns)
        assert abs(float(((dense - back) * other).sum())) < 1e-9
        assert torch.dist(dense, back) <= torch.dist(dense, back + 0.1 * other)


def test_projection_of_values_that_are_all_read_gives_them_again() -> None:
    values = vectors(12, 8, 4)
    torch.testing.assert_close(project(matrix(values, 12, 8), 4), values)


@pytest.mark.parametrize("block", [2, 5])
def test_a_linear_layer_applies_its_matrix(block: int) -> None:
    torch.manual_seed(2)
    layer, x = HankelLinear(7, 9, block=block), torch.randn(3, 7)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


def test_blocks_of_one_are_the_linear_layer_of_torch_bit_for_bit() -> None:
    torch.manual_seed(3)
    ours = HankelLinear(7, 9)
    torch.manual_seed(3)
    theirs, x = nn.Linear(7, 9), torch.randn(4, 7)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("training", [True, False])
def test_blocks_of_one_are_the_lstm_of_torch_bit_for_bit(training: bool) -> None:
    torch.manual_seed(4)
    ours = HankelLSTM(6, 5, layers=2, dropout=0.5).train(training)
    torch.manual_seed(4)
    theirs = nn.LSTM(6, 5, num_layers=2, batch_first=True, dropout=0.5).train(training)
    for mine, other in zip(ours.weights(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    x = torch.randn(3, 4, 6)
    torch.manual_seed(5)
    left = ours(x)
    torch.manual_seed(5)
    right = theirs(x)[0]
    assert torch.equal(left, right)
    left.sum().backward()
    right.sum().backward()
    for value, other in zip(ours.values, theirs.parameters(), strict=True):
        assert torch.equal(value.grad.reshape(other.shape), other.grad)


def test_an_lstm_in_blocks_runs_on_its_matrices() -> None:
    torch.manual_seed(6)
    ours = HankelLSTM(6, 5, layers=2, block=4).eval()
    theirs = nn.LSTM(6, 5, num_layers=2, batch_first=True).eval()
    with torch.no_grad():
        for other, mine in zip(theirs.parameters(), ours.weights(), strict=True):
            other.copy_(mine)
    x = torch.randn(3, 4, 6)
    torch.testing.assert_close(ours(x), theirs(x)[0])


@pytest.mark.parametrize("block", [1, 3, 8])
def test_an_embedding_looks_up_the_rows_of_its_matrix(block: int) -> None:
    torch.manual_seed(7)
    layer = HankelEmbedding(20, 10, block=block)
    words = torch.tensor([[0, 19, 7], [2, 3, 8]])
    assert torch.equal(layer(words), layer.weight[words])
    upstream = torch.randn(2, 3, 10)
    (layer(words) * upstream).sum().backward()
    mine = layer.table.weight.grad.clone()
    layer.zero_grad()
    (layer.weight[words] * upstream).sum().backward()
    torch.testing.assert_close(mine, layer.table.weight.grad)
    touched = set(mine.any(dim=1).nonzero().flatten().tolist())
    assert touched <= set((words // block).flatten().tolist())


def test_blocks_of_one_are_the_embedding_of_torch_bit_for_bit() -> None:
    torch.manual_seed(8)
    ours = HankelEmbedding(20, 10)
    torch.manual_seed(8)
    assert torch.equal(ours.weight, nn.Embedding(20, 10).weight)


@pytest.mark.parametrize("network", [models.LSTMLanguageModel, models.TransformerLanguageModel])
@pytest.mark.parametrize("decoder", ["tied", "untied"])
def test_a_whole_model_is_projected_to_blocks(network: type[nn.Module], decoder: str) -> None:
    torch.manual_seed(11)
    sizes = {"words": 20, "width": 6, "decoder": decoder}
    whole, blocks = network(**sizes), network(**sizes, block=4, block_embedding=3)
    blocks.load_state_dict(in_blocks(whole.state_dict(), blocks))
    expected = project(whole.embedding.weight, 3)
    assert torch.equal(blocks.embedding.weight, matrix(expected, 20, 6))
    for mine, other in zip(blocks.modules(), whole.modules(), strict=True):
        if isinstance(mine, HankelLinear):
            assert torch.equal(mine.bias, other.bias)
            block = (mine.vectors.shape[2] + 1) // 2
            nearest = matrix(project(other.weight, block), *other.weight.shape)
            assert torch.equal(mine.weight, nearest)
    assert in_blocks(whole.state_dict(), whole).keys() == whole.state_dict().keys()


def test_a_model_of_other_sizes_is_not_projected() -> None:
    whole = models.LSTMLanguageModel(words=20, width=6)
    with pytest.raises(ValueError, match="otherwise equal sizes"):
        in_blocks(whole.state_dict(), models.LSTMLanguageModel(words=20, width=8, block=4))
    with pytest.raises(ValueError, match="has no such tensor"):
        in_blocks(whole.state_dict(), models.LSTMLanguageModel(words=20, width=6, layers=3))


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="choose 1 or more"):
        HankelLinear(4, 4, block=0)


def paper(network: type[nn.Module], block: int, block_embedding: int) -> nn.Module:
    with torch.device("meta"):  # sizes alone
        return network(
            words=33_278, width=200, layers=2, block=block, block_embedding=block_embedding,
            decoder="untied",
        )  # fmt: skip


@pytest.mark.parametrize(("block", "times"), [(4, 2.28), (8, 4.23), (16, 7.80), (32, 14.02)])
def test_blocks_make_the_papers_lstm_so_many_times_smaller(block: int, times: float) -> None:
    whole = count(paper(models.LSTMLanguageModel, 1, 1))
    assert whole == 13_987_678
    assert round(whole / count(paper(models.LSTMLanguageModel, block, block)), 2) == times


def test_blocks_in_the_recurrent_matrices_alone_save_hardly_anything() -> None:
    whole = count(paper(models.LSTMLanguageModel, 1, 1))
    assert round(whole / count(paper(models.LSTMLanguageModel, 32, 1)), 2) == 1.04


def test_the_papers_transformer_has_so_many_parameters() -> None:
    assert count(paper(models.TransformerLanguageModel, 1, 1)) == 13_828_878
    assert count(paper(models.TransformerLanguageModel, 32, 32)) == 990_238


@pytest.mark.parametrize("network", [models.LSTMLanguageModel, models.TransformerLanguageModel])
@pytest.mark.parametrize(
    ("decoder", "block_embedding"), [("tied", 1), ("tied", 4), ("untied", 4), ("adaptive", 1)]
)
def test_no_word_is_predicted_from_itself_or_a_later_one(
    network: type[nn.Module], decoder: str, block_embedding: int
) -> None:
    torch.manual_seed(9)
    model = network(
        words=64, width=16, dropout=0.0, block=4, block_embedding=block_embedding, decoder=decoder
    )
    words = torch.randint(64, (2, 7))
    losses = model(words[:, :-1], words[:, 1:]).view(2, 6)
    assert (losses > 0).all()
    changed = words.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 64
    after = model(changed[:, :-1], changed[:, 1:]).view(2, 6)
    torch.testing.assert_close(after[:, :3], losses[:, :3])
    assert not torch.allclose(after[:, 4:], losses[:, 4:])


@pytest.mark.parametrize("network", [models.LSTMLanguageModel, models.TransformerLanguageModel])
@pytest.mark.parametrize("decoder", ["tied", "untied", "adaptive"])
def test_likelihoods_of_all_words_sum_to_one(network: type[nn.Module], decoder: str) -> None:
    torch.manual_seed(10)
    model = network(words=48, width=16, decoder=decoder).eval()
    words = torch.tensor([[5, 40, 2]]).expand(48, 3)
    following = words.clone()
    following[:, 2] = torch.arange(48)
    last = model(words, following).view(48, 3)[:, 2]
    torch.testing.assert_close((-last).exp().sum(), torch.tensor(1.0))


def test_heads_that_cannot_share_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="the width is 8, which is not a multiple of 3"):
        models.TransformerLanguageModel(words=48, width=8, heads=3)

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import models
from models.cnn import ResponseNorm


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def din_inputs(samples: int = 4, length: int = 3) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def ids(bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(bound, shape, generator=generator)

    mask = torch.ones(samples, length, dtype=torch.bool)
    return (ids(6, samples), ids(20, samples), ids(5, samples),
            ids(20, samples, length), ids(5, samples, length), mask)  # fmt: skip


def small_din() -> models.DIN:
    torch.manual_seed(1)
    return models.DIN(items=20, categories=5, users=6, dim=4).eval()


def test_din_has_the_published_number_of_parameters() -> None:
    model = models.DIN(items=143534, categories=4815, users=49023, dim=18)
    tables = sum(count(m) for m in model.modules() if isinstance(m, nn.Embedding))
    assert tables == 3_552_696
    assert count(model) - tables == 64_327


def test_din_ignores_what_stands_at_masked_positions() -> None:
    model, inputs = small_din(), din_inputs()
    inputs[5][:, 1:] = False
    expected = model(*inputs)
    inputs[3][:, 1:] = 19
    inputs[4][:, 1:] = 4
    assert torch.equal(model(*inputs), expected)
    shorter = (*inputs[:3], inputs[3][:, :1], inputs[4][:, :1], inputs[5][:, :1])
    torch.testing.assert_close(model(*shorter), expected)


def test_din_reads_no_row_for_padding() -> None:
    model, inputs = small_din(), din_inputs(samples=2)
    inputs[3][:], inputs[4][:] = 0, 0
    inputs[5][:] = False
    inputs[1][:], inputs[2][:] = 7, 2
    with torch.no_grad():
        for table, kept in ((model.item_embedding, 7), (model.category_embedding, 2)):
            row = table.weight[kept].clone()
            table.weight.fill_(torch.nan)
            table.weight[kept] = row
    output = model(*inputs)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert torch.isfinite(model.item_embedding.weight.grad).all()


def test_din_takes_an_empty_history() -> None:
    model, inputs = small_din(), din_inputs(length=0)
    assert torch.isfinite(model(*inputs)).all()


def test_din_attention_is_a_weighted_mean_of_the_history() -> None:
    model, inputs = small_din(), din_inputs()
    target, history = torch.randn(4, 8), torch.randn(4, 1, 8).expand(4, 3, 8)
    torch.testing.assert_close(model.attend(target, history, inputs[5]), history[:, 0])


def test_cnns_have_the_published_sizes() -> None:
    assert count(models.MnistCNN()) == 1_663_370
    assert count(models.CifarCNN()) == 1_068_298
    assert models.MnistCNN()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert models.CifarCNN()(torch.zeros(2, 3, 24, 24)).shape == (2, 10)


def test_response_norm_is_the_function_of_torch() -> None:
    maps = torch.randn(3, 16, 5, 4, dtype=torch.float64)
    mine, theirs = maps.clone().requires_grad_(), maps.clone().requires_grad_()
    ours = ResponseNorm(9, alpha=0.3, k=1.5)(mine)
    expected = torch.nn.LocalResponseNorm(9, alpha=0.3, beta=0.75, k=1.5)(theirs)
    assert torch.allclose(ours, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(maps)
    (ours * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-10, atol=1e-12)


def test_textcnn_pads_sentences_shorter_than_a_window() -> None:
    model = models.TextCNN(words=30, classes=4, dim=8, maps=5).eval()
    assert model(torch.tensor([[3]])).shape == (1, 4)
    torch.testing.assert_close(model(torch.tensor([[3]])), model(torch.tensor([[3, 0, 0, 0, 0]])))


def test_textcnn_padding_row_gets_no_gradient() -> None:
    model = models.TextCNN(words=30, classes=4, dim=8, maps=5)
    model(torch.tensor([[3, 4, 0, 0, 0]])).sum().backward()
    assert not model.embedding.weight.grad[0].any()
    assert not model.embedding.weight[0].any()


@pytest.mark.parametrize("path", sorted(Path(models.__file__).parent.glob("*.py")))
def test_models_import_torch_and_each_other_and_no_other_package(path: Path) -> None:
    allowed = {"torch", "models"} | sys.stdlib_module_names
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        assert {name.split(".")[0] for name in names} <= allowed

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import models
import models.din
import models.histories
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


def test_logits_of_the_text_cnn_depend_on_the_padding_beside_a_sentence() -> None:
    """Which docs/experiments.md says of its figures."""
    torch.manual_seed(0)
    model = models.TextCNN(words=30, classes=4, dim=8, maps=50).eval()
    sentence = torch.randint(1, 30, (1, 6))
    padded = [torch.nn.functional.pad(sentence, (0, more), value=model.padding_id)
              for more in (0, 20, 40)]  # fmt: skip
    alone, beside, far = map(model, padded)
    assert not torch.allclose(alone, beside)
    assert torch.allclose(beside, far)


def test_textcnn_padding_row_gets_no_gradient() -> None:
    model = models.TextCNN(words=30, classes=4, dim=8, maps=5)
    model(torch.tensor([[3, 4, 0, 0, 0]])).sum().backward()
    assert not model.embedding.weight.grad[0].any()
    assert not model.embedding.weight[0].any()


RECOMMENDERS = [models.MatrixFactorisation, models.NCF, models.DeepFM, models.SASRec]


@pytest.mark.parametrize("users", [6, 0])
@pytest.mark.parametrize("kind", RECOMMENDERS)
def test_recommenders_read_no_row_for_padding_and_take_an_empty_history(
    kind: type[nn.Module], users: int
) -> None:
    torch.manual_seed(2)
    model = kind(items=20, categories=5, users=users, dim=6).eval()
    inputs = din_inputs(samples=2, length=4)
    inputs[5][:, 2:] = False
    expected = model(*inputs)
    assert expected.shape == (2, 2)
    inputs[3][:, 2:], inputs[4][:, 2:] = 19, 4  # none of the batch's own
    with torch.no_grad():
        for table in (m for m in model.modules() if isinstance(m, nn.Embedding)):
            if len(table.weight) > 6:
                table.weight[19] = torch.nan
    assert torch.equal(model(*inputs), expected)
    shorter = (*inputs[:3], inputs[3][:, :2], inputs[4][:, :2], inputs[5][:, :2])
    torch.testing.assert_close(model(*shorter), expected)
    inputs[5][:] = False
    empty = (*inputs[:3], inputs[3][:, :0], inputs[4][:, :0], inputs[5][:, :0])
    torch.testing.assert_close(model(*inputs), model(*empty))
    assert torch.isfinite(model(*empty)).all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("longest", [5, 0])
@pytest.mark.parametrize("users", [9, 0])
@pytest.mark.parametrize("kind", [models.DIN, *RECOMMENDERS])
def test_scores_of_many_items_are_those_of_the_forward_pass(
    kind: type[nn.Module], users: int, longest: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine users, some without a history, in groups of two or one; items they share, or of each."""
    monkeypatch.setattr(models.din, "PAIRS", 9)
    monkeypatch.setattr(models.histories, "PAIRS", 9)
    torch.manual_seed(3)
    model = kind(items=20, categories=5, users=users, dim=6).eval()
    for name, value in model.named_buffers():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 2.0 if name.endswith("var") else 1.0)
    user, category = torch.arange(9), torch.randint(5, (20,))
    mask = torch.arange(longest) < torch.randint(longest + 1, (9, 1))
    history = torch.randint(20, (9, longest))
    items = torch.randperm(20)[:4] if shared else torch.randint(20, (9, 4))
    with torch.no_grad():
        past = (history, category[history], mask)
        found = model.score_items(user, items, category[items], *past)
        each = items.expand(9, 4).reshape(-1)
        inputs = (one.repeat_interleave(4, dim=0) for one in past)
        logits = model(user.repeat_interleave(4), each, category[each], *inputs)
    expected = (logits[:, 1] - logits[:, 0]).view(9, 4)
    assert found.shape == (9, 4)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.std()))


@pytest.mark.parametrize("shape", [{"attention": ()}, {"head": ()}, {"activation": "dice"}])
def test_din_of_other_shapes_scores_many_items_as_its_forward_pass(shape: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = models.DIN(items=20, categories=5, users=0, dim=6, **shape).eval()
    user, target, kind, *past = din_inputs(samples=1, length=3)
    with torch.no_grad():
        logits = model(user, target, kind, *past)
        found = model.score_items(user, target, kind, *past)
    torch.testing.assert_close(found[0], logits[:, 1] - logits[:, 0])


@pytest.mark.parametrize("kind", RECOMMENDERS)
def test_recommenders_tell_the_candidate_and_the_history(kind: type[nn.Module]) -> None:
    torch.manual_seed(2)
    model = kind(items=20, categories=5, users=0, dim=6).eval()
    inputs = din_inputs(samples=1)
    before = model(*inputs)[0, 1]
    for place in (1, 3):
        inputs[place][...] = (inputs[place] + 1) % 19
        assert model(*inputs)[0, 1] != before
        before = model(*inputs)[0, 1]


def test_the_factorisation_machine_is_its_double_sum() -> None:
    """Rendle's equation (1), pair by pair, with the network's output taken off."""
    torch.manual_seed(0)
    machine = models.FactorisationMachine(4, 5, (3,), 0.0)
    rows = torch.randn(2, 4, 5)
    deep = machine.head(rows[..., :-1].flatten(1)).squeeze(1)
    for sample, score in zip(rows, machine(rows) - deep, strict=True):
        pairs = [sample[i, :-1] @ sample[j, :-1] for i in range(4) for j in range(i)]
        torch.testing.assert_close(score, sample[:, -1].sum() + torch.stack(pairs).sum())


def test_sasrec_reads_positions_from_the_latest_item_backwards() -> None:
    """A prefix gives what a model with the same blocks gives for it alone: attention is causal."""
    torch.manual_seed(4)
    model = models.SASRec(items=20, categories=1, users=0, dim=6, history=8).eval()
    inputs = din_inputs(samples=1, length=5)
    inputs[3][:] = torch.arange(5)
    whole = model(*inputs)[0, 1]
    inputs[3][:] = torch.tensor([1, 0, 2, 3, 4])
    assert model(*inputs)[0, 1] != whole  # order counts
    model.positions.data[:] = 0
    swapped = model(*inputs)[0, 1]
    inputs[3][:] = torch.arange(5)
    assert model(*inputs)[0, 1] != whole
    assert swapped.isfinite()


def test_dice_is_its_formula_and_prelu_where_its_gate_is_hard() -> None:
    dice = models.din.Dice(3).eval()
    dice.alpha.data[:] = torch.tensor([0.1, 0.2, 0.3])
    values = torch.tensor([[50.0, -50.0, 0.5]])
    gate = 1 / (1 + math.exp(-0.5 / math.sqrt(1 + 1e-5)))
    expected = torch.tensor([[50.0, -10.0, 0.5 * gate + 0.3 * 0.5 * (1 - gate)]])
    torch.testing.assert_close(dice(values), expected)
    model = models.DIN(items=20, categories=5, users=0, dim=4, activation="dice", head=(5,))
    assert sum(isinstance(m, models.din.Dice) for m in model.modules()) == 1


def test_din_without_users_and_with_small_layers_has_as_many_values_as_its_shape_says() -> None:
    model = models.DIN(items=20, categories=5, users=0, dim=4, attention=(7,), head=(6, 3))
    tables = (20 + 5) * 4
    attention = (32 * 7 + 7) + (7 + 1)
    head = (32 * 6 + 6) + 6 + (6 * 3 + 3) + 3 + (3 * 2 + 2)
    assert count(model) == tables + attention + head + 2 * 32
    other = [torch.zeros_like(din_inputs()[0]), *din_inputs()[1:]]
    assert torch.equal(model.eval()(*other), model(*din_inputs()))


def test_dropout_zeroes_the_heads_input_in_training_alone() -> None:
    model = models.DIN(items=20, categories=5, users=6, dim=4, dropout=0.5).eval()
    seen: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(*din_inputs())
    model.train()
    model.norm.eval()
    model(*din_inputs())
    assert not (seen[0] == 0).any()
    assert 0.2 < (seen[1] == 0).double().mean() < 0.8


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

"""docs/sesa.md: its examples run; specification/sesa.md has the table of isolation of this code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from models import MLP, CifarCNN, MnistCNN
from scripts.generate import isolation_table
from torchfsl.sesa import Sharded

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "sesa.md").read_text()


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(compile(block[1], "docs/sesa.md", "exec"), {})  # noqa: S102
    expected = re.search(r"print\(.*\)  # (.*)", block[1])
    assert expected is not None
    assert capsys.readouterr().out.strip() == expected[1]


def test_a_torch_model_trains_in_the_round_block(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"## From a torch model\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(compile(block[1], "docs/sesa.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.strip() == "15 True"


def test_networks_in_shards_have_the_rows_of_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = PAGE[PAGE.index("## Networks in shards") :]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block is not None
    exec(compile(block[1], "docs/sesa.md", "exec"), {})  # noqa: S102
    assert set(ast.literal_eval(capsys.readouterr().out).values()) == {1}
    for make in (MLP, MnistCNN, CifarCNN):
        row = re.search(
            rf"^\| `{make.__name__}\(\)`, (\S+).* \| (.*) \| (.*)\|$", section, re.MULTILINE
        )
        assert row is not None
        parameters, *cells = (cell.replace(",", "").split(" / ") for cell in row.groups())
        net = Sharded(make(), shards=4)
        assert sum(p.numel() for p in net.parameters()) == int(parameters[0])
        for tables, count, cell in zip((net.units, net.links), (4, 16), cells, strict=True):
            assert [tuple(table.weight.shape) for table in tables] == [
                (count, int(width)) for width in cell if width
            ]


def test_the_table_of_isolation_is_what_the_script_prints() -> None:
    assert isolation_table.table() in (DOCS / "specification" / "sesa.md").read_text()

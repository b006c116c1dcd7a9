"""The example scripts run, lose nothing, learn, and wrap their model in at most five lines."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["tied_tables", "bag_classifier", "tied_language_model", "matrix_factorisation"]
OURS = re.compile(r"\b(Federated|fed|simulate|learn)\b|rows, rest = ")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_exactly_and_learns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [name, "--rounds", "4"])
    importlib.import_module(name).main()
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("round ")]
    assert len(lines) == 4
    assert all("matches plain True" in line for line in lines)
    losses = [float(line.split("loss ")[1].split()[0]) for line in lines]
    assert losses[-1] < 0.95 * losses[0]
    if name == "tied_language_model":
        assert "rows='auto': words.weight is also decoder.weight of a Linear" in out


@pytest.mark.parametrize("name", NAMES)
def test_an_example_wraps_its_model_in_five_lines(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    body = text[text.index("    # torchfsl:") :].splitlines()[1:]
    ours = [line for line in body if OURS.search(line) and "report(" not in line]
    assert 3 <= len(ours) <= 5, "\n".join(ours)

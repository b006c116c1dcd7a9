"""The notebooks run from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["first_round", "private_retrieval"])
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the test extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the test extra")
    pytest.importorskip("ipykernel", reason="needs the test extra")
    pytest.importorskip("matplotlib", reason="needs the training extra")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TORCHFSL_DATA", "absent")
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={}).execute()

"""The pages on the engine: their code runs as printed, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_wrapping_a_model_works_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    text = (DOCS / "wrap-your-model.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 9
    scope: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"wrap-your-model.md, block {number}", "exec"), scope)  # noqa: S102
    out = capsys.readouterr().out
    assert "items.weight: AdamW with weight_decay=0.01 moves every row" in out
    assert scope["losses"][2] < scope["losses"][0]
    assert scope["smaller"].upload_bytes < scope["receipt"].upload_bytes
    assert scope["servers"][0].model.digest() == scope["servers"][1].model.digest()


def test_simulating_a_federation_works_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "simulate.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"simulate.md, block {number}", "exec"), scope)  # noqa: S102
    assert capsys.readouterr().out.count("exact True") == 5
    assert scope["history"].column("loss")[-1] < scope["history"].column("loss")[0]
    assert scope["history"].plan is scope["plan"]
    assert scope["counted"].plan.max_weight == 40


@pytest.mark.parametrize("page", ["wrap-your-model.md", "engine.md", "simulate.md"])
def test_every_relative_link_exists(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text())
    assert links
    assert not [link for link in links if "://" not in link and not (DOCS / link).exists()]


def test_every_refusal_that_the_page_lists_is_one_the_engine_makes() -> None:
    text = (DOCS / "wrap-your-model.md").read_text()
    said = re.findall(r"^\| `([^`]*)` \|", text, flags=re.MULTILINE)
    package = DOCS.parent / "torchfsl"
    source = " ".join(p.read_text() for p in package.rglob("*.py")).replace('"\n', "")
    source = re.sub(r'\s*f?"', "", re.sub(r'"\s*\n\s*f?"', "", source))
    assert len(said) == 9
    for message in said:
        for part in message.strip(". ").split("..."):
            words = re.sub(r"weight_decay=0\.01|decoder\.weight|Linear", "", part).split("  ")
            for piece in words:
                assert piece.strip() in source, piece

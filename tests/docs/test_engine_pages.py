"""The pages on the engine: their code runs as printed, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run(page: str) -> dict[str, Any]:
    """What the blocks of a page leave behind."""
    torch.set_num_threads(1)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    scope: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), scope)  # noqa: S102
    return scope


def test_wrapping_a_model_works_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    scope = run("wrap-your-model.md")
    out = capsys.readouterr().out
    assert "items.weight: AdamW with weight_decay=0.01 also moves rows" in out
    assert scope["losses"][2] < scope["losses"][0]
    assert scope["fewer"].upload_bytes < scope["result"].upload_bytes
    assert scope["result"].matches_plain
    assert scope["fewer"].matches_plain
    assert set(scope["weights"]) == {name for name, _ in scope["model"].named_parameters()}


def test_simulating_a_federation_works_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    scope = run("simulate.md")
    assert capsys.readouterr().out.count("matches plain True") == 6
    losses = scope["longer"].column("loss")  # the rounds before are among them
    assert losses[:4] == scope["result"].column("loss")
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert scope["counted"].plan.max_weight == 40
    assert scope["counted"].rounds[0].clients == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("page", ["wrap-your-model.md", "engine.md", "simulate.md"])
def test_every_relative_link_exists(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text())
    assert links
    assert not [link for link in links if "://" not in link and not (DOCS / link).exists()]


def test_every_refusal_that_the_page_lists_is_one_the_library_makes() -> None:
    text = (DOCS / "wrap-your-model.md").read_text()
    said = re.findall(r"^\| `([^`]*)` \|", text, flags=re.MULTILINE)
    package = DOCS.parent / "torchfsl"
    source = " ".join(p.read_text() for p in package.rglob("*.py")).replace('"\n', "")
    source = re.sub(r'\s*f?"', "", re.sub(r'"\s*\n\s*f?"', "", source))
    assert len(said) == 8
    for message in said:
        for part in message.strip(". ").split("..."):
            words = re.sub(r"weight_decay=0\.01|decoder\.weight|Linear", "", part).split("  ")
            for piece in words:
                assert piece.strip() in source, piece

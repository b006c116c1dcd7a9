"""Every mistake that the page lists is made, and its message has what the page quotes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from torchfsl.errors import Error

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mistakes.md").read_text()
(SCENE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
MISTAKES = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", PAGE, flags=re.MULTILINE)


def test_the_page_lists_ninety_mistakes() -> None:
    assert len(MISTAKES) >= 90
    assert len(MISTAKES) == PAGE.count("\n| `")


@pytest.mark.parametrize(("code", "said"), MISTAKES, ids=[code for code, _ in MISTAKES])
def test_a_mistake_is_named(code: str, said: str) -> None:
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(SCENE, "mistakes.md", "exec"), scope)  # noqa: S102
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            exec(compile(code, "mistakes.md", "exec"), scope)  # noqa: S102
            message = ""
        except (Error, TypeError) as error:
            message = str(error)
    assert said in " ".join([message, *(str(w.message) for w in heard)])

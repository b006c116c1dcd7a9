"""docs/recipes/data-frame.md: the losses rise and fall as the page states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="the page needs pandas")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes" / "data-frame.md"
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def losses(rate: float, at_servers: str) -> list[float]:
    """Losses of the page's program over eight rounds."""
    more = f'rounds=8, protocol="plain", server_optimizer={at_servers}'
    program = PROGRAM.replace("rounds=2", more).replace("lr=0.1", f"lr={rate}")
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 (the page's program)
    found: list[float] = names["result"].column("loss")
    return found


@pytest.mark.parametrize(("rate", "at_servers", "lowest"), [(0.1, "None", 2), (0.03, "None", 6)])
def test_a_lower_client_rate_lets_the_loss_fall_for_longer(
    rate: float, at_servers: str, lowest: int
) -> None:
    found = losses(rate, at_servers)
    assert found.index(min(found)) == lowest
    assert found[:lowest] == sorted(found[:lowest], reverse=True)


def test_the_plain_mean_falls_more_slowly_and_ends_lower_than_it_began() -> None:
    plain, default = losses(0.1, "torchfsl.optim.SGD()"), losses(0.1, "None")
    assert plain[-1] < plain[0]
    assert plain[2] > default[2]

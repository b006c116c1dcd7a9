"""The page: its example runs as it stands, and its plan is explained."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.privhfl.small import SHAPE, networks
from torchfsl.privhfl import explain, make_plan

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "privhfl.md").read_text()


def test_the_example_runs_as_it_stands() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([10, 10]) ((1, 2), (1, 2), (1, 2))" in done.stdout


def test_a_plan_is_explained_with_the_bytes_that_it_predicts() -> None:
    plan = make_plan(networks(), SHAPE, batch=5, min_answering=1)
    told = explain(plan)
    assert plan.digest.hex()[:16] in told
    assert f"{plan.phase_bytes(2)['offline'] / 5 / 1e6:.3f}" in told
    assert "min_answering is 1" in told
    assert "min_answering is 1" not in explain(make_plan(networks(), SHAPE))

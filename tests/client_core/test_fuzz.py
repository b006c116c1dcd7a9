"""The program that fuzzes the core, without sanitizers; `scripts/checks/native.sh` has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.client_core import build
from torchfsl.fsl.plan.plan import Plan

PLANS = Path(__file__).with_name("plans.txt")
pytestmark = pytest.mark.slow


def run(*arguments: str, path: str = "") -> str:
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed: apt-get install cmake")
    program = build("fuzz_client") / "fuzz_client"
    command, chosen = [program, PLANS, *arguments], os.environ | {"TORCHFSL_CPU_PATH": path}
    done = subprocess.run(command, env=chosen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_plans_are_of_all_kinds() -> None:
    plans = [Plan.from_json(line) for line in PLANS.read_text().splitlines()]
    assert {plan.proofs for plan in plans} == {"none", "lanes", "norm"}
    assert {plan.lane for plan in plans} == {"none", "count", "weight"}
    assert any(plan.late and plan.statement and not plan.retrieving for plan in plans)


def test_what_rounds_send_depends_on_no_instruction() -> None:
    assert run("digest") == run("digest", path="portable")


def test_inputs_break_nothing_and_tell_from_where_to_repeat_them() -> None:
    told = run("500", "900")
    assert "inputs from 1000 on" in told
    assert "500 inputs" in told


def test_every_allocation_of_a_round_may_fail() -> None:
    assert run("allocations").count("allocations failed") == 3

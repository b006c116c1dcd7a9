"""The core for 64-bit Arm, under an emulator: what rounds send is equal, with AES and without."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.client_core.test_fuzz import PLANS, run
from tests.support.client_core import build
from tests.support.points import only_long

COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
pytestmark = [pytest.mark.slow, only_long]


@pytest.fixture(scope="module")
def program() -> Path:
    if not shutil.which(COMPILER):
        pytest.skip(f"{COMPILER} is not installed: apt-get install g++-aarch64-linux-gnu")
    return build(
        "fuzz_client", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_EXE_LINKER_FLAGS=-static", "-DTORCHFSL_CORE=",
        name="aarch64",
    ) / "fuzz_client"  # fmt: skip


@pytest.mark.parametrize("path", ["arm", "portable"])
def test_what_rounds_send_is_that_of_this_machine(program: Path, path: str) -> None:
    emulator = next(filter(shutil.which, EMULATORS), None)
    if emulator is None:
        pytest.skip("there is no emulator: apt-get install qemu-user-static")
    command = [emulator, "-cpu", "max", program, PLANS, "digest"]
    chosen = os.environ | {"TORCHFSL_CPU_PATH": path}
    done = subprocess.run(command, env=chosen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout) == 65
    assert done.stdout == run("digest")

"""The commands of docs/flower.md leave the installed torchfsl in front of the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"## Try it\n\n```sh\n(.*?)```", re.DOTALL)
WHERE = "import torchfsl, models, training; print(torchfsl.__file__, models.__file__)"
BEFORE = "export PYTHONPATH=$PWD"


def commands() -> list[str]:
    """Those of the page that prepare the environment, but for pip's."""
    (block,) = BLOCK.findall((ROOT / "docs" / "flower.md").read_text())
    lines = [line for line in block.splitlines() if not line.startswith(("pip ", "flwr "))]
    assert lines
    assert "pip install" in block
    assert "flwr run flower" in block
    return lines


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An environment in which another torchfsl is installed."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "torchfsl").mkdir()
    (packages / "torchfsl" / "__init__.py").touch()
    for name in ("models", "training"):  # these need torch: whether they are found is enough
        (tmp_path / "clone" / name).mkdir(parents=True)
        (tmp_path / "clone" / name / "__init__.py").touch()
    (tmp_path / "clone" / "examples").mkdir()
    (tmp_path / "clone" / "torchfsl").mkdir()
    (tmp_path / "clone" / "torchfsl" / "__init__.py").touch()
    return tmp_path


def found_by(folder: Path, lines: list[str]) -> tuple[Path, Path]:
    """Where `torchfsl` and `models` come from once these commands were run in the clone."""
    # Without -P: Ray puts the folder in which Flower is started in front, as Python does here.
    program = "\n".join(["set -e", *lines, f'python -c "{WHERE}"'])
    path = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder)}
    done = subprocess.run(
        ["bash", "-c", program], cwd=folder / "clone", env=environment, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    first, second = done.stdout.split()
    return Path(first), Path(second)


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX shell")
def test_the_installed_package_is_used_and_the_clone_is_found(installed: Path) -> None:
    torchfsl, models = found_by(installed, commands())
    assert (installed / "venv") in torchfsl.parents
    assert (installed / "clone") in models.parents


@pytest.mark.parametrize("lines", [[BEFORE], [BEFORE, "cd examples"], commands()[:-1]])
def test_the_clone_on_pythonpath_or_as_working_folder_would_be_in_front(
    installed: Path, lines: list[str]
) -> None:
    torchfsl, _ = found_by(installed, lines)
    assert (installed / "clone") in torchfsl.parents

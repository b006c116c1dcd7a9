"""The wheel: what it holds, and that it works far from the checkout."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_TOOLS = ("pip", "scikit_build_core", "nanobind")
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path) -> str:
    """Output of a command without this checkout on its path.

    Raises:
        AssertionError: the command failed.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the tools of this environment, without a package index."""
    missing = [name for name in BUILD_TOOLS if importlib.util.find_spec(name) is None]
    if missing or not shutil.which("cmake"):
        pytest.skip(f"building a wheel needs {', '.join(missing) or 'cmake'}; .ci/run installs it")
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
        "--config-settings", f"build-dir={ROOT / 'build' / 'wheel'}", "--wheel-dir", folder, ROOT,
        cwd=folder,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_torchfsl_alone_and_no_sources_of_the_native_part(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"torchfsl"}
    assert not [name for name in names if "csrc" in name or name.endswith((".cc", ".h"))]
    assert [name for name in names if name.startswith("torchfsl/kernels/_native.")]
    assert {"torchfsl/py.typed", "torchfsl/kernels/_native.pyi"} <= set(names)


def test_it_works_in_a_bare_folder_and_a_server_needs_no_torch(wheel: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target,
        wheel, cwd=elsewhere,
    )  # fmt: skip
    # Without `site`, whose hooks would find the checkout where it is installed in editable mode.
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import torchfsl; torchfsl.Server; "
        "assert torchfsl.__file__.startswith(sys.argv[1]), torchfsl.__file__; "
        "assert 'torch' not in sys.modules; print(torchfsl.backend())"
    )
    packages = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    said = run(sys.executable, "-P", "-S", "-c", program, target, *packages, cwd=elsewhere)
    assert said.split() == ["native"]

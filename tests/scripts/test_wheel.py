"""The wheel: what it holds, that it works elsewhere, and what a machine without a compiler gets."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_TOOLS = ("pip", "scikit_build_core", "nanobind")
pytestmark = pytest.mark.slow


NO_COMPILER = {"CXX": "/nonexistent/c++"}


def ran(
    *command: object, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command without this checkout on its path, finished, whatever its status."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, check=False
    )


def run(*command: object, cwd: Path) -> str:
    """Output of such a command.

    Raises:
        AssertionError: the command failed.
    """
    done = ran(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def need_build_tools() -> None:
    """Skip where the wheel cannot be built."""
    missing = [name for name in BUILD_TOOLS if importlib.util.find_spec(name) is None]
    if missing or not shutil.which("cmake"):
        pytest.skip(f"building a wheel needs {', '.join(missing) or 'cmake'}; .ci/run installs it")


def pip_wheel(
    folder: Path, build: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Build the wheel into `folder` by the tools of this environment, without a package index.

    Without optimisation, which is quick; tests in other processes wait for a build of that name.
    """
    place = ROOT / "build" / build
    place.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return ran(
            sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation",
            "--no-index", "--config-settings", f"build-dir={place}",
            "--config-settings", "cmake.build-type=None",
            "--wheel-dir", folder, ROOT, cwd=folder, env=env,
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the native part."""
    need_build_tools()
    folder = tmp_path_factory.mktemp("wheel")
    done = pip_wheel(folder, "wheel", {"TORCHFSL_NATIVE": "on"})
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel of a machine without a compiler, and what its build said."""
    need_build_tools()
    folder = tmp_path_factory.mktemp("portable")
    done = pip_wheel(folder, "portable", NO_COMPILER)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built, done.stdout + done.stderr


def test_it_holds_torchfsl_alone_and_no_sources_of_the_native_part(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"torchfsl"}
    assert not [name for name in names if "csrc" in name or name.endswith((".cc", ".h", ".pyc"))]
    assert not [name for name in names if name.startswith("torchfsl/web/")]
    assert [n for n in names if n.startswith("torchfsl/kernels/_native.") and n.endswith(".so")]
    assert {"torchfsl/py.typed", "torchfsl/kernels/_native.pyi"} <= set(names)


def test_it_works_in_a_bare_folder_and_a_server_needs_no_torch(wheel: Path, tmp_path: Path) -> None:
    done = ran_from(wheel, tmp_path)
    assert done.stdout.split() == ["native"], done.stderr


def test_without_a_compiler_the_portable_part_is_installed_and_says_so(
    portable: tuple[Path, str], tmp_path: Path
) -> None:
    built, said = portable
    assert built.name.endswith("-py3-none-any.whl")
    assert "torchfsl: the native part could not be built; the portable one is installed" in said
    done = ran_from(built, tmp_path)
    assert done.stdout.split() == ["portable"], done.stderr
    (line,) = done.stderr.splitlines()
    assert "portable backend" in line
    assert "TORCHFSL_NATIVE=on" in line


def test_a_build_that_insists_on_the_native_part_fails_with_the_reason(tmp_path: Path) -> None:
    need_build_tools()
    done = pip_wheel(tmp_path, "insists", {**NO_COMPILER, "TORCHFSL_NATIVE": "on"})
    assert done.returncode != 0
    assert "CMAKE_CXX_COMPILER" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_native_part_can_be_left_out_on_purpose(tmp_path: Path) -> None:
    need_build_tools()
    done = pip_wheel(tmp_path, "left-out", {"TORCHFSL_NATIVE": "off"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name[-17:] for path in tmp_path.iterdir()] == ["-py3-none-any.whl"]
    assert "CMake" not in done.stdout + done.stderr


def test_the_source_distribution_has_the_sources_and_neither_results_nor_tests(
    tmp_path: Path,
) -> None:
    need_build_tools()
    program = (
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    )
    run(sys.executable, "-c", program, tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.split("/")[0] for name in names} == {
        "torchfsl", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md",
        "SECURITY.md", "pyproject.toml",
    }  # fmt: skip
    sources = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "torchfsl", cwd=ROOT
    ).split()
    assert {name for name in names if name.startswith("torchfsl/")} == set(sources)
    assert built.stat().st_size < 1_000_000


@pytest.mark.parametrize("epoch", [True, False])
def test_wheel_and_source_distribution_are_equal_when_built_twice(
    epoch: bool, tmp_path: Path
) -> None:
    """From checkouts in other places and of other times; without the variable the wheel differs.

    `scripts/release twice` does the same with the native part.
    """
    need_build_tools()
    program = (
        "import sys; from scikit_build_core.build import build_sdist, build_wheel; "
        "build_sdist(sys.argv[1]); build_wheel(sys.argv[1])"
    )
    built = []
    for number, name in enumerate(("here", "in-another-place")):
        checkout, folder = tmp_path / name, tmp_path / f"{name}-built"
        kept_out = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "torchfsl", checkout / "torchfsl", ignore=kept_out)
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, checkout)
        for path in checkout.rglob("*"):
            os.utime(path, (1_700_000_000 + 100 * number,) * 2)
        env = {"TORCHFSL_NATIVE": "off", **({"SOURCE_DATE_EPOCH": "1750000000"} if epoch else {})}
        done = ran(sys.executable, "-c", program, folder, cwd=checkout, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        built.append({path.name: path.read_bytes() for path in folder.iterdir()})
    first, second = built
    assert sorted(name[-6:] for name in first) == ["ny.whl", "tar.gz"]
    assert (first == second) is epoch


def ran_from(wheel: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A program that takes a server and says the backend, with the wheel unpacked in a folder."""
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target,
        wheel, cwd=elsewhere,
    )  # fmt: skip
    # Without `site`, whose hooks would find the checkout where it is installed in editable mode.
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import torchfsl; torchfsl.fsl.Server; "
        "assert torchfsl.__file__.startswith(sys.argv[1]), torchfsl.__file__; "
        "assert 'torch' not in sys.modules; print(torchfsl.backend())"
    )
    packages = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    return ran(sys.executable, "-P", "-S", "-c", program, target, *packages, cwd=elsewhere)

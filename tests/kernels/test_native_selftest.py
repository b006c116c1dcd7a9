"""The selftest program: the native kernels without Python, as sanitizers and emulators see them.

Linked with the kernels that the installation compiled, or built without optimisation if these are
older than their sources. `scripts/checks/native.sh` runs the full checks.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
pytestmark = pytest.mark.slow


def run(*command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def selftest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built by the machine's compiler, once for all processes of a run."""
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        pytest.skip("there is no C++ compiler")
    base = tmp_path_factory.getbasetemp()
    build = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "selftest-build"
    build.mkdir(exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_selftest(build)
    return build / "selftest"


def build_selftest(build: Path) -> None:
    """Does nothing where it was built before."""
    settings = ["-DTORCHFSL_BINDING=OFF", "-DTORCHFSL_SELFTEST=ON", "-DCMAKE_BUILD_TYPE=None"]
    settings += [f"-DTORCHFSL_CORE={core}" for core in installed_kernels()]
    if shutil.which("ccache"):
        settings.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    configured = run("cmake", "-S", ROOT / "torchfsl" / "kernels" / "csrc", "-B", build, *settings)
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", build, "--parallel", "2")
    assert built.returncode == 0, built.stdout + built.stderr


def installed_kernels() -> list[Path]:
    """The library of this Python's build, unless a source is newer or another machine made it."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = [*(ROOT / "build").glob(f"{tag}-*_{platform.machine()}/libfsl_core.a")]
    sources = ROOT / "torchfsl" / "kernels" / "csrc"
    newest = max(path.stat().st_mtime for path in sources.rglob("*") if path.is_file())
    return [core for core in found if core.stat().st_mtime > newest][:1]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors in plain form."""
    written = run(sys.executable, "-m", "scripts.generate.native_vectors")
    assert written.returncode == 0, written.stderr
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    path.write_text(written.stdout)
    return path


def test_every_cpu_path_replays_the_vectors_and_agrees(selftest: Path, vectors: Path) -> None:
    done = run(selftest, "vectors", vectors)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    number = len(vectors.read_text().splitlines())
    assert f"portable: passed, {number} vectors" in done.stdout
    assert "FAILED" not in done.stdout


@pytest.mark.parametrize("kind", ["tree", "hint", "check", "matching", "product"])
def test_a_wrong_vector_is_noticed(
    selftest: Path, vectors: Path, tmp_path: Path, kind: str
) -> None:
    lines = vectors.read_text().splitlines()
    line = next(line for line in reversed(lines) if line.startswith(kind))
    last = line[-1]
    (tmp_path / "bad.txt").write_text(line[:-1] + ("1" if last == "0" else "0") + "\n")
    done = run(selftest, "vectors", tmp_path / "bad.txt")
    assert done.returncode == 1
    assert "portable: FAILED" in done.stdout
    assert "differs" in done.stderr


def test_wrong_calls_are_refused(selftest: Path, vectors: Path, tmp_path: Path) -> None:
    assert run(selftest).returncode == 2
    assert run(selftest, "secrets", "1", "no such kernel").returncode == 2
    assert run(selftest, "vectors", tmp_path / "missing.txt").returncode == 1
    assert run(selftest, "vectors", vectors, "no such path").returncode == 1
    assert run(selftest, "vectors", vectors, "portable").returncode == 0


def test_the_clients_kernels_take_the_same_time_for_all_secrets(selftest: Path) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    client = ("key_schedule", "tree_gen", "hint_gen", "check_gen", "tags", "row_digests")
    script = "scripts.checks.constant_time"
    done = run(sys.executable, "-m", script, "--path", "aesni", selftest, *client)
    print(done.stdout)
    if "without valgrind's headers" in done.stderr:
        pytest.skip("valgrind's headers are not installed")
    assert done.returncode == 0, done.stderr
    assert "both methods notice what leaks on purpose" in done.stdout


def test_every_fuzz_target_is_built_run_and_has_inputs() -> None:
    targets = sorted(path.name for path in (ROOT / "tests" / "corpus").iterdir() if path.is_dir())
    source = (ROOT / "torchfsl" / "kernels" / "csrc" / "selftest" / "fuzz_kernels.cc").read_text()
    defined = sorted(re.findall(r"void fuzz_(\w+)\(Input& input\)", source))
    cmake = (ROOT / "torchfsl" / "kernels" / "csrc" / "CMakeLists.txt").read_text()
    script = (SCRIPTS / "checks" / "native.sh").read_text()
    built = re.search(r"foreach\(target ([\w ]+)\)", cmake)
    run_by = re.search(r'TARGETS="([\w ]+)"', script)
    assert built is not None
    assert run_by is not None
    assert sorted(built[1].split()) == sorted(run_by[1].split()) == defined == targets

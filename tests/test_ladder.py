"""Who may import whom: the layers of the architecture, and no torch where a server works."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import torchfsl

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(torchfsl.__file__).resolve().parent

LAYERS = [
    {"config", "errors", "entropy", "kdf", "ring", "backends", "portable", "cuckoo_table"},
    {"segments", "fixed_point", "opened", "cuckoo_parameters", "discrete_gaussian"},
    {"plan"},
    {"keys", "dpf", "cuckoo", "update", "selection", "privacy", "server_model"},
    {"messages", "psr", "ssa", "checks", "client_trees", "planner"},
    {"reports", "evaluation", "transport"},
    {"client", "server"},
    {"round", "engine"},
]
"""From the bottom up. A file imports from its own layer and those below; others stand between."""

LAZY = {("plan", "explain")}
"""Imports inside a function that point upward, each for a reason given there."""

TORCH_FREE = ["server", "client", "round", "transport", "planner", "explain", "server_model"]


def modules(folder: Path) -> dict[str, ast.Module]:
    return {
        str(path.relative_to(folder).with_suffix("")).replace("/", "."): ast.parse(path.read_text())
        for path in sorted(folder.rglob("*.py"))
        if "csrc" not in path.parts
    }


def imported(tree: ast.Module) -> set[str]:
    """Dotted names of everything a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


SOURCES = modules(PACKAGE)


@functools.cache
def inner(name: str) -> frozenset[str]:
    """Files of the package that a file of the package imports."""
    found = {n.removeprefix("torchfsl.") for n in imported(SOURCES[name])}
    lazy = {above for below, above in LAZY if below == name}
    return frozenset(n for n in found if n in SOURCES and n != "__init__") - lazy


@functools.cache
def reachable(start: str) -> frozenset[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += inner(name)
    return frozenset(seen)


def test_no_file_imports_from_a_layer_above_its_own() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    for name, number in level.items():
        if name not in SOURCES:
            continue
        for other in reachable(name):
            assert level.get(other, number) <= number, f"{name} reaches up to {other}"


def test_imports_have_no_cycle() -> None:
    for name in SOURCES:
        for other in inner(name):
            assert name not in reachable(other), f"{name} and {other} import each other"


def test_files_that_a_server_or_a_client_needs_do_not_import_torch() -> None:
    for start in TORCH_FREE:
        for name in reachable(start):
            roots = {n.split(".")[0] for n in imported(SOURCES[name])}
            assert not roots & {"torch", "models", "training"}, f"{start} needs {name}"


def test_servers_and_clients_do_not_know_each_other() -> None:
    assert not reachable("server") & {"client", "client_trees", "round", "engine"}
    assert not reachable("client") & {"server", "reports", "evaluation", "round", "engine"}


def test_the_library_imports_only_its_stated_dependencies() -> None:
    allowed = {"torchfsl", "numpy", "cryptography", "torch", *sys.stdlib_module_names}
    for name, tree in SOURCES.items():
        extra = {"grpc", "prometheus_client"} if name.startswith("service.") else set()
        roots = {n.split(".")[0] for n in imported(tree)}
        assert roots <= allowed | extra, name


def test_only_the_service_and_its_command_need_the_service() -> None:
    for name in SOURCES:
        if not name.startswith(("service", "__main__")):
            assert not {n for n in inner(name) if n.startswith("service")}, name


@pytest.mark.parametrize("folder", ["models", "training"])
def test_models_import_nothing_of_ours_and_training_only_downward(folder: str) -> None:
    if not (ROOT / folder).is_dir():
        pytest.skip(f"{folder}/ is not in this checkout")
    forbidden = {"scripts", "tests"} | ({"torchfsl", "training"} if folder == "models" else set())
    for name, tree in modules(ROOT / folder).items():
        assert not {n.split(".")[0] for n in imported(tree)} & forbidden, f"{folder}/{name}"


def test_secrets_come_from_the_operating_system_alone() -> None:
    """No mt19937, NumPy or torch generator in the protocol, and one file that asks the system."""
    for name in sorted(set().union(*map(reachable, TORCH_FREE))):
        tree = SOURCES[name]
        assert not imported(tree) & {"random", "secrets", "numpy.random"}, name
        attributes = {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        assert "np.random" not in attributes, name
        assert name == "entropy" or "os.urandom" not in attributes, name


@pytest.mark.parametrize(
    "statement",
    [
        "import torchfsl; torchfsl.backend()",
        "import torchfsl.fsl.server.server",
        "import torchfsl.fsl.round",
        "import torchfsl.fsl.plan.planner",
        "from torchfsl import Server, Client, Plan, FixedPoint, run_round",
    ],
)
def test_importing_the_servers_side_imports_no_torch(statement: str) -> None:
    script = f"import sys; {statement}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_the_public_names_are_ten_and_all_there() -> None:
    names = set(torchfsl.__all__) - {"backend"}
    assert names == {
        "SubmodelEngine", "Plan", "Rows", "TopK", "BlockTopK", "Dense", "FixedPoint", "Client",
        "Server", "run_round",
    }  # fmt: skip
    for name in names:
        assert getattr(torchfsl, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torchfsl.nothing  # noqa: B018

"""Who may import whom, where secrets come from, and how large a file may be."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.generate.architecture_map import (
    arrows,
    files_imported,
    floors,
    import_graph,
    imported,
    modules,
    rooms_of,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["torchfsl", "models", "training", "scripts", "tests"]
ROOMS = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in (ROOT / "torchfsl").rglob("__init__.py")
)
WINGS = sorted(room.partition(".")[2] for room in ROOMS if room.count(".") == 1)

TORCH_FREE = ("crypto", "fsl", "kernels", "service", "submodel")
"""Wings where secrets are made, held or opened."""

WAITING = {"torchfsl.service.client.links", "torchfsl.service.server.peers"}
"""Draw with `random` how long they wait before they try again, and nothing else."""

CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}

PLANTED = [
    ("ladder", "torchfsl/kernels/ring.py", "import torchfsl.crypto.kdf"),
    ("ladder", "torchfsl/submodel/update.py", "from torchfsl.fsl.plan.plan import Plan"),
    ("ladder", "torchfsl/engine/round.py", "import torchfsl.service.task"),
    ("ladder", "torchfsl/service/task.py", "from torchfsl.engine import Hooks"),
    ("ladder", "torchfsl/engine/round.py", "def f(): import torchfsl.federation.federated"),
    ("ladder", "torchfsl/federation/federated.py", "from torchfsl.policies import RandomK"),
    ("ladder", "torchfsl/sesa.py", "from torchfsl.fsl import messages"),
    ("ladder", "torchfsl/fsl/round.py", "import torchfsl.sefl"),
    ("ladder", "torchfsl/helpers.py", "NOBODY_KNOWS_ITS_FLOOR = True"),
    ("circles", "torchfsl/engine/residual.py", "def f(): import torchfsl.engine.hooks"),
    ("circles", "training/config.py", "import training.trainer"),
    ("fsl", "torchfsl/fsl/cuckoo/placement.py", "import torchfsl.fsl.plan.layout"),
    ("fsl", "torchfsl/fsl/client/trees.py", "import torchfsl.fsl.server.spool"),
    ("fsl", "torchfsl/fsl/server/opening.py", "import torchfsl.fsl.client.client"),
    ("fsl", "torchfsl/fsl/somewhere.py", "NOBODY_KNOWS_ITS_FLOOR = True"),
    ("service", "torchfsl/service/state/vault.py", "import torchfsl.service.net.calls"),
    ("service", "torchfsl/service/client/owner.py", "import torchfsl.service.server.intake"),
    ("dock", "torchfsl/engine/hooks.py", "from torchfsl.fsl.plan.plan import Plan"),
    ("dock", "torchfsl/engine/watch/table.py", "def f(): import torchfsl.sesa"),
    ("torch", "torchfsl/submodel/server_model.py", "def f(): import torch"),
    ("network", "torchfsl/fsl/transport.py", "import grpc"),
    ("network", "torchfsl/engine/hooks.py", "from prometheus_client import Counter"),
    ("homomorphic", "torchfsl/sefl/round.py", "def f(): import tenseal.sealapi"),
    ("flower", "torchfsl/service/local.py", "def f(): import flwr.app"),
    ("ray", "torchfsl/integrations/ray/evaluator.py", "def f(): import ray"),
    ("ladder", "torchfsl/federation/simulation.py", "import torchfsl.integrations.flower"),
    ("face", "torchfsl/service/reporting.py", "from torchfsl import __version__"),
    ("face", "torchfsl/service/command.py", "import torchfsl"),
    ("library", "torchfsl/engine/round.py", "import training.metrics"),
    ("library", "torchfsl/fsl/round.py", "from tests.support import federation"),
    ("training", "training/trainer.py", "import scripts.bench.measure"),
    ("models", "models/cnn.py", "import torchfsl.fsl"),
]  # fmt: skip
"""Contract, file, and a line at its end that the contract forbids."""


def lint_imports(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without `site`, so that the files in `folder` are read and not an installed torchfsl."""
    places = [str(folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-S", "-c", script, "--no-cache", "--no-logo", *options],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of everything that a contract speaks of."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            there = folder / path.relative_to(ROOT)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
    return folder


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Lines of a body that hold code: no docstring, no comment, nothing empty."""
    first = node.body[0]
    start = first.lineno - 1 if ast.get_docstring(node) is None else first.end_lineno
    own = [line.strip() for line in lines[start : node.body[-1].end_lineno]]
    return sum(1 for line in own if line and not line.startswith("#"))


def sources() -> dict[str, ast.Module]:
    """The library's files by dotted name."""
    return modules(ROOT / "torchfsl")


@functools.cache
def graph() -> dict[str, frozenset[str]]:
    return dict(import_graph(sources()))


@functools.cache
def reachable(start: str) -> frozenset[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph()[name]
    return frozenset(seen)


def test_every_contract_holds() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


def test_every_contract_has_a_planted_violation() -> None:
    assert {contract for contract, _, _ in PLANTED} == set(CONTRACTS)


@pytest.mark.parametrize(("contract", "file", "line"), PLANTED)
def test_a_planted_violation_breaks_its_contract(
    copy: Path, contract: str, file: str, line: str
) -> None:
    path = copy / file
    before = path.read_text() if path.exists() else None
    sefl = copy / "torchfsl" / "sefl.py"
    try:
        if "torchfsl.sefl" in line:
            sefl.write_text("")
        path.write_text(f"{before or ''}\n{line}\n")
        done = lint_imports(copy, "--contract", contract)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Contracts: 0 kept, 1 broken." in done.stdout, done.stdout + done.stderr
    finally:
        sefl.unlink(missing_ok=True)
        path.unlink() if before is None else path.write_text(before)


def test_imports_have_no_circle_between_files() -> None:
    graphlib.TopologicalSorter(graph()).prepare()


@pytest.mark.parametrize("container", ["torchfsl", *(f"torchfsl.{wing}" for wing in WINGS)])
def test_the_house_and_every_wing_have_at_most_nine_floors(container: str) -> None:
    rooms = rooms_of(graph(), container)
    assert max(floors(rooms, arrows(graph(), container)).values()) <= 9


def test_an_import_inside_a_function_hides_no_circle() -> None:
    """It points to a file from which the importing one cannot be reached."""
    for name, tree in sources().items():
        for function in functions(tree):
            for other in files_imported(function, sources()):
                assert name not in reachable(other), f"{name}.{function.name} reaches {other}"


def test_only_faces_backends_and_engines_import_our_files_by_name() -> None:
    """`importlib.import_module` elsewhere names a package that is not ours.

    Engines stand above the service, which loads one where the operator names it, or asks what its
    shards would take. A plan loads what explains it in words, which stands above plans; `optim`
    what wraps torch's optimizers, so that servers import no torch.
    """
    ours = {
        "torchfsl.faces", "torchfsl.kernels.backends", "torchfsl.service.server.engines",
        "torchfsl.submodel.plan", "torchfsl.optim",
    }  # fmt: skip
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                what = ast.literal_eval(node.args[0]) if name not in ours else "numpy"
                assert not what.startswith("torchfsl"), name
            assert not (isinstance(node, ast.Name) and node.id == "__import__"), name


def test_the_library_imports_only_its_stated_dependencies() -> None:
    allowed = {"torchfsl", "numpy", "cryptography", "torch", *sys.stdlib_module_names}
    for name, tree in sources().items():
        served = {"grpc", "grpc_health", "h11", "prometheus_client"}
        extra = served if name.startswith("torchfsl.service.") else set()
        extra |= {"tenseal"} if name == "torchfsl.crypto.homomorphic" else set()
        extra |= {"flwr"} if name.startswith("torchfsl.integrations.flower.") else set()
        extra |= {"ray"} if name == "torchfsl.integrations.ray.actors" else set()
        assert {n.split(".")[0] for n in imported(tree)} <= allowed | extra, name


def test_nothing_edits_the_path_on_which_python_looks_for_modules() -> None:
    for package in PACKAGES:
        for name, tree in modules(ROOT / package).items():
            for node in ast.walk(tree):
                assert not isinstance(node, ast.Attribute) or ast.unparse(node) != "sys.path", name


def test_secrets_come_from_the_operating_system_alone() -> None:
    """No mt19937, NumPy or torch generator where a secret could come from it."""
    for name, tree in sources().items():
        if not name.startswith(tuple(f"torchfsl.{wing}" for wing in TORCH_FREE)):
            continue
        generators = {"numpy.random"} | (set() if name in WAITING else {"random"})
        assert not imported(tree) & generators, name
        attributes = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        assert not attributes & {"np.random", "numpy.random", "torch.Generator"}, name


def test_one_file_asks_the_operating_system_for_randomness() -> None:
    for name, tree in sources().items():
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        named = imported(tree) | names
        wanted = {"os.urandom", "os.getrandom", "secrets", "secrets.token_bytes"}
        assert not named & wanted or name == "torchfsl.crypto.entropy", name


@pytest.mark.parametrize(
    "statement",
    [
        "import torchfsl; torchfsl.backend()",
        "import torchfsl.fsl.server.server",
        "import torchfsl.fsl.round",
        "import torchfsl.fsl.plan.planner",
        "from torchfsl import Plan, FixedPoint, ClientPolicy, Receipt, Error, estimate",
        "from torchfsl.fsl import Server, Client, run_round, begin_round, finish_round, build_plan",
        "from torchfsl import fsl, optim, privacy; optim.Adam(0.01).build()",
        "from torchfsl.submodel import ServerModel, ServerSGD",
        "import torchfsl.fsl, torchfsl.submodel, torchfsl.engine, torchfsl.service",
        "import torchfsl.federation",
        "import torchfsl.fsl.union",
        "import torchfsl.service.server.process, torchfsl.service.command",
        "from torchfsl.service import Owner, Task, bind_plan, connect",
    ],
)
def test_importing_the_servers_side_imports_no_torch(statement: str) -> None:
    if "torchfsl.service.server" in statement or "from torchfsl.service" in statement:
        pytest.importorskip("grpc")
    script = f"import sys; {statement}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("room", ROOMS)
def test_the_docstring_of_a_room_names_all_that_is_in_it(room: str) -> None:
    told = ast.get_docstring(sources()[room]) or ""
    inside = {
        n.removeprefix(f"{room}.").split(".")[0] for n in sources() if n.startswith(f"{room}.")
    }
    assert not [name for name in sorted(inside) if f"`{name}`" not in told]


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_is_under_forty_lines_of_code(room: str) -> None:
    path = ROOT.joinpath(*room.split("."), "__init__.py")
    lines = path.read_text().splitlines()
    assert code_lines(sources()[room], lines) < 40


@pytest.mark.parametrize(
    ("package", "file_lines", "function_lines"),
    [("torchfsl", 500, 40), ("training", 500, 40), ("scripts", 500, 60)],
)
def test_files_functions_and_classes_fit_on_their_screens(
    package: str, file_lines: int, function_lines: int
) -> None:
    """Functions count lines of code; a class has at most 25 methods and properties."""
    large = []
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text()
        where, lines = path.relative_to(ROOT), text.splitlines()
        if len(lines) > file_lines:
            large.append(f"{where}: {len(lines)} lines")
        tree = ast.parse(text)
        large += [
            f"{where}:{function.name}: {code_lines(function, lines)} lines of code"
            for function in functions(tree)
            if code_lines(function, lines) > function_lines
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(
                    isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef) for m in node.body
                )
                if methods > 25:
                    large.append(f"{where}:{node.name}: {methods} methods")
    assert not large, "\n".join(large)


def test_only_the_submodel_compares_policies_with_dense() -> None:
    """Others ask `segment.is_dense`."""
    for package in ["torchfsl", "training", "scripts"]:
        for name, tree in modules(ROOT / package).items():
            if not name.startswith("torchfsl.submodel."):
                for node in ast.walk(tree):
                    if isinstance(node, ast.Compare):
                        sides = [node.left, *node.comparators]
                        policy = any(ast.unparse(side).endswith("policy") for side in sides)
                        dense = any(ast.unparse(side) == "'dense'" for side in sides)
                        compared = policy and dense
                        assert not compared, f"{name}:{node.lineno}"


MESSAGES = (
    "torchfsl.fsl.messages", "torchfsl.fsl.bodies", "torchfsl.fsl.dpf.",
    "torchfsl.fsl.audit.transcript",
)  # fmt: skip
"""Who may cut bytes: the wire, trees inside messages, and messages inside transcripts."""


def test_messages_are_cut_in_one_place() -> None:
    """Elsewhere nothing indexes or slices what is called message, header, body or data."""
    for name, tree in sources().items():
        wing = name.startswith(("torchfsl.fsl.", "torchfsl.service."))
        if not wing or name.startswith(MESSAGES):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript):
                what = ast.unparse(node.value).rpartition(".")[2]
                offset = "HEADER_BYTES" in ast.unparse(node.slice)
                named = what in {"message", "header", "body", "data"}
                cut = named or offset
                assert not cut, f"{name}:{node.lineno}: {ast.unparse(node)}"

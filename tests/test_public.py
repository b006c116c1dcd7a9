"""The names that users write, and where the faces find them."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchfsl
from scripts.generate.architecture_map import modules
from torchfsl.faces import homes, public

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = [
    "BlockTopK", "ClientPolicy", "Coordinator", "Dense", "Error", "Federated", "FixedPoint",
    "LocalServers", "Plan", "Receipt", "RemoteServers", "Round", "RoundResult", "Rows",
    "SimulationResult", "TopK", "backend", "connect", "estimate", "simulate",
]  # fmt: skip
"""Beside them `__version__`; at most 20."""

PUBLIC_MODULES = {
    "errors": {"Error", "ParameterError", "ProtocolError", "DecodeError", "RejectedSubmission"},
    "fsl": {"Client", "Server", "begin_round", "build_plan", "finish_round", "run_round"},
    "optim": {"FTRL", "SGD", "Adam", "LazyAdam", "RowAdagrad", "from_torch"},
    "policies": {"BlockSample", "Fixed", "RandomK", "Residual"},
    "privacy": {"Guarantee", "calibrate", "guarantee", "l2_bound", "multiplier"},
    "privhfl": set[str](),
    "sefl": {"plan"},
    "sesa": {"plan"},
}
"""Modules that `import torchfsl` offers, and names that each has at least."""

SERVED = {"Coordinator", "RemoteServers", "connect"}
"""Need the `service` extra."""

FACES = {
    "torchfsl.submodel": {
        "Aggregation", "Opened", "Participant", "Receipt", "RoundSession", "Segment",
        "SegmentSpec", "ServerAdam", "ServerModel", "ServerSGD", "SubmodelPlan", "TensorSpec",
        "Update",
    },
    "torchfsl.fsl": {"Client", "ClientPolicy", "Plan", "Server", "begin_round", "build_plan",
                     "finish_round", "predict", "run_round"},
    "torchfsl.engine": {"BinTop", "BlockSample", "BlockTopK", "Dense", "Fixed", "Hooks", "RandomK",
                        "Residual", "Round", "Rows", "Settings", "TopK"},
    "torchfsl.service": {"LoopbackServers", "Owner", "Task", "bind_plan", "connect"},
}  # fmt: skip
"""What the face of a wing shows at least."""

MODULES = [
    "torchfsl.errors", "torchfsl.fsl.privacy", "torchfsl.fsl.union", "torchfsl.fsl.messages",
    "torchfsl.service.client.owner", "torchfsl.service.task",
]  # fmt: skip
"""Modules that pages name by their path."""

LAZY = ["torchfsl", *FACES]


def own_names(face: str) -> set[str]:
    """The public names of a face that are no modules."""
    return {name for name, home in homes(face).items() if home != face}


def test_the_public_names_are_these_and_no_others() -> None:
    assert own_names("torchfsl") == {*PUBLIC, "__version__"}
    assert len(PUBLIC) <= 20


def test_dir_shows_the_public_names_before_they_are_loaded() -> None:
    script = "import sys, torchfsl; print(*dir(torchfsl)); assert 'numpy' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = {name for name in done.stdout.split() if not name.startswith("__")}
    assert shown == {*PUBLIC, *PUBLIC_MODULES}


def test_dir_shows_the_same_once_everything_is_loaded() -> None:
    import torchfsl.service

    assert set(dir(torchfsl)) == {*PUBLIC, *PUBLIC_MODULES, "__version__"}


def test_help_tells_of_every_public_name_and_module() -> None:
    """By its first lines, which are few: help(torchfsl.Federated) has the rest."""
    script = "import pydoc, torchfsl; print(pydoc.render_doc(torchfsl, renderer=pydoc.plaintext))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not [name for name in (*PUBLIC, *PUBLIC_MODULES) if name not in done.stdout]
    assert len(done.stdout.splitlines()) < 200


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_a_public_module_says_what_it_is_for_and_has_its_names(name: str) -> None:
    module = getattr(torchfsl, name)
    assert module is importlib.import_module(f"torchfsl.{name}")
    assert inspect.getdoc(module)
    for shown in PUBLIC_MODULES[name]:
        assert inspect.getdoc(getattr(module, shown)), shown


def test_an_import_of_all_public_names_binds_each() -> None:
    pytest.importorskip("grpc")
    names, scope = [*PUBLIC, *PUBLIC_MODULES, "__version__"], dict[str, object]()
    exec(f"from torchfsl import {', '.join(names)}", scope)  # noqa: S102 - the statement under test
    assert set(names) == set(scope) - {"__builtins__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_what_it_says_and_has_a_docstring(name: str) -> None:
    if name in SERVED:
        pytest.importorskip("grpc")
    found = getattr(torchfsl, name)
    assert found.__name__ == name
    assert inspect.getdoc(found)


def test_the_version_is_that_of_the_package() -> None:
    assert f'version = "{torchfsl.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("face", LAZY)
def test_an_unknown_name_is_an_attribute_error_that_tells_it(face: str) -> None:
    module = importlib.import_module(face)
    with pytest.raises(AttributeError, match=rf"^module '{face}' has no attribute 'nothing'$"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("face", LAZY)
def test_a_face_says_each_name_once_under_the_name_it_has_at_home(face: str) -> None:
    (block,) = (n for n in modules(ROOT / "torchfsl")[face].body if isinstance(n, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    assert len(aliases) == len(block.body) == len(homes(face))
    assert all(alias.asname == alias.name for alias in aliases)
    if face == "torchfsl":
        assert set(homes(face)) - own_names(face) == set(PUBLIC_MODULES)
    else:
        assert importlib.import_module(face).__all__ == sorted(homes(face))


@pytest.mark.parametrize("face", FACES)
def test_the_face_of_a_wing_shows_its_names(face: str) -> None:
    if face == "torchfsl.service":
        pytest.importorskip("grpc")
    module = importlib.import_module(face)
    assert FACES[face] <= set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("path", MODULES)
def test_a_module_that_pages_name_is_there(path: str) -> None:
    if path.startswith("torchfsl.service"):
        pytest.importorskip("grpc")
    assert importlib.import_module(path).__name__ == path


def test_privacy_and_union_are_found_in_the_wing_of_the_two_servers() -> None:
    from torchfsl.fsl import privacy, union

    assert inspect.getdoc(privacy)
    assert inspect.getdoc(union.advise_union)


# --- wrong arguments ------------------------------------------------------------------------------

API: Any = torchfsl
RETURNED = {"Error", "Plan", "Receipt", "Round", "RoundResult", "SimulationResult"}
"""Users get these and do not make them; a plan comes from make_plan or from a peer's text."""
CALLED = {
    "optim": ("FTRL", "SGD", "Adam", "LazyAdam", "RowAdagrad", "from_torch"),
    "policies": ("BinTop", "BlockSample", "Fixed", "RandomK"),
    "privacy": ("calibrate", "guarantee", "l2_bound", "multiplier"),
}


@pytest.mark.parametrize(
    "path",
    [
        *(name for name in PUBLIC if name not in RETURNED),
        *(f"{module}.{name}" for module, names in CALLED.items() for name in names),
    ],
)
def test_an_unknown_argument_of_a_public_name_is_named(path: str) -> None:
    if path in SERVED:
        pytest.importorskip("grpc")
    found, name = operator.attrgetter(path)(torchfsl), path.rpartition(".")[2]
    given = (1, 2) if name == "Federated" else ()
    with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument 'nothing_like_it'"):
        found(*given, nothing_like_it=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: API.simulate(num_rounds=3), "'num_rounds'; did you mean 'rounds'?"),
        (lambda: API.privacy.calibrate(eps=8.0), "'eps'; did you mean 'epsilon'?"),
        (lambda: API.Federated(1, 2, weights=3), "'weights'; did you mean 'max_weight'?"),
        (
            lambda: API.Federated(1, 2, lane="count"),
            "rows, rows_per_client, session, source, sum_bound",
        ),
        (lambda: API.Federated.round(None, None, batch=[]), "did you mean 'batches'?"),
        (lambda: API.LocalServers.round(None, client=()), "did you mean 'clients'?"),
        (
            lambda: API.Federated(max_client=3),
            "expected Federated(model, optimizer), got no model and no optimizer",
        ),
        (
            lambda: API.privacy.l2_bound(1.0),
            "expected l2_bound(encoding, norm), got no norm",
        ),
        (
            lambda: API.simulate(1, [], print),
            "expected simulate(fed, clients, train, rounds=...), got no rounds",
        ),
        (
            lambda: API.optim.RowAdagrad(1.0, 0.9),
            "expected RowAdagrad(lr, eps=...), got too many positional arguments",
        ),
    ],
)
def test_a_call_that_does_not_fit_says_how_to_call(call: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).endswith(said)


def test_a_type_error_inside_a_public_function_is_as_it_was() -> None:
    @public
    def inner(number: int) -> int:
        return number + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        inner(1)


def test_a_long_unknown_name_is_cut() -> None:
    """A peer's plan may have it."""
    with pytest.raises(TypeError) as caught:
        API.FixedPoint(**{"x" * 10_000: 1})
    assert len(str(caught.value)) < 200

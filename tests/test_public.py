"""The names that users write, and where the faces find them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import torchfsl
from scripts.generate.architecture_map import modules

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = [
    "BlockSample", "BlockTopK", "Client", "Dense", "Fixed", "FixedPoint", "Plan", "RandomK",
    "Residual", "Rows", "Server", "ServerAdam", "ServerLazyAdam", "ServerModel", "ServerSGD",
    "SubmodelEngine", "TopK", "backend", "begin_round", "estimate", "explain", "finish_round",
    "run_round", "simulate",
]  # fmt: skip
"""Beside them `__version__`."""

FACES = {
    "torchfsl.submodel": {
        "Aggregation", "Opened", "Participant", "Receipt", "RoundSession", "Segment",
        "SegmentSpec", "ServerAdam", "ServerModel", "ServerSGD", "SubmodelPlan", "TensorSpec",
        "Update",
    },
    "torchfsl.fsl": {"Client", "ClientPolicy", "Plan", "Server", "begin_round", "build_plan",
                     "finish_round", "predict", "run_round"},
    "torchfsl.engine": {"BlockSample", "BlockTopK", "Dense", "Fixed", "Handle", "RandomK",
                        "Residual", "Rows", "SubmodelEngine", "TopK", "TrainingRound"},
    "torchfsl.service": {"LoopbackServers", "Owner", "Task", "bind_plan", "connect"},
}  # fmt: skip
"""What the face of a wing shows at least."""

MODULES = [
    "torchfsl.errors", "torchfsl.fsl.privacy", "torchfsl.fsl.union", "torchfsl.fsl.messages",
    "torchfsl.service.client.owner", "torchfsl.service.task",
]  # fmt: skip
"""Modules that pages name by their path."""

LAZY = ["torchfsl", *FACES]
TREES = modules(ROOT / "torchfsl")


def homes(face: str) -> dict[str, str]:
    found: dict[str, str] = importlib.import_module(face)._HOMES
    return found


def shown_to_type_checkers(face: str) -> dict[str, str]:
    """By name the file that `if TYPE_CHECKING:` imports it from."""
    (block,) = (n for n in TREES[face].body if isinstance(n, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(torchfsl.__all__) == sorted([*PUBLIC, "__version__"])


def test_dir_shows_the_public_names_before_they_are_loaded() -> None:
    script = "import sys, torchfsl; print(*dir(torchfsl)); assert 'numpy' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = {name for name in done.stdout.split() if not name.startswith("__")}
    assert shown - {"faces"} == set(PUBLIC)


def test_help_tells_of_every_public_name() -> None:
    text = pydoc.render_doc(torchfsl, renderer=pydoc.plaintext)
    assert not [name for name in PUBLIC if name not in text]


def test_a_star_import_binds_every_public_name() -> None:
    scope: dict[str, object] = {}
    exec("from torchfsl import *", scope)  # noqa: S102 - the statement under test
    assert {*PUBLIC, "__version__"} == set(scope) - {"__builtins__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_what_it_says_and_has_a_docstring(name: str) -> None:
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
def test_a_face_shows_users_and_type_checkers_the_same(face: str) -> None:
    assert shown_to_type_checkers(face) == {n: f"{face}.{at}" for n, at in homes(face).items()}
    assert set(importlib.import_module(face).__all__) == set(homes(face))


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

    assert set(union.__all__) <= set(dir(union))
    assert inspect.getdoc(privacy)

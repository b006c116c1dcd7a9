"""Codes of errors: registered, used, kept by pickling, and all on their page."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from typing import Any

import pytest

from scripts.generate import error_codes
from tests.support.errors import raises
from torchfsl import errors
from torchfsl.errors import CODES, DecodeError, Error, ParameterError, ProtocolError

KINDS = [Error, ParameterError, DecodeError, errors.RejectedSubmission, ProtocolError]


def test_every_code_in_the_sources_is_registered_and_every_registered_code_is_used() -> None:
    used = error_codes.used()
    assert not sorted(set(used) - set(CODES)), "register it in torchfsl.errors.CODES"
    assert not sorted(set(CODES) - set(used)), "no error has this code: remove it"


def test_codes_are_sorted_kebab_case_with_a_line_of_meaning() -> None:
    assert list(CODES) == sorted(CODES)
    for code, meaning in CODES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code), code
        assert 10 < len(meaning) < 90, code
        assert meaning[0].islower() or meaning[0] == "`", code
        assert not meaning.endswith("."), code
    assert len(set(CODES.values())) == len(CODES)


def test_every_error_is_made_with_a_code_that_the_test_above_can_read() -> None:
    """A computed code would be checked at run time only, where the error is raised."""
    for base in error_codes.SOURCES:
        for path in sorted((error_codes.ROOT / base).rglob("*.py")):
            if path.name == "errors.py" and path.parent.name == "torchfsl":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and error_codes.error_of(node):
                    given = any(keyword.arg == "code" for keyword in node.keywords)
                    here = ast.Call(ast.Name(error_codes.error_of(node)), [], node.keywords)
                    assert not given or list(error_codes.literals(here)), f"{path}:{node.lineno}"


def test_codes_are_read_wherever_an_error_gets_one() -> None:
    text = """
class Late(Error):
    code = "a"
class Early(Error):
    code: str = "b"
def refuse(what, code="c"): raise ParameterError(what, code=code)
raise errors.DecodeError("x", code="d" if early else "e")
expect_a(int, given, "x", "y", code="f")
context.abort(code="not one")
"""
    found = dict(error_codes.literals(ast.parse(text)))
    assert found == {"a": "Late", "b": "Early", "c": "ParameterError", "d": "DecodeError",
                     "e": "DecodeError", "f": "ParameterError"}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_has_the_code_of_its_class_unless_it_is_given_one(kind: type[Error]) -> None:
    assert kind("x").code == kind.code
    assert kind("x", code="round-open").code == "round-open"
    assert kind("x").code == kind.code, "the class keeps its own"
    assert str(kind("x", code="round-open")) == "x"
    assert kind().args == ()


@pytest.mark.parametrize("code", ["Round-Open", "round_open", "", "no-such-code", 7])
def test_a_code_that_is_not_registered_is_our_bug(code: Any) -> None:
    with pytest.raises(AssertionError, match="not a registered code"):
        ParameterError("x", code=code)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy]  # noqa: S301
)  # fmt: skip
def test_a_code_survives_pickling_copies_and_notes(kind: type[Error], again: Any) -> None:
    error = kind("a message", code="round-open")
    error.add_note("a note")
    other = again(error)
    assert type(other) is kind
    assert (other.code, other.args, other.__notes__) == ("round-open", error.args, ["a note"])
    assert again(kind("x")).code == kind.code


def test_the_table_of_codes_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CODES["new"] = "x"  # type: ignore[index]


@pytest.mark.parametrize("given", [None, 1.0, "x", int, object()])
def test_checks_of_arguments_give_their_code(given: Any) -> None:
    with raises(ParameterError, "wrong-type"):
        errors.refuse("x", given, "pass a y")
    with raises(ParameterError, "wrong-type"):
        errors.expect_a(bytes, given, "x", "pass a y")
    with raises(ParameterError, "wrong-type"):
        errors.expect_able(("no_such_method",), given, "x", "pass a y")
    with raises(ParameterError, "unknown-option"):
        errors.expect_a(bytes, given, "x", "pass a y", code="unknown-option")
    with raises(ParameterError, "unknown-option"):
        errors.expect_able(("no_such_method",), given, "x", "pass a y", code="unknown-option")
    with raises(ParameterError, "not-whole"):
        errors.whole_numbers(count=given)


def test_the_page_of_codes_is_that_of_the_registry() -> None:
    assert error_codes.PAGE.read_text() == error_codes.page(), (
        "stale: python -m scripts.generate.error_codes"
    )

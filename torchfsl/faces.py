"""The public names of a package: loaded on first use, and what a wrong call of one says."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar

Named = TypeVar("Named", bound=Callable[..., Any])

_LONGEST: Final = 40
"""Characters of an unknown name; a peer may have chosen it."""
_SHOWN: Final = 6
"""Arguments in the message about a call with too many."""


def homes(package: str) -> dict[str, str]:
    """By public name of a package the module that it comes from.

    These are the imports that `if TYPE_CHECKING:` shows to type checkers in the package's file, so
    that each name stands there once. A module directly below the package comes from the package.
    """
    tree = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
    shown = (node for block in tree.body if isinstance(block, ast.If) for node in block.body)
    imports = (node for node in shown if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, for the names of `homes`.

    Args:
        package: its `__name__`.
    """
    modules = homes(package)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return load, lambda: sorted(modules)


def public(found: Named) -> Named:
    """Mark a public function or class: a call that does not fit says which argument to mend.

    Of a class this holds for the constructor and the public methods. The `TypeError` names the
    nearest argument that there is, or the one that is missing.
    """
    if not isinstance(found, type):
        return _checked(found, found.__name__)  # type: ignore[return-value]
    for name, method in list(vars(found).items()):
        if name == "__init__" or (isinstance(method, FunctionType) and not name.startswith("_")):
            shown = found.__name__ if name == "__init__" else name
            setattr(found, name, _checked(method, shown))
    return found


def _checked(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            takes = inspect.signature(function)
            try:
                takes.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(_misfit(shown, takes, args, kwargs, error)) from None
            raise

    return call


def _misfit(
    shown: str, takes: inspect.Signature, args: Any, kwargs: Mapping[str, Any], error: TypeError
) -> str:
    """Why a call of a function does not fit, and how to call it."""
    known = {p.name: p for p in takes.parameters.values() if p.name != "self"}
    options = [name for name, p in known.items() if p.kind is p.VAR_KEYWORD]
    unknown = [name for name in kwargs if name not in known and not options]
    if unknown:
        return unknown_argument(shown, unknown[0], known)
    form = {n: f"{n}=..." if p.kind is p.KEYWORD_ONLY else n for n, p in known.items()}
    needed = [n for n, p in known.items() if p.default is p.empty and n not in options]
    try:
        given = takes.bind_partial(*args, **kwargs).arguments
        got = "no " + " and no ".join(name for name in needed if name not in given)
    except TypeError:  # too many by position, or one twice
        needed, got = list(known)[:_SHOWN], str(error)
    return f"expected {shown}({', '.join(form[name] for name in needed)}), got {got}"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that `name` may have meant, at most two, the nearest first.

    They differ in a letter or two, or have most of the shorter name in one piece.

    Args:
        name: the unknown name, of which the first 40 characters count.
        known: all names that there are.
    """
    name, known = name[:_LONGEST], list(known)
    if close := difflib.get_close_matches(name, known, 1, 0.9):
        return close
    return [other for other in difflib.get_close_matches(name, known, 2) if _is_near(name, other)]


def _is_near(name: str, other: str) -> bool:
    match = difflib.SequenceMatcher(None, name, other)
    piece = match.find_longest_match().size
    return match.ratio() >= 0.8 or piece > 0.75 * min(len(name), len(other))


def unknown_argument(function: str, name: str, known: Iterable[str]) -> str:
    """The message about an argument that a function does not have: the nearest of those `known`."""
    known = sorted(known)
    near = nearest(name, known)
    hint = (
        f"; did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"; it takes {', '.join(known)}"
    )
    return f"{function}() has no argument {name[:_LONGEST]!r}{hint}"


def outside() -> int:
    """The `stacklevel` of a warning that names the first line outside torchfsl."""
    frame, level = inspect.currentframe(), 0
    while frame and str(frame.f_globals.get("__name__")).startswith(("torchfsl.", "contextlib")):
        frame, level = frame.f_back, level + 1
    return level

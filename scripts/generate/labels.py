"""Labels of the package: where the sources define and use them, and what each is bound to.

`labels.txt` is written by hand, and `tests/docs/test_registries.py` compares it with the syntax
trees. A line is label, primitive, secret, context, places. A part of a context is `name:bytes`,
`name` if its length varies, a "literal", or `name..` for any number of parts at the end. C is the
context of trees and R that of a report (`fsl/dpf/keys.py`).
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from scripts.program import ROOT

PACKAGE: Final = ROOT / "torchfsl"
_PREFIX: Final = b"torchfsl "
_ELSEWHERE: Final = re.compile(r'"(torchfsl [a-zA-Z ]+)"')
"""Labels in C++ and TypeScript, which have no other strings like these."""

USES: Final = Path(__file__).with_name("labels.txt")


class Use(NamedTuple):
    """One context of one label."""

    label: str
    how: str
    secret: str
    parts: tuple[str, ...]
    places: tuple[str, ...]


def uses() -> list[Use]:
    """The lines of `labels.txt`."""
    found = []
    for line in USES.read_text("ascii").splitlines():
        label, how, secret, parts, places = (cell.strip() for cell in line.split("|"))
        listed = (tuple(filter(None, cell.split(", "))) for cell in (parts, places))
        found.append(Use(f"torchfsl {label}", how, secret, *listed))
    return found


@functools.cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return tuple((p.relative_to(ROOT).as_posix(), ast.parse(p.read_text())) for p in paths)


def _label(node: ast.AST | None) -> str | None:
    """The label that an expression is, if it is one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        return node.value.decode() if node.value.startswith(_PREFIX) else None
    return None


def defined() -> dict[tuple[str, str], str]:
    """Labels by the file and the name of their constants."""
    return {
        (file, node.target.id): label
        for file, tree in _trees()
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if (label := _label(node.value)) is not None
    }


def literals() -> list[str]:
    """Every label that stands in a Python source, as often as it does."""
    nodes = (node for _, tree in _trees() for node in ast.walk(tree))
    return [label for node in nodes if (label := _label(node)) is not None]


def elsewhere() -> set[str]:
    """Labels in the sources of the client core and of the web client."""
    paths = (path for end in ("*.cc", "*.h", "*.ts") for path in PACKAGE.rglob(end))
    own = (path for path in paths if "node_modules" not in path.parts)
    return {label for path in own for label in _ELSEWHERE.findall(path.read_text())}


def used() -> set[tuple[str, str]]:
    """Labels, and where a source reads their constants: `file:Class.function`."""
    labels, found = defined(), set()
    for file, tree in _trees():
        imported = {
            name.asname or name.name: (f"{node.module}".replace(".", "/") + ".py", name.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        for place, node in _read(tree, ""):
            if isinstance(node, ast.Attribute):
                source = "torchfsl/crypto/kdf.py", node.attr
            else:
                source = imported.get(node.id, (file, node.id))
            if source in labels:
                found.add((labels[source], f"{file.removeprefix('torchfsl/')}:{place}"))
    return found


def _read(node: ast.AST, place: str) -> Iterator[tuple[str, ast.Attribute | ast.Name]]:
    """Names that are read below a node, each with the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute | ast.Name) and isinstance(child.ctx, ast.Load):
            yield place, child
        inner = place
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            inner = f"{place}.{child.name}".lstrip(".")
        yield from _read(child, inner)


def could_be_equal(one: Use, other: Use) -> bool:
    """Whether two contexts may be the same bytes: of one length, and no part tells them apart."""
    for mine, theirs in zip_longest(one.parts, other.parts, fillvalue=""):
        if mine.endswith("..") or theirs.endswith(".."):
            return True
        if not mine or not theirs or _differ(mine, theirs):
            return False
    return True


def _differ(one: str, other: str) -> bool:
    """Whether two parts are different bytes, whatever their values."""
    if one.startswith('"') and other.startswith('"'):
        return one != other
    sizes = [_size(part) for part in (one, other)]
    return None not in sizes and sizes[0] != sizes[1]


def _size(part: str) -> int | None:
    if part.startswith('"'):
        return len(part) - 2
    _, colon, size = part.partition(":")
    return int(size) if colon else None

"""Writes docs/error-codes.md, the table of the codes of `torchfsl.errors`.

    python -m scripts.generate.error_codes

Codes and meanings come from the registry, classes of errors from the sources. A test compares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from torchfsl.errors import CODES

PAGE = ROOT / "docs" / "error-codes.md"
SOURCES = ("torchfsl", "training")
CHECKS = {"refuse": "ParameterError", "expect_a": "ParameterError", "expect_able": "ParameterError"}
"""Functions of `torchfsl.errors` that raise, and the class that they raise."""

_BEGINNING = """\
---
kind: reference
reader: user
---
# Error codes

Every torchfsl error has a `code`. The code names the condition. Messages may change between
versions; codes stay the same.

```python
import torchfsl

try:
    torchfsl.FixedPoint(ring_bits=7)
except torchfsl.errors.Error as error:
    print(error.code, error)
```

A server sends its message and its gRPC status to a client, but not its code. The client sees the
code of the class, for example `rejected`.

| code | class | meaning |
| --- | --- | --- |
"""
_END = """
`python -m scripts.generate.error_codes` writes this page.
"""


def literals(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The codes in a module, each with the class of error that has it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = error_of(node)
            for keyword in node.keywords if name else ():
                if keyword.arg == "code":
                    yield from ((code, name) for code in _strings(keyword.value))
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
                    target = line.targets[0] if isinstance(line, ast.Assign) else line.target
                    if ast.unparse(target) == "code":
                        yield from ((code, node.name) for code in _strings(line.value))
        elif isinstance(node, ast.FunctionDef) and node.name in CHECKS:
            for default in node.args.defaults:
                yield from ((code, CHECKS[node.name]) for code in _strings(default))


def error_of(call: ast.Call) -> str:
    """The class of error that a call makes or raises; empty for other calls."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return CHECKS.get(name, name if name[:1].isupper() else "")


def used() -> dict[str, set[str]]:
    """Every code in the sources, with the classes of its errors."""
    found: dict[str, set[str]] = {}
    for base in SOURCES:
        for path in sorted((ROOT / base).rglob("*.py")):
            for code, name in literals(ast.parse(path.read_text())):
                found.setdefault(code, set()).add(name)
    return found


def page() -> str:
    """The page."""
    classes = used()
    rows = (
        f"| `{code}` | {', '.join(f'`{name}`' for name in sorted(classes.get(code, ())))} "
        f"| {meaning} |"
        for code, meaning in CODES.items()
    )
    return _BEGINNING + "\n".join(rows) + "\n" + _END


def _strings(node: ast.AST) -> Iterator[str]:
    """The choices of an expression, one string or `a if condition else b`."""
    if isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check the page."""
    return write(options, PAGE, page())

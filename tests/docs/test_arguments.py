"""Docstrings of public functions name every argument and every error that the body raises."""

import ast
import re
from collections.abc import Iterator

from scripts.checks.public_names import PublicNames
from scripts.program import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, owner: str = "") -> Iterator[tuple[str, str, Function]]:
    """Functions of a module and of its public classes, with the class and its docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from functions(child, child.name)
        elif isinstance(child, Function):
            doc = ast.get_docstring(node) if isinstance(node, ast.ClassDef) else None
            yield owner, doc or "", child


def missing(owner: str, whole: str, function: Function) -> Iterator[str]:
    """Arguments and errors that the text `whole` does not name."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    for argument in arguments[bool(owner) and not static :]:
        if argument is None or argument.arg.startswith("_"):
            continue
        if not re.search(rf"\b{argument.arg}\b", whole):
            yield argument.arg
    errors = whole.partition("Raises:")[2]
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            if name[0].isupper() and not re.search(rf"\b{name}\b", errors):
                yield name


def test_public_docstrings_name_arguments_and_errors() -> None:
    """`See X` stands for the docstring of X's method of the same name."""
    public = PublicNames(ROOT).lines
    found = [
        (file, *each)
        for file in sorted(str(p.relative_to(ROOT)) for p in (ROOT / "torchfsl").rglob("*.py"))
        for each in functions(ast.parse((ROOT / file).read_text()))
    ]
    by_name = {(owner, f.name): ast.get_docstring(f) or "" for _, owner, _, f in found}
    gaps = []
    for file, owner, about, function in found:
        doc = ast.get_docstring(function)
        if doc is None or function.body[0].lineno not in public.get(file, ()):
            continue
        seen = [by_name.get((base, function.name), "") for base in re.findall(r"See `(\w+)`", doc)]
        whole = "\n".join([doc, about if function.name == "__init__" else "", *seen])
        gaps += [f"{file}: {owner}.{function.name}: {m}" for m in missing(owner, whole, function)]
    assert not gaps, "\n".join(gaps)

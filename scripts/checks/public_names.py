"""Finds the docstrings of public names, by reading the sources and importing none.

Public are the names on docs/api*.md, those that the packages offer under `if TYPE_CHECKING:`, and
the base classes in torchfsl of both. Each stands with its public members.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass
class PublicNames:
    """Public docstrings of one checkout.

    Attributes:
        root: folder that has `torchfsl` and `docs`.
        lines: by file relative to `root`, the lines that public docstrings begin on.
        names: dotted names that were read, with modules.
    """

    root: Path
    lines: dict[str, set[int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Read every public name."""
        for name in [*self._on_pages(), *self._packages()]:
            self._read(name)

    @cached_property
    def _modules(self) -> dict[str, tuple[str, ast.Module]]:
        """By dotted name, a module's file and tree."""
        found = {}
        for path in sorted((self.root / "torchfsl").rglob("*.py")):
            file = path.relative_to(self.root)
            name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            found[name] = str(file), ast.parse(path.read_text())
        return found

    def _on_pages(self) -> Iterator[str]:
        """Names that the pages of the API print."""
        for page in sorted((self.root / "docs").glob("api*.md")):
            yield from re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)

    def _packages(self) -> Iterator[str]:
        """Packages that load public names on first use."""
        for name, (file, tree) in self._modules.items():
            if file.endswith("__init__.py") and any(map(_shown, tree.body)):
                yield name

    def _read(self, name: str) -> None:
        """Add a module with its public names, or one name of a module."""
        if name in self.names:
            return
        self.names.add(name)
        if name in self._modules:
            self._read_module(name)
            return
        module, _, own = name.rpartition(".")
        if module not in self._modules:
            return
        file, tree = self._modules[module]
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            if own in _bound(node):
                self._add(file, [node])
                if after is not None and _is_docstring(after):
                    self._add(file, [after])
                for base in node.bases if isinstance(node, ast.ClassDef) else []:
                    self._read(f"{module}.{ast.unparse(base).partition('[')[0]}")
            elif isinstance(node, ast.ImportFrom) and own in {alias.name for alias in node.names}:
                self._read(f"{node.module}.{own}")

    def _read_module(self, name: str) -> None:
        """Add a module's docstring and what it offers."""
        file, tree = self._modules[name]
        self._add(file, tree.body[:1] if _is_docstring(tree.body[0]) else [])
        offered = {
            str(ast.literal_eval(element))
            for node in tree.body
            if isinstance(node, ast.Assign) and "__all__" in _bound(node)
            if isinstance(node.value, ast.List)
            for element in node.value.elts
        }
        own = {bound for node in tree.body for bound in _bound(node) if bound[:1] != "_"}
        for each in sorted(offered or own):
            self._read(f"{name}.{each}")
        for node in tree.body:
            for imported in _shown(node) if file.endswith("__init__.py") else []:
                self._read(imported)

    def _add(self, file: str, nodes: list[ast.stmt]) -> None:
        """Add the docstrings at and below nodes, without those of private members."""
        for node in nodes:
            if _is_docstring(node):
                self.lines.setdefault(file, set()).add(node.lineno)
            name = getattr(node, "name", "")
            if not name.startswith("_") or name.startswith("__"):
                self._add(file, getattr(node, "body", []))


def _is_docstring(node: ast.stmt) -> bool:
    """Whether a statement is a string alone."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement of a module defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _shown(node: ast.stmt) -> list[str]:
    """Dotted names that `if TYPE_CHECKING:` imports."""
    if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        return []
    imports = [each for each in node.body if isinstance(each, ast.ImportFrom)]
    return [f"{each.module}.{alias.name}" for each in imports for alias in each.names]

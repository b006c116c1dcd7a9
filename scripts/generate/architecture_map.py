"""Draws the map in docs/architecture.md from the imports that the code really has.

    python -m scripts.generate.architecture_map            # writes it
    python -m scripts.generate.architecture_map --check    # fails if it is stale

A *room* is a folder of the package, or a file next to folders. The files on the ground floor
(errors, faces, types, version) count as one room. An *arrow* goes from a room to a room that it
imports. Its number counts the imports of a file by another file.

A room's *floor* is one above the highest room that it imports.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from scripts.generate.writing import CHECK, between, write
from scripts.program import ROOT, Options, program

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- map: begin -->\n", "<!-- map: end -->\n"
GROUND = ("errors", "faces", "types", "version")

Graph = Mapping[str, frozenset[str]]
Arrows = Mapping[tuple[str, str], int]


@functools.cache
def modules(folder: Path) -> dict[str, ast.Module]:
    """The files of a package by dotted name; a package's own file has the package's name."""
    found: dict[str, ast.Module] = {}
    for path in sorted(folder.rglob("*.py")):
        if "csrc" not in path.parts:
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text())
    return found


def imported(tree: ast.AST) -> set[str]:
    """Dotted names of everything that is imported anywhere below a node."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: imports are absolute")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files_imported(tree: ast.AST, sources: Mapping[str, ast.Module]) -> set[str]:
    """Which files of a package are imported below a node."""
    names = imported(tree)
    parents = {name.rpartition(".")[0] for name in names if name not in sources}
    return (names | parents) & set(sources)


def import_graph(sources: Mapping[str, ast.Module]) -> Graph:
    """By file the files that it imports."""
    return {name: frozenset(files_imported(tree, sources)) for name, tree in sources.items()}


def arrows(graph: Graph, container: str) -> Arrows:
    """Arrows between the rooms directly below a package; its own file is not a room."""
    counted: Counter[tuple[str, str]] = Counter()
    for name, others in graph.items():
        for other in others:
            rooms = _room(name, container), _room(other, container)
            if all(rooms) and rooms[0] != rooms[1]:
                counted[rooms] += 1
    return counted


def floors(rooms: set[str], between: Arrows) -> dict[str, int]:
    """By room its floor, from 1.

    Raises:
        graphlib.CycleError: rooms import each other.
    """
    below = {room: {b for a, b in between if a == room} for room in rooms}
    floor: dict[str, int] = {}
    for room in graphlib.TopologicalSorter(below).static_order():
        floor[room] = 1 + max((floor[other] for other in below[room]), default=0)
    return floor


def rooms_of(graph: Graph, container: str) -> set[str]:
    """The rooms directly below a package."""
    return {room for name in graph if (room := _room(name, container))}


def render(graph: Graph) -> str:
    """The map: `torchfsl`, then each of its packages that contains folders."""
    wings = sorted(rooms_of(graph, "torchfsl") - {"ground"})
    containers = ["torchfsl", *(f"torchfsl.{wing}" for wing in wings)]
    storeys = [
        _storey(graph, container)
        for container in containers
        if container == "torchfsl"
        or any(name.count(".") == 3 for name in _inside(graph, container))
    ]
    return "```\n" + "\n".join(storeys) + "```\n"


def _inside(graph: Graph, container: str) -> list[str]:
    return [name for name in graph if name.startswith(container + ".")]


def _room(name: str, container: str) -> str:
    """The room below `container` in which a file lies; empty if it lies in none."""
    prefix = container + "."
    room = name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else ""
    return "ground" if container == "torchfsl" and room in GROUND else room


def _storey(graph: Graph, container: str) -> str:
    between = arrows(graph, container)
    floor = floors(rooms_of(graph, container), between)
    lines = [
        f"{container}: {len(floor)} rooms, {max(floor.values())} floors, {len(between)} arrows"
        f" for {sum(between.values())} imports"
    ]
    width = max(map(len, floor))
    for room in sorted(floor, key=lambda room: (-floor[room], room)):
        to = sorted((b for a, b in between if a == room), key=lambda b: (-floor[b], b))
        targets = ", ".join(f"{b} {between[room, b]}" for b in to)
        lines.append(
            f"  {floor[room]}  {room:{width}}  -> {targets}" if to else f"  {floor[room]}  {room}"
        )
    return "\n".join(lines) + "\n"


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write the map, or check that it is what would be written."""
    drawn = render(import_graph(modules(ROOT / "torchfsl")))
    return write(options, PAGE, between(PAGE.read_text(), BEGIN, END, drawn))

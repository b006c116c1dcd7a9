"""Any benchmark in two checkouts by turns, each time in a separate process.

    python -m scripts.bench.checkouts OLD NEW [--repeat 9] [--figure seconds] [--new="--ahead 8"]
                                      [--json FILE] -- scripts.bench.round --rounds 2

OLD and NEW are folders. Each has an environment in `.venv` where that checkout is installed
(`pip install --editable .`). To compare options, give one folder twice. The program runs the
command after `--` in both folders, with `--json` and, in NEW, the options of `--new`. The folder
that goes first changes from turn to turn.

The program prints medians of every figure that both runs write and whose name contains `--figure`.
It also prints the median over the turns of NEW's figure divided by OLD's: 0.8 is a fifth less. No
other program should use the machine meanwhile, unless the benchmark counts CPU time.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.bench import measure
from scripts.program import Found, Options, UsageError, option


def figures_in(found: object, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a benchmark's file, each with its place as a name."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key not in ("environment", "settings"):
                yield from figures_in(value, f"{name}.{key}" if name else str(key))
    elif isinstance(found, list):
        for place, value in enumerate(found):
            yield from figures_in(value, f"{name}[{place}]")
    elif isinstance(found, (int, float)) and not isinstance(found, bool):
        yield name, float(found)


def interpreter(checkout: Path) -> Path:
    """The checkout's own, which runs the checkout's own code."""
    python = checkout.resolve() / ".venv" / "bin" / "python"
    if not python.exists():
        sys.exit(f"{checkout} has no .venv/bin/python: make an environment there and install it")
    call = [python, "-c", "import torchfsl; print(torchfsl.__file__)"]
    said = subprocess.run(call, cwd=checkout, check=True, capture_output=True, text=True).stdout
    if checkout.resolve() not in Path(said.strip()).parents:
        sys.exit(
            f"the environment of {checkout} runs {said.strip()}: pip install --editable . there"
        )
    return python


def run(python: Path, checkout: Path, command: list[str]) -> dict[str, float]:
    """One run of the benchmark; its figures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        call = [python, "-m", *command, "--json", file]
        done = subprocess.run(call, cwd=checkout, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{checkout}: {shlex.join(map(str, call))} failed:\n{done.stderr}")
        return dict(figures_in(json.loads(file.read_text())))


def compare(
    turns: list[list[dict[str, float]]], wanted: str
) -> Iterator[tuple[str, float, float, float]]:
    """Name, both medians, and the median ratio of each figure wanted."""
    for name in turns[0][0]:
        pairs = [(old.get(name), new.get(name)) for old, new in turns]
        both = [(old, new) for old, new in pairs if old is not None and new is not None]
        if wanted in name and len(both) == len(turns) and all(old for old, _ in both):
            old, new = (statistics.median(side) for side in zip(*both, strict=True))
            yield name, old, new, statistics.median(new / old for old, new in both)


@measure.benchmark(
    option("old", Path, "checkout to compare with"),
    option("new", Path, "checkout that may be faster"),
    option("--repeat", 9, "turns"),
    option("--figure", "seconds", "figures with this in their name"),
    option("--new", "", "options for NEW alone", dest="options"),
    further="the benchmark, which they name first",
)
def main(options: Options, figures: Found) -> None:
    """Run both by turns and print the medians."""
    command = options.further
    if not command:
        raise UsageError(
            "the benchmark is missing: add its name after --, for example -- scripts.bench.round"
        )
    commands = command, [*command, *shlex.split(options.options)]
    checkouts = options.old, options.new
    pythons = [interpreter(checkout) for checkout in checkouts]
    turns: list[list[dict[str, float]]] = []
    for turn in range(options.repeat):
        both: list[Any] = [None, None]
        for which in (0, 1) if turn % 2 else (1, 0):
            both[which] = run(pythons[which], checkouts[which], commands[which])
        turns.append(both)
    print(f"{'figure':52}{'old':>12}{'new':>12}{'new to old':>12}")
    rows = list(compare(turns, options.figure))
    for name, old, new, ratio in rows:
        print(f"{name:52}{old:>12,.4g}{new:>12,.4g}{ratio:>12.3f}")
    figures |= {"turns": turns, "medians": rows}

"""Plays every attack with its defence off and on, and prints what each attack showed.

    python -m scripts.attacks                                  # all of them
    python -m scripts.attacks --only leaf_relation sampled_rounds --json attacks.json

An attack is a function of this folder without parameters that returns an `AttackResult`. The cost
of a defence is its upload per client and round, and a ratio of processor times. The ratio compares
an honest round with the defence and the same round without it, in one run. If the defence is a rule
that adds no work, the result describes the cost in words instead.

The exit code is 1 if an attack works with its defence on. It is also 1 if an attack does not work
with its defence off, because such an attack proves nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable
from itertools import zip_longest

import scripts.attacks
from scripts.attacks.result import AttackResult
from scripts.program import Found, Options, option, program

WIDTHS = (30, 38, 38, 16)


def attacks() -> dict[str, Callable[[], AttackResult]]:
    """All attacks of this folder by name."""
    found = {}
    for module in pkgutil.iter_modules(scripts.attacks.__path__):
        if module.name != "__main__":
            name = f"scripts.attacks.{module.name}"
            for attack in vars(importlib.import_module(name)).values():
                if inspect.isfunction(attack) and attack.__module__ == name and _plays(attack):
                    found[attack.__name__] = attack
    return found


def _plays(function: Callable[..., object]) -> bool:
    signature = inspect.signature(function)
    return signature.return_annotation == "AttackResult" and not signature.parameters


def cost(result: AttackResult) -> str:
    """Bytes that the defence adds, and its ratio of times or the description of a rule."""
    time = f"time x {result.time_ratio:.3f}" if result.time_ratio else result.cost
    return f"{result.extra_bytes:+,} bytes, {time}"


def row(*cells: str) -> str:
    """One row of the table, every cell broken into lines of its column's width."""
    columns = [textwrap.wrap(cell, w) or [""] for cell, w in zip(cells, WIDTHS, strict=True)]
    return "\n".join(
        "  ".join(line.ljust(w) for line, w in zip(lines, WIDTHS, strict=True)).rstrip()
        for lines in zip_longest(*columns, fillvalue="")
    )


def holds(result: AttackResult) -> bool:
    """Whether the attack works without the defence, and does not with it."""
    return result.worked_off and not result.worked_on


@program(option("--only", nargs="+", choices=sorted(attacks()), metavar="ATTACK"))
def main(options: Options) -> Found:
    """Play and print; fails if a defence does not hold or an attack proves nothing."""
    known = attacks()
    print(row("attack", "defence off", "defence on", "cost of the defence"))
    print(row(*("-" * width for width in WIDTHS)))
    results = {}
    for name in options.only or sorted(known):
        result = results[name] = known[name]()
        print(row(result.name, result.off, result.on, cost(result)), flush=True)
        if not holds(result):
            print("^ NOT as it must be: " + ("worked" if result.worked_on else "proves nothing"))
        print()
    held = sum(map(holds, results.values()))
    print(f"{held} of {len(results)} defences held against an attack that works without them")
    table = {name: dataclasses.asdict(result) for name, result in results.items()}
    return table | {"ok": held == len(results)}

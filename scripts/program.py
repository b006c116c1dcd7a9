"""The command line of every program: options, `--json`, and what ran where and when.

    @program(option("--rounds", 20), option("--pause", 0.01, "seconds between two polls"))
    def main(options: Options) -> Found:
        ...

It is the last function of its module: `python -m` of the module runs it as soon as it is defined.
Tests call `main(["--rounds", "2"])`. The help is the docstring of the module. A program that
returns findings gets `--json FILE`. The file then holds the command, the machine, the date and the
findings.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
"""The checkout."""

Options = argparse.Namespace
Found: TypeAlias = dict[str, Any]
"""Findings of a program. If `ok` is among them and false, the exit status is 1."""
Option: TypeAlias = tuple[str, dict[str, Any]]
Main: TypeAlias = Callable[..., int]
"""Runs with the arguments that it gets, or with those of the process; returns the exit status."""


class UsageError(Exception):
    """A command line that cannot be run. The program prints the message and ends with status 2."""


def option(name: str, default: Any = None, about: str | None = None, **more: Any) -> Option:
    """Describe an option or, if the name has no dash, a positional argument.

    Args:
        name: such as `--rounds`.
        default: its type is that of the option. False makes a switch, a list takes several values,
            and a type stands for an option without default.
        about: what `--help` prints.
        more: further arguments of `argparse`.
    """
    if default is False:
        how: dict[str, Any] = {"action": "store_true"}
    elif isinstance(default, type):
        how = {"type": default}
    elif isinstance(default, list):
        how = {"type": type(default[0]), "nargs": "+", "default": default}
    else:
        how = {"type": str if default is None else type(default), "default": default}
    return name, how | {"help": about} | more


def program(*options: Option, finds: bool = True, further: str = "") -> Callable[..., Main]:
    """Make a program of a function of its options.

    Args:
        options: made by `option`.
        finds: the function returns findings; else it returns an exit status, or nothing.
        further: what takes the arguments that are not options. They are `options.further`, and so
            are all behind `--`.
    """

    def decorate(run: Callable[[Options], Found | int | None]) -> Main:
        @functools.wraps(run)
        def main(arguments: list[str] | None = None) -> int:
            parser = argparse.ArgumentParser(
                description=sys.modules[run.__module__].__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                epilog=further and f"All other arguments go to {further}.",
            )
            for name, how in options:
                parser.add_argument(name, **how)
            if finds:
                parser.add_argument(
                    "--json", type=Path, metavar="FILE", help="file for the findings"
                )
            given = sys.argv[1:] if arguments is None else arguments
            parsed, rest = parser.parse_known_args(given)
            if further:
                parsed.further = [word for word in rest if word != "--"]
            elif rest:
                parser.error(f"unrecognized arguments: {shlex.join(rest)}")
            about = description(run.__module__, given)
            if finds:
                print(*about.values(), sep="; ", file=sys.stderr, flush=True)
            try:
                found = run(parsed)
            except UsageError as error:
                parser.error(str(error))
            if not isinstance(found, dict):
                return found or 0
            if parsed.json is not None:
                parsed.json.write_text(json.dumps(about | found, indent=1) + "\n")
            return 0 if found.get("ok", True) else 1

        if run.__module__ == "__main__":
            raise SystemExit(main())
        return main

    return decorate


def check(*options: Option) -> Callable[..., Main]:
    """Make a program of a check: a function of its options and of a folder that is removed after.

    The program prints the findings as JSON.
    """

    def decorate(run: Callable[[Options, Path], Found]) -> Main:
        @program(*options)
        @functools.wraps(run)
        def main(parsed: Options) -> Found:
            with tempfile.TemporaryDirectory() as folder:
                found = run(parsed, Path(folder))
            print(json.dumps(found, indent=1))
            return found

        return main

    return decorate


def description(module: str, arguments: list[str]) -> Found:
    """The command of a module, the machine and the date."""
    spec = getattr(sys.modules[module], "__spec__", None)
    name = module if spec is None else spec.name.removesuffix(".__main__")
    return {
        "command": shlex.join(["python", "-m", name, *arguments]),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def machine() -> str:
    """Cores and processor in words."""
    return f"{os.cpu_count()} cores of {processor()}"


def processor() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"

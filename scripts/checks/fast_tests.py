"""The tests of the short loop: what a change to one wing needs, under 90 seconds on two cores.

    python -m scripts.checks.fast_tests          # of the wings that differ from HEAD
    python -m scripts.checks.fast_tests fsl      # of one wing

Prints arguments of pytest, a line each, for `scripts/test --fast`. A wing is a folder of `tests/`.
With it go the tests that guard everything: imports, vectors, whole rounds, the README.
Where no file differs it is those guards and a round of every other kind. Tests marked `slow` are
left out; `scripts/test` runs them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUARDS = ("tests/fsl/test_vectors.py", "tests/fsl/test_round.py", "tests/docs/test_readme.py")
"""Beside the files `tests/test_*.py`."""
REPRESENTATIVES = (
    "tests/kernels/test_backends.py",
    "tests/submodel",
    "tests/engine/test_round.py",
    "tests/service/test_network.py",
    "tests/training/test_rounds.py",
    "tests/scripts/test_reproduction.py",
)
WING_OF = {"models": "training", "training": "training", "scripts": "scripts", "examples": "docs",
           "docs": "docs", "results": "scripts", "deploy": "deploy",
           ".ci": "scripts", ".github": "scripts"}  # fmt: skip


def wings() -> list[str]:
    """All wings that have tests."""
    return sorted(path.parent.name for path in ROOT.glob("tests/*/__init__.py")
                  if any(path.parent.glob("test_*.py")))  # fmt: skip


def wing_of(path: str) -> str | None:
    """The wing whose tests know a file, or None where only the guards do."""
    top, *rest = Path(path).parts
    if top in ("torchfsl", "tests"):
        return rest[0] if rest and rest[0] in wings() else None
    return WING_OF.get(top)


def changed() -> list[str]:
    """Files that differ from HEAD, new ones included.

    Raises:
        SystemExit: this is no git checkout.
    """
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=all",
               "--no-renames", "-z"]  # fmt: skip
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    if status.returncode:
        raise SystemExit(f"name a wing, one of {', '.join(wings())}: {status.stderr.strip()}")
    return [entry[3:] for entry in status.stdout.split("\0") if entry]


def selection(chosen: Iterable[str]) -> list[str]:
    """Arguments of pytest for these wings."""
    folders = [f"tests/{wing}" for wing in sorted(set(chosen))]
    guards = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/test_*.py"))]
    guards += [path for path in GUARDS if str(Path(path).parent) not in folders]
    return ["-m", "not slow", *(folders or REPRESENTATIVES), *guards]


def main() -> int:
    """Print the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wing", nargs="?", choices=wings(), help="default: those that differ")
    wing = parser.parse_args().wing
    found = {wing_of(path) for path in changed()} if wing is None else {wing}
    print("\n".join(selection(name for name in found if name is not None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

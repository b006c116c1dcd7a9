"""Tests that a change to one package needs, in under 90 seconds on two cores.

    python -m scripts.checks.fast_tests          # of the packages that differ from HEAD
    python -m scripts.checks.fast_tests fsl      # of one package

The program prints arguments of pytest for `scripts/test --fast`, one per line. The tests of a
package are a folder of `tests/`. The program adds the tests that guard everything: imports,
vectors, whole rounds, the README. If no package differs, it prints these guards and a round of
every other kind. It leaves out tests marked `slow`, which `scripts/test` runs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from scripts.program import ROOT, Options, option, program

GUARDS = ("tests/fsl/test_vectors.py", "tests/fsl/test_round.py", "tests/docs/test_readme.py")
"""Guards in addition to the files `tests/test_*.py`."""
REPRESENTATIVES = (
    "tests/kernels/test_backends.py",
    "tests/submodel",
    "tests/engine/test_round.py",
    "tests/service/test_network.py",
    "tests/training/test_rounds.py",
    "tests/scripts/test_reproduction.py",
)
WING_OF = {
    **dict.fromkeys(("models", "training"), "training"),
    **dict.fromkeys(("scripts", "results", ".ci", ".github"), "scripts"),
    **dict.fromkeys(("docs", "examples"), "docs"),
    "deploy": "deploy",
}


def wings() -> list[str]:
    """All packages that have tests."""
    folders = [path.parent for path in ROOT.glob("tests/*/__init__.py")]
    return sorted(folder.name for folder in folders if any(folder.glob("test_*.py")))


def wing_of(path: str) -> str | None:
    """The package whose tests cover a file; None if only the guards cover it."""
    top, *rest = Path(path).parts
    if top in ("torchfsl", "tests"):
        return rest[0] if rest and rest[0] in wings() else None
    return WING_OF.get(top)


def changed() -> list[str]:
    """Files that differ from HEAD, new ones included.

    Raises:
        SystemExit: the folder is not a git checkout.
    """
    listing = "status --porcelain --untracked-files=all --no-renames -z"
    command = ["git", "-C", str(ROOT), *listing.split()]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    if status.returncode:
        raise SystemExit(
            f"git cannot list the changed files ({status.stderr.strip()}): pass a folder of tests, "
            f"one of {', '.join(wings())}"
        )
    return [entry[3:] for entry in status.stdout.split("\0") if entry]


def selection(chosen: Iterable[str]) -> list[str]:
    """Arguments of pytest for these packages."""
    folders = [f"tests/{wing}" for wing in sorted(set(chosen))]
    guards = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/test_*.py"))]
    guards += [path for path in GUARDS if str(Path(path).parent) not in folders]
    return ["-m", "not slow", *(folders or REPRESENTATIVES), *guards]


@program(
    option(
        "wing",
        nargs="?",
        choices=wings(),
        about="folder of tests (default: those with changed files)",
    ),
    finds=False,
)
def main(options: Options) -> None:
    """Print the arguments."""
    wing = options.wing
    chosen = {wing_of(path) for path in changed()} if wing is None else {wing}
    print("\n".join(selection(name for name in chosen if name is not None)))

"""Look for time that depends on secrets in the native kernels, with valgrind.

    python -m scripts.checks.constant_time [--path aesni] build/selftest/selftest [KERNEL...]

`selftest` runs each kernel on secrets (keys, seeds, positions, slots, values) whose public
parameters are fixed; see torchfsl/kernels/csrc/selftest/selftest_secrets.cc. The program uses two
methods on each CPU path that valgrind can run:

- callgrind counts the instructions of every kernel. The counts must be equal for all draws of the
  secrets, all zeros and all ones among them.
- memcheck treats the secrets as undefined memory. It follows all values computed from them and
  reports a branch or an address that depends on any of these values, whatever the draw.

Both methods also run on functions that leak on purpose, and must report them. The exit status is 0
if nothing leaks, 1 if something leaks or a method is blind, and 3 if valgrind is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.program import Options, option, program

NUM_DRAWS = 5
PATHS = ("portable", "aesni")
LEAKY = ("leaky_branch", "leaky_address")
SKIPPED = 3

Counts = dict[str, int]


def run(selftest: Path, path: str, tool: list[str], *arguments: str) -> tuple[int, str]:
    """Exit status and messages of one run of `selftest secrets` under valgrind."""
    command = ["valgrind", *tool, str(selftest), "secrets", *arguments]
    env = {**os.environ, "TORCHFSL_CPU_PATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def count(selftest: Path, path: str, draw: int, *kernels: str) -> Counts:
    """Instructions of each kernel on one draw of secrets.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        tool = ["--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/out"]
        status, messages = run(selftest, path, tool, str(draw), *kernels)
        if status:
            raise RuntimeError(messages)
        counts: Counts = {}
        for dump in Path(folder).glob("out.*"):
            text = dump.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.M)
            total = re.search(r"^summary: (\d+)$", text, re.M)
            if name and total:
                counts[name[1]] = int(total[1])
    if not counts:
        raise RuntimeError("callgrind counted nothing:\n" + messages)
    return counts


def unequal_counts(
    selftest: Path, path: str, *kernels: str, num_draws: int = NUM_DRAWS
) -> dict[str, list[int]]:
    """Kernels whose counts depend on the draw, with their counts; prints the others."""
    draws = [count(selftest, path, draw, *kernels) for draw in range(num_draws)]
    unequal = {}
    for name in draws[0]:
        counts = [draw[name] for draw in draws]
        if len(set(counts)) > 1:
            unequal[name] = counts
        else:
            print(f"[constant time] {path}: {name}: {counts[0]:,} instructions in every draw")
    return unequal


def depends_on_secrets(selftest: Path, path: str, *kernels: str) -> str:
    """What memcheck has to say about the kernels: nothing if it finds no dependence."""
    tool = ["--quiet", "--error-exitcode=9"]
    status, messages = run(selftest, path, tool, "2", *kernels)
    if status not in (0, 9):
        raise RuntimeError(messages)
    return messages if status else ""


def check_path(selftest: Path, path: str, kernels: list[str]) -> list[str]:
    """Complaints about one CPU path."""
    complaints = []
    for name, counts in unequal_counts(selftest, path, *kernels).items():
        complaints.append(f"{name}: instructions depend on the secrets: {counts}")
    found = depends_on_secrets(selftest, path, *kernels)
    if found:
        complaints.append(f"a branch or an address depends on a secret:\n{found}")
    else:
        print(f"[constant time] {path}: no branch and no address depends on a secret")
    return complaints


def check_methods(selftest: Path) -> list[str]:
    """Complaints about the methods themselves, which must notice what leaks."""
    complaints = []
    if not unequal_counts(selftest, PATHS[0], "leaky_branch", num_draws=2):
        complaints.append("the counts do not show leaky_branch")
    for name in LEAKY:
        if not depends_on_secrets(selftest, PATHS[0], name):
            complaints.append(f"memcheck does not see {name}")
    if not complaints:
        print("[constant time] both methods notice what leaks on purpose")
    return complaints


def offers(selftest: Path, path: str) -> bool:
    """Whether the CPU that valgrind shows has the path."""
    status, _ = run(selftest, path, ["--quiet", "--tool=none"], "0", "key_schedule", "tree_gen")
    return status == 0


@program(
    option("selftest", Path, "the program, built with optimisation"),
    option("kernels", nargs="*", about="default: all that do not leak on purpose"),
    option("--path", choices=PATHS, about="default: all"),
    finds=False,
)
def main(options: Options) -> int:
    """Check all paths; see the module's docstring."""
    selftest = options.selftest
    if not shutil.which("valgrind"):
        print("[constant time] skipped: valgrind is not installed")
        return SKIPPED
    complaints = check_methods(selftest)
    for path in [options.path] if options.path else PATHS:
        if offers(selftest, path):
            found = check_path(selftest, path, options.kernels)
            complaints += [f"{path}: {complaint}" for complaint in found]
        else:
            print(f"[constant time] {path}: skipped, valgrind cannot run it here")
    for complaint in complaints:
        print(f"[constant time] FAILED: {complaint}", file=sys.stderr)
    return 1 if complaints else 0

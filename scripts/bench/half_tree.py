"""A tree by one call of AES a node instead of two, measured alone: what DIN's round would gain.

    python -m scripts.bench.half_tree [--repeat 9] [--json FILE]

Compiles `half_tree.cc` with the headers of the library and the compiler that `CXX` names: trees of
eight levels as the library expands them, and half-trees (Guo et al. 2022), which need a stronger
assumption on the hash, by the same steps. Their states are proven to be a point function first. One
thread; CPU time of both in turns, medians. A round of DIN expands every leaf three times at each
server and for each client: to answer, to add and to verify.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench import measure
from scripts.bench.round import Rounds

CLIENTS, PASSES = 100, 3


def times(repeat: int) -> list[tuple[float, float]]:
    """Seconds a leaf of a tree and of a half-tree, turn by turn."""
    here = Path(__file__).resolve()
    sources = here.parents[2] / "torchfsl" / "kernels" / "csrc"
    flags = ["-std=c++20", "-O3", "-march=native", "-Wno-ignored-attributes"]
    folders = [f"-I{sources / name}" for name in ("path", "simd", "host")]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "half_tree")
        files = [here.with_suffix(".cc"), sources / "simd" / "aes_key.cc"]
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, *flags, *folders, *files, "-o", program], check=True)
        done = subprocess.run(
            [program, str(repeat)], capture_output=True, text=True, check=False
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"the program found a mistake: {done.stdout}")
    found = [line.split() for line in done.stdout.splitlines()]
    return [(float(tree), float(half)) for tree, half in found]


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = measure.make_parser(__doc__)
    parser.add_argument("--repeat", type=int, default=9, help="turns")
    options = parser.parse_args()
    figures = measure.begin(options)
    if figures["environment"].get("cpu_path") not in ("vaes256", "vaes512"):
        sys.exit("half_tree.cc is written for the paths vaes256 and vaes512: this CPU has neither")
    turns = times(options.repeat)
    tree, half = (statistics.median(side) for side in zip(*turns, strict=True))
    plan = Rounds(CLIENTS, 1, time.process_time).plan
    leaves = sum(g.num_trees * g.num_leaves for s in plan.with_trees for g in s.groups)
    saved = 2 * CLIENTS * PASSES * leaves * (tree - half)
    print(f"a leaf of a tree          {1e9 * tree:8.3f} ns\n"
          f"a leaf of a half-tree     {1e9 * half:8.3f} ns\n"
          f"leaves of a DIN client    {leaves:8,}\n"
          f"saved in a round          {saved:8.3f} CPU seconds, {CLIENTS} clients")  # fmt: skip
    measure.finish(options, figures | {
        "turns": turns, "tree_seconds": tree, "half_tree_seconds": half, "leaves": leaves,
        "saved_seconds": saved,
    })  # fmt: skip


if __name__ == "__main__":
    main()

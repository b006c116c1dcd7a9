"""Reproduce the tables of the FSL paper.

    python scripts/reproduce.py table7 --data DIR            accuracy runs; resume by the same line
    python scripts/reproduce.py table8 --data DIR

Results go to `results/`, runs that can be resumed to `runs/reproduce/`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from reproduction import accuracy


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=("table7", "table8", "beyond"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dataset", nargs="+", default=["trec"])
    parser.add_argument("--percent", type=float, nargs="+")
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--fsl-rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table == "table7":
        percents = options.percent or [5, 100, 20, 60, 10, 40, 80]
        cells = accuracy.table7(options.dataset, percents, options.seed, options.full)
    elif options.table == "table8":
        cells = accuracy.table8(options.percent or [0.0125, 1, 0.1, 10], options.seed, options.full)
    else:
        cells = accuracy.beyond()
    accuracy.run_cells(
        cells,
        data_root=options.data,
        runs=Path("runs") / "reproduce",
        fsl_rounds=options.fsl_rounds,
        command=" ".join(["python", "scripts/reproduce.py", *sys.argv[1:]]),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

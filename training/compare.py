"""`python -m training compare`: a table of runs, and on demand a figure and a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from training.curves import plot_rows
from training.report import page
from training.runs import Run, rows_of, table
from training.sections import ConfigError

_DESCRIPTION = """\
Compare finished or running experiments: a table on standard output, on demand a figure and a page.

Runs whose settings differ by the seed alone are one row, with the mean over seeds and the standard
deviation of one run. Rows are named by the settings in which they differ.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m training compare", description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="write the curves here")
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html",
        help="write one page with table, curves and settings, to hand on",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        rows = rows_of([Run.read(folder) for folder in options.runs])
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(f"metric: {rows[0].runs[0].metric}\n{table(rows)}")
    if options.figure is not None:
        plot_rows(rows, options.figure)
    if options.html is not None:
        options.html.write_text(page(rows), encoding="utf-8")
    return 0

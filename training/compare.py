"""`python -m training compare`: a table of runs, and on demand a figure and a page."""

from __future__ import annotations

import argparse
import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from training.curves import plot_rows
from training.runs import HEAD, Row, Run, differing, rows_of, table
from training.section_checks import ConfigError

_DESCRIPTION = """\
Compare finished or running experiments: a table on standard output, on demand a figure and a page.

Runs whose settings differ by the seed alone are one row, with the mean over seeds and the standard
deviation of one run. Rows are named by the settings in which they differ.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m training compare",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="file for the curves")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="file for one page with table, curves and settings",
    )
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


_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1em 0; }
th, td { text-align: left; padding: .25em .9em .25em 0; border-bottom: 1px solid #ccc; }
img { max-width: 100%; } code { overflow-wrap: anywhere; }
"""


def page(rows: Sequence[Row]) -> str:
    """The page: results, curves, what is common to all runs, what each run was.

    Args:
        rows: as `training.runs.rows_of` makes them.
    """
    drawn = io.BytesIO()
    plot_rows(rows, drawn)
    figure = base64.b64encode(drawn.getvalue()).decode()
    runs = [run for row in rows for run in row.runs]
    first = runs[0]
    apart = {"seed", *differing(runs)}
    common = [(name, str(value)) for name, value in first.settings.items() if name not in apart]
    single = [_cells_of(run) for run in runs]
    title = f"{first.settings['preset']}: {first.metric}"
    baselines = first.summary.get("baselines", {})
    told = ", ".join(f"{n} {v:.4f}" for n, v in baselines.items() if v is not None)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>"
        "<p>Bytes are the mean of a client and round. An exact round opened the plaintext sum of "
        "the quantised updates, bit for bit.</p>"
        f"{_table(HEAD, (row.cells() for row in rows))}"
        + (f"<p>For comparison: {html.escape(told)}</p>" if told else "")
        + f'<img alt="curves by round and by bytes" src="data:image/png;base64,{figure}">'
        "<h2>Runs</h2>"
        + _table(("folder", "seed", "exact", "model_sha256", "versions"), single)
        + "<h2>Settings of all</h2>"
        + _table(("setting", "value"), common)
        + "</body></html>\n"
    )


def _cells_of(run: Run) -> tuple[str, ...]:
    seed, exact = str(run.settings.get("seed", 0)), f"{run.exact} of {len(run.lines)}"
    versions = ", ".join(f"{name} {told}" for name, told in run.summary.get("versions", {}).items())
    return str(run.folder), seed, exact, run.summary.get("model_sha256", "not finished"), versions


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"

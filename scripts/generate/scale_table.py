"""Writes the table of docs/scale.md: costs for 10^4 to 10^6 clients and up to 2^31 rows.

    python -m scripts.generate.scale_table             # from the rates `scale-rates` in results/
    python -m scripts.generate.scale_table --measure   # measures them on this machine first

Tables too long for one plan are cut into equal parts, each with a separate plan. A client
participates in all parts, each time with its whole `rows_per_client`. Therefore no party learns how
a client's rows are distributed over the parts.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from scripts.bench.measure import environment
from scripts.generate.writing import between, write
from scripts.program import ROOT, Options, option, program
from scripts.reproduction.results import TABLES, read_results, write_result
from torchfsl.errors import ParameterError
from torchfsl.fsl.estimates.estimate import Estimate, estimate
from torchfsl.fsl.estimates.measuring import Rates, measured_rates, rows_plan
from torchfsl.fsl.plan.plan import Plan

PAGE = ROOT / "docs" / "scale.md"
RATES = "scale-rates"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

CLIENTS: Final = (10**4, 10**5, 10**6)
LOG_ROWS: Final = (20, 24, 28, 31)
WIDTH, K_MAX, CORES, BANDWIDTH = 8, 256, 64, 25.0
HEAD: Final = (
    "| clients | rows | plans | upload a client | download a client | traffic of a server | "
    "core-hours of a server | memory of a server | disk of a server | machines a server | "
    "what they wait for |"
)


def cut(rows: int, clients: int) -> tuple[int, Plan]:
    """Parts of a table, a power of two, and the plan of one.

    Raises:
        ParameterError: no number of parts helps.
    """
    parts = 1
    while True:
        try:
            return parts, rows_plan(rows // parts, WIDTH, K_MAX, clients)
        except ParameterError:
            if parts >= 1 << 12:
                raise
            parts *= 2


def row(clients: int, log_rows: int, rates: Rates) -> str:
    """One line of the table."""
    parts, plan = cut(1 << log_rows, clients)
    one = estimate(plan, cores=CORES, bandwidth=BANDWIDTH, rates=rates)
    hours = parts * one.server_core_hours
    wire = parts * max(one.received_bytes, one.sent_bytes)
    need = parts * max(one.compute_seconds, one.network_seconds) / 3600
    sizes = [size(parts * one.upload_bytes), size(parts * one.download_bytes), size(wire)]
    sizes.append(f"{hours:,.3g}" if hours < 1000 else f"{hours:,.0f}")
    sizes += [size(parts * one.memory_bytes), size(parts * one.disk_bytes)]
    cells = [f"10^{len(str(clients)) - 1}", f"2^{log_rows}", str(parts), *sizes]
    cells += [f"{max(1, -int(-need // 1)):,}", limit(one)]
    return "| " + " | ".join(cells) + " |"


def limit(one: Estimate) -> str:
    """The slower of network and cores."""
    return "network" if one.network_seconds > one.compute_seconds else "cores"


def size(number: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} PB"


def table() -> str:
    """The part of the page between the marks."""
    stored = read_results(TABLES)[RATES]
    rates = Rates(**stored["rates"])
    where = stored["environment"]
    lines = [HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    lines += [row(clients, log_rows, rates) for log_rows in LOG_ROWS for clients in CLIENTS]
    told = (
        f"Rows of {WIDTH} values, 64-bit ring, {K_MAX} rows per client, retrieval with tags, "
        f"checks on; machines of {CORES} cores and {BANDWIDTH:.0f} Gbit/s, a round an hour. Rates "
        f"of one core of {where['cpu']} ({where['cpu_path']}), {where['date']}: "
        f"{rates.server_blocks / 1e6:,.0f} million AES blocks per second of a server, all its work "
        f"included, and {1e3 * rates.report_seconds:.1f} ms per report in addition."
    )
    return "\n".join([told, "", *lines, ""])


def written(text: str) -> str:
    """The page with its table made anew."""
    return between(text, BEGIN, END, table())


@program(option("--measure", False, "measure the rates first"), finds=False)
def main(options: Options) -> int:
    """Write it."""
    if options.measure:
        rates = {"environment": environment(), "rates": dataclasses.asdict(measured_rates())}
        write_result(TABLES, RATES, rates)
    return write(options, PAGE, written(PAGE.read_text()))

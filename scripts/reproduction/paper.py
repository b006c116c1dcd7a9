"""Figures printed in the FSL paper (`CREDIT`), section 7 unless said otherwise.

They are in `printed.toml`, which says what each of them is.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

PRINTED: Final = tomllib.loads(Path(__file__).with_name("printed.toml").read_text("utf-8"))
"""Figures of all papers."""
_FSL: Final = PRINTED["fsl"]

CREDIT: Final = (
    "Jamie Cui, Cen Chen, Tiandi Ye and Li Wang, "
    '"Practical and Light-weight Secure Aggregation for Federated Submodel Learning"'
)
"""Who wrote the first paper, and its title."""


def _by_size(rows: list[list[Any]]) -> dict[tuple[int, int], Any]:
    """Figures by log2 m and percent, a tuple of several."""
    return {
        (log, percent): rest[0] if len(rest) == 1 else tuple(rest) for log, percent, *rest in rows
    }


_TABLE7: Final = _FSL["accuracy"].items()
ACCURACY: Final = {data: {percent: mean for percent, mean, _ in rows} for data, rows in _TABLE7}
ACCURACY_DEVIATION: Final = {
    data: {percent: off for percent, _, off in rows} for data, rows in _TABLE7
}
ROUNDS: Final[dict[str, int]] = _FSL["rounds"]
MEGA_ELEMENTS: Final = {percent: (mean, off) for percent, mean, off in _FSL["mega_elements"]}
SCALE_FACTOR: Final = {int(log): factor for log, factor in _FSL["scale_factor"].items()}
MAX_BIN: Final = {
    percent: dict(zip((10, 15, 20, 25), sizes, strict=True)) for percent, *sizes in _FSL["max_bin"]
}
COMPUTATION: Final = _by_size(_FSL["computation"])
SWAPPED: Final = {(10, 30): "evaluation", (15, 10): "aggregation", (20, 10): "aggregation"}
"""Cells of Table 5 that cannot be right: evaluating 2^10 weights does not take 7.5 s, and adding
2^20 does not take what 2^10 takes. Tables show them next to our figures and do not compare them."""
COMMUNICATION: Final = _by_size(_FSL["communication"])
RATE: Final[float] = _FSL["rate"]
TREC: Final = {split: tuple(counts) for split, counts in _FSL["trec"].items()}
DIN: Final[dict[str, Any]] = _FSL["din"]

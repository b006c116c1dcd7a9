"""The opened result of a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchfsl.types import Whole


@dataclass(frozen=True, slots=True, repr=False)
class Opened:
    """Exact sums over the agreed clients; all that a round reveals.

    Attributes:
        sums: by segment, `int64[positions, tau]` over the whole index space, zeros outside a
            segment's subset; under the payload `masks` 1 where any client selected, else 0.
        lanes: by tree segment, `int64[positions]`, clients (or weight) that each position got.
            Empty without a lane.
        num_clients: reports in the sums.
        total_weight: sum of the clients' weights; `num_clients` without a weight lane.
        clients: their numbers, sorted.
        zeroed: by segment, positions whose sums no honest reports could have made; they are zero,
            lane included. Segments without any are left out.
        cut: by segment, positions beyond what honest reports make up. They were set to the end of
            that range, as sums of reports that have proven a bound are; see `fsl.server.ranges`.
        weight_clamped: whether the total weight was outside what the clients may claim together
            and was set to the nearest end.
        withheld: under `min_contributors`, by segment, positions that some clients sent, but too
            few: their values were not opened and are zero, their counts are in `lanes`.
        scaled: by segment of a sum that exceeded `sum_bound`, by what all its values were
            multiplied, in [0, 1).
    """

    sums: dict[str, Whole]
    lanes: dict[str, Whole]
    num_clients: int
    total_weight: int
    clients: tuple[int, ...]
    zeroed: dict[str, int] = field(default_factory=dict)
    weight_clamped: bool = False
    withheld: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    scaled: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Opened({', '.join(self.sums)}; {self.num_clients} clients)"

"""Figures printed in the PrivHFL paper ("Practical and Private Heterogeneous Federated Learning").

They are in `printed.toml`. The copy of the paper that we have shows captions only for its figures,
so that of these there are claims and no numbers.
"""

from __future__ import annotations

from typing import Final

from scripts.reproduction.paper import PRINTED

_PRINTED: Final = PRINTED["privhfl"]

FRACTIONS: Final = (0.6, 0.8, 1.0)
BASELINE: Final[dict[str, float]] = _PRINTED["baseline"]
ACCURACY: Final[dict[str, dict[str, list[float]]]] = _PRINTED["accuracy"]
BATCHES: Final[dict[tuple[str, str], list[float | None]]] = {
    (data, part): [*seconds, *[None] * (3 - len(seconds))]
    for data, part, *seconds in _PRINTED["batches"]
}
PREDICTION: Final[dict[str, list[list[float]]]] = _PRINTED["prediction"]
MNIST: Final[dict[str, list[list[float]]]] = _PRINTED["mnist"]
LAMBDA: Final[dict[float, float]] = dict(map(tuple, _PRINTED["lambda"]))

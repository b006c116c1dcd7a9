"""The section of an experiment's settings on how values travel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from training.sections import ConfigError


@dataclass(frozen=True, slots=True)
class Encoding:
    """Fixed point: see `torchfsl.FixedPoint`. Clients times clip must stay inside the ring.

    Attributes:
        ring_bits: of the ring in which values are added: 16, 24, 32, 48, 64 or 128.
        frac_bits: binary digits behind the point.
        clip: largest magnitude of a value; larger ones are cut and counted.
        rounding: `nearest`, or `stochastic`, which is right on average.
        rows_ring_bits: of tables that go by rows (under `dense` whole), as fine as the cohort
            allows; or 0. All six settings from here on are for `plain`, `fsl` and `dense`.
        rows_clip: magnitudes that it keeps at least.
        rest_ring_bits: of everything else, likewise.
        rest_clip: see above.
        rest_clips: `PATTERN=CLIP` for parameters outside tables whose values are much smaller or
            larger than the others' (`attention.*=0.001`): each in a ring of its own, as fine as its
            clip allows. The first that fits counts.
        download: as what clients get the model.
    """

    ring_bits: int = 32
    frac_bits: int = 20
    clip: float = 4.0
    rounding: Literal["nearest", "stochastic"] = "nearest"
    rows_ring_bits: int = 0
    rows_clip: float = 0.25
    rest_ring_bits: int = 0
    rest_clip: float = 1.0
    rest_clips: tuple[str, ...] = ()
    download: Literal["full", "float16", "bfloat16"] = "full"

    def __post_init__(self) -> None:
        for part, clip in self.parts:
            if not (part and clip > 0 and math.isfinite(clip)):
                raise ConfigError(
                    f"encoding.rest_clips has {part}={clip}: write PATTERN=CLIP, a clip above 0"
                )

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Patterns of `rest_clips` and their clips.

        Raises:
            ConfigError: no number.
        """
        found = []
        for text in self.rest_clips:
            part, _, clip = text.rpartition("=")
            try:
                found.append((part, float(clip)))
            except ValueError as error:
                raise ConfigError(
                    f"encoding.rest_clips has {text!r}: write PATTERN=CLIP, as attention.*=0.001"
                ) from error
        return found

"""Warnings and log lines of a round, in addition to its errors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from torchfsl.crypto.fixed_point import ClipReport
from torchfsl.engine.inventory import Inventory
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment
from torchfsl.submodel.update import RawSegment

_ODD_NUMBERS: Final = re.compile(
    r"\b(nan|inf|infinite|finite|retrieved|between 0 and 1)\b", re.IGNORECASE
)
"""Of messages of errors that rows not retrieved may have caused."""

_LITTLE: Final = 0.1
"""Of its norm; an update of which a bound leaves less is worth a word."""


def note_held_rows(
    error: BaseException,
    retrieving: list[Segment],
    inventory: Inventory,
    rows: Mapping[str, torch.Tensor],
    absent: str,
) -> None:
    """Tell which rows are at hand, where the failure may come from those that are not."""
    if not (retrieving and _ODD_NUMBERS.search(str(error))):
        return
    for segment in retrieving:
        held = ", ".join(
            f"{len(rows[t.name])} of {t.num_rows} rows of {t.name}"
            for t in inventory.tables[segment.name]
        )
        error.add_note(
            f"In this round of torchfsl the client holds {held} (rows_per_client of "
            f"segment {segment.name!r} is {segment.k_max}); all other rows are {absent}."
        )


def warn_of_nothing(num_steps: int, raw: Mapping[str, RawSegment]) -> None:
    """Say so where a block took no step and its update is empty: often it trained a copy."""
    if num_steps or any(np.any(part.values) for part in raw.values()):
        return
    warnings.warn(
        "no optimizer of torchfsl.Federated took a step in this block, so this report adds zeros: "
        "train the model and optimizer that Federated was given. Without batches this is expected.",
        stacklevel=5,
    )


class ClipWarning:
    """Warns that values were cut, once for each model: later reports of it have `clip_report`.

    Logs never hold magnitudes of private values, so this is a warning to the caller.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def note(self, plan: SubmodelPlan, report: ClipReport) -> None:
        """Give the share and the largest value of the first report in which values were cut."""
        if report.num_clipped and not self._has_warned:
            self._has_warned = True
            share = report.num_clipped / report.num_values
            warnings.warn(
                f"{share:.2%} of this update's values were cut at {_clips(plan)}, the largest is "
                f"{report.largest:.3g}: pass encoding=torchfsl.FixedPoint(ring_bits=32, "
                "frac_bits=16, clip=...) or lower the learning rate. Later ones: rnd.clip_report.",
                stacklevel=5,
            )


def warn_of_bound(plan: SubmodelPlan, report: ClipReport) -> None:
    """Warn that a bound left little of an update; how much is private."""
    if report.norm_kept < _LITTLE:
        warnings.warn(
            f"l2_bound left less than a tenth of an update's norm: see clip_report.norm_kept; "
            f"{plan.l2_bound} is in units of the encoding, {plan.l2_bound} * 2**-"
            f"{plan.encoding.frac_bits} = {plan.l2_bound / 2**plan.encoding.frac_bits:.3g} "
            "(torchfsl.privacy.l2_bound converts)",
            stacklevel=5,
        )


def _clips(plan: SubmodelPlan) -> str:
    """The plan's clip, or those of its segments: of all, as which were clipped is private."""
    clips = {s.name: f"{plan.encoding_of(s).clip:g}" for s in plan.segments}
    if len(set(clips.values())) == 1:
        return f"clip = {clips.popitem()[1]}"
    return "clip = " + ", ".join(f"{clip} of {name!r}" for name, clip in clips.items())

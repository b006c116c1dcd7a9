"""What a round tells the one who runs it, beside its errors."""

from __future__ import annotations

import logging
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

log = logging.getLogger("torchfsl.engine")

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
            f"In this round of torchfsl the client holds {held} (the plan's budget, k_max, of "
            f"segment {segment.name!r} is {segment.k_max}); all other rows are {absent}."
        )


def warn_of_nothing(num_steps: int, raw: Mapping[str, RawSegment]) -> None:
    """Say so where a block took no step and its update is empty: often it trained a copy."""
    if num_steps or any(np.any(part.values) for part in raw.values()):
        return
    warnings.warn(
        "no attached optimizer took a step in this round's block, so that its report adds nothing "
        "and counts as a client in means: was a copy of the attached model trained, or another "
        "optimizer? (A client without batches, or a GradScaler that skipped its only step, is "
        "none of these, and may go on.)",
        stacklevel=5,
    )


def tell_of_clipping(plan: SubmodelPlan, report: ClipReport) -> None:
    """Log that values were cut, or warn that a bound left little; how much is private."""
    if report.num_clipped:
        log.warning("values beyond %s were cut: see clip_report", _clips(plan))
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

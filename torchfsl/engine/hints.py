"""Warnings and log lines of a round, in addition to its errors."""

from __future__ import annotations

import math
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


def warn_without_steps(num_steps: int, raw: Mapping[str, RawSegment]) -> None:
    """Warn of a block in which no optimizer of Federated stepped: it trained a copy, or by another.

    Args:
        num_steps: of the optimizers of Federated, in the block.
        raw: the update of the block.
    """
    if num_steps:
        return
    if any(np.any(part.values) for part in raw.values()):
        warnings.warn(
            "the model changed in this block, but no optimizer of torchfsl.Federated took a step. "
            "torchfsl does not check other optimizers: pass Federated the optimizer that your loop "
            "steps.",
            stacklevel=5,
        )
        return
    warnings.warn(
        "no optimizer of torchfsl.Federated took a step in this block, so this report adds zeros: "
        "call optimizer.step() of that optimizer, not of a copy. If the client has no batches, "
        "ignore this warning.",
        stacklevel=5,
    )


class ClipWarning:
    """Warns of cut values and of a bound that left little, each once for each model.

    Later reports of it have `clip_report`. Logs never hold magnitudes of private values, so these
    are warnings to the caller.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def note(self, plan: SubmodelPlan, report: ClipReport) -> None:
        """Give the share of the first report in which values were cut, or its norm was."""
        if report.num_clipped and self._is_first("values"):
            share = report.num_clipped / report.num_values
            warnings.warn(
                f"{share:.2%} of this update's values were clipped to {_clips(plan)} (largest: "
                f"{report.largest:.3g}): pass encoding=torchfsl.FixedPoint(ring_bits=32, "
                "frac_bits=16, clip=...) or lower the learning rate. In later rounds see "
                "rnd.clip_report.",
                stacklevel=5,
            )
        if report.norm_kept < _LITTLE and self._is_first("norm"):
            bound = math.ldexp(plan.l2_bound, -plan.encoding.frac_bits)
            warnings.warn(
                f"l2_bound scaled the update to {report.norm_kept:.2%} of its norm. l2_bound is "
                f"{plan.l2_bound} units, a norm of {bound:.3g}: choose a larger one with "
                "privacy.l2_bound(encoding, norm). In later rounds see rnd.clip_report.",
                stacklevel=5,
            )

    def _is_first(self, kind: str) -> bool:
        is_first = kind not in self._said
        self._said.add(kind)
        return is_first


def _clips(plan: SubmodelPlan) -> str:
    """The plan's clip, or those of its segments: of all, as which were clipped is private."""
    clips = {s.name: f"{plan.encoding_of(s).clip:g}" for s in plan.segments}
    if len(set(clips.values())) == 1:
        return f"clip = {clips.popitem()[1]}"
    return "clip = " + ", ".join(f"{clip} of {name!r}" for name, clip in clips.items())

"""A protocol's plan from its canonical JSON, whatever fields the protocol adds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.plan_fields import expect_ints
from torchfsl.submodel.segments import Segment, TensorSpec

AnyPlan = TypeVar("AnyPlan", bound=SubmodelPlan)
Fields = dict[str, Any]

_MAX_BYTES: Final = 1 << 24
_COUNTS: Final = ("m", "tau", "k_max")


def read_plan(
    kind: type[AnyPlan],
    text: str | bytes,
    *,
    own: Callable[[Fields], Fields] = lambda _: {},
    segment: type[Segment] = Segment,
    counts: tuple[str, ...] = (),
) -> AnyPlan:
    """Read a peer's plan, or one's own of an earlier run; everything is validated.

    Args:
        kind: the protocol's plan.
        text: at most 16 MiB.
        own: the constructor's arguments for fields of the protocol that JSON has in another form.
        segment: the protocol's segment.
        counts: fields of that segment, in addition to `Segment`'s, that are whole numbers.

    Raises:
        DecodeError: not canonical JSON of a valid plan.
    """
    if len(text) > _MAX_BYTES:
        raise DecodeError(
            f"the text of the plan has {len(text)} bytes, expected at most {_MAX_BYTES}: make a "
            "plan with fewer tensors, or restrict it to fewer positions",
            code="plan-too-large",
        )
    try:
        fields = json.loads(text)
        shared = {
            "segments": tuple(_segment(segment, raw, counts) for raw in fields["segments"]),
            "encoding": _encoding(fields["encoding"]),
        }
        if "noise_taps" in fields:
            shared["noise_taps"] = tuple(fields["noise_taps"])
        plan = kind(**{**fields, **shared, **own(fields)})
    except (ParameterError, TypeError, KeyError, ValueError, RecursionError) as error:
        raise DecodeError(f"the text is not a valid plan: {error}", code="invalid-plan") from error
    if plan.to_json().encode() != (text.encode() if isinstance(text, str) else text):
        raise DecodeError(
            "the text is not a canonical plan, because fields or formatting differ from those of "
            "plan.to_json(): pass its text unchanged",
            code="invalid-plan",
        )
    return plan


def _segment(kind: type[Segment], raw: Fields, counts: tuple[str, ...]) -> Segment:
    expect_ints(raw, (*_COUNTS, *counts))
    tensors = tuple(TensorSpec(t["name"], tuple(t["shape"]), t["dtype"]) for t in raw["tensors"])
    shared: Fields = {"tensors": tensors, "subset": tuple(raw["subset"])}
    if "encoding" in raw:
        shared["encoding"] = _encoding(raw["encoding"])
    if "l2_bound" in raw:
        expect_ints(raw, ("l2_bound",))
    return kind(**{**raw, **shared})


def _encoding(raw: Fields) -> FixedPoint:
    expect_ints(raw, ("ring_bits", "frac_bits"))
    return FixedPoint(**raw)

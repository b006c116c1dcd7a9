"""What an engine may be told: settings that cannot work are refused when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.policies import RestPolicy, Rows
from torchfsl.errors import ParameterError, expect_a


def check_settings(
    rows: object, rest: object, encoding: object, buffers: str, source: str, check: str
) -> None:
    """Refuse policies and choices that are none.

    Raises:
        ParameterError: names the first one and what there is.
    """
    if rows is not None and rows != "auto" and not isinstance(rows, Rows):
        raise ParameterError(f"rows is {rows!r}: pass 'auto', a Rows policy or None")
    if rest is not None and not isinstance(rest, RestPolicy):
        raise ParameterError(
            f"rest is {rest!r}: pass a policy, Dense(), TopK(0.01), BlockTopK(0.01), "
            "BlockSample(0.01), RandomK(0.01) or Fixed(positions)"
        )
    expect_a(
        FixedPoint, encoding, "encoding", "pass FixedPoint(ring_bits=..., frac_bits=..., clip=...) "
        "or leave it out; encodings= takes a mapping, of segments that have one of their own",
    )  # fmt: skip
    if buffers not in ("local", "average"):
        raise ParameterError(f"buffers is {buffers!r}: choose 'local' or 'average'")
    if source not in ("delta", "gradient"):
        raise ParameterError(f"source is {source!r}: choose 'delta' or 'gradient'")
    if source == "gradient" and buffers == "average":
        raise ParameterError(
            "buffers='average' sends how buffers change over a round of training: it needs "
            "source='delta'; with 'gradient' leave buffers='local'"
        )
    if check not in ("checksum", "sample", "off"):
        raise ParameterError(f"check is {check!r}: choose 'checksum', 'sample' or 'off'")


def checked_encodings(given: Mapping[str, FixedPoint] | None) -> dict[str, FixedPoint]:
    """Encodings by name.

    Raises:
        ParameterError: it is no mapping from names to encodings.
    """
    fits = given is None or isinstance(given, Mapping)
    if not fits or not all(isinstance(name, str) for name in given or ()):
        raise ParameterError(
            f"encodings is {given!r}: pass a mapping from names to encodings, as "
            "{'rest': FixedPoint(...)}, or encoding= for one of all segments"
        )
    for name, encoding in (given or {}).items():
        if not isinstance(encoding, FixedPoint):
            raise ParameterError(f"encodings[{name!r}] is {encoding!r}: pass a FixedPoint")
    return dict(given or {})


NO_TABLE: Final = (
    "no table of this model goes by rows (an embedding that is frozen, or computed as by "
    "weight_norm, is none, nor is any under rows=None)"
)


def check_source(sent: str, taken: object) -> None:
    """Refuse servers that take gradients for deltas, or the reverse.

    Args:
        sent: by the engine.
        taken: by the servers' models, as far as they say.

    Raises:
        ParameterError: they would move the wrong way.
    """
    if taken in ("delta", "gradient") and taken != sent:
        raise ParameterError(
            f"the engine sends source={sent!r}, the servers' models take {taken!r} and would move "
            f"the wrong way: ServerModel(state, ..., source={sent!r})"
        )

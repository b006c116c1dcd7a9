"""Answers of a server about itself, its rounds and its plan, checked field by field.

Servers read each other's answers as owners and clients do. The other side may lie: a field of
another type or out of its range is refused, and text is escaped so that it can be shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from torchfsl.errors import DecodeError
from torchfsl.service.net.calls import checked, json_object
from torchfsl.service.net.text import printable

INFO_BYTES: Final = 1 << 16
"""Longest answer that describes a state."""

PLAN_BYTES: Final = 1 << 25
"""Longest answer that holds a plan."""

_COUNT: Final = range(1 << 63)
_ROUND: Final = range(-1, 1 << 64)
_INFO: Final[Mapping[str, type[Any] | range]] = {
    "party": range(2), "library": str, "wire_version": _COUNT, "plan_digest": str, "model": dict,
    "round": _ROUND, "state": str, "open": bool, "closes_at": float, "complete": _COUNT,
    "expected": _COUNT, "reports": _COUNT, "accepted": _COUNT, "reason": str, "unready": str,
    "halted": str, "live": bool, "may_have_opened": bool, "may_replace": bool, "stalled": str,
    "issuers": str, "rounds_opened": _COUNT, "max_rounds": _COUNT,
}  # fmt: skip
_ALWAYS: Final = (
    "party", "library", "wire_version", "plan_digest", "model", "round", "state", "open",
    "complete", "halted", "stalled",
)  # fmt: skip
"""Fields that all servers of this wire version send."""

_MODEL: Final[Mapping[str, type[Any] | range]] = {"version": _COUNT, "digest": str}
_ROW: Final[Mapping[str, type[Any] | range]] = {
    "number": _ROUND, "state": str, "reports": _COUNT, "accepted": _COUNT, "bytes": _COUNT,
    "reason": str, "stalled": str,
}  # fmt: skip
_PLAN: Final[Mapping[str, type[Any] | range]] = {
    "nonce": str,
    "coins": list,
    "plan": str,
    "certificate": str,
}

_TASK: Final[Mapping[str, type[Any] | range]] = {"source": str, "reduce": str, "optimizer": dict}
"""Fields about the task; servers of earlier versions leave them out."""


def decode_info(data: bytes) -> dict[str, Any]:
    """A server's state, as `Station.info` makes it. Fields that are not known are left out.

    Raises:
        DecodeError: if the data are not an info answer.
    """
    fields = _fields(json_object(data, INFO_BYTES), _INFO, _ALWAYS)
    fields["model"] = _fields(fields["model"], _MODEL, _MODEL if fields["model"] else ())
    return fields


def decode_row(data: bytes) -> dict[str, Any]:
    """A round, as `RoundDriver.row` makes it.

    Raises:
        DecodeError: if the data are not a round.
    """
    return {"stalled": ""} | _fields(json_object(data, INFO_BYTES), _ROW, ("number", "state"))


def decode_plan(data: bytes) -> dict[str, Any]:
    """A plan with its nonce, no or two coins (both in hex), and the sealing certificate, as text.

    Raises:
        DecodeError: if the data are not a plan.
    """
    fields = json_object(data, PLAN_BYTES)
    found = {name: _field(name, fields, kind) for name, kind in _PLAN.items()}
    found |= {name: _field(name, fields, _TASK[name]) for name in _TASK if name in fields}
    try:
        for value in (found["nonce"], *found["coins"]):
            bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"expected the nonce and the coins in hex: {error}") from error
    if len(found["coins"]) not in (0, 2):
        raise DecodeError(
            f"expected 0 or 2 coins in a plan, got {len(found['coins'])}: "
            "run the same version of torchfsl at both ends"
        )
    return found


def _fields(
    given: Mapping[str, Any], kinds: Mapping[str, type[Any] | range], needed: Collection[str]
) -> dict[str, Any]:
    names = [name for name in kinds if name in given or name in needed]
    found = {name: _field(name, given, kinds[name]) for name in names}
    return {n: printable(v) if isinstance(v, str) else v for n, v in found.items()}


def _field(name: str, given: Mapping[str, Any], kind: type[Any] | range) -> Any:
    if name not in given:
        raise DecodeError(
            f"the answer lacks its field {name!r}: run the same version of torchfsl at both ends"
        )
    return checked(name, given[name], kind)

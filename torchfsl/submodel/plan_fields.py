"""Fields of plans and messages: whole numbers, hex, and fresh random bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import ParameterError


def check_hex(field: str, value: str, size: int) -> None:
    """Refuse anything but `size` bytes in lower-case hex.

    Raises:
        ParameterError: it is something else.
    """
    try:
        right = bytes.fromhex(value).hex() == value and len(value) == 2 * size
    except (ValueError, TypeError):
        right = False
    if not right:
        raise ParameterError(f"{field} must be {2 * size} lower-case hex digits ({size} bytes)")


def expect_ints(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse fields that are not plain integers.

    Raises:
        ParameterError: a field is not an int; the error names the first such field.
    """
    for name in names:
        if type(fields[name]) is not int:
            raise ParameterError(f"{name} is {fields[name]!r}, not an integer: give a whole number")


def drawn_session(given: bytes | None) -> str:
    """A plan's `session`: the 16 bytes given, or from the operating system when None."""
    return (random_bytes(16) if given is None else given).hex()


def check_number(what: str, given: object) -> int:
    """A round's or client's number as an int.

    Raises:
        ParameterError: no whole number in [0, 2**64).
    """
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise ParameterError(
            f"{what} is {given!r}: give a whole number in [0, 2**64)", code="not-whole"
        )
    if not 0 <= given < 1 << 64:
        raise ParameterError(
            f"{what} is {given}: give a whole number in [0, 2**64)", code="out-of-range"
        )
    return int(given)

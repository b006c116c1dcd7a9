"""The errors torchfsl raises, and checks of arguments. Our own bugs are `assert`s, never these."""

from __future__ import annotations

import numbers
from typing import NoReturn


class Error(Exception):
    """Root of every error that torchfsl raises on purpose."""


class ParameterError(Error, ValueError):
    """The caller's mistake. The message names the limit and the remedy."""


class DecodeError(Error):
    """A peer's bytes are malformed: wrong version, length, cap or encoding."""


class RejectedSubmission(Error):
    """A peer's well-formed message is refused: commitment mismatch, replay, wrong round."""


class ProtocolError(Error):
    """The protocol cannot go on: servers disagree, batch too small, round already opened."""


def refuse(what: str, given: object, remedy: str) -> NoReturn:
    """Say what an argument is, by its type alone as values may be private, and what to pass.

    Raises:
        ParameterError: always.
    """
    kind = (
        f"the class {given.__name__}"
        if isinstance(given, type)
        else f"of type {type(given).__name__}"
    )
    raise ParameterError(f"{what} is {'None' if given is None else kind}: {remedy}")


def expect_a(kind: type | tuple[type, ...], given: object, what: str, remedy: str) -> None:
    """Refuse an argument that is no instance of `kind`.

    Raises:
        ParameterError: see `refuse`.
    """
    if not isinstance(given, kind):
        refuse(what, given, remedy)


def expect_able(methods: tuple[str, ...], given: object, what: str, remedy: str) -> None:
    """Refuse an argument that lacks one of these methods, or is a class that has them.

    Raises:
        ParameterError: see `refuse`.
    """
    if isinstance(given, type) or not all(hasattr(given, name) for name in methods):
        refuse(what, given, remedy)


def whole_numbers(**given: object) -> list[int]:
    """Arguments as plain integers, in order; those of NumPy are converted.

    Raises:
        ParameterError: naming the first that is no whole number, as True is none.
    """
    whole = []
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ParameterError(f"{name} is {value!r}, not an integer: give a whole number")
        whole.append(int(value))
    return whole


def as_number(what: str, given: object) -> float:
    """A number, or a tensor of one, as a float.

    Raises:
        ParameterError: it is something else.
    """
    try:
        if given is not None and not isinstance(given, str | bytes):
            return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        pass
    kind = "None" if given is None else type(given).__name__
    raise ParameterError(f"{what}: expected a number, such as loss.item(), got {kind}")

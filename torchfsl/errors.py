"""The errors torchfsl raises. Our own bugs are `assert`s, never one of these."""

from __future__ import annotations


class FslError(Exception):
    """Root of every error that torchfsl raises on purpose."""


class ParameterError(FslError, ValueError):
    """The caller's mistake. The message names the limit and the remedy."""


class DecodeError(FslError):
    """A peer's bytes are malformed: wrong version, length, cap or encoding."""


class RejectedSubmission(FslError):
    """A peer's well-formed message is refused: commitment mismatch, replay, wrong round."""


class ProtocolError(FslError):
    """The protocol cannot go on: servers disagree, batch too small, round already opened."""

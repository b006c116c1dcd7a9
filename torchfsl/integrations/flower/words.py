"""Errors of an app tell the SuperLink nothing.

Flower sends the words of an exception that a ClientApp raises to the SuperLink. Errors inside a
round may name rows, counts and weights, which are the client's own, and so may those of its data.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from torchfsl.errors import ProtocolError

log = logging.getLogger("flwr.torchfsl")  # shown where Flower shows its own lines


@contextlib.contextmanager
def kept_here(what: str) -> Iterator[None]:
    """Any error inside goes to this node's log, and one without its words goes on.

    Raises:
        ProtocolError: there was an error.
    """
    try:
        yield
    except Exception:
        log.exception("%s failed. The SuperLink receives only this fact, without the error", what)
        raise ProtocolError(f"{what} failed at this node: see the log of this node") from None

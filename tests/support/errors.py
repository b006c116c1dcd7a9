"""Expected errors by their code, which stays when a message is reworded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchfsl.errors import CODES, Error


@contextmanager
def raises(kind: type[Error], code: str) -> Iterator[pytest.ExceptionInfo[Error]]:
    """As `pytest.raises`, for an error of this class with this code."""
    assert code in CODES, code
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"

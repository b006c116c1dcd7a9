"""How many positions a policy sends, from what its user says."""

from __future__ import annotations

import math

from torchfsl.errors import ParameterError


def budget(amount: float | int, m: int) -> int:
    """Positions that `amount` stands for, in 1..m: an int counts, a float is a share of m."""
    count = amount if isinstance(amount, int) else math.ceil(amount * m - 1e-9)
    return max(1, min(count, m))


def check_amount(what: str, amount: float | int) -> None:
    """Refuse what is neither a count nor a fraction."""
    whole = isinstance(amount, int) and not isinstance(amount, bool)
    if not ((whole and amount >= 1) or (isinstance(amount, float) and 0 < amount <= 1)):
        raise ParameterError(
            f"{what} is {amount!r}: choose a fraction in (0, 1] as a float, or a count of 1 or "
            "more as an int",
            code="out-of-range",
        )


def check_block(block: int) -> None:
    """Refuse blocks of no values."""
    if type(block) is not int or block < 1:
        raise ParameterError(
            f"block is {block!r}: choose the number of values per block, 1 or more",
            code="out-of-range",
        )

"""Lets the C library keep the memory that arrays give back, instead of returning it to the system.

A batch of queries makes and drops arrays of tens of megabytes. glibc takes each from the system and
gives it back, so that the system clears every page again: a fifth of the processor time of
private queries (docs/specification/privhfl.md, Costs).
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_NEVER = (1 << 31) - 1
_STEP = 1 << 26


def keep_freed_memory() -> bool:
    """For this process, which holds as much memory from now on as it once needed.

    Returns:
        whether the C library is glibc, which can be told so; others do as they do.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _STEP))
    return all(mallopt(which, value) == 1 for which, value in settings)

"""Memory that arrays give back is kept by the process when it asked for that."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from training.privhfl.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 25, dtype=np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_the_second_array_takes_no_new_pages() -> None:
    found = {
        how: int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True,
                                text=True, check=True).stdout)
        for how in ("keep", "plain")
    }  # fmt: skip
    assert found["keep"] < 100
    assert found["plain"] >= 10 * max(found["keep"], 1)

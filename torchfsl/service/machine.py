"""Features and speed of this machine's processor, for `doctor`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_USED: Final = ("aes", "vaes", "avx2", "avx512f", "avx512vl", "vpclmulqdq", "asimd", "sha2")


def features() -> list[str]:
    """Those of the processor's features that a native kernel is made for; none if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return [flag for flag in _USED if flag in value.split()]
    return []


def aes_rate(num_bytes: int = 1 << 24) -> float:
    """AES-128 blocks per second of OpenSSL in ECB mode, with one thread."""
    data = bytes(num_bytes)
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.ECB()).encryptor()  # noqa: S305 (a benchmark)
    encryptor.update(data)
    start = time.perf_counter()
    encryptor.update(data)
    return num_bytes / 16 / (time.perf_counter() - start)

"""What every benchmark prints and writes beside its own figures.

Every one of them begins with `begin`: processor and cores, versions, backend and its path, date,
AES blocks a second of one core by OpenSSL and, of the native backend, by the fixed-key hash of the
same run (the ceiling of all work on trees). It ends with `finish`: the peak memory of the process,
and the file that `--json` names, with the figures of both and the bench's own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import torchfsl


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A benchmark's command line: what it is, and `--json`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    return parser


def begin(options: argparse.Namespace) -> dict[str, Any]:
    """Print the environment; returns the figures so far: `environment` and `settings`."""
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    figures = {"environment": environment(), "settings": settings}
    for name, value in figures["environment"].items():
        print_figure(name, value)
    print(flush=True)
    return figures


def print_figure(name: str, value: object) -> None:
    """One line."""
    print(f"{name:28} {value:,.4g}" if isinstance(value, float) else f"{name:28} {value}")


def finish(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Print the peak memory, write all figures to the file of `--json`."""
    figures["peak_memory_bytes"] = peak_memory_bytes()
    print(f"\npeak memory {figures['peak_memory_bytes'] / 1e6:,.0f} MB")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")


def aes_blocks_per_second() -> float:
    """AES-128 blocks a second of one core, by OpenSSL in counter mode over an L2-sized buffer."""
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
    data, out = bytes(1 << 18), bytearray((1 << 18) + 15)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(64):
            encryptor.update_into(data, out)
        best = min(best, time.perf_counter() - start)
    return 64 * len(data) / 16 / best


def mmo_blocks_per_second() -> float | None:
    """Fixed-key hashes a second of one core by the native kernel: the ceiling of tree work."""
    if torchfsl.backend() != "native":
        return None
    from torchfsl.kernels import _native

    count = 1 << 24
    return count / min(_native.aes_ceiling(count, 1) for _ in range(5))


def memory_bytes_per_second(threads: int = 1) -> float:
    """Bytes read a second from memory, far beyond every cache: NumPy's sum of a long array."""
    parts = [np.ones(1 << 25, dtype=np.uint64) for _ in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, time.perf_counter() - start)
    return sum(part.nbytes for part in parts) / best


def best_seconds(call: Callable[[], Any], repeat: int, least: float = 0.0) -> float:
    """Shortest of `repeat` calls, and of more until `least` seconds were spent on them."""
    best, spent = float("inf"), 0.0
    while repeat > 0 or spent < least:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        best, spent, repeat = min(best, seconds), spent + seconds, repeat - 1
    return best


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far.

    From Linux's own account where there is one: what `getrusage` says of a process includes the
    one that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def environment() -> dict[str, Any]:
    """Machine, versions, backend and raw AES rates of this run."""
    info: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torchfsl": torchfsl.__version__,
        "backend": torchfsl.backend(),
        "date": time.strftime("%Y-%m-%d"),
        "aes_blocks_per_second": aes_blocks_per_second(),
    }
    mmo = mmo_blocks_per_second()
    if mmo is not None:
        from torchfsl.kernels import _native

        info["mmo_blocks_per_second"] = mmo
        info["cpu_path"] = _native.cpu_path()
    return info


def machine() -> str:
    """Cores and processor in words."""
    return f"{os.cpu_count()} cores of {_cpu_name()}"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"

"""Figures that every benchmark prints and writes in addition to its results.

`benchmark` makes a program. The program first prints processor and cores, versions, backend and its
path, and the date. It also prints the AES blocks per second of one core by OpenSSL. With the native
backend it adds those of the fixed-key hash in the same run, the ceiling of all work on trees. Then
it prints the benchmark's results, and last the peak memory of the process. `--json` writes all
figures.
"""

from __future__ import annotations

import functools
import itertools
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
from scripts.program import Found, Main, Option, Options, processor, program
from scripts.program import machine as machine


def benchmark(*options: Option, further: str = "") -> Callable[..., Main]:
    """Make a program of a benchmark: a function of its options that adds to the figures so far.

    Those are `environment` and `settings`.
    """

    def decorate(run: Callable[[Options, Found], None]) -> Main:
        @program(*options, further=further)
        @functools.wraps(run)
        def main(parsed: Options) -> Found:
            settings = {n: str(v) if isinstance(v, Path) else v for n, v in vars(parsed).items()}
            del settings["json"]
            figures: Found = {"environment": environment(), "settings": settings}
            for name, value in figures["environment"].items():
                print_figure(name, value)
            print(flush=True)
            run(parsed, figures)
            figures["peak_memory_bytes"] = peak_memory_bytes()
            print(f"\npeak memory {figures['peak_memory_bytes'] / 1e6:,.0f} MB")
            return figures

        return main

    return decorate


def print_figure(name: str, value: object) -> None:
    """One line."""
    print(f"{name:28} {value:,.4g}" if isinstance(value, float) else f"{name:28} {value}")


def aes_blocks_per_second() -> float:
    """AES-128 blocks per second of one core, by OpenSSL (counter mode, L2-sized buffer)."""
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


def best_seconds(call: Callable[[], Any], repeat: int) -> float:
    """Shortest of `repeat` calls."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def cpu_seconds(call: Callable[[], Any], repeat: int) -> list[float]:
    """Processor time of each of `repeat` calls."""
    clock = [time.process_time()]
    for _ in range(repeat):
        call()
        clock.append(time.process_time())
    return [end - start for start, end in itertools.pairwise(clock)]


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far.

    From Linux's own account where there is one: what `getrusage` says of a process includes the
    one that started it.
    """
    if Path("/proc/self/status").exists():
        return status_bytes("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def status_bytes(name: str, process: int | str = "self") -> int:
    """A size that Linux knows of a process, such as `VmRSS`."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def environment() -> dict[str, Any]:
    """Machine, versions, backend and raw AES rates of this run."""
    info: dict[str, Any] = {
        "cpu": processor(),
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

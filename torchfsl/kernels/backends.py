"""Choice of the kernels: native (C++) or portable (NumPy). `backend` shows it.

The variable `TORCHFSL_BACKEND` is `auto` (default), or forces `portable` or `native`. `auto` takes
the native extension. If it cannot be loaded, torchfsl logs a warning and takes the portable
kernels. The choice of `auto` never changes while a process runs.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Final

from torchfsl.errors import ParameterError
from torchfsl.faces import public

log = logging.getLogger("torchfsl.backends")

KERNELS: Final = (
    "tree_gen", "tree_eval", "tree_path", "convert", "hint_gen", "accumulate", "accumulate_batch",
    "answer", "answer_bits", "gather", "match", "check_gen", "verify", "authenticate",
    "authenticate_batch", "tags", "row_digests", "stable_order", "field_multiply", "ring_multiply",
    "leaf_sums", "carry_sums", "square_sums", "accumulate_lifted", "query_proof",
    "field_transform",
)  # fmt: skip
"""The functions that a backend must have; `portable` documents each one."""


@functools.cache
def _load(wanted: str) -> tuple[str, ModuleType]:
    portable = importlib.import_module("torchfsl.kernels.portable")
    if wanted == "portable":
        return "portable", portable
    if wanted not in ("auto", "native"):
        raise ParameterError(f"TORCHFSL_BACKEND is {wanted!r}: set it to auto, portable or native")
    try:
        return "native", _import_native()
    except ImportError as error:
        if wanted == "native":
            raise ParameterError(
                f"TORCHFSL_BACKEND=native, but the C++ extension cannot be loaded ({error}): "
                "install a C++20 compiler and reinstall torchfsl with TORCHFSL_NATIVE=on, or set "
                "TORCHFSL_BACKEND=portable"
            ) from error
        log.warning(
            "torchfsl in %s uses the portable backend, many times slower than the native backend "
            "(%s). Start Python outside the source folder of torchfsl, or reinstall with a C++20 "
            "compiler and TORCHFSL_NATIVE=on",
            Path(__file__).parents[1],
            error,
        )
        return "portable", portable


def _import_native() -> ModuleType:
    native = importlib.import_module("torchfsl.kernels._native")
    missing = [name for name in KERNELS if not hasattr(native, name)]
    if missing:
        raise ImportError(
            f"the compiled extension is older than torchfsl and lacks {len(missing)} functions, "
            f"such as {missing[0]}"
        )
    return native


def kernels() -> ModuleType:
    """The module whose functions do the work; same functions and same bytes in both."""
    return _load(os.environ.get("TORCHFSL_BACKEND", "auto"))[1]


@public
def backend() -> str:
    """Name of the active backend: `native` or `portable`."""
    return _load(os.environ.get("TORCHFSL_BACKEND", "auto"))[0]


def num_threads() -> int:
    """Threads a kernel may use: `TORCHFSL_THREADS`, or every core this process may run on."""
    chosen = os.environ.get("TORCHFSL_THREADS")
    if chosen is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ParameterError(
            f"TORCHFSL_THREADS is {chosen!r}: set it to a number of threads, 1 or more"
        )
    return int(chosen)

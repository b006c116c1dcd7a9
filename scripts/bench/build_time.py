"""CPU time of the native build: configuration, extension and selftest.

    python -m scripts.bench.build_time [--jobs 2] [--no-selftest] [--no-binding] [--json FILE]

Everything is built in a folder of its own that is removed afterwards, without ccache. What counts
is the user and system time of CMake and all compilers, which depends little on the number of jobs;
on a machine with other work, it is up to a third longer than on a quiet one. The extension needs
`nanobind` (as in pyproject.toml) in the interpreter that runs this, or in `PYTHONPATH`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from scripts.bench import measure
from scripts.program import ROOT, Found, Options, option

SOURCES = ROOT / "torchfsl/kernels/csrc"


def spent() -> tuple[float, float]:
    """User and system seconds of all ended children so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime, usage.ru_stime


def build(options: Options) -> dict[str, float]:
    """User and system seconds of a whole build."""
    wanted = {"BINDING": not options.no_binding, "SELFTEST": not options.no_selftest}
    settings = [f"-DTORCHFSL_{name}={'ON' if on else 'OFF'}" for name, on in wanted.items()]
    settings += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    env = {**os.environ, "CCACHE_DISABLE": "1"}
    before = spent()
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            ["cmake", "-S", str(SOURCES), "-B", folder, *settings],
            ["cmake", "--build", folder, "-j", str(options.jobs)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    user, system = (now - then for now, then in zip(spent(), before, strict=True))
    return {"user_seconds": user, "system_seconds": system, "cpu_seconds": user + system}


@measure.benchmark(
    option("--jobs", os.cpu_count() or 1, "compilers at once"),
    option("--no-selftest", False, "the extension alone"),
    option("--no-binding", False, "the selftest alone"),
)
def main(options: Options, figures: Found) -> None:
    """Build and print."""
    figures["build"] = build(options)
    for name, seconds in figures["build"].items():
        measure.print_figure(name, seconds)

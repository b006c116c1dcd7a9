"""Measure the nine points of the client without Python, and print a table in Markdown.

    python -m scripts.checks.web_client [--points 2 3] [--inputs 200000] [--json FILE]

A point is met if its tests pass and its figures are within what is asked. It is skipped if a tool
is missing, which the table names. Builds take minutes the first time. Point 2 builds the core once
more. Of the inputs of point 5, one half are plans and the other half calls and answers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.program import ROOT, Found, Options, option, program
from tests.client_core.test_wasm import wasm
from tests.support.client_core import build
from tests.support.web_page import built_package

CORE, WEB, SERVICE = "tests/client_core", "tests/web", "tests/service"
TOOLS = ("em++", "node", "npm", "chromium", "aarch64-linux-gnu-g++", "qemu-aarch64-static")
POINTS: dict[int, tuple[str, list[str]]] = {
    1: ("equal messages on x86-64, 64-bit Arm, in node and Chromium, 1,000 draws in node",
        [f"{CORE}/test_tape.py", f"{CORE}/test_primitives.py", f"{CORE}/test_aarch64.py",
         f"{CORE}/test_wasm.py", f"{WEB}/test_rounds.py"]),
    2: ("core at most 300,000 B (120,000 B by gzip), scripts 30,000 B, two builds equal",
        [f"{WEB}/test_package.py"]),
    3: ("DIN's shape: at most 1.2 times Python's time, in node at most 2.5 times the portable "
        "path's and 40 ms, the first round 300 ms", []),
    4: ("a page and 50 clients of Python with proofs and seals, ten exact rounds, uploads of "
        "equal length, memory steady",
        [f"{WEB}/test_rounds.py::test_order_and_length_of_calls_are_pythons"]),
    5: ("100,000 plans and 100,000 calls under sanitizers, each allocation failed once", []),
    6: ("bad tokens, proofs, bodies and origins are refused, nothing is filed",
        [f"{SERVICE}/test_admission.py", f"{SERVICE}/test_web_door.py",
         f"{SERVICE}/test_web_attacks.py", f"{SERVICE}/test_web_rounds.py"]),
    7: ("errors and silence as of Python's client",
        [f"{CORE}/test_rounds.py", f"{CORE}/test_updates.py"]),
    8: ("a round of 20 clients of Python takes at most 1.2 times as long among 100 slow ones",
        []),
    9: ("without the tools, tests skip and name them",
        [f"{CORE}/test_wasm.py", f"{CORE}/test_aarch64.py", f"{WEB}/test_package.py"]),
}  # fmt: skip
"""The demand of each point, and its tests."""

Part = tuple[str, bool | None]
"""A figure or a count, and whether it is as asked; None where a tool is missing."""


def counts(names: list[str], tools: str) -> Iterator[Part]:
    """Counts of tests, and why some were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
        given = os.environ | {"PATH": tools, "TORCHFSL_LONG": "1"}
        subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, env=given, check=False,
                       stdout=sys.stderr)  # fmt: skip
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314
    bad = [one.get("name") for one in cases if one.find("failure") is not None or
           one.find("error") is not None]  # fmt: skip
    why = {one.get("message") for case in cases for one in case.findall("skipped")}
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(bad) - skipped
    if passed or bad:
        yield f"{passed} tests pass" + (f", {bad} fail" if bad else ""), not bad
    if skipped:
        packages = sorted({str(one).rpartition("apt-get install ")[2] for one in why})
        yield f"{skipped} skipped for want of {', '.join(packages)}", None


def found_by(module: str, *arguments: str, path: str = "") -> Found:
    """Findings of another program."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        command = [sys.executable, "-m", module, *arguments, "--json", str(file)]
        given = os.environ | {"TORCHFSL_CPU_PATH": path}
        subprocess.run(command, cwd=ROOT, env=given, check=True, stdout=sys.stderr)
        return dict(json.loads(file.read_text()))


def within(name: str, value: float, most: float, unit: str = "") -> Part:
    """A figure with a limit."""
    told = f"{value:,.0f}" if unit == "B" else f"{value:.2f}"
    return f"{name} {told} {unit}".rstrip(), value <= most


def sizes(_: Options) -> Iterator[Part]:
    """Of what a page downloads, and a second build."""
    core, scripts = wasm("core.wasm").read_bytes(), (built_package() / "dist").glob("*.js")
    yield within("core", len(core), 300_000, "B")
    yield within("by gzip", len(gzip.compress(core)), 120_000, "B")
    yield within("scripts", sum(file.stat().st_size for file in scripts), 30_000, "B")
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder, "core.wasm")
        subprocess.run([ROOT / "scripts/build_wasm.sh", again], check=True)
        same = again.read_bytes() == core
    yield (
        f"SHA-256 {hashlib.sha256(core).hexdigest()[:16]}, a second build's is equal: {same}",
        same,
    )


def speed(_: Options) -> Iterator[Part]:
    """Medians of processor time."""
    wasm("core.wasm")
    ours = found_by("scripts.bench.client", "--node")
    plain = found_by("scripts.bench.client", "--clients", "8", path="portable")
    core, python = ours["core"]["median_ms"], ours["python"]["median_ms"]
    node = ours["node"]["median_ms"]
    yield f"core {core:.1f} ms, Python {python:.1f} ms", True
    yield within("core to Python", core / python, 1.2)
    yield within("node to portable", node / plain["core"]["median_ms"], 2.5)
    yield within("node", node, 40, "ms")
    yield within("first", ours["node first"]["median_ms"], 300, "ms")


def page(_: Options) -> Iterator[Part]:
    """Rounds in Chromium."""
    built_package()
    found = found_by("scripts.checks.web_rounds", "--slow", "0", "--handshakes", "0")["page"]
    yield f"{found['rounds']} rounds with {found['clients']} clients exact", True
    yield within("memory of the last to that of the second round", found["growth"], 1.1)


def hostile(options: Options) -> Iterator[Part]:
    """The fuzz program under sanitizers."""
    settings = ("-DTORCHFSL_SANITIZE=address,undefined", "-DTORCHFSL_CORE=")
    run = [
        build("fuzz_client", *settings, name="sanitized") / "fuzz_client",
        ROOT / CORE / "plans.txt",
    ]
    for words in ([str(options.inputs)], ["allocations"]):
        done = subprocess.run([*run, *words], stdout=subprocess.PIPE, text=True, check=False)
        found = [
            line.removeprefix("fuzz_client: ").removesuffix(", one at a time")
            for line in done.stdout.splitlines()
        ]
        yield ", ".join(found) or "a fault, told above", done.returncode == 0
    if options.inputs < 200_000:
        yield "fewer inputs than asked: --inputs 200000", None


def slow(_: Options) -> Iterator[Part]:
    """Rounds among slow connections."""
    found = found_by("scripts.checks.web_rounds", "--clients", "0")
    yield within("ratio", found["slow"]["slowdown"], 1.2)
    flooded = found["handshakes"]
    yield (
        f"under a flood of handshakes {flooded['slowdown']:.2f}, a web client "
        f"{flooded['web slowdown']:.2f}",
        True,
    )


def without_tools(_: Options) -> Iterator[Part]:
    """The tests of point 9 where only the tools are missing."""
    with tempfile.TemporaryDirectory() as folder:
        for place in reversed(os.environ["PATH"].split(os.pathsep)):
            for file in Path(place).glob("*"):
                link = Path(folder, file.name)
                if file.name not in TOOLS:
                    link.unlink(missing_ok=True)
                    link.symlink_to(file)
        parts = list(counts(POINTS[9][1], folder))
    yield ", ".join(text for text, _ in parts), all(good is not False for _, good in parts)


MEASURES = {2: sizes, 3: speed, 4: page, 5: hostile, 8: slow, 9: without_tools}


@program(
    option("--points", list(POINTS), "which"), option("--inputs", 2000, "for point 5")
)  # fmt: skip
def main(options: Options) -> Found:
    """Print the table."""
    found: Found = {"points": {}, "ok": True}
    rows = ["| point | asked | measured | |", "| --- | --- | --- | --- |"]
    for point in options.points:
        asked, names = POINTS[point]
        parts: list[Part] = list(counts(names, os.environ["PATH"])) if names and point != 9 else []
        try:
            parts += MEASURES[point](options) if point in MEASURES else []
        except pytest.skip.Exception as missing:
            parts.append((str(missing), None))
        states = {good for _, good in parts}
        state = "not met" if False in states else "skipped in part" if None in states else "met"
        found["points"][point] = {"parts": parts, "state": state}
        found["ok"] &= state != "not met"
        rows.append(f"| {point} | {asked} | {', '.join(text for text, _ in parts)} | {state} |")
    print(*rows, sep="\n")
    return found

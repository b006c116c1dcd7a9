"""The header in C99, the page's example in a real round, and what a release exports."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.client_core import ROOT, SOURCES, build
from tests.support.federation import make_plan, make_segment, open_wire, submit
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import finish_round
from torchfsl.fsl.transport import Transport
from torchfsl.submodel.update import SegmentUpdate

HEADER = SOURCES / "client" / "torchfsl_client.h"
PLAN = make_plan(
    make_segment("table", "rows", (13, 3), k_max=4, tau=3, theta=3, retrieve=True),
    make_segment("bias", "dense", (4,)),
)
C99 = ("-std=c99", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-pedantic", "-Werror")


def example() -> str:
    (program,) = re.findall(r"```c\n(.*?)```", (ROOT / "docs" / "client-core.md").read_text(), re.S)
    return program


@pytest.fixture(scope="module")
def release() -> Path:
    """The library as a release has it."""
    if not shutil.which("cmake") or not shutil.which("cc"):
        pytest.skip("no cmake or no C compiler: apt-get install cmake gcc")
    return build("torchfsl_client")


def deliver_all(process: subprocess.Popen[bytes], wire: Transport, client: int = 5) -> None:
    """All messages of a program that calls as the page's example does, client after client."""
    assert process.stdin is not None
    assert process.stdout is not None
    while line := process.stdout.readline():
        party, kind, size = map(int, line.split())
        answer = b""
        if size:
            wire.send(party, process.stdout.read(size))
            client += kind == Kind.REPORT  # the last one of a client
        else:
            answer = wire.fetch(party, Kind(kind), 1, client)
        process.stdin.write(b"%08x" % len(answer) + answer)
        process.stdin.flush()


def test_the_pages_example_takes_part_in_a_round(release: Path, tmp_path: Path) -> None:
    program = example()
    assert program.count("\n") < 90
    (tmp_path / "client.c").write_text(program)
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    done = subprocess.run(
        ["cc", *C99, f"-I{HEADER.parent}", "-o", tmp_path / "client", tmp_path / "client.c",
         f"-L{release}", "-ltorchfsl_client", f"-Wl,-rpath,{release}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    command = [tmp_path / "client", tmp_path / "plan.json", "5", "1", "2", "7", "11"]
    pipe, (servers, wire) = subprocess.PIPE, open_wire(PLAN)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        deliver_all(process, wire)
        assert process.wait(60) == 0, process.stderr.read().decode() if process.stderr else ""
    zeros = {
        "table": SegmentUpdate(np.array([2]), np.zeros((1, 3), np.int64)),
        "bias": SegmentUpdate(None, np.zeros((4, 1), np.int64)),
    }
    submit(wire, 6, 1, zeros)
    sums = finish_round(servers).sums
    rows = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)  # `make_state`
    wanted = np.zeros((13, 3), dtype=np.int64)
    wanted[[2, 7, 11]] = np.rint(np.float64(-0.5) * rows[[2, 7, 11]] * 2**16)
    assert np.array_equal(sums["table"], wanted)
    assert not sums["bias"].any()


@pytest.mark.parametrize("language", [("-x", "c", "-std=c99"), ("-x", "c++", "-std=c++11")])
def test_the_header_stands_alone(language: tuple[str, ...], tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler: apt-get install gcc")
    (tmp_path / "alone").write_text('#include "torchfsl_client.h"\nint main(void) { return 0; }\n')
    command = ["cc", *language, *C99[1:], "-fsyntax-only", f"-I{HEADER.parent}", tmp_path / "alone"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_release_exports_what_the_header_declares_and_no_tape(release: Path) -> None:
    if not shutil.which("nm"):
        pytest.skip("nm is not installed: apt-get install binutils")
    library = release / "libtorchfsl_client.so"
    command = ["nm", "-D", "--defined-only", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    text = HEADER.read_text()
    released, tests = text.split("#ifdef TORCHFSL_CLIENT_TAPE")
    declared = set(re.findall(r"\b(tfsl_\w+)\(", re.sub(r"/\*.*?\*/", "", released, flags=re.S)))
    assert names == declared
    assert "tfsl_test_round_begin" in tests
    assert b"tfsl_test" not in library.read_bytes()

"""The page on two servers: its commands and programs run as printed, on other ports."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from tests.support.network import wait_until
from torchfsl.service.local import free_ports

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "run-on-two-servers.md").read_text()
PYTHON = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]


class Shell:
    """Runs printed commands in a folder, with this environment's programs and free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ports = folder, free_ports(2)
        for text, name in PYTHON:
            (folder / name).write_text(self.here(text))

    def here(self, text: str) -> str:
        for printed, real in zip((7000, 7001), self.ports, strict=True):
            text = text.replace(f"127.0.0.1:{printed}", f"127.0.0.1:{real}")
        return text

    def start(self, line: str) -> subprocess.Popen[str]:
        program, *arguments = shlex.split(self.here(line).removesuffix("&"))
        command = {"python": [], "torchfsl": ["-m", "torchfsl.service.command"]}[program]
        return subprocess.Popen(
            [sys.executable, *command, *arguments], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(self, line: str) -> str:
        process = self.start(line)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
        return out

    @contextlib.contextmanager
    def servers(self) -> Iterator[None]:
        both = [self.start(line) for line in COMMANDS if line.startswith("torchfsl serve")]
        assert len(both) == 2
        try:
            yield
        finally:
            for one in both:
                one.terminate()
            for one in both:
                one.communicate(timeout=60)


def test_every_line_of_the_page_is_a_command_of_the_test() -> None:
    assert [name for _, name in PYTHON] == ["common.py", "coordinator.py", "client.py", "use.py"]
    assert len(PYTHON) == PAGE.count("```python")
    assert 15 <= len(COMMANDS) <= 25
    here = ("torchfsl ", "python coordinator.py", "python client.py ", "wait")
    folders = ("python3 -m venv ", ". .venv", "pip install ", "mkdir ", "cd ")
    assert all(line.startswith((*here, *folders)) for line in COMMANDS)


@pytest.mark.slow
def test_two_servers_work_as_printed(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    certs, doctor, *_, status = (
        line for line in COMMANDS if re.match(r"torchfsl (certs|doctor|status)", line)
    )
    shell.run(certs)
    assert "FAILED" not in shell.run(doctor)
    with shell.servers():
        coordinator = shell.start("python coordinator.py")
        clients = [shell.start(line) for line in COMMANDS if line.startswith("python client.py")]
        assert len(clients) == 3
        for client in clients:
            said, _ = client.communicate(timeout=300)
            lines = said.splitlines()
            assert len(lines) == 5, said
            assert all(re.fullmatch(r"round \d+: sent", line) for line in lines)
        said, _ = coordinator.communicate(timeout=300)
        assert coordinator.returncode == 0, said
        assert len(re.findall(r"^round \d+  3 clients", said, re.MULTILINE)) == 5, said
        model = (tmp_path / "model.pt").read_bytes()
        assert "applied" in shell.run(status)
        (tmp_path / "model.pt").unlink()
        again = shell.run("python coordinator.py")
        assert not re.findall(r"^round ", again, re.MULTILINE)
        assert (tmp_path / "model.pt").read_bytes() == model
    assert "grad_fn" in shell.run("python use.py")


@pytest.mark.slow
def test_an_abandoned_round_ends_the_coordinators_program_in_one_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.run(next(line for line in COMMANDS if line.startswith("torchfsl certs")))
    status = next(line for line in COMMANDS if line.startswith("torchfsl status"))
    with shell.servers():
        coordinator = shell.start("python coordinator.py")
        wait_until(lambda: "round 0 open" in shell.run(status))
        shell.run(status.replace("status", "abandon"))
        said, _ = coordinator.communicate(timeout=300)
        assert coordinator.returncode == 1
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith(
            "coordinator: round 0 ended without an aggregate: the coordinator abandoned it (the "
            "coordinator expected"
        )

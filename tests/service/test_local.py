"""Two servers on this machine: they start, go on after a kill, stop, and say why they do not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchfsl.service import LoopbackServers, Owner


def test_both_servers_answer_go_on_after_a_kill_and_stop_at_the_end(tmp_path: Path) -> None:
    with LoopbackServers(tmp_path, clients=1) as servers:
        servers.start()
        with contextlib.closing(Owner(servers.urls, servers.tls)) as owner:
            assert [owner.links.info(party)["party"] for party in (0, 1)] == [0, 1]
            servers.kill(1)
            assert servers.processes[1] is None
            servers.start(1)
            assert owner.links.info(1)["party"] == 1
        running = list(servers.processes)
    assert servers.processes == [None, None]
    assert [process.returncode for process in running if process is not None] == [0, 0]


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    servers = LoopbackServers(tmp_path, config="[limits]\nnonsense = 1\n")
    with pytest.raises(
        RuntimeError, match=r"server 1 did not start:.*\n?.*unknown setting nonsense in \[limits\]"
    ):
        servers.start(1)


PROGRAM = """
import sys, time
from pathlib import Path
from torchfsl.service import LoopbackServers
with LoopbackServers(Path(sys.argv[1]), clients=0) as servers:
    servers.start()
    print(*(process.pid for process in servers.processes), flush=True)
    time.sleep(600)
"""


def test_a_program_that_is_ended_by_sigterm_takes_its_servers_along(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        program.terminate()
        assert program.wait(60) == 128 + signal.SIGTERM
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []

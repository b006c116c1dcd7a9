"""Small runs of scripts/checks/faults.py, and the loop and the machines that it uses."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc")

from scripts.checks import fault_noise, machines
from scripts.checks.fault_kinds import KILLS, KINDS, PERSON
from scripts.checks.fault_servers import LOOP, Supervised
from scripts.checks.faults import BAD, NUM_CLIENTS, add, is_good, main, read, run_batch
from tests.support.points import IS_LONG

ROOT = Path(__file__).resolve().parents[2]
MACHINE = os.environ.get("TORCHFSL_TEST_MACHINE", "")
IN_LOOP = ("kill both", "disk full", "writes refused", "ledger gone")
FOUND: dict[str, Any] = {
    "rounds": 3, "rounds_opened": 2, "reports_accepted": 5, "models_equal": 1,
    "faults": {"kill": 2}, "statuses": {"disk full": {74: 1}}, "mounted": True, "by_person": {},
    "seconds": {"kill": 1.5}, **{name: [] for name in BAD},
}  # fmt: skip


@pytest.mark.slow
def test_every_fault_ends_in_recovery_or_a_stated_refusal_and_no_sum_is_wrong(
    tmp_path: Path,
) -> None:
    kinds = KINDS if IS_LONG else tuple(kind for kind in KINDS if kind not in (*KILLS, *IN_LOOP))
    with Supervised(tmp_path, clients=NUM_CLIENTS) as servers:
        found = run_batch(servers, len(kinds), 1, collections.Counter(), kinds)
    assert found["faults"] == dict.fromkeys(kinds, 1)
    assert {name: found[name] for name in BAD} == {name: [] for name in BAD}
    assert found["rounds_opened"] > 0
    assert set(found["by_person"]) <= set(PERSON)
    assert is_good(found)


@pytest.mark.slow
def test_nothing_is_lost_counted_twice_or_opened_twice_under_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert main(["--only", "kill", "--faults", "4", "--rounds", "2", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["faults"] == dict.fromkeys(KILLS, 1)
    assert found["rounds_opened"] > 0
    assert found["wrong_sums"] == found["lost_reports"] == found["steps_changed"] == []


@pytest.mark.slow
def test_faults_between_the_write_of_noise_and_the_commitment_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    only = ["--noise", "--only", "freeze, then kill", "--faults", "4", "--batch", "4"]
    assert main([*only, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["faults"] == {"freeze, then kill": 4}
    assert found["states_hit"]["freeze, then kill: slot written"] == 1


def test_two_rounds_that_commit_to_shares_under_one_draw_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [{"0": (4, "a", 7), "1": (5, "b", 8)}, {"0": (4, "c", 9), "1": (5, "b", 8)}]
    servers: Any = SimpleNamespace(state=lambda _: Path())
    plan: Any = None
    on_disk = fault_noise.NoiseOnDisk(servers, plan)
    for word in [*words, {"0": (6, "a", 10)}]:
        assert on_disk.shared() == []
        value = json.dumps(word).encode()
        monkeypatch.setattr(fault_noise, "asked", lambda *_, value=value: [(value,)])
        on_disk.look(1)
    assert on_disk.shared() == ["server 1, rounds [7, 10]"]


def test_batches_add_up_and_a_run_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    for _ in range(2):
        total = add(path, read(path), FOUND, collections.Counter({"kill: open": 2}))
    assert read(path) == total
    assert (total["batches"], total["models_equal"], total["rounds"]) == (2, 2, 6)
    assert (total["faults"], total["states_hit"]) == ({"kill": 4}, {"kill: open": 4})
    assert total["statuses"] == {"disk full": {"74": 2}}
    assert is_good(total)


def test_a_wrong_finding_or_help_that_the_manual_does_not_name_fails_the_run() -> None:
    assert is_good(FOUND)
    for change in ({"needed_a_person": ["disk full"]}, {"lost_reports": [(1, 2)]}):
        assert not is_good(FOUND | change)
    assert not is_good(FOUND | {"models_equal": 0})


def loop(command: str, **how: object) -> subprocess.Popen[str]:
    words = ["sh", str(LOOP), "0.05", "sh", "-c", command]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("status", [0, 1, 2, 74, 137])
def test_the_loop_starts_a_server_again_until_its_state_is_refused(
    status: int, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    again = f"echo x >> {starts}; [ $(wc -l < {starts}) -lt 3 ] && exit {status}; exit 65"
    process = loop(again)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 65
    assert starts.read_text() == "x\n" * 3
    assert said.count(f"ended with status {status}\n") == 2


def test_who_ends_the_loop_ends_the_server_and_none_starts_again(tmp_path: Path) -> None:
    up, told = tmp_path / "up", tmp_path / "told"
    serve = f"trap 'echo x >> {told}; exit 7' TERM; echo x >> {up}; while :; do sleep 0.05; done"
    process = loop(serve)
    while not up.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 7
    assert (up.read_text(), told.read_text()) == ("x\n", "x\n")


@pytest.mark.slow
def test_a_supervised_pair_comes_back_by_itself_but_from_a_state_that_is_refused(
    tmp_path: Path,
) -> None:
    with Supervised(tmp_path, clients=NUM_CLIENTS, under="loop") as servers:
        found = run_batch(servers, len(IN_LOOP), 1, collections.Counter(), IN_LOOP)
    assert found["faults"] == dict.fromkeys(IN_LOOP, 1)
    assert found["by_person"] == {"ledger gone": 1}
    assert is_good(found)


def test_the_machines_get_what_the_manual_prints() -> None:
    commands = machines.printed_commands()
    assert commands[0].startswith("python3 -m venv /opt/torchfsl && ")
    assert not any("systemctl" in command or "#" in command for command in commands)
    for command in commands:
        for word in command.split():
            if word.startswith("deploy/"):
                assert (ROOT / word).exists()


def test_a_manual_that_does_not_end_with_the_start_is_no_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "deploy.md"
    end = "## Next\n\n```sh\nsystemctl\n```\n"
    page.write_text(f"\n## Under systemd\n\n```sh\ninstall one thing\n```\n\n{end}")
    monkeypatch.setattr(machines, "MANUAL", page)
    with pytest.raises(SystemExit, match="does not end with starting the unit"):
        machines.printed_commands()


def booted(said: str) -> machines.Booted:
    """One machine whose journal says this, and one that is off."""
    servers = object.__new__(machines.Booted)
    servers.processes = [SimpleNamespace(inside=lambda *_: said), None]
    return servers


def test_the_ends_of_a_unit_are_those_that_a_shell_would_give() -> None:
    said = (
        "torchfsl.service: Main process exited, code=exited, status=74/IOERR\n"
        "torchfsl.service: Main process exited, code=killed, status=9/KILL\n"
        "torchfsl.service: Main process exited, code=dumped, status=6/ABRT\n"
    )
    servers = booted(said)
    assert servers.ends(0) == [74, 137, 134]
    assert servers.ends(1) == []


def test_noise_that_a_booted_server_says_it_lost_is_found_in_its_journal() -> None:
    said = "started\nnoise of round 3 is lost: later rounds are not opened\n"
    plan: Any = None
    assert fault_noise.NoiseOnDisk(booted(said), plan).lost() == [said.splitlines()[1]]


@contextlib.contextmanager
def spawned(text: str) -> Iterator[tuple[int, int]]:
    """A shell and its child."""
    process = subprocess.Popen(["sh", "-c", text])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (child := children.read_text()):
        time.sleep(0.01)
    yield process.pid, int(child)
    os.kill(int(child), signal.SIGKILL)
    process.wait()


def test_a_child_that_sets_a_machine_up_is_not_taken_for_its_first_process() -> None:
    with spawned("sleep 60 & wait") as (parent, _):
        found = machines.first_process(parent)
    assert found == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace")
def test_the_first_process_of_a_machine_is_found() -> None:
    with spawned("exec unshare --pid --fork sleep 60") as (parent, child):
        found = machines.first_process(parent)
    assert found == child


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace")
def test_a_machine_that_does_not_boot_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = tmp_path / "pid"
    command = f"echo $$ > {number}; exec unshare --kill-child --pid --fork sleep 60"
    monkeypatch.setattr(machines, "_NSPAWN", ("sh", "-c", command))
    monkeypatch.setattr(machines, "_BOOT_SECONDS", 5.0)
    monkeypatch.setattr(machines.Unit, "control", lambda *_: "starting")
    with pytest.raises(SystemExit, match="does not boot"):
        machines.Unit(tmp_path, tmp_path / "log")
    assert not Path("/proc", number.read_text().strip()).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may go on")
def test_the_message_names_root_if_the_user_is_not_root(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--under", "systemd", "--root", "nowhere"])
    assert ended.value.code == 2
    assert "needs root" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not MACHINE, reason="TORCHFSL_TEST_MACHINE names no folder with a Debian")
def test_two_booted_machines_come_back(tmp_path: Path) -> None:
    kinds = ("kill both", "writes refused", "ledger gone")
    with machines.Booted(tmp_path / "run", Path(MACHINE), clients=NUM_CLIENTS) as servers:
        found = run_batch(servers, len(kinds), 1, collections.Counter(), kinds)
    assert found["by_person"] == {"ledger gone": 1}
    assert is_good(found)

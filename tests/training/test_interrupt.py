"""Ctrl-C: the round ends, its checkpoint is there, and the run goes on with the same bits."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_tasks import small_config
from tests.training.test_own import MODULE
from training import experiment
from training.cli import main
from training.federation import build
from training.interrupt import Interrupt
from training.tasks.build import build_task
from training.workers import Workers

PRESSED = MODULE.replace(
    "        items = self.items[client]\n",
    """        import os, pathlib, signal
        keys = pathlib.Path("keys")
        if round_number == 2 and keys.exists():
            times = int(keys.read_text())
            keys.unlink()
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        items = self.items[client]
""",
)
"""The page's task; in its second round someone presses Ctrl-C as often as the file `keys` says."""
SETTINGS = {
    "fsl": "",
    "plain": '[rest]\npolicy = "topk"\namount = 0.2\n[local]\noptimizer = "Adagrad"\n',
    "central": '[local]\noptimizer = "AdamW"\n[server]\naverage = 0.5\n',
}


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: jobs in the background inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def command(folder: Path, name: str, aggregation: str, out: str) -> list[str]:
    (folder / f"{name}.py").write_text(PRESSED)
    (folder / "own.toml").write_text(SETTINGS[aggregation])
    return [
        "own", "--task", f"{name}:Taste", "--config", "own.toml", "--aggregation", aggregation,
        "--rounds", "4", "--clients-per-round", "3", "--checkpoint-every", "9", "--quiet",
        "--above-break-even" if aggregation != "central" else "--eval-every",
        "keep" if aggregation != "central" else "2", "--threads", "1", "--out", out,
    ]  # fmt: skip


def interrupted(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def summary(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return found


@pytest.mark.parametrize("aggregation", list(SETTINGS))
def test_the_round_ends_with_a_checkpoint_from_which_the_run_goes_on_bit_by_bit(
    aggregation: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"pressed_{aggregation}"
    assert main(command(folder, name, aggregation, "whole")) == 0
    (folder / "keys").write_text("1")
    arguments = command(folder, name, aggregation, "parts")
    interrupted(arguments)
    told = capfd.readouterr().err
    assert "stops after this round, with a checkpoint. Press Ctrl-C again" in told
    assert "interrupted: continue with the same command and --out parts --resume" in told
    index = json.loads((folder / "parts" / "checkpoint" / "index.json").read_text())
    assert index["round"] == 2
    assert len((folder / "parts" / "metrics.jsonl").read_text().splitlines()) == 2
    assert main([*arguments, "--resume"]) == 0
    whole, parts = summary(folder, "whole"), summary(folder, "parts")
    assert parts["model_sha256"] == whole["model_sha256"]
    assert parts["metrics"] == whole["metrics"]


def test_a_second_ctrl_c_ends_the_run_at_once(folder: Path) -> None:
    (folder / "keys").write_text("2")
    arguments = command(folder, "pressed_twice", "fsl", "run")
    interrupted(arguments)
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (folder / "run" / "checkpoint").exists()
    assert main([*arguments, "--resume"]) == 0


def test_in_the_last_round_only_the_summary_is_left_to_write(folder: Path) -> None:
    (folder / "keys").write_text("1")
    arguments = [*command(folder, "pressed_last", "fsl", "run"), "--rounds", "2"]
    interrupted(arguments)
    assert not (folder / "run" / "summary.json").exists()
    assert main([*arguments, "--resume"]) == 0
    assert summary(folder, "run")["rounds"] == 2


def test_where_ctrl_c_is_ignored_or_handled_by_others_it_stays_so() -> None:
    heard: list[int] = []
    for handler in (signal.SIG_IGN, lambda number, frame: heard.append(number)):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with Interrupt() as interrupt:
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)
        assert not interrupt.asked
    assert heard == [signal.SIGINT]


def test_a_run_in_a_thread_handles_no_signals() -> None:
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            with Interrupt():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not failed


def test_a_run_without_a_terminal_notes_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(os, "write", gone)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
    assert interrupt.asked
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_workers_do_not_hear_it_even_while_they_start() -> None:
    config = small_config("textcnn", "plain")
    workers = Workers(config, build(config, build_task(config)).plan)
    for process in workers._processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)  # as a terminal does, to all processes of the command
    workers.close()
    assert [process.exitcode for process in workers._processes] == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_checkpoint_is_no_more_often_than_asked_without_ctrl_c(folder: Path) -> None:
    assert experiment._CHECKPOINT_SECONDS > 60
    assert main(command(folder, "not_pressed", "plain", "run")) == 0
    assert json.loads((folder / "run/checkpoint/index.json").read_text())["round"] == 4

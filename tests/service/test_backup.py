"""Backups of a model: taken while the server runs, and good for nothing but a new task."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.errors import raises
from tests.support.federation import make_state, mixed_plan, wanted_rows
from tests.support.network import Pair, assert_sums
from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.service.backup import Backup, restore
from torchfsl.service.client import remote
from torchfsl.service.command import main
from torchfsl.service.state import arrays
from torchfsl.service.state.vault import write_whole
from torchfsl.service.task import Task
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel


class Parties(Pair):
    """A task with momentum, whose backups hold more than a model."""

    def set_up(self) -> None:
        super().set_up()
        settings = OptimizerSettings("sgd", 0.5, momentum=0.9)
        self.task = self.owner.bind(self.plan, optimizer=settings)
        self.plan = self.task.plan
        self.owner.set_up(self.task, make_state(self.plan))

    def go_on_with(self, task: Task) -> None:
        self.task, self.plan, self.number = task, task.plan, 0

    def round(self, clients: range = range(2)) -> None:
        self.open()
        self.take_part(clients)
        self.close()

    def lose_state(self, party: int) -> None:
        """The disk is gone: the server starts on an empty one."""
        self.kill(party)
        shutil.rmtree(self.state(party))
        for beside in self.folder.glob(f"state{party}.*"):
            beside.unlink()
        self.start(party)


def values(model: ServerModel) -> dict[str, list[float]]:
    everything = model.state | {f"/{n}": v for n, v in model.optimizer.state().items()}
    return {name: value.tolist() for name, value in everything.items()}


def test_a_backup_is_the_model_with_its_optimizer_and_its_file_is_read_by_its_user_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Parties(tmp_path / "servers") as pair:
        pair.start()
        pair.set_up()
        pair.round()
        pair.open()  # online, and inside a round
        pair.take_part(range(2))
        model = pair.owner.model(pair.task)
        for party in (0, 1):
            file = tmp_path / f"backup{party}"
            assert main(["backup", str(file), "--state", str(pair.state(party))]) == 0
            said = capsys.readouterr().out
            assert said.startswith(f"model 1 {model.digest().hex()} in {file}, ")
            backup = Backup.read(file)
            assert (backup.version, backup.spent) == (1, 1)
            assert values(backup.model) == values(model)
            assert backup.task.optimizer == pair.task.optimizer
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (tmp_path / "backup0").read_bytes() == (tmp_path / "backup1").read_bytes()
        pair.close()


def test_nothing_that_a_round_rests_on_is_in_a_backup(tmp_path: Path) -> None:
    with Parties(tmp_path / "servers") as pair:
        pair.start()
        pair.set_up()
        pair.round()
        pair.open()
        pair.take_part(range(2))
        Backup.of_state(pair.state(0)).write(tmp_path / "backup")
        held = (tmp_path / "backup").read_bytes()
        secret = [pair.task.nonce, bytes.fromhex(pair.plan.session), *pair.task.coins]
        secret += [bytes.fromhex(key) for key in (*pair.plan.server_keys, pair.plan.hash_seed)]
        with sqlite3.connect(pair.state(0) / "state.sqlite") as ledger:
            said = [bytes(body) for (body,) in ledger.execute("SELECT body FROM steps")]
            names = {name for (name,) in ledger.execute("SELECT name FROM settings")}
        assert len(said) >= 2
        assert {"task", "model", "coins"} <= names
        for piece in (*secret, *said):
            assert piece not in held
            assert piece.hex().encode() not in held
        task = Backup.read(tmp_path / "backup").task
        assert (task.coins, task.nonce) == ((), bytes(16))
        pair.close()
        with pytest.raises(DecodeError, match="not bound to these two servers"):
            pair.owner.set_up(
                task, make_state(task.plan), replace=True
            )  # as it is, it is nobody's task


def test_a_lost_disk_in_a_round_ends_in_a_new_task_that_goes_on_with_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Parties(tmp_path / "servers") as pair:
        pair.start()
        pair.set_up()
        pair.round()
        pair.open()
        update = pair.update(4)
        with pair.client(4) as late:  # whose report is on its way when the disk is lost
            session = late.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
            session.download()
            session.retrieve()
            kept: dict[int, bytes] = {}
            with monkeypatch.context() as way:
                way.setattr(remote, "submit", lambda _, report, __: kept.update(report))
                session.submit(update)
            assert set(kept) == {0, 1}
        old = pair.plan.digest
        pair.lose_state(0)
        file = tmp_path / "backup"
        assert main(["backup", str(file), "--state", str(pair.state(1))]) == 0
        pair.lose_state(1)  # its operator moves the old state away: it is good for nothing more
        capsys.readouterr()
        arguments = ["restore", str(file), "--servers", ",".join(pair.urls), "--tls", str(pair.tls)]
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        backup = Backup.read(file)
        assert lines[0] == f"model {backup.model.digest().hex()} is at both servers"
        assert pair.owner.links.common_model() == (0, backup.model.digest().hex())
        assert pair.owner.plan().digest != old
        assert lines[2:] == ["server 0 had no task", "server 1 had no task"]
        with pytest.raises(SystemExit):
            main(["restore", "--help"])
        first = pair.owner.links.info(1)["round"] + 1
        assert f"begins with round {first}." in capsys.readouterr().out

        task = dataclasses.replace(backup.task, plan=pair.owner.plan())
        pair.go_on_with(task)
        pair.open()
        assert pair.number == 1  # as before the loss: what was sent then means nothing now
        with pair.client(4) as late, pytest.raises(Error) as refused:
            remote.submit(late.links, kept, None)
        assert isinstance(refused.value, DecodeError | RejectedSubmission)
        assert "another plan" in str(refused.value)
        made = pair.take_part(range(2))
        opened = pair.close()
        assert opened.clients == (0, 1)
        assert_sums(pair.plan, opened, made)
        expected = backup.model
        expected.apply(pair.plan, opened)
        assert values(pair.owner.model(pair.task)) == values(expected)


def test_rounds_that_were_opened_stay_spent(tmp_path: Path) -> None:
    plan = dataclasses.replace(mixed_plan(), max_rounds=2)
    with Parties(tmp_path / "servers", plan) as pair:
        pair.start()
        pair.set_up()
        pair.round()
        task = restore(pair.owner, Backup.of_state(pair.state(0)), replace=True)
        assert task.plan.max_rounds == 1
        pair.go_on_with(task)
        pair.round()
        with pytest.raises(ParameterError, match=r"max_rounds = 1 rounds of the plan were opened"):
            restore(pair.owner, Backup.of_state(pair.state(1)))


def test_what_is_no_state_and_what_is_no_backup_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ParameterError, match="name a server's state folder"):
        Backup.of_state(tmp_path)
    with pytest.raises(ParameterError, match="cannot read"):
        Backup.read(tmp_path / "nothing")
    (tmp_path / "part").write_bytes(b"part of a file" * 9)
    with pytest.raises(DecodeError, match="part is not a backup of torchfsl, or is damaged: name"):
        Backup.read(tmp_path / "part")
    write_whole(tmp_path / "other", arrays.encode({"task": np.zeros(3, np.uint8)}, {}))
    with pytest.raises(DecodeError, match="expected the format 'torchfsl backup 1'"):
        Backup.read(tmp_path / "other")
    (tmp_path / "state.sqlite").write_bytes(b"no ledger, but long enough to be one" * 10)
    with pytest.raises(ParameterError, match="cannot read"):
        Backup.of_state(tmp_path)


def test_a_model_that_is_not_the_ledgers_is_refused(tmp_path: Path) -> None:
    with Parties(tmp_path / "servers") as pair:
        pair.start(0, 1)
        with pytest.raises(ParameterError, match="has no task yet"):
            Backup.of_state(pair.state(0))
        pair.set_up()
        backup = Backup.of_state(pair.state(0))
        with pytest.raises(ParameterError, match="there is no folder"):
            backup.write(tmp_path / "missing" / "backup")
        backup.write(tmp_path / "backup")
        damaged = bytearray((tmp_path / "backup").read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (tmp_path / "backup").write_bytes(damaged)
        with pytest.raises(DecodeError, match="damaged"):
            Backup.read(tmp_path / "backup")
        pair.round()
        models = pair.state(0) / "models"
        (older,) = models.glob("version-0-*.fsl")
        (models / "version-1.fsl").write_bytes(older.read_bytes())
        with pytest.raises(
            DecodeError, match=r"the model's digest differs from the one in state.sqlite"
        ):
            Backup.of_state(pair.state(0))


def test_a_task_that_begins_does_not_take_the_place_of_a_restored_one(tmp_path: Path) -> None:
    with Parties(tmp_path / "servers") as pair:
        pair.start()
        pair.set_up()
        pair.round()
        backup = Backup.of_state(pair.state(0))
        for party in (0, 1):
            pair.lose_state(party)
        restore(pair.owner, backup)
        restored = restore(pair.owner, backup)  # again, as after a restore that one server took
        with raises(ProtocolError, "another-task"):
            Pair.set_up(pair, replace=False)
        with pytest.raises(
            ProtocolError, match=r"restored from a backup, and this plan is another one"
        ):
            Pair.set_up(pair, replace=False)
        assert pair.owner.links.common_model() == (0, backup.model.digest().hex())
        pair.go_on_with(restored)
        pair.round()
        pair.close()


def test_a_server_without_a_task_is_named_where_the_other_keeps_its_task(tmp_path: Path) -> None:
    with Parties(tmp_path) as pair:
        pair.start()
        pair.set_up()
        pair.round()
        pair.lose_state(1)
        new = pair.owner.bind(pair._plan)
        told = "^server 1 has no task, and server 0 holds another task, with model version 1"
        with pytest.raises(ProtocolError, match=told):
            pair.owner.set_up(new, make_state(new.plan))


def test_a_restore_replaces_a_task_that_goes_on_only_with_its_flag_and_names_both_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "backup"
    with Parties(tmp_path / "servers") as pair:
        pair.start()
        pair.set_up()
        pair.round()
        assert main(["backup", str(file), "--state", str(pair.state(0))]) == 0
        command = ["restore", str(file), "--servers", ",".join(pair.urls), "--tls", str(pair.tls)]
        with pytest.raises(SystemExit):
            main(command)
        said = capsys.readouterr().err
        assert (
            "server 0 holds another task, with model version 1. To replace it, both operators set"
            in said
        )
        assert "the coordinator starts with replace=True or --replace" in said
        assert pair.owner.plan() == pair.plan
        assert main([*command, "--replace"]) == 0
        old, new = pair.plan.digest.hex(), pair.owner.plan().digest.hex()
        lines = capsys.readouterr().out.splitlines()
        assert lines[1:] == [
            f"under the new plan {new}",
            *(f"server {party} had plan {old}, which is replaced" for party in (0, 1)),
        ]


def test_clients_that_run_through_a_restore_end_with_one_line_and_join_when_started_again(
    tmp_path: Path,
) -> None:
    with Parties(tmp_path / "servers") as pair:
        pair.start()
        pair.set_up()
        pair.round()
        backup, update = Backup.of_state(pair.state(0)), pair.update(4)
        with pair.client(4) as running:
            for party in (0, 1):
                pair.lose_state(party)
            with raises(ProtocolError, "no-task"):
                running.model_version()
            pair.go_on_with(restore(pair.owner, backup))
            rows = wanted_rows(pair.plan, update)
            steps: dict[str, Callable[[], object]] = {
                "waits": lambda: running.wait_for_round(seconds=30),
                "opens": running.client.open_number,
                "fetches": lambda: running.fetch(rows),
            }
            for step in steps.values():
                with raises(ProtocolError, "another-plan"):
                    step()
        pair.open()
        pair.take_part([4, 5])
        assert pair.close().clients == (4, 5)

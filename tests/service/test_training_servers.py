"""Experiments through two server processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_tasks import small_config, small_task
from torchfsl.service.local import LoopbackServers
from training import experiment
from training.aggregations.remote import RemoteServers
from training.config import Config
from training.section_checks import ConfigError
from training.sections import Server


class Interrupted(Exception):
    """Stands for a killed process."""


class Silent:
    """A console that shows nothing."""

    def say(self, text: str) -> None: ...

    def start(self, finished: int, rounds: int) -> None: ...

    def stop(self) -> None: ...

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        return steps

    def round_done(self, record: Any) -> None: ...


def run(config: Config, folder: Path, *, resume: bool = False) -> dict[str, Any]:
    return experiment.run_experiment(config, folder, resume=resume, console=Silent())


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [Server("adam", 0.01), Server("sgd", 0.5, lr_decay=0.5, lr_decay_rounds=2, momentum=0.5)],
    ids=["adam", "falling momentum"],
)
def test_an_experiment_that_is_interrupted_inside_a_round_goes_on_and_ends_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: Server
) -> None:
    monkeypatch.setattr(experiment, "build_task", small_task)
    local = dataclasses.replace(small_config("din", "fsl"), rounds=5, checkpoint_every=2)
    local = dataclasses.replace(local, server=optimizer)
    wanted = run(local, tmp_path / "local")["model_sha256"]
    with LoopbackServers(tmp_path / "servers", clients=30) as servers:
        servers.start()
        config = dataclasses.replace(local, servers=",".join(servers.urls), tls=str(servers.tls))
        participant, joined = RemoteServers.participant, 0

        def interrupt(self: RemoteServers, client: int) -> Any:
            nonlocal joined
            joined += 1
            if joined == 3 * local.clients_per_round + 2:
                raise Interrupted
            return participant(self, client)

        with monkeypatch.context() as patch:
            patch.setattr(RemoteServers, "participant", interrupt)
            with pytest.raises(Interrupted):
                run(config, tmp_path / "remote")
        with pytest.raises(ConfigError, match="of another task is open at server 0"):
            run(config, tmp_path / "other")  # only the experiment itself ends what it left
        assert not (tmp_path / "other").exists()
        summary = run(config, tmp_path / "remote", resume=True)
        assert summary["model_sha256"] == wanted
        assert summary["exact_rounds"] == summary["rounds"] == 5
        (servers.tls / "client-29.pem").unlink()
        with pytest.raises(ConfigError, match=r"torchfsl certs .* --clients 0-29"):
            run(config, tmp_path / "more")
        assert not (tmp_path / "more").exists()


@pytest.mark.slow
def test_clients_that_drop_out_are_missed_by_servers_elsewhere_as_by_those_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "build_task", small_task)
    local = dataclasses.replace(small_config("din", "fsl"), rounds=2, dropouts=0.34)
    wanted = run(local, tmp_path / "local")
    with LoopbackServers(tmp_path / "servers", clients=30) as servers:
        servers.start()
        config = dataclasses.replace(local, servers=",".join(servers.urls), tls=str(servers.tls))
        summary = run(config, tmp_path / "remote")
    assert summary["model_sha256"] == wanted["model_sha256"]
    assert summary["exact_rounds"] == 2
    assert summary["dropouts_per_round"] == wanted["dropouts_per_round"] == 1
    assert summary["bytes_by_phase"].keys() == wanted["bytes_by_phase"].keys()

"""Sealing certificates: which keys clients, the owner and the servers take, over the network."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import make_state
from tests.support.network import FLOORS, Pair
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError
from torchfsl.fsl import costs
from torchfsl.service.client.links import Link, Links
from torchfsl.service.client.owner import Owner
from torchfsl.service.client.remote import fetch_plan
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import NotAllowed


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        yield started


class EndsTls(Links):
    """What ends TLS before a server: it may change what the server answers."""

    def __init__(self, pair: Pair, change: Callable[[int, dict[str, Any]], None]) -> None:
        self._pair, self._change = pair, change

    def both(self, ask: Callable[[Link], bytes]) -> tuple[bytes, bytes]:
        answers = [json.loads(answer) for answer in self._pair.owner.links.both(ask)]
        for party, answer in enumerate(answers):
            self._change(party, answer)
        return json.dumps(answers[0]).encode(), json.dumps(answers[1]).encode()


def own_certificates(pair: Pair, folder: Path) -> Path:
    """Sealing certificates of somebody who holds the clients' authority and none of a server."""
    folder.mkdir()
    shutil.copy(pair.tls / "ca-clients.pem", folder)
    shutil.copy(pair.tls / "ca-clients.key", folder)
    make_development_certificates(folder, [])
    return folder


def test_the_plan_of_a_task_names_the_certified_keys(pair: Pair) -> None:
    assert pair.plan.server_keys == pair.owner.server_keys()
    for party in (0, 1):
        key, _ = pair.files(f"server-{party}").seal_pair()
        assert key.public.hex() == pair.plan.server_keys[party]
        assert pair.files(f"server-{party}").seal_pair()[0].public == key.public


def test_rounds_of_sealed_seeds_open_exactly_and_survive_a_restart(pair: Pair) -> None:
    pair.open()
    pair.take_part([0, 1])
    pair.kill(0)
    pair.kill(1)
    pair.start()
    made = pair.take_part([2])
    opened = pair.close()
    assert opened.clients == (0, 1, 2)
    with pair.client(3) as connection:
        assert connection.plan == pair.plan
    assert len(made) == 1
    unsealed = dataclasses.replace(pair.plan, server_keys=())
    assert costs.client_bytes(pair.plan) - costs.client_bytes(unsealed) == 192


def test_swapped_keys_are_noticed_by_clients(pair: Pair, tmp_path: Path) -> None:
    """What ends TLS names a key of its own in the plan, with and without a certificate for it."""
    folder = own_certificates(pair, tmp_path / "own")
    key, certificate = TlsFiles.in_folder(folder, "server-1").seal_pair()

    def swap_key(_: int, answer: dict[str, Any]) -> None:
        keys = pair.plan.server_keys[0], key.public.hex()
        answer["plan"] = dataclasses.replace(pair.plan, server_keys=keys).to_json()

    def swap_both(party: int, answer: dict[str, Any]) -> None:
        swap_key(party, answer)
        if party == 1:
            answer["certificate"] = certificate.decode()

    files = pair.files("client-0")
    with pytest.raises(ProtocolError, match="names other keys"):
        fetch_plan(EndsTls(pair, swap_key), files, FLOORS)
    with pytest.raises(NotAllowed, match="not from the authority"):
        fetch_plan(EndsTls(pair, swap_both), files, FLOORS)
    honest, source = fetch_plan(EndsTls(pair, lambda party, answer: None), files, FLOORS)
    assert (honest, source) == (pair.plan, "delta")


def test_the_owner_takes_certified_keys_only(pair: Pair, tmp_path: Path) -> None:
    folder = own_certificates(pair, tmp_path / "own")
    files = dataclasses.replace(
        pair.files("owner"),
        server_authorities=(folder / "ca-server-0.pem", folder / "ca-server-1.pem"),
    )
    owner = Owner(pair.urls, pair.tls)
    owner.files = files  # as if these authorities were not the servers'
    with pytest.raises(NotAllowed, match="not from the authority"):
        owner.server_keys()
    owner.close()


def test_one_kind_of_certificate_is_not_taken_for_another(pair: Pair) -> None:
    authorities = pair.files("owner").authorities()
    for name, party in (("server-0", 0), ("server-1-seal", 0), ("client-0", 1)):
        with pytest.raises(NotAllowed, match="does not name torchfsl:server"):
            authorities.seal_key(party, (pair.tls / f"{name}.pem").read_bytes())
    with pytest.raises(NotAllowed, match="expected the URI of a party"):
        authorities.identify((pair.tls / "server-0-seal.pem").read_bytes())


@pytest.mark.parametrize(
    ("which", "text"),
    [("none", "the floor 'sealed'"), ("another", "server_keys of the plan expects")],
)
def test_servers_refuse_a_task_that_does_not_name_their_key(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, which: str, text: str
) -> None:
    keys: tuple[str, ...] = ()
    if which == "another":
        keys = pair.plan.server_keys[0], SealKey.generate().public.hex()
    monkeypatch.setattr(pair.owner, "server_keys", lambda: keys)
    task = pair.owner.bind(pair.plan)
    with pytest.raises((ParameterError, DecodeError), match=text):
        pair.owner.set_up(task, make_state(task.plan), replace=True)


def test_a_server_does_not_start_with_a_certificate_of_another_key(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        shutil.copy(pair.tls / "server-1-seal.key", pair.tls / "server-0-seal.key")
        with pytest.raises((RuntimeError, Error), match="the certificate of the key next to it"):
            pair.start(0)

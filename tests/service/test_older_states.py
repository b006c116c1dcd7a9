"""Servers go on from the state folders that an earlier commit left, with equal sums and models."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from tests.service.test_node import Duo, some_updates
from tests.support import older_states
from torchfsl.fsl.messages import Kind
from torchfsl.service import serving
from torchfsl.service.state import vault
from torchfsl.service.state.steps import STEPS

ARCHIVES = sorted((Path(__file__).parent / "older_states").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("state", ["open", "committed"])
def test_servers_finish_a_round_that_an_earlier_commit_began(
    state: str, archive: Path, tmp_path: Path
) -> None:
    authorities = older_states.unpack(archive, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    duo = older_states.restarted(tmp_path / state, authorities)
    assert duo.digests() == [expected["digest_before"]] * 2
    if state == "open":
        for party, message in older_states.waiting_messages(tmp_path):
            duo.send(party, message)
        steps = STEPS[1:]
    else:
        steps = STEPS[STEPS.index(Kind.SHARE_COMMIT) :]
    for kind in steps:
        duo.step(2, kind)
    for node in duo.nodes:
        opened, number = vault.decode_opened(node.storage.result_bytes())
        assert number == 2
        assert expected["sums"].keys() == opened.sums.keys()
        assert all(np.array_equal(opened.sums[n], v) for n, v in expected["sums"].items())
    assert duo.digests() == [expected["digest_after"]] * 2
    assert_serves_another_round(duo)


def assert_serves_another_round(duo: Duo) -> None:
    duo.play(3, some_updates(duo.plan, 3))
    assert len(set(duo.digests())) == 1
    assert [node.storage.model_version["version"] for node in duo.nodes] == [3, 3]


SETTINGS = """
party = 0
listen = "0.0.0.0:7000"
peer = "https://fsl.other.example:7000"
state = "state"
tls-cert = "server-0.pem"
tls-key = "server-0.key"
tls-server-ca-0 = "ca-server-0.pem"
tls-server-ca-1 = "ca-server-1.pem"
tls-clients-ca = "ca-clients.pem"
deny = "deny"
metrics = "127.0.0.1:9100"
grpc-health = "127.0.0.1:9101"
max-fetches = 15
min-clients = 100
engine = "ray://10.0.0.5:10001"
shards = 4
replace = "owner"
log-level = "warning"
witness = "witness"
[floors]
max_rounds = 1000
lanes = ["none", "count"]
[limits]
bytes_in_flight = 268435457
[storage]
reserve_bytes = 268435457
"""


def test_a_settings_file_of_that_commit_means_what_it_meant(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(SETTINGS)
    parser = argparse.ArgumentParser()
    serving.add_options(parser)
    options = parser.parse_args(["--config", str(tmp_path / "serve.toml")])
    settings, level = serving.read_settings(options)
    assert level == "warning"
    assert (settings.party, settings.listen) == (0, "0.0.0.0:7000")
    assert (settings.peer, settings.state) == ("https://fsl.other.example:7000", Path("state"))
    assert (settings.metrics, settings.grpc_health) == ("127.0.0.1:9100", "127.0.0.1:9101")
    assert (settings.deny, settings.witness) == (Path("deny"), Path("witness"))
    assert settings.tls.server_authorities == (Path("ca-server-0.pem"), Path("ca-server-1.pem"))
    assert (settings.engine.url, settings.engine.shards) == ("ray://10.0.0.5:10001", 4)
    assert (settings.node.max_fetches, settings.node.may_replace) == (15, True)
    assert settings.node.reserve_bytes == settings.limits.bytes_in_flight == 268435457
    floors = settings.node.floors
    assert (floors.min_clients, floors.max_rounds) == (100, 1000)
    assert set(floors.lanes) == {"none", "count"}

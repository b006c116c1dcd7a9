"""A durable server halts, or counts a scaled sum, once and for good, whenever it is killed."""

from __future__ import annotations

import dataclasses
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from scripts.parties import random_update
from tests.service.test_node import Duo, authorities
from tests.support import odd_servers
from tests.support.federation import make_state, mixed_plan
from tests.support.network import Pair, wait_until, with_odd_server
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.norms import LIED
from torchfsl.fsl.server.server import Server
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.state import vault
from torchfsl.service.state.steps import StoredState
from torchfsl.service.state_checks import check_task
from torchfsl.service.task import Task, bind_plan, encode_task

assert authorities  # a fixture

BOUNDED = dataclasses.replace(mixed_plan(), l2_bound=1 << 12, sum_bound=True)
PROVEN = dataclasses.replace(BOUNDED, proofs="norm")


def updates(plan: Plan, number: int) -> dict[int, Any]:
    return {client: random_update(plan, [number, client], 9) for client in range(3)}


def play(duo: Duo, number: int, liar: pytest.MonkeyPatch, *, lies: bool) -> None:
    """A round in which server 0 adds 2**16 to a value, if it lies."""
    honest = odd_servers._commit

    def commit(server: Server, **given: Any) -> bytes:
        return (odd_servers.add if lies and server.party == 0 else honest)(server, **given)

    with liar.context() as patch:
        patch.setattr(Server, "commit", commit)
        duo.play(number, updates(duo.plan, number))


@pytest.mark.parametrize("party", [0, 1])
def test_a_sum_that_cannot_be_halts_both_servers_whenever_one_is_killed(
    party: int, authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = Duo(tmp_path, authorities, PROVEN)
    before, number = duo.digests(), 0
    duo.after_event = lambda: duo.crash(party)
    with pytest.raises(ProtocolError, match=LIED):
        play(duo, 1, monkeypatch, lies=True)
    duo.after_event = lambda: None
    for node in duo.nodes:
        if not node.storage.halted:  # the other one got no further in this test
            with pytest.raises(ProtocolError, match=LIED):
                finish(duo, node)
    for number in (0, 1):
        duo.crash(number)
        node = duo.nodes[number]
        assert LIED in node.storage.halted
        row = node.storage.ledger.last_round()
        assert row is not None
        assert row.state is StoredState.UNOPENED
        assert LIED in row.reason
        assert "counts as opened" in row.reason
        with pytest.raises(ParameterError, match=f"halted: {LIED}.*the page 'Incidents'"):
            check_task(node.storage.folder)
        with pytest.raises(ProtocolError, match="halted"):
            node.begin(2)
        with pytest.raises(ProtocolError, match="no round has an aggregate"):
            node.storage.result_bytes()
    assert duo.digests() == before
    # The way on: a new task from the last model, which needs no leave to replace anything.
    plan = bind_plan(PROVEN, authorities, bytes(15) + b"\1")
    for node in duo.nodes:
        node.set_up(encode_task(Task(plan, bytes(15) + b"\1"), make_state(plan)))
        assert not node.storage.halted
    duo.plan = plan
    play(duo, 1, monkeypatch, lies=False)
    assert len(set(duo.digests())) == 1


def finish(duo: Duo, node: Node) -> None:
    """Let a server hear the other one's share."""
    other = duo.nodes[1 - node.party]
    said = other.transcript.said(1, Kind.SHARE)
    assert said is not None
    node.exchange(1, Kind.SHARE, said)
    node.count(1, Kind.SHARE)


@pytest.mark.parametrize("party", [0, 1])
def test_a_scaled_sum_is_applied_and_counted_once_whenever_a_server_is_killed(
    party: int, authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = Duo(tmp_path, authorities, BOUNDED)
    duo.after_event = lambda: duo.crash(party)
    play(duo, 1, monkeypatch, lies=False)
    assert [node.storage.sums_scaled for node in duo.nodes] == [0, 0]
    play(duo, 2, monkeypatch, lies=True)
    assert len(set(duo.digests())) == 1
    for number in (0, 1):
        duo.crash(number)
        storage = duo.nodes[number].storage
        opened, _ = vault.decode_opened(storage.result_bytes())
        assert set(opened.scaled) == {s.name for s in BOUNDED.segments}
        assert all(0.1 < left < 0.2 for left in opened.scaled.values())
        assert storage.sums_scaled == 1
        assert check_task(storage.folder) == "goes on; aggregates beyond their bound: 1"
        row = storage.ledger.last_round()
        assert row is not None
        assert row.state is StoredState.APPLIED
        assert "exceeded its bound: table was scaled by 0.1" in row.reason
        assert not storage.halted


def page(pair: Pair, party: int, path: str = "metrics") -> str:
    url = f"http://127.0.0.1:{pair.metrics_ports[party]}/{path}"
    text: str = urllib.request.urlopen(url, timeout=60).read().decode()
    return text


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients stay within the bound."""
    monkeypatch.setattr(
        Pair, "update", lambda pair, client, _: random_update(pair.plan, [client, pair.number], 9)
    )


@pytest.mark.usefixtures("within")
def test_operators_and_the_owner_hear_of_a_server_that_lied(tmp_path: Path) -> None:
    with with_odd_server(tmp_path, 0, "add", PROVEN) as pair:
        assert "torchfsl_sum_beyond_bound 0.0" in page(pair, 1)
        pair.take_part([0, 1, 2])
        with pytest.raises(ProtocolError, match=LIED):
            pair.close()
        wait_until(lambda: "torchfsl_sum_beyond_bound 1.0" in page(pair, 1))
        metrics = page(pair, 1)
        assert "torchfsl_halted 1.0" in metrics
        assert "torchfsl_sums_scaled_total 0.0" in metrics
        assert LIED in page(pair, 1, "")
        with pytest.raises(ProtocolError, match=f"halted: {LIED}"):
            pair.open()
        version = pair.owner.links.info(1)["model"]
        assert version["version"] == 0
        pair.set_up(replace=False)  # the way on: a new task, of which no operator has to be asked
        pair.open()


@pytest.mark.usefixtures("within")
def test_operators_and_the_owner_hear_of_a_sum_that_was_scaled(tmp_path: Path) -> None:
    with with_odd_server(tmp_path, 1, "add", BOUNDED) as pair:
        pair.take_part([0, 1, 2])
        assert set(pair.close().scaled) == {s.name for s in BOUNDED.segments}
        wait_until(lambda: "torchfsl_sums_scaled_total 1.0" in page(pair, 0))
        assert "torchfsl_sum_beyond_bound 0.0" in page(pair, 0)
        assert "the sum exceeded its bound" in page(pair, 0, "")
        pair.owner.model(pair.task)

"""The round machine of a server, and what a hostile or broken peer can do to it: nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.errors import raises
from tests.support.federation import (
    HEADER,
    Wire,
    assert_exact,
    dense_plan,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    opened_servers,
    play_round,
    submit,
    update_of,
)
from tests.support.reference import plaintext
from torchfsl.crypto import kdf
from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState, Step
from torchfsl.submodel.server_model import ServerModel

HONEST, VICTIM = 1001, 4
MIXED = mixed_plan()


def steps(server: Server) -> dict[str, Callable[[], Any]]:
    noise = bytes(64)
    return {
        "open_round": lambda: server.open_round(99),
        "start": lambda: server.start(noise),
        "receive": lambda: server.receive(noise),
        "reply": lambda: server.reply(Kind.MODEL, 1, 0),
        "close_round": server.close_round,
        "agree": lambda: server.agree(noise),
        "verify": lambda: server.verify(noise),
        "commit": server.commit,
        "reveal": lambda: server.reveal(noise),
        "open": lambda: server.open(noise),
        "apply": lambda: server.apply(None),  # type: ignore[arg-type]
    }


def assert_only(server: Server, state: RoundState, allowed: set[str]) -> None:
    """Every other step is refused and leaves the state alone."""
    assert server.state is state
    for name, step in steps(server).items():
        if name not in allowed:
            with raises(ProtocolError, "round-open" if state is RoundState.OPEN else "wrong-step"):
                step()
            assert server.state is state


def test_every_step_is_refused_out_of_turn_and_a_round_opens_once() -> None:
    servers = make_servers(MIXED)
    one, two = servers
    assert_only(one, RoundState.IDLE, {"open_round", "apply"})
    states = [server.open_round(1) for server in servers]
    assert_only(one, RoundState.OPENING, {"start"})
    one.start(states[1])
    two.start(states[0])
    assert_only(one, RoundState.OPEN, {"receive", "reply", "close_round"})
    update = update_of(MIXED, 0)
    submit(Wire(servers), VICTIM, 1, update)
    sets = [server.close_round() for server in servers]
    assert_only(one, RoundState.CLOSED, {"agree"})
    verdicts = [one.agree(sets[1]), two.agree(sets[0])]
    assert_only(one, RoundState.AGREED, {"verify"})
    one.verify(verdicts[1])
    two.verify(verdicts[0])
    assert_only(one, RoundState.VERIFIED, {"commit"})
    commitments = [server.commit() for server in servers]
    assert_only(one, RoundState.COMMITTED, {"reveal"})
    shares = [one.reveal(commitments[1]), two.reveal(commitments[0])]
    assert_only(one, RoundState.REVEALED, {"open"})
    opened = one.open(shares[1])
    assert_exact(MIXED, opened, [plaintext.Contribution(update)])
    assert_only(one, RoundState.IDLE, {"open_round", "apply"})
    one.apply(opened)
    for round_number in (1, 0):
        with raises(ProtocolError, "round-number-used"):
            one.open_round(round_number)
    with raises(ProtocolError, "round-number-reserved"):
        one.open_round((1 << 64) - 1)
    one.open_round(2)


def test_every_step_is_a_method_and_has_a_line_in_the_table() -> None:
    text = inspect.getdoc(Step) or ""
    for step in Step:
        assert callable(getattr(Server, step.method))
        line = re.search(rf"^ +{step.method} .* ([A-Z]+) +([A-Z]+)$", text, re.MULTILINE)
        assert line is not None, step.method
        assert line.groups() == (step.before.name, step.after.name)


@pytest.mark.parametrize("number", [2**64, -5])
def test_a_round_number_outside_64_bits_spoils_nothing(number: int) -> None:
    servers = make_servers(MIXED)
    with pytest.raises((ParameterError, ProtocolError)):
        servers[0].open_round(number)
    play_round(servers, 1, {VICTIM: update_of(MIXED, 0)})


def test_below_min_clients_a_round_closes_unopened_and_the_next_one_is_clean() -> None:
    plan = mixed_plan(min_clients=2)
    servers = make_servers(plan)
    before = servers[0].model.digest()
    begin_round(servers, 1)
    submit(Wire(servers), VICTIM, 1, update_of(plan, 0))
    with pytest.raises(ProtocolError, match="acceptable reports: 1, the plan wants 2"):
        finish_round(servers)
    assert [server.state for server in servers] == [RoundState.IDLE] * 2
    assert servers[0].model.digest() == servers[1].model.digest() == before
    updates = {client: update_of(plan, client) for client in (VICTIM, HONEST)}
    opened, contributions = play_round(servers, 2, updates)
    assert_exact(plan, opened, contributions)


ELSEWHERE = (RoundState.HALTED, RoundState.COUNTED, RoundState.AUDITING)


@pytest.mark.parametrize("state", [s for s in RoundState if s not in ELSEWHERE])
def test_an_abandoned_round_leaves_nothing_behind(state: RoundState) -> None:
    servers = make_servers(MIXED)
    walk = {
        RoundState.IDLE: 0, RoundState.OPENING: 1, RoundState.OPEN: 2, RoundState.CLOSED: 3,
        RoundState.AGREED: 4, RoundState.VERIFIED: 5, RoundState.COMMITTED: 6,
        RoundState.REVEALED: 7,
    }[state]  # fmt: skip
    inbox: list[Any] = [None, None]
    moves: list[Callable[[Server, Any], Any]] = [
        lambda server, _: server.open_round(1),
        lambda server, data: server.start(data),
        lambda server, _: server.close_round(),
        lambda server, data: server.agree(data),
        lambda server, data: server.verify(data),
        lambda server, _: server.commit(),
        lambda server, data: server.reveal(data),
    ]
    for number, move in enumerate(moves[:walk]):
        if number == 2:
            submit(Wire(servers), VICTIM, 1, update_of(MIXED, 0))
        inbox = [move(server, inbox[1 - party]) for party, server in enumerate(servers)]
    assert [server.state for server in servers] == [state] * 2
    for server in servers:
        server.abandon_round()
        assert server.state is RoundState.IDLE
    update = update_of(MIXED, 1)
    opened, contributions = play_round(servers, 2, {HONEST: update})
    assert_exact(MIXED, opened, contributions)


def test_after_a_round_a_server_holds_no_report() -> None:
    servers = make_servers(MIXED)
    play_round(servers, 1, {VICTIM: update_of(MIXED, 0)})
    for server in servers:
        assert not server.reports._reports
        assert not server.reports.sessions
        assert server._opening.share == server._opening.salt == b""


@pytest.mark.parametrize("kind", [Kind.TREES, Kind.REPORT, Kind.SHARE, Kind.REPORT_SET])
def test_a_client_can_ask_for_models_and_answers_only(kind: Kind) -> None:
    servers = opened_servers(MIXED)
    with pytest.raises(RejectedSubmission, match="a client cannot ask for"):
        servers[0].reply(kind, 1, 0)


def test_answers_are_for_known_clients_of_the_open_round() -> None:
    servers = opened_servers(MIXED, 3)
    for server in servers:
        with raises(RejectedSubmission, "no-open-round"):
            server.reply(Kind.MODEL, 2, VICTIM)
        with raises(RejectedSubmission, "no-accepted-keys"):
            server.reply(Kind.ANSWER, 3, VICTIM)


def test_asking_for_answers_does_not_fill_the_round() -> None:
    """Clients that never sent trees take no place from those that do."""
    plan = make_plan(
        make_segment("t", "rows", (9, 2), k_max=2, tau=2, theta=3, retrieve=True), max_clients=2
    )
    servers = opened_servers(plan)
    for stranger in range(100, 120):
        for server in servers:
            with pytest.raises(RejectedSubmission):
                server.reply(Kind.ANSWER, 1, stranger)
    update = update_of(plan, 0)
    submit(Wire(servers), VICTIM, 1, update)
    assert_exact(plan, finish_round(servers), [plaintext.Contribution(update)])


def exchange(
    servers: tuple[Server, Server], alter: Callable[[Kind, bytes], bytes]
) -> tuple[Any, ...]:
    """A closed round up to the opened sums; `alter` sees what server 1 sends to server 0."""
    one, two = servers
    sets = one.close_round(), two.close_round()
    verdicts = one.agree(alter(Kind.REPORT_SET, sets[1])), two.agree(sets[0])
    one.verify(alter(Kind.VERDICTS, verdicts[1]))
    two.verify(verdicts[0])
    commitments = one.commit(), two.commit()
    shares = one.reveal(alter(Kind.SHARE_COMMIT, commitments[1])), two.reveal(commitments[0])
    return one.open(alter(Kind.SHARE, shares[1])), two.open(shares[0])


PEER_KINDS = [Kind.REPORT_SET, Kind.VERDICTS, Kind.SHARE_COMMIT, Kind.SHARE]


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 64])
@pytest.mark.parametrize("kind", PEER_KINDS, ids=lambda kind: kind.name)
def test_one_altered_byte_between_the_servers_opens_nothing(
    kind: Kind, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kdf, "CHUNK_BYTES", chunk_bytes)
    size = HEADER + {Kind.REPORT_SET: 112, Kind.VERDICTS: 32}.get(
        kind, messages.body_bytes(MIXED, kind) or 0
    )
    inside = range(HEADER, size, max((size - HEADER) // 12, 1))
    for place in (*range(0, 16), *range(24, HEADER, 9), *inside, size - 1):

        def alter(seen: Kind, data: bytes, place: int = place) -> bytes:
            changed = bytearray(data)
            if seen is kind:
                changed[place] ^= 1
            return bytes(changed)

        servers = opened_servers(mixed_plan(min_clients=1))
        before = servers[0].model.digest()
        for client in (VICTIM, HONEST):
            submit(Wire(servers), client, 1, update_of(MIXED, client))
        with pytest.raises((ProtocolError, DecodeError)):
            exchange(servers, alter)
        for server in servers:
            server.abandon_round()
            assert server.state is RoundState.IDLE
            assert server.model.digest() == before


def test_a_server_cannot_answer_with_its_peers_own_share() -> None:
    """A commitment names its server."""
    one, two = servers = opened_servers(mixed_plan(min_clients=1))
    submit(Wire(servers), VICTIM, 1, update_of(MIXED, 0))
    sets = one.close_round(), two.close_round()
    verdicts = one.agree(sets[1]), two.agree(sets[0])
    one.verify(verdicts[1])
    two.verify(verdicts[0])

    def reflected(message: bytes) -> bytes:
        changed = bytearray(message)
        changed[7] ^= 1  # the addressee
        return bytes(changed)

    share = one.reveal(reflected(one.commit()))
    with raises(ProtocolError, "commitment-mismatch"):
        one.open(reflected(share))


def test_a_share_that_does_not_fit_its_commitment_is_refused_and_nothing_is_applied() -> None:
    servers = opened_servers(MIXED)
    before = servers[0].model.digest()
    submit(Wire(servers), VICTIM, 1, update_of(MIXED, 0))

    def alter(kind: Kind, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if kind is Kind.SHARE else data

    with raises(ProtocolError, "commitment-mismatch"):
        exchange(servers, alter)
    assert servers[0].state is RoundState.IDLE
    assert servers[0].model.digest() == before
    for server in servers:
        server.abandon_round()
    play_round(servers, 2, {VICTIM: update_of(MIXED, 0)})


def test_a_server_reveals_nothing_before_the_peer_has_committed() -> None:
    servers = opened_servers(MIXED)
    submit(Wire(servers), VICTIM, 1, update_of(MIXED, 0))
    one, two = servers
    sets = one.close_round(), two.close_round()
    verdicts = one.agree(sets[1]), two.agree(sets[0])
    one.verify(verdicts[1])
    two.verify(verdicts[0])
    own = one.commit()
    with pytest.raises(ProtocolError, match="another server or round"):
        one.reveal(own)  # its own commitment is addressed to the peer
    assert one.state is RoundState.COMMITTED
    one.reveal(two.commit())


def test_commitments_to_equal_shares_differ_and_hide_them() -> None:
    """Salted: a peer cannot test guesses of the share against the commitment."""
    commitments = set()
    for _ in range(2):
        servers = opened_servers(MIXED)
        for server in servers:
            server._opening.salt = b""
        submit(Wire(servers), VICTIM, 1, update_of(MIXED, 0))
        one, two = servers
        sets = one.close_round(), two.close_round()
        verdicts = one.agree(sets[1]), two.agree(sets[0])
        one.verify(verdicts[1])
        two.verify(verdicts[0])
        commitments |= {one.commit(), two.commit()}
        assert len(one._opening.salt) == 32
        assert one._opening.salt != two._opening.salt
    assert len(commitments) == 4


def test_the_set_is_the_intersection_when_a_server_hides_a_client() -> None:
    """Server 1 leaves a client out of its list: both go on without it or not at all."""
    servers = opened_servers(mixed_plan())
    for client in (VICTIM, HONEST):
        submit(Wire(servers), client, 1, update_of(MIXED, client))
    one, two = servers
    sets = one.close_round(), two.close_round()
    entry = 40
    shortened = bytearray(sets[1][: len(sets[1]) - entry])
    shortened[24:32] = (len(shortened) - HEADER).to_bytes(8, "little")
    verdicts = one.agree(bytes(shortened)), two.agree(sets[0])
    with raises(ProtocolError, "report-sets-differ"):
        two.verify(verdicts[0])
    with raises(ProtocolError, "report-sets-differ"):
        one.verify(verdicts[1])


def test_servers_with_different_models_halt_and_answer_nothing() -> None:
    one = make_servers(MIXED, seed=1)[0]
    two = make_servers(MIXED, seed=2)[1]
    with raises(ProtocolError, "models-differ"):
        begin_round((one, two), 1)
    assert one.state is RoundState.HALTED
    one.abandon_round()
    assert_only(one, RoundState.HALTED, set())


@pytest.mark.parametrize("tensor", ["table.1", "bias.1", "few.0"])
def test_one_differing_bit_of_the_models_halts_both_servers(tensor: str) -> None:
    servers = make_servers(MIXED)
    value = servers[1].model.state[tensor]
    value.reshape(-1).view(np.uint8)[-1] ^= 1
    with raises(ProtocolError, "models-differ"):
        begin_round(servers, 1)


def test_servers_of_different_plans_do_not_talk() -> None:
    one, two = make_servers(MIXED)[0], make_servers(mixed_plan(min_clients=2))[1]
    one.open_round(1)
    with raises(DecodeError, "another-plan"):
        one.start(two.open_round(1))


def test_a_model_that_does_not_fit_the_plan_is_refused() -> None:
    for state in ({}, {"bias.0": np.zeros(4, np.float32)}, {"bias.0": np.zeros(5, np.float64)}):
        with raises(ParameterError, "model-does-not-fit"):
            Server(0, plan=dense_plan(), model=ServerModel(state))


def test_every_refusal_is_one_of_our_errors() -> None:
    for error in (DecodeError, RejectedSubmission, ProtocolError, ParameterError):
        assert issubclass(error, Error)

"""A server that alters its answer to a retrieval, with authentication off and on (protocol 4e).

The client does what any client does: it trains on the rows that it got, here by a step of weight
decay. Flipping the top exponent bit of one value makes that row huge, and the opened sum shows
where. Server 0 attacks one bin after the other, so it reads the whole selection of its victim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.adversary import lie_in_answers
from tests.support.federation import Wire, make_plan, make_segment, make_servers
from tests.support.reference import plaintext
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.round import ClientRound
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import RawSegment, quantise

ROWS = np.array([3, 11, 17])
TOP_EXPONENT_BIT = 0x40


@functools.cache
def plan_of(authenticated: bool) -> Plan:
    return make_plan(
        make_segment("t", "rows", (24, 2), k_max=3, tau=2, theta=4, stash=1, retrieve=True,
                     secure=authenticated),
        make_segment("bias", "dense", (3,)),
    )  # fmt: skip


def small_servers(plan: Plan) -> tuple[Server, Server]:
    """Rows below 1, so that the top exponent bit makes a value huge and not infinite."""
    servers = make_servers(plan)
    for server in servers:
        server.model.state["t.0"] *= np.float32(0.1)
    return servers


def occupied(plan: Plan) -> dict[int, int]:
    """Trees that hold a row of the victim, and the row: placement depends on public numbers."""
    segment = plan.segments[0]
    table = plan.permutations(segment)
    placed = cuckoo.place(table, ROWS, segment.num_bins, segment.theta, segment.stash)
    return {int(t): int(ROWS[placed.item[t]]) for t in np.flatnonzero(placed.item >= 0)}


Alter = Callable[[bytearray], None]


def flip_in_answer(tree: int, byte: int, mask: int) -> Alter:
    """Server 0 flips bits of its answer for one tree; each row has eight bytes."""

    def alter(answer: bytearray) -> None:
        answer[8 * tree + byte] ^= mask

    return alter


def honest_answer(answer: bytearray) -> None:
    """What an honest server does to it."""


def train_and_submit(plan: Plan, session: ClientRound) -> None:
    """Weight decay on the rows that came; whatever fails in here sends dummies."""
    with session:
        indices, rows = session.retrieve()["t"]
        raw = {
            "t": RawSegment(indices, -0.01 * rows.astype(np.float64)),
            "bias": RawSegment(None, np.full((3, 1), 0.5)),
        }
        update, _, _ = quantise(plan, raw)
        session.submit(update)


def play(plan: Plan, alter: Alter) -> tuple[Opened, list[Any], type[Exception] | None]:
    """The victim in a round with one more client; the opened sum and the victim's traffic."""
    servers = small_servers(plan)
    begin_round(servers, 1)
    lie_in_answers(servers[0], 0, alter)
    wire, failure = Wire(servers), None
    try:
        train_and_submit(plan, Client(plan, wire, client_id=0).start_round(1, indices={"t": ROWS}))
    except (ProtocolError, ParameterError) as error:
        failure = type(error)
    other = Client(plan, servers, client_id=1).start_round(1, indices={"t": [5, 20]})
    train_and_submit(plan, other)
    return finish_round(servers), wire.shape(), failure


def test_without_authentication_altered_answers_read_every_selected_row() -> None:
    plan = plan_of(False)
    honest, traffic, _ = play(plan, honest_answer)
    found: dict[int, int] = {}
    for tree in range(plan.segments[0].num_trees):
        opened, shape, failure = play(plan, flip_in_answer(tree, 3, TOP_EXPONENT_BIT))
        assert failure is None
        assert shape == traffic
        huge = np.flatnonzero(np.abs(opened.sums["t"][:, 0]) >= plan.encoding.q_max - 2**10)
        if len(huge):
            found[tree] = int(huge[0])
        else:
            assert np.array_equal(opened.sums["t"], honest.sums["t"])
    assert found == occupied(plan)
    assert sorted(found.values()) == ROWS.tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_without_authentication_a_client_that_fails_shows_which_bins_are_occupied() -> None:
    """All exponent bits set: not a number. The dummies of the failed client thin out the sum."""
    plan = plan_of(False)
    state = small_servers(plan)[0].model.state["t.0"]
    honest, _, _ = play(plan, honest_answer)
    found = []
    for tree in range(plan.segments[0].num_trees):
        row = occupied(plan).get(tree, 0)
        exponent = int(state[row, :1].view(np.uint32)[0]) >> 16 & 0x7F80  # known to the server

        def alter(answer: bytearray, tree: int = tree, mask: int = exponent ^ 0x7F80) -> None:
            flip_in_answer(tree, 3, mask >> 8)(answer)
            flip_in_answer(tree, 2, mask & 0xFF)(answer)

        opened, _, failure = play(plan, alter)
        if not np.array_equal(opened.sums["bias"], honest.sums["bias"]):
            found.append(tree)
            assert failure is ProtocolError
    assert found == sorted(occupied(plan))


@pytest.mark.parametrize(("byte", "mask"), [(3, TOP_EXPONENT_BIT), (0, 1)])
def test_with_authentication_alterations_are_refused_in_occupied_and_dummy_bins_alike(
    byte: int, mask: int
) -> None:
    plan = plan_of(True)
    _, traffic, failure = play(plan, honest_answer)
    assert failure is None
    report = (Kind.REPORT, Kind.REPORT_COMMIT, Kind.REPORT_RELAY)
    withdrawn = [event for event in traffic if event[1] not in report]
    results = []
    for tree in range(0, plan.segments[0].num_trees, 1 if byte else 3):
        opened, shape, failure = play(plan, flip_in_answer(tree, byte, mask))
        assert failure is ProtocolError
        assert shape == withdrawn, "a client that noticed sends nothing more"
        results.append((opened.sums["t"].tobytes(), opened.sums["bias"].tobytes()))
    assert len(set(results)) == 1, "the sum is the same whichever bin was altered"
    assert set(occupied(plan)) != set(range(plan.segments[0].num_trees))


def test_with_authentication_the_error_does_not_say_where() -> None:
    plan, texts = plan_of(True), set()
    for tree in range(plan.segments[0].num_trees):
        servers = small_servers(plan)
        begin_round(servers, 1)
        lie_in_answers(servers[0], 0, flip_in_answer(tree, 0, 1))
        session = Client(plan, servers, client_id=0).start_round(1, indices={"t": ROWS})
        with pytest.raises(ProtocolError) as caught:
            session.retrieve()
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_server_cannot_mend_the_tag_of_an_altered_answer() -> None:
    """It knows one half of the key of each tag: tags made from that half alone do not fit."""
    plan = plan_of(True)
    segment = plan.segments[0]
    rows = segment.num_trees * segment.row_bytes
    rng = np.random.default_rng(0)
    for _ in range(20):
        offset = rng.integers(256, size=16 * segment.num_trees, dtype=np.uint8)

        def alter(answer: bytearray, offset: Any = offset) -> None:
            data = np.frombuffer(answer, np.uint8)
            data[0] ^= 1
            data[rows : rows + len(offset)] ^= offset

        _, _, failure = play(plan, alter)
        assert failure is ProtocolError


def test_a_server_with_another_row_than_its_digest_says_is_noticed_by_every_client() -> None:
    """It shows the common digest and answers from an altered table."""
    for authenticated in (False, True):
        plan = plan_of(authenticated)
        noticed = []
        for row in range(0, 24, 4):
            servers = small_servers(plan)
            begin_round(servers, 1)
            servers[0].model.state["t.0"][row] += 1
            session = Client(plan, servers, client_id=0).start_round(1, indices={"t": ROWS})
            try:
                session.retrieve()
                noticed.append(False)
            except ProtocolError:
                noticed.append(True)
        assert all(noticed) == authenticated
        assert any(noticed) == authenticated


def test_the_sum_after_an_altered_answer_is_that_of_the_other_clients() -> None:
    plan = plan_of(True)
    opened, _, _ = play(plan, flip_in_answer(0, 0, 1))
    model = small_servers(plan)[0].model.state["t.0"]
    raw = {
        "t": RawSegment(np.array([5, 20]), -0.01 * model[[5, 20]].astype(np.float64)),
        "bias": RawSegment(None, np.full((3, 1), 0.5)),
    }
    expected = plaintext.sums(plan, [plaintext.Contribution(quantise(plan, raw)[0])])
    assert all(np.array_equal(opened.sums[name], expected[name]) for name in expected)

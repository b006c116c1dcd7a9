"""Rounds of one server: exact under every pattern of dropouts, or nothing opened."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.sesa.small import (
    make_model,
    make_plan,
    plain_sums,
    random_update,
    same_sums,
    widths_of,
)
from torchfsl.crypto import field
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.sesa import Client, OneServer, Server, SesaPlan, Width, build_plan, run_round
from torchfsl.sesa.coding import open_sums
from torchfsl.sesa.explain import cost, full_cohort
from torchfsl.sesa.messages import HEADER_BYTES, Kind
from torchfsl.sesa.round import InProcess, begin_round, finish_round
from torchfsl.sesa.server import RoundState
from torchfsl.submodel.aggregation import Aggregation
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update
from training.aggregations.audit import Audit


def updates_of(plan: SesaPlan, widths: dict[int, int], seed: int = 1) -> dict[int, Update]:
    return {c: random_update(plan, width, 1000 * seed + c) for c, width in widths.items()}


def wanted_by(plan: SesaPlan, update: Update) -> dict[str, Any]:
    return {segment.name: update[segment.name].indices for segment in plan.asked_early}


@pytest.mark.parametrize("seed", range(200))
def test_random_rounds_are_exact(seed: int) -> None:
    """N up to 40, K in 1, 4, 9, 16, any T and D that fit, own sets, signed values up to q_max."""
    draw = random.Random(seed)
    submodels = draw.choice([1, 4, 9, 16])
    collusion = draw.randint(1, 8)
    fewest = submodels + collusion
    num_clients = draw.randint(fewest, 40 if seed % 20 == 0 else min(40, fewest + 4))
    wide = draw.randint(1, num_clients - 1)
    plan = make_plan(
        submodels=submodels,
        size=draw.randint(1, 500 // submodels),
        dense=draw.choice([0, 1, 17]),
        owned=(submodels, draw.randint(1, submodels)),
        clients=(wide, num_clients - wide),
        collusion=collusion,
        retrieve=draw.random() < 0.5,
    )
    widths = widths_of(plan)
    updates = updates_of(plan, widths, seed)
    gone = draw.sample(sorted(widths), draw.randint(0, num_clients - submodels - collusion))
    given = {c: None if c in gone else update for c, update in updates.items()}
    server = Server(plan=plan, model=make_model(plan))
    opened = run_round(server, given, widths, round_number=seed)
    present = [c for c in sorted(widths) if c not in gone]
    assert same_sums(opened.sums, plain_sums(plan, [updates[c] for c in present]))
    assert opened.clients == tuple(present)
    assert opened.num_clients == opened.total_weight == len(present)
    assert server.state is RoundState.IDLE


@pytest.mark.parametrize("first", range(4))
def test_every_pattern_of_dropouts_is_exact_or_opens_nothing(first: int) -> None:
    """Each of five clients stays (0), or is silent after HELLO (1), SHARES (2) or MASKED (3)."""
    plan = make_plan(clients=(2, 3), size=2, dense=1, collusion=1)  # opens from K + T = 3
    widths = widths_of(plan)
    updates = updates_of(plan, widths)
    for rest in itertools.product(range(4), repeat=4):
        last = dict(zip(widths, (first, *rest), strict=True))
        model = make_model(plan)
        before = model.digest()
        aggregation = OneServer(plan, model, widths)
        aggregation.open_round(1, widths)
        for client, update in updates.items():
            if last[client] != 1:
                participant = aggregation.participant(client)
                session = participant.start_round(1, indices=wanted_by(plan, update))
            if last[client] in (0, 3):
                session.submit(update)
            if last[client] == 3:
                aggregation.drop(client)
        survivors = [c for c in widths if last[c] in (0, 3)]
        if list(last.values()).count(0) < 3:
            with pytest.raises(ProtocolError, match=r"expected at most|more answers of survivors"):
                aggregation.close_round()
            assert model.digest() == before
        else:
            opened = aggregation.close_round().opened
            assert same_sums(opened.sums, plain_sums(plan, [updates[c] for c in survivors]))
            assert opened.clients == tuple(survivors)
            assert model.digest() != before
        aggregation.open_round(2, widths)  # ready again, whatever happened


def test_every_set_of_enough_answers_opens_the_same() -> None:
    plan = make_plan(submodels=2, owned=(2, 1), clients=(4, 4), collusion=2)
    widths = widths_of(plan)
    updates = updates_of(plan, widths)
    answers: list[tuple[int, field.Words]] = []
    server = Server(plan=plan, model=make_model(plan))
    link = InProcess(server)
    clients = [Client(plan, link, client_id=c, width=w) for c, w in widths.items()]
    begin_round(link, clients, 1)
    sessions = []
    for client in clients:
        update = updates[client.client_id]
        sessions.append(client.start_round(1, indices=wanted_by(plan, update)))
        sessions[-1].submit(update)
    server.close_round()
    for place, session in enumerate(sessions):
        session.answer()
        body = server._round.bodies[Kind.ANSWER][session.client_id]
        answers.append((place, field.from_bytes(body[32:])))
    cohort = server._cohort()
    expected = plain_sums(plan, list(updates.values()))
    for chosen in itertools.combinations(answers, 4):
        assert same_sums(open_sums(cohort, chosen), expected)
    for chosen in itertools.combinations(answers, 3):
        with pytest.raises(AssertionError):
            open_sums(cohort, chosen)


def test_one_answer_too_few_opens_nothing_and_more_may_come() -> None:
    plan = make_plan()
    widths = widths_of(plan)
    updates = updates_of(plan, widths)
    server = Server(plan=plan, model=make_model(plan))
    link = InProcess(server)
    clients = [Client(plan, link, client_id=c, width=w) for c, w in widths.items()]
    begin_round(link, clients, 1)
    sessions = []
    for client in clients:
        update = updates[client.client_id]
        sessions.append(client.start_round(1, indices=wanted_by(plan, update)))
        sessions[-1].submit(update)
    server.close_round()
    for session in sessions[:3]:
        session.answer()
    with pytest.raises(ProtocolError, match="1 more answers"):
        server.open()
    sessions[3].answer()
    assert same_sums(server.open().sums, plain_sums(plan, list(updates.values())))


def test_one_dropout_too_many_is_refused_with_the_limit() -> None:
    plan = make_plan(clients=(3, 4))  # 7 clients, opens from 4
    widths = widths_of(plan)
    updates = updates_of(plan, widths)
    server = Server(plan=plan, model=make_model(plan))
    four = {c: None if c < 22 else update for c, update in updates.items()}
    with pytest.raises(ProtocolError, match="4 of 7 clients dropped out, expected at most 3"):
        run_round(server, four, widths, round_number=1)
    three = {c: None if c < 19 else update for c, update in updates.items()}
    run_round(server, three, widths, round_number=2)
    with pytest.raises(ProtocolError, match="has 3 clients, expected 4"):
        run_round(server, dict(list(updates.items())[:3]), widths, round_number=3)


def several_segments() -> SesaPlan:
    """As a convolutional network has them: segments of 3, 4 and 1 submodels, and blocks."""
    specs = [
        SegmentSpec("conv", "rows", (TensorSpec("conv", (3, 2, 2)),), k_max=3, tau=4),
        SegmentSpec(
            "two", "rows", (TensorSpec("a", (2, 3), "float64"), TensorSpec("b", (2, 3), "float64")),
            k_max=4, tau=3, retrieve=True,
        ),
        SegmentSpec("blocks", "blocks", (TensorSpec("flat", (7,)),), k_max=2, tau=4),
        SegmentSpec("rest", "dense", (TensorSpec("r", (5,)), TensorSpec("half", (2,), "float16"))),
    ]  # fmt: skip
    return build_plan(
        specs,
        encoding=make_plan().encoding,
        widths=[Width((3, 4, 2, 1), 4), Width((2, 1, 1, 1), 5)],
        collusion=3,
        dropouts=2,
        max_isolation=10.0,  # of ten submodels: any may be isolated
    )


def test_segments_of_different_numbers_of_submodels_are_summed_together() -> None:
    plan = several_segments()
    widths = widths_of(plan)
    for seed in range(5):
        updates = updates_of(plan, widths, seed)
        given = {c: None if c == 13 else update for c, update in updates.items()}
        server = Server(plan=plan, model=make_model(plan))
        opened = run_round(server, given, widths, round_number=1)
        present = [update for update in given.values() if update is not None]
        assert same_sums(opened.sums, plain_sums(plan, present))


def test_the_model_is_that_of_the_plaintext_sums() -> None:
    plan = several_segments()
    widths = widths_of(plan)
    updates = updates_of(plan, widths)
    server, reference = Server(plan=plan, model=make_model(plan)), make_model(plan)
    opened = run_round(server, updates, widths, round_number=1)
    reference.apply(plan, opened)
    assert server.model.digest() == reference.digest()
    with pytest.raises(ProtocolError, match="already applied"):
        server.apply(opened)


def test_fewer_submodels_than_a_width_owns_are_filled_up_with_zeros() -> None:
    plan = make_plan(submodels=4, owned=(3, 2), clients=(4, 4))
    widths = widths_of(plan)
    updates = {
        c: {**random_update(plan, w, c), "table": SegmentUpdate(
            np.array([c % 4]), np.full((1, 3), c, dtype=np.int64)
        )} for c, w in widths.items()
    }  # fmt: skip
    empty = SegmentUpdate(np.empty(0, dtype=np.int64), np.empty((0, 3), dtype=np.int64))
    updates[10]["table"] = empty
    server = Server(plan=plan, model=make_model(plan))
    opened = run_round(server, updates, widths, round_number=1)
    assert same_sums(opened.sums, plain_sums(plan, list(updates.values())))


def test_retrieved_rows_and_clear_tensors_are_those_of_the_model() -> None:
    plan = several_segments()
    model, widths = make_model(plan), widths_of(plan)
    server = Server(plan=plan, model=model)
    link = InProcess(server)
    clients = [Client(plan, link, client_id=c, width=w) for c, w in widths.items()]
    begin_round(link, clients, 1)
    indices = {"conv": [0, 2], "two": [1, 3], "blocks": [0]}
    session = clients[0].start_round(1, indices=indices)
    found, values = session.retrieve()["two"]
    assert found.tolist() == [1, 3]
    assert np.array_equal(values, np.stack([model.state["a"][1], model.state["b"][1]]))
    clear = session.download()
    assert set(clear) == {"conv", "flat", "r", "half"}
    assert all(np.array_equal(value, model.state[name]) for name, value in clear.items())
    whole = sum(value.nbytes for value in model.state.values())
    # Once, whatever is asked.
    assert clients[0].line.traffic.received["model"] == HEADER_BYTES + whole


def test_a_mistake_in_private_values_looks_like_any_client() -> None:
    plan = make_plan(clients=(4, 3))
    widths = widths_of(plan)
    updates = updates_of(plan, widths)
    aggregation = OneServer(plan, make_model(plan), widths)
    aggregation.open_round(1, widths)
    for client, update in updates.items():
        wanted = wanted_by(plan, update)
        if client == 10:
            with pytest.raises(ParameterError, match="outside"):
                aggregation.participant(client).start_round(1, indices={"table": [0, 9]})
            continue
        if client == 13:
            with (
                pytest.raises(ZeroDivisionError),
                aggregation.participant(client).start_round(1, indices=wanted),
            ):
                raise ZeroDivisionError
            continue
        session = aggregation.participant(client).start_round(1, indices=wanted)
        if client == 16:
            too_large = {**update, "bias": SegmentUpdate(None, np.full((2, 1), 1 << 40))}
            with pytest.raises(ParameterError, match="q_max"):
                session.submit(too_large)
        else:
            session.submit(update)
        with pytest.raises(ProtocolError, match="already submitted"):
            session.submit(update)
    opened = aggregation.close_round().opened
    counted = [update for c, update in updates.items() if c not in (10, 13, 16)]
    assert same_sums(opened.sums, plain_sums(plan, counted))
    assert opened.clients == tuple(widths)
    kinds = ("hello", "shares", "masked")
    lengths = {tuple(aggregation.participant(c).client.line.traffic.sent[k] for k in kinds)
               for c in (10, 13, 16, 19)}  # fmt: skip
    assert len(lengths) == 1


def test_weights_and_foreign_positions_are_refused() -> None:
    plan = make_plan(submodels=3, owned=(2, 1), clients=(4, 4))
    widths = widths_of(plan)
    aggregation = OneServer(plan, make_model(plan), widths)
    aggregation.open_round(1, widths)
    update = random_update(plan, 0, 1)
    session = aggregation.participant(10).start_round(1, indices={"table": [0, 1]})
    with pytest.raises(ParameterError, match="every client counts once"):
        session.submit(update, weight=2)
    foreign = {**update, "table": SegmentUpdate(np.array([2]), np.ones((1, 3), dtype=np.int64))}
    session = aggregation.participant(13).start_round(1, indices={"table": [0, 1]})
    with pytest.raises(ParameterError, match="did not select for the round"):
        session.submit(foreign)
    with pytest.raises(ParameterError, match="3 submodels, but a client of this width trains 2"):
        aggregation.participant(16).start_round(1, indices={"table": [0, 1, 2]})
    with pytest.raises(ParameterError, match="expected positions for the segments"):
        aggregation.participant(19).start_round(1)
    with pytest.raises(ParameterError, match="not among the clients of this round"):
        aggregation.participant(11)


def test_it_is_an_aggregation_and_the_audit_finds_it_exact() -> None:
    plan = make_plan(clients=(4, 4), submodels=3, owned=(3, 2))
    widths = widths_of(plan)
    aggregation = OneServer(plan, make_model(plan), widths)
    interface: Aggregation = aggregation
    audit = Audit(interface)
    for number in (3, 4):
        audit.open_round(number, widths)
        for client, update in updates_of(plan, widths, number).items():
            if client == 10:
                continue
            session = audit.participant(client).start_round(number, indices=wanted_by(plan, update))
            session.retrieve()
            session.submit(update)
        audit.close_round()
        assert audit.exact
        assert audit.exact_retrieval
    assert interface.server_seconds > 0


def test_a_cohort_may_be_a_part_of_the_clients() -> None:
    plan = make_plan(clients=(4, 4))
    widths = {**widths_of(plan), 99: 0}
    aggregation = OneServer(plan, make_model(plan), widths)
    with pytest.raises(ParameterError, match="client 5 has no width"):
        aggregation.open_round(0, [5, 10])
    with pytest.raises(RejectedSubmission, match="has its maximum of 8"):
        aggregation.open_round(0, widths)
    cohort = [99, 10, 13, 25, 31]
    aggregation.open_round(1, cohort)
    updates = {c: random_update(plan, widths[c], c) for c in cohort}
    for client, update in updates.items():
        session = aggregation.participant(client).start_round(1, indices=wanted_by(plan, update))
        session.submit(update)
    opened = aggregation.close_round().opened
    assert opened.clients == (10, 13, 25, 31, 99)
    assert same_sums(opened.sums, plain_sums(plan, list(updates.values())))


def test_bytes_of_every_phase_are_those_of_the_formulas() -> None:
    plan = several_segments()
    widths = widths_of(plan)
    aggregation = OneServer(plan, make_model(plan), widths)
    aggregation.open_round(1, widths)
    updates = updates_of(plan, widths)
    for client, update in updates.items():
        session = aggregation.participant(client).start_round(1, indices=wanted_by(plan, update))
        session.retrieve()
        session.submit(update)
    receipts = aggregation.close_round().receipts
    lines = {client: aggregation.participant(client).client.line for client in widths}
    cohort = full_cohort(plan)
    count, colluding, dim = 9, 3, 4 + 3 + 4 + 7
    masked = {0: 3 * 4 + 4 * 3 + 2 * 4 + 7, 1: 2 * 4 + 3 + 4 + 7}
    owned = {0: 3 + 4 + 2 + 1, 1: 2 + 1 + 1 + 1}
    for client, width in widths.items():
        shares = 16 + colluding * 32 + (count - 1 - colluding) * (4 * (dim + owned[width]) + 16)
        up = {"hello": 36, "shares": shares, "masked": 4 * masked[width], "answer": 32 + 4 * dim}
        assert lines[client].traffic.sent == {k: 64 + size for k, size in up.items()}
        down = lines[client].traffic.received
        assert down["cohort"] == 64 + 44 * count
        assert down["survivors"] == 64 + count + 4 * (4 * masked[0] + 5 * masked[1])
        receipt = receipts[client]
        assert receipt.upload_bytes == lines[client].traffic.sent.total()
        assert receipt.download_bytes == sum(down.values())
        assert sum(receipt.phases.values()) == receipt.upload_bytes + receipt.download_bytes
        assert receipt.phases == cost(cohort, list(widths).index(client)).phases
    # What RELAY carries is what SHARES carried: every box once, and its salt.
    relayed = sum(line.traffic.received["relay"] - 64 - 16 * (count - 1) for line in lines.values())
    sent = sum(line.traffic.sent["shares"] - 64 - 16 for line in lines.values())
    assert relayed == sent


def test_the_wing_needs_no_torch() -> None:
    names = "SesaPlan, Server, Client, OneServer, run_round, build_plan"
    script = f"import sys; from torchfsl.sesa import {names}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_rounds_are_numbered_upward_and_entered_before_they_are_sealed() -> None:
    plan = make_plan()
    widths = widths_of(plan)
    server = Server(plan=plan, model=make_model(plan))
    run_round(server, updates_of(plan, widths), widths, round_number=5)
    for number in (4, 5):
        with pytest.raises(ProtocolError, match="choose a number above 5"):
            server.open_round(number)
    with pytest.raises(ParameterError, match="whole number"):
        server.open_round("6")  # type: ignore[arg-type]
    client = Client(plan, InProcess(server), client_id=1, width=0)
    with pytest.raises(ProtocolError, match="has not entered"):
        client.start_round(6)
    with pytest.raises(ParameterError, match="width is 2"):
        Client(plan, InProcess(server), client_id=1, width=2)
    link = InProcess(server)
    clients = [Client(plan, link, client_id=c, width=w) for c, w in widths.items()]
    begin_round(link, clients, 6)
    session = clients[0].start_round(6, indices={"table": [0]})
    with pytest.raises(ProtocolError, match=r"start_round\(\) once"):
        clients[0].start_round(6, indices={"table": [0]})
    with pytest.raises(ProtocolError, match="after submit"):
        session.answer()
    with pytest.raises(ProtocolError, match="dropped out"):
        finish_round(link, [session])


@pytest.mark.parametrize("backend", ["portable", "auto"])
def test_rounds_are_exact_under_both_backends(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", backend)
    plan = several_segments()
    widths = widths_of(plan)
    updates = updates_of(plan, widths, 7)
    server = Server(plan=plan, model=make_model(plan))
    opened = run_round(server, updates, widths, round_number=1)
    assert same_sums(opened.sums, plain_sums(plan, list(updates.values())))

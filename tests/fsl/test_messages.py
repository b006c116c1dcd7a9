"""The wire format: every length by formula, every field of a hostile message refused."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.federation import (
    Wire,
    dense_plan,
    make_plan,
    make_segment,
    make_servers,
    make_state,
    mixed_plan,
    random_update,
    submit,
    wanted_rows,
)
from torchfsl.errors import DecodeError, ParameterError, ProtocolError
from torchfsl.fsl import costs, messages, uploads
from torchfsl.fsl.bodies import Body, ModelBody, ModelDigest
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.suite import WIRE_VERSION

HEADER = 64
FIXED_KINDS = [kind for kind in Kind if kind not in (Kind.REPORT_SET, Kind.VERDICTS)]


def tree_bytes(trees: int, domain: int, nu: int, check_bytes: int) -> int:
    """128 bits a level, one bit a level packed over the group, and a check word a tree."""
    leaves = -(-domain // 2**nu)
    depth = 0
    while 1 << depth < leaves:
        depth += 1
    return trees * depth * 16 + -(-trees * depth // 8) + trees * check_bytes


def segment_tree_bytes(s: TreeSegment) -> int:
    return tree_bytes(s.num_bins, s.theta, s.nu, s.check_bytes) + tree_bytes(
        s.stash, s.m, s.nu, s.check_bytes
    )


def body(plan: Plan, kind: Kind) -> int:
    """The documented formula, written down a second time from the plan's numbers."""
    ring_bytes = plan.encoding.ring_bits // 8
    lane = 0 if plan.lane == "none" else 1
    trees = [s for s in plan.segments if s.policy != "dense"]
    dense = [s for s in plan.segments if s.policy == "dense"]
    early = [s for s in trees if s.retrieve or plan.max_epochs > 1]
    early_bytes = sum(segment_tree_bytes(s) for s in early)
    by_bits = [s for s in trees if s.retrieve and not s.tag_bytes]  # trees of 128 rows a leaf
    fetched = sum(segment_tree_bytes(s) for s in trees if s.retrieve and s.tag_bytes)
    fetched += sum(
        segment_tree_bytes(dataclasses.replace(s, nu=7)) + 16 * (s.num_bins + s.stash)
        for s in by_bits
    )
    late_bytes = sum(segment_tree_bytes(s) for s in trees if s not in early)
    hints = sum((s.num_bins + s.stash) * 2**s.nu * (s.tau + lane) * ring_bytes for s in trees)
    masked = sum((s.m + (plan.lane == "weight")) * ring_bytes for s in dense)
    item = {"float16": 2, "float32": 4, "float64": 8}
    clear = sum(
        int(np.prod(t.shape)) * item[t.dtype] for s in plan.segments if not s.retrieve
        for t in s.tensors
    )  # fmt: skip
    answers = sum(
        (s.num_bins + s.stash) * (2**s.nu * s.tau * item[s.tensors[0].dtype] + s.tag_bytes)
        for s in trees if s.retrieve
    )  # fmt: skip
    fetch_answers = sum(
        (s.num_bins + s.stash)
        * ((1 if s in by_bits else 2**s.nu) * s.tau * item[s.tensors[0].dtype] + s.tag_bytes)
        for s in trees if s.retrieve
    )  # fmt: skip
    return {
        Kind.TREES: 16 + 16 + 16 + early_bytes,
        Kind.TREES_COMMIT: 16 + 16 + 16 + 32,
        Kind.TREES_RELAY: 16 + early_bytes,
        Kind.ANSWER: answers + 32 + 16,
        Kind.REPORT: 16 + 16 + 16 + 16 + late_bytes + hints + masked,
        Kind.REPORT_COMMIT: 16 + 16 + 16 + 16 + 32,
        Kind.REPORT_RELAY: 16 + 16 + late_bytes + hints,
        Kind.MODEL: 64 + clear,
        Kind.MODEL_DIGEST: 64,
        Kind.ROUND_STATE: 64,
        Kind.FETCH: 48 + fetched,
        Kind.FETCH_COMMIT: 48 + 32,
        Kind.FETCH_RELAY: 16 + fetched,
        Kind.FETCH_ANSWER: 64 + fetch_answers + 32 + 16,
        Kind.FETCH_MODEL: 64 + fetch_answers + 32 + 16 + clear,
        Kind.SHARE_COMMIT: 32,
        Kind.AUDIT_PASS: 0,  # of plans without an audit, as all here
        Kind.COUNTS: 64 + sum(s.m for s in trees) * ring_bytes,
        Kind.SHARE: 32 + sum(s.m * (s.tau + lane) * ring_bytes for s in trees) + masked,
    }[kind]


PLANS = {
    "mixed": mixed_plan(),
    "semi-honest": mixed_plan(secure=False),
    "count": mixed_plan(lane="count"),
    "weight": mixed_plan(lane="weight"),
    "dense": dense_plan(),
    "session": make_plan(
        make_segment("table", "rows", (20, 2), k_max=3, tau=2, theta=4, stash=1), max_epochs=3
    ),
    "doubles": make_plan(
        make_segment("table", "rows", (20, 2), k_max=3, tau=2, theta=4, nu=1, retrieve=True,
                     dtype="float64"),
        make_segment("half", "dense", (3,), dtype="float16"),
    ),
}  # fmt: skip


@pytest.fixture(params=list(PLANS))
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]


def message(plan: Plan, kind: Kind, round_number: int = 5, client: int = 2) -> bytes:
    size = messages.body_bytes(plan, kind)
    return messages.encode(plan, kind, 0, round_number, client, bytes(size or 0))


def test_every_body_has_the_documented_length(plan: Plan) -> None:
    for kind in FIXED_KINDS:
        assert messages.body_bytes(plan, kind) == body(plan, kind), kind.name
        assert len(message(plan, kind)) == HEADER + body(plan, kind)


def test_every_message_on_the_wire_has_the_documented_length(plan: Plan) -> None:
    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    for client_id in (0, 1):
        update = random_update(plan, np.random.default_rng(client_id))
        client = Client(plan, wire, client_id=client_id)
        if plan.max_epochs > 1:
            fixed = {s.name: update[s.name].indices for s in plan.early}
            session = client.open_session(indices=fixed).start_round(1)  # type: ignore[arg-type]
        else:
            session = client.start_round(1, indices=wanted_rows(plan, update))
        session.download()
        if plan.retrieving:
            session.retrieve()
        receipt = session.submit(update)
        uploaded = [e for e in wire.events if not e.is_reply and not e.is_relay]
        assert receipt.upload_bytes == costs.client_bytes(plan)
        assert receipt.download_bytes == costs.download_bytes(plan)
        assert sum(len(e.data) for e in uploaded) == (client_id + 1) * receipt.upload_bytes
    for event in wire.events:
        assert len(event.data) == HEADER + body(plan, event.kind), event.kind.name


@pytest.mark.parametrize("name", [name for name in PLANS if name != "session"])
def test_server_to_server_messages_have_the_documented_length(name: str) -> None:
    plan = PLANS[name]
    servers = make_servers(plan)
    states = [server.open_round(1) for server in servers]
    assert {len(state) for state in states} == {HEADER + 64}
    for server, state in zip(servers, states[::-1], strict=True):
        server.start(state)
    wire = Wire(servers)
    for client_id in (0, 1, 2):
        submit(wire, client_id, 1, random_update(plan, np.random.default_rng(0)))
    sets = [server.close_round() for server in servers]
    assert {len(entry) for entry in sets} == {HEADER + 32 + 3 * 40}
    verdicts = [servers[0].agree(sets[1]), servers[1].agree(sets[0])]
    assert {len(v) for v in verdicts} == {HEADER + 3 * 16}
    assert servers[0].verify(verdicts[1]) == servers[1].verify(verdicts[0]) == (0, 1, 2)
    commitments = [server.commit() for server in servers]
    assert {len(c) for c in commitments} == {HEADER + 32}
    assert len(servers[0].reveal(commitments[1])) == HEADER + body(plan, Kind.SHARE)


def test_encoding_and_decoding_are_inverse(plan: Plan) -> None:
    for kind in FIXED_KINDS:
        data = message(plan, kind, 2**64 - 1, 2**63 + 7)
        read = messages.decode(plan, data, Kind.TREES, kind)
        assert (read.kind, read.party) == (kind, 0)
        assert (read.round_number, read.client) == (2**64 - 1, 2**63 + 7)
        assert bytes(read.body) == data[HEADER:]


def bodies_of(base: type[Body]) -> list[type[Body]]:
    """Every concrete class below; one without slots is what `dataclass` made its class from."""
    found = [] if not hasattr(base, "kind") or "__slots__" not in vars(base) else [base]
    return found + [body for below in base.__subclasses__() for body in bodies_of(below)]


def most(plan: Plan, body: type[Body]) -> int:
    """Length of the longest body."""
    return messages.max_bytes(plan, body.kind) - HEADER


def test_every_kind_has_a_body_that_reads_what_it_wrote(plan: Plan) -> None:
    assert {body.kind for body in bodies_of(Body)} == set(Kind)
    known = {*uploads.UPLOADS.values(), *uploads.FETCHES.values()}
    assert set(bodies_of(uploads.Upload)) == known
    rng = np.random.default_rng(5)
    for body in bodies_of(Body):
        data = messages.encode(plan, body.kind, 1, 5, 2, rng.bytes(most(plan, body)))
        read = body.read(plan, data)
        assert read.message(plan, 1, 5, 2) == data, body.__name__
        with pytest.raises(DecodeError):
            body.read(plan, data[:-1])


def test_large_parts_are_views_of_the_message(plan: Plan) -> None:
    for body in bodies_of(Body):
        data = messages.encode(plan, body.kind, 0, 5, 2, bytes(most(plan, body)))
        for part in body.read(plan, data).parts():
            assert part.obj is data if isinstance(part, memoryview) else len(part) <= 40


def test_a_message_tells_where_it_belongs_without_being_decoded(plan: Plan) -> None:
    for kind in FIXED_KINDS:
        assert messages.peek(message(plan, kind, 2**64 - 1, 3)) == (kind, 2**64 - 1, 3)
    for noise in (b"", bytes(HEADER - 1), bytes(HEADER), b"\xff" * 200):
        with pytest.raises(DecodeError):
            messages.peek(noise)


def test_a_master_seed_is_found_where_a_client_put_it(plan: Plan) -> None:
    for body in bodies_of(Body):
        noise = np.random.default_rng(1).bytes(most(plan, body))
        data = messages.encode(plan, body.kind, 0, 5, 2, noise)
        seed = getattr(body.read(plan, data), "seed", None)
        span = messages.master_seed_span(data)
        assert (None if span is None else data[slice(*span)]) == seed
    assert messages.master_seed_span(b"") is None


@pytest.mark.parametrize("kind", FIXED_KINDS)
def test_any_change_of_a_checked_header_field_is_a_decode_error(kind: Kind) -> None:
    plan = PLANS["mixed"]
    data = message(plan, kind)
    magic, version, kind_and_party = range(4), range(4, 6), range(6, 8)
    length, digest = range(24, 32), range(32, 64)
    for place in (*magic, *version, *kind_and_party, *length, *digest):
        for flip in (0x80, 0x02, 0xFF):
            spoiled = bytearray(data)
            spoiled[place] ^= flip
            with pytest.raises(DecodeError):
                messages.decode(plan, bytes(spoiled), kind)


@pytest.mark.parametrize(
    ("version", "side"),
    [(0, "sender"), (WIRE_VERSION + 1, "receiver"), (256, "receiver"), (65535, "receiver")],
)
def test_another_version_is_refused_naming_the_side_to_upgrade(version: int, side: str) -> None:
    plan = PLANS["mixed"]
    data = bytearray(message(plan, Kind.REPORT))
    data[4:6] = version.to_bytes(2, "little")
    with pytest.raises(DecodeError, match=f"wire version {version}.*upgrade the {side}"):
        messages.decode(plan, bytes(data), Kind.REPORT)


def test_a_kind_that_was_not_expected_is_refused_by_name() -> None:
    plan = PLANS["mixed"]
    with pytest.raises(DecodeError, match="expected a message of kind REPORT, MODEL, got kind 1"):
        messages.decode(plan, message(plan, Kind.TREES), Kind.REPORT, Kind.MODEL)


def test_a_message_of_another_plan_is_refused() -> None:
    one, two = mixed_plan(), mixed_plan(min_clients=2)
    assert one.digest != two.digest
    with pytest.raises(DecodeError, match="another plan"):
        messages.decode(two, message(one, Kind.REPORT), Kind.REPORT)


@pytest.mark.parametrize("kind", FIXED_KINDS)
def test_a_body_of_another_length_is_refused(kind: Kind) -> None:
    plan = PLANS["mixed"]
    data = message(plan, kind)
    for spoiled in (
        data[:-1], data + b"\0", data + data, data[:HEADER], data[: HEADER - 1], data[:1], b"",
    ):  # fmt: skip
        if spoiled == data:  # AUDIT_PASS of a plan without an audit is empty, and no step takes it
            continue
        with pytest.raises(DecodeError):
            messages.decode(plan, spoiled, kind)
        honest_length = bytearray(spoiled)
        if len(spoiled) >= HEADER:
            honest_length[24:32] = (len(spoiled) - HEADER).to_bytes(8, "little")
            with pytest.raises(DecodeError):
                messages.decode(plan, bytes(honest_length), kind)


def test_lists_of_clients_are_bounded_by_the_plan() -> None:
    plan = make_plan(make_segment("bias", "dense", (3,)), max_clients=3)
    for kind, fixed, entry in ((Kind.REPORT_SET, 32, 40), (Kind.VERDICTS, 0, 16)):
        for count in range(4):
            data = messages.encode(plan, kind, 0, 1, 0, bytes(fixed + count * entry))
            assert len(messages.decode(plan, data, kind).body) == fixed + count * entry
        for size in (fixed + 4 * entry, fixed + entry + 1, fixed + entry - 1, fixed - 1):
            if size >= 0:
                data = messages.encode(plan, kind, 0, 1, 0, bytes(size))
                with pytest.raises(DecodeError):
                    messages.decode(plan, data, kind)


@given(st.binary(max_size=200))
def test_noise_is_a_decode_error(noise: bytes) -> None:
    with pytest.raises(DecodeError):
        messages.decode(PLANS["mixed"], noise, *Kind)
    with pytest.raises(DecodeError):
        messages.decode(PLANS["mixed"], b"TFSL\x01\x00" + noise, *Kind)


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_round_and_client_numbers_outside_64_bits_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ParameterError):
        message(PLANS["mixed"], Kind.MODEL_DIGEST, *numbers)


# --- trees inside a message -----------------------------------------------------------------


def make_group(trees: int, domain: int, check_bytes: int = 32) -> TreeGroup:
    return TreeGroup(trees, domain, 0, False, check_bytes)


def make_trees(group: TreeGroup) -> dpf.Trees:
    rng = np.random.default_rng(3)
    return dpf.Trees(
        group,
        rng.integers(0, 256, (group.depth, group.num_trees, 16)).astype(np.uint8),
        rng.integers(0, 2, (group.depth, group.num_trees)).astype(np.uint8),
        rng.integers(0, 256, (group.num_trees, group.check_bytes)).astype(np.uint8),
    )


@pytest.mark.parametrize(("trees", "domain"), [(1, 1), (1, 2), (3, 5), (8, 2), (9, 40), (2, 9)])
@pytest.mark.parametrize("check_bytes", [0, 32])
def test_trees_survive_the_wire(trees: int, domain: int, check_bytes: int) -> None:
    group = make_group(trees, domain, check_bytes)
    before = make_trees(group)
    data = before.encode()
    assert len(data) == group.tree_bytes == tree_bytes(trees, domain, 0, check_bytes)
    assert b"".join(before.pieces()) == data
    after = dpf.Trees.decode(group, memoryview(data))
    for name in ("cw", "cw_right", "check"):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    for spoiled in (data + b"\0", data[:-1] if data else b"\0"):
        with pytest.raises(DecodeError, match="trees of"):
            dpf.Trees.decode(group, memoryview(spoiled))


def test_padding_bits_that_are_not_zero_are_refused_one_by_one() -> None:
    group = make_group(3, 7)  # 9 levels in all: 9 bits, 7 of padding
    data = make_trees(group).encode()
    end = 16 * 9 + 2
    for bit in range(1, 8):
        spoiled = bytearray(data)
        spoiled[end - 1] |= 1 << bit
        with pytest.raises(DecodeError, match="padding bits"):
            dpf.Trees.decode(group, memoryview(bytes(spoiled)))


# --- the model in the clear -----------------------------------------------------------------


def test_the_clear_model_survives_the_wire_and_any_changed_byte_is_noticed() -> None:
    plan = make_plan(
        make_segment("a", "dense", (3, 2)),
        make_segment("b", "dense", (5,), dtype="float64"),
        make_segment("t", "rows", (9, 2), k_max=2, tau=2, theta=3, retrieve=True),
    )
    state = make_state(plan)
    clear = state["a.0"].tobytes() + state["b.0"].tobytes()
    digests = b"".join(ModelDigest.of(clear, state["t.0"].tobytes()).parts())
    assert len(digests) == 64
    data = digests + clear

    def read(model: bytes, other: bytes) -> dict[str, Any]:
        said = ModelDigest.decode(plan, memoryview(other))
        return ModelBody.decode(plan, memoryview(model)).tensors(plan, said)

    tensors = read(data, digests)
    assert set(tensors) == {"a.0", "b.0"}
    for name, tensor in tensors.items():
        assert tensor.dtype == state[name].dtype
        assert np.array_equal(tensor, state[name])
        assert tensor.flags.writeable
    for place in range(len(data)):
        spoiled = bytearray(data)
        spoiled[place] ^= 1
        with pytest.raises(ProtocolError, match="different models"):
            read(bytes(spoiled), digests)
    for place in range(64):
        other = bytearray(digests)
        other[place] ^= 1
        with pytest.raises(ProtocolError, match="different models"):
            read(data, bytes(other))


def test_the_format_is_documented_where_it_is_defined() -> None:
    """Every kind has a line in the module's table, and the header's size is the stated one."""
    text = messages.__doc__ or ""
    for kind in Kind:
        assert re.search(rf"^    {kind.name} ", text, re.MULTILINE), kind.name
    assert "64-byte header" in text
    assert messages.HEADER_BYTES == HEADER

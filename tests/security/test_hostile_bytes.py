"""Attack 15: wrong lengths, second encodings of the same thing, contradictory and huge sizes."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from scripts.attacks.forged_reports import forge
from scripts.attacks.forged_reports import make_plan as one_segment
from tests.support.adversary import carried_by, deliver, servers_of, sums
from tests.support.federation import Wire
from tests.support.tags import tagged
from torchfsl.errors import DecodeError, Error, RejectedSubmission
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES

PLAN = one_segment(5, 5, 0, 1)
ATTACKER = 3


def report(seed: int = 0) -> list[tuple[int, bytes]]:
    return forge(PLAN, ATTACKER, 1, np.random.default_rng(seed)).messages()


def hostile(message: bytes) -> Iterator[bytes]:
    """Messages of wrong lengths, or that claim a wrong length."""
    size = struct.Struct("<Q")
    for length in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(message) - 1):
        yield message[:length]
    yield message + b"\0"
    yield message * 2
    for claim in (0, 1, len(message), 2**31, MAX_MESSAGE_BYTES, 2**63, 2**64 - 1):
        yield message[:24] + size.pack(claim) + message[32:]
        yield message[:24] + size.pack(claim)


def test_wrong_and_huge_lengths_are_refused_without_allocating_and_do_no_harm() -> None:
    wire = Wire(servers_of(PLAN))
    begin_round(wire.servers, 1)
    honest = forge(PLAN, 2, 1, np.random.default_rng(1))
    tracemalloc.start()
    count = 0
    for party, message in report():
        for bad in hostile(message):
            with pytest.raises(DecodeError):
                wire.servers[party].receive(bad)
            count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 42
    assert peak < 1 << 20
    deliver(wire, honest)
    deliver(wire, forge(PLAN, ATTACKER, 1, np.random.default_rng(2)))
    assert finish_round(wire.servers).clients == (2, ATTACKER), "it can still send a right one"


def test_every_truncation_and_any_tail_of_any_message_is_refused() -> None:
    wire = Wire(servers_of(PLAN))
    begin_round(wire.servers, 1)
    for party, message in report():
        for length in range(len(message)):
            with pytest.raises(DecodeError):
                wire.servers[party].receive(message[:length])


def test_padding_bits_cannot_make_a_second_encoding_of_the_same_trees() -> None:
    """Three bins of three levels fill nine bits: seven are left over, and must be zero."""
    group = PLAN.segments[0].groups[0]
    bits = group.depth * group.num_trees
    assert bits % 8
    place = HEADER_BYTES + 64 + 16 * bits + bits // 8
    for bit in range(bits % 8, 8):
        wire = Wire(servers_of(PLAN))
        begin_round(wire.servers, 1)
        honest = forge(PLAN, 2, 1, np.random.default_rng(3))
        deliver(wire, honest)
        (second, commitment), (first, public) = report()
        spoiled = bytearray(public)
        spoiled[place] |= 1 << bit
        wire.send(second, commitment)
        with pytest.raises(RejectedSubmission, match="padding"):
            wire.send(first, tagged(PLAN, bytes(spoiled)))
        opened = finish_round(wire.servers)
        assert opened.clients == (2,)
        assert np.array_equal(sums(opened), carried_by(honest))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_bins", 6), ("num_bins", 0), ("num_bins", 2**40), ("theta", 4), ("theta", 0),
        ("theta", -1), ("m", 2**33), ("m", 6), ("nu", 8), ("nu", -1), ("stash", -1),
        ("stash", 2**62), ("k_max", 0), ("k_max", 6), ("tau", 0), ("tau", 2**60),
        ("check_bytes", 16), ("tag_bytes", 16),
    ],
)  # fmt: skip
def test_a_plan_whose_bins_and_sizes_do_not_fit_is_refused(field: str, value: int) -> None:
    fields = json.loads(PLAN.to_json())
    fields["segments"][0][field] = value
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    tracemalloc.start()
    with pytest.raises(DecodeError):
        Plan.from_json(text)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_report_for_a_plan_with_other_bins_is_refused_by_the_digest() -> None:
    other = one_segment(5, 3, 0, 1)
    wire = Wire(servers_of(other))
    begin_round(wire.servers, 1)
    for party, message in report():
        with pytest.raises(DecodeError, match="another plan"):
            wire.servers[party].receive(message)
    public = report()[1][1]
    with pytest.raises(DecodeError, match="body of"):
        wire.servers[1].receive(public[:32] + other.digest + public[64:])


def test_random_changes_of_messages_raise_our_errors_only_and_open_nothing_wrong() -> None:
    rng = np.random.default_rng(4)
    honest = forge(PLAN, 2, 1, np.random.default_rng(5))
    for _ in range(60):
        wire = Wire(servers_of(PLAN))
        begin_round(wire.servers, 1)
        deliver(wire, honest)
        for party, message in report(int(rng.integers(100))):
            data = bytearray(message)
            for place in rng.integers(len(data), size=rng.integers(1, 4)):
                data[place] ^= 1 << rng.integers(8)
            if data[16:24] == (2).to_bytes(8, "little"):
                continue  # the transport knows who is speaking
            try:
                wire.send(party, bytes(data))
            except Error:
                continue
        opened = finish_round(wire.servers)
        assert opened.clients == (2,)
        assert np.array_equal(sums(opened), carried_by(honest))


def test_kinds_that_are_for_servers_alone_are_not_taken_from_anyone() -> None:
    wire = Wire(servers_of(PLAN))
    begin_round(wire.servers, 1)
    for party, message in report():
        for kind in set(range(32)) - {1, 2, 3, 5, 6, 7}:
            fetches = (Kind.FETCH, Kind.FETCH_COMMIT, Kind.FETCH_RELAY)  # of other lengths
            with pytest.raises(DecodeError, match="body of" if kind in fetches else "kind"):
                wire.servers[party].receive(message[:6] + bytes([kind]) + message[7:])
    assert Kind.TREES == 1
    assert Kind.REPORT_RELAY == 7

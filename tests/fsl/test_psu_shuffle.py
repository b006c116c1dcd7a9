"""Private set union by shuffling: exact, and void as soon as anything is dropped or added."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.federation import make_plan, make_segment
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.union import shuffle as psu_shuffle

pytest.importorskip("cryptography.hazmat.primitives.hpke", reason="needs cryptography>=47")

Indices = npt.NDArray[np.int64]
HEADER = 48
CIPHERTEXT = 72


def plan_of(m: int = 1000, k_max: int = 4, min_clients: int = 1) -> Plan:
    segment = make_segment("items", "rows", (m, 2), k_max=k_max, tau=2)
    return make_plan(segment, max_clients=5, min_clients=min_clients)


class Union:
    """Both servers of one union, and what clients send them."""

    def __init__(self, plan: Plan, round_number: int = 0) -> None:
        self.plan, self.segment, self.round = plan, plan.segments[0], round_number
        self.shuffler = psu_shuffle.Shuffler(plan, self.segment, round_number)
        self.opener = psu_shuffle.Opener(plan, self.segment, round_number)

    def messages(self, client: int, rows: Any) -> tuple[bytes, bytes]:
        return psu_shuffle.encrypt(
            self.plan, self.segment, self.round, client, np.array(rows, dtype=np.int64),
            self.opener.public_key,
        )  # fmt: skip

    def submit(self, client: int, rows: Any) -> tuple[bytes, bytes]:
        pair = self.messages(client, rows)
        self.shuffler.receive(pair[0])
        self.opener.receive(pair[1])
        return pair

    def open(self) -> list[int]:
        return self.opener.open(self.shuffler.batch(self.opener.roster())).tolist()


def test_shuffling_gives_exactly_the_union_in_random_instances() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        m = int(rng.integers(1, 1 << 28))
        k_max = int(rng.integers(1, min(m, 4))) if m > 1 else 1
        union = Union(plan_of(m, k_max))
        everything: set[int] = set()
        for client in range(int(rng.integers(1, 4))):
            pool = rng.integers(max(m - 6, 0), m, size=int(rng.integers(k_max + 1)))
            rows = np.unique(pool)
            everything |= set(rows.tolist())
            union.submit(client, rows)
        assert union.open() == sorted(everything)


def test_messages_have_the_same_length_whatever_a_client_holds() -> None:
    union = Union(plan_of())
    sizes = {tuple(map(len, union.messages(7, rows))) for rows in ([], [1], [1, 2, 3, 999])}
    assert sizes == {(HEADER + 16 + 4 * CIPHERTEXT, HEADER + 16)}
    assert sum(sizes.pop()) == psu_shuffle.client_bytes(union.segment)


def test_the_batch_is_in_an_order_of_its_own() -> None:
    places = np.zeros((8, 8), dtype=np.int64)
    for number in range(400):
        union = Union(plan_of(), number)
        sent = b"".join(union.submit(client, [1, 2])[0][HEADER + 16 :] for client in (0, 1))
        batch = union.shuffler.batch(union.opener.roster())[HEADER + 16 + 8 + 16 :]
        order = [sent.index(batch[i : i + 72]) // 72 for i in range(0, len(batch), 72)]
        places[order, range(8)] += 1
    # Every ciphertext lands everywhere equally often: 50 times each, seven deviations.
    assert np.all(np.abs(places - 50) < 7 * np.sqrt(50))


def test_a_report_at_one_server_only_does_not_count() -> None:
    union = Union(plan_of())
    union.submit(0, [5])
    union.shuffler.receive(union.messages(1, [6])[0])
    union.opener.receive(union.messages(2, [7])[1])
    assert union.open() == [5]


def rebuilt(batch: bytes, clients: list[int], ciphertexts: list[bytes], masks: int = 0) -> bytes:
    """A batch that server 0 has tampered with; `masks` is added to the honest sum."""
    total = (int.from_bytes(batch[HEADER : HEADER + 16], "little") + masks) % (1 << 128)
    return b"".join(
        (
            batch[:HEADER],
            total.to_bytes(16, "little"),
            struct.pack("<Q", len(clients)),
            struct.pack(f"<{len(clients)}Q", *clients),
            *ciphertexts,
        )
    )


def isolating_batch(union: Union, victim: bytes, attacker: tuple[bytes, bytes]) -> bytes:
    """The victim's ciphertexts and the attacker's own in place of everybody else's."""
    honest = union.shuffler.batch(union.opener.roster())
    clients = [0, 1, 2]
    parts = [victim[HEADER + 16 :][i : i + 72] for i in range(0, 4 * 72, 72)]
    fill = [attacker[0][HEADER + 16 :][i : i + 72] for i in range(0, 4 * 72, 72)]
    return rebuilt(honest, clients, parts + fill + fill)


def test_server_0_cannot_isolate_a_client() -> None:
    union = Union(plan_of())
    victim = union.submit(0, [11, 12])[0]
    union.submit(1, [500, 501])
    attacker = union.submit(2, [])
    with pytest.raises(ProtocolError, match="do not add up"):
        union.opener.open(isolating_batch(union, victim, attacker))


def test_server_0_isolates_a_client_where_tickets_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psu_shuffle.Opener, "_check_tickets", lambda *args: None)
    union = Union(plan_of())
    victim = union.submit(0, [11, 12])[0]
    union.submit(1, [500, 501])
    attacker = union.submit(2, [])
    assert union.opener.open(isolating_batch(union, victim, attacker)).tolist() == [11, 12]


@pytest.mark.parametrize("attack", ["drop one", "repeat one", "swap in own", "mask", "flip"])
def test_any_change_of_the_batch_voids_the_union(attack: str) -> None:
    union = Union(plan_of())
    union.submit(0, [1, 2, 3, 4])
    union.submit(1, [5, 6, 7, 8])
    own = union.messages(9, [99])[0][HEADER + 16 :][:72]
    batch = union.shuffler.batch(union.opener.roster())
    parts = [batch[HEADER + 40 :][i : i + 72] for i in range(0, 8 * 72, 72)]
    altered = {
        "drop one": ([*parts[:7], own], 0),
        "repeat one": (parts[:7] + parts[:1], 0),
        "swap in own": ([own, *parts[1:]], 0),
        "mask": (parts, 1),
        "flip": ([parts[0][:40] + bytes([parts[0][40] ^ 1]) + parts[0][41:], *parts[1:]], 0),
    }[attack]
    with pytest.raises(ProtocolError, match=r"add up|does not decrypt"):
        union.opener.open(rebuilt(batch, [0, 1], *altered))
    with pytest.raises(ProtocolError, match="opened once"):  # and there is no second attempt
        union.opener.open(batch)


def test_the_order_does_not_matter_and_the_honest_batch_passes() -> None:
    union = Union(plan_of())
    union.submit(0, [1, 2, 3, 4])
    union.submit(1, [4, 6])
    batch = union.shuffler.batch(union.opener.roster())
    parts = [batch[HEADER + 40 :][i : i + 72] for i in range(0, 8 * 72, 72)]
    assert union.opener.open(rebuilt(batch, [0, 1], parts[::-1])).tolist() == [1, 2, 3, 4, 6]


def test_too_few_clients_and_unknown_ones_are_refused() -> None:
    union = Union(plan_of(min_clients=2))
    union.submit(0, [1])
    with pytest.raises(ProtocolError, match="the plan wants 2"):
        union.shuffler.batch(union.opener.roster())
    union = Union(plan_of(min_clients=2))
    pair = union.submit(0, [1])
    union.submit(1, [2])
    batch = union.shuffler.batch(union.opener.roster())
    mine = [pair[0][HEADER + 16 :][i : i + 72] for i in range(0, 4 * 72, 72)]
    with pytest.raises(ProtocolError, match="the plan wants 2"):
        union.opener.open(rebuilt(batch, [0], mine))
    with pytest.raises(ProtocolError, match="not heard of"):
        union.opener.open(rebuilt(batch, [0, 3], mine * 2))


def test_a_union_takes_each_client_once_and_no_more_than_planned() -> None:
    union = Union(plan_of())
    first, second = union.messages(0, [1]), union.messages(0, [1])
    union.shuffler.receive(first[0])
    union.shuffler.receive(first[0])  # a byte-identical resend
    with pytest.raises(RejectedSubmission, match="second"):
        union.shuffler.receive(second[0])
    for client in range(1, 5):
        union.submit(client, [2])
    with pytest.raises(RejectedSubmission, match="full"):
        union.shuffler.receive(union.messages(6, [3])[0])
    roster = union.opener.roster()
    with pytest.raises(RejectedSubmission, match="closed"):
        union.opener.receive(first[1])
    union.shuffler.batch(roster)
    with pytest.raises(ProtocolError, match="once"):
        union.shuffler.batch(roster)


def test_messages_of_another_round_plan_kind_or_length_are_refused() -> None:
    union, other = Union(plan_of()), Union(plan_of(), 1)
    to_0, to_1 = union.messages(0, [1])
    for message in (to_1, to_0[:-1], to_0 + b"\0", to_0[:20], b"XFSU" + to_0[4:]):
        with pytest.raises(DecodeError):
            union.shuffler.receive(message)
    with pytest.raises(DecodeError, match="another plan"):
        other.shuffler.receive(to_0)
    with pytest.raises(DecodeError):
        union.opener.receive(to_0)
    union.submit(3, [1])
    roster = union.opener.roster()
    for broken in (roster + b"\0", roster + roster[-8:]):
        with pytest.raises(DecodeError):
            union.shuffler.batch(broken)
    batch = union.shuffler.batch(roster)
    for broken in (batch[:-1], batch[: HEADER + 20], batch + bytes(72)):
        with pytest.raises(DecodeError):
            union.opener.open(broken)


def test_a_ciphertext_of_another_round_does_not_open() -> None:
    union = Union(plan_of(), 0)
    pair = psu_shuffle.encrypt(
        union.plan, union.segment, 1, 0, np.array([1]), union.opener.public_key
    )
    for server, message in ((union.shuffler, pair[0]), (union.opener, pair[1])):
        server.receive(union.messages(0, [1])[server is union.opener][:HEADER] + message[HEADER:])
    with pytest.raises(ProtocolError, match="does not decrypt"):
        union.open()


def test_positions_outside_the_index_space_are_left_out() -> None:
    union = Union(plan_of(m=10))
    union.submit(0, [3, 10, 1 << 40])
    assert union.open() == [3]


def test_what_a_client_sends_server_1_says_nothing_about_its_tickets() -> None:
    union = Union(plan_of(k_max=1))
    sums = [union.messages(0, [1])[1][HEADER:] for _ in range(2000)]
    bits = np.unpackbits(np.frombuffer(b"".join(sums), np.uint8).reshape(-1, 16), axis=1)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 7 * 0.5 / np.sqrt(2000))


def lattice_hash(ciphertext: bytes) -> npt.NDArray[np.uint16]:
    """One term of LtHash: 1024 lanes of 16 bits."""
    return np.frombuffer(hashlib.shake_128(ciphertext).digest(2048), dtype="<u2")


def test_a_plain_multiset_hash_would_tell_server_1_whose_ciphertexts_are_whose() -> None:
    """Why clients send masked tickets: the lanes of LtHash are linear equations in the subset."""
    rng = np.random.default_rng(0)
    clients, per = 4, 16
    ciphertexts = [rng.bytes(72) for _ in range(clients * per)]
    owner = np.repeat(np.arange(clients), per)
    order = rng.permutation(len(ciphertexts))  # the shuffle, unknown to server 1
    shuffled = [ciphertexts[i] for i in order]
    terms = np.stack([lattice_hash(c) for c in shuffled])
    for client in range(clients):
        mine = [c for c, who in zip(ciphertexts, owner, strict=True) if who == client]
        total = sum((lattice_hash(c).astype(np.uint64) for c in mine), np.zeros(1024, np.uint64))
        found = solve_over_bits((terms & 1).T, (total & 1).astype(np.uint8))
        assert np.array_equal(found, owner[order] == client)


def solve_over_bits(matrix: Any, right: Any) -> npt.NDArray[np.bool_]:
    """The unique solution of a linear system over GF(2)."""
    system = np.concatenate([matrix, right[:, None]], axis=1).astype(np.uint8)
    unknowns = matrix.shape[1]
    for column in range(unknowns):
        pivot = column + int(np.argmax(system[column:, column]))
        system[[column, pivot]] = system[[pivot, column]]
        rows = np.flatnonzero(system[:, column])
        rows = rows[rows != column]
        system[rows] ^= system[column]
    assert np.array_equal(system[:unknowns, :unknowns], np.eye(unknowns))
    return np.asarray(system[:unknowns, -1] == 1)


def test_too_many_positions_are_refused() -> None:
    union = Union(plan_of())
    with pytest.raises(ParameterError, match="the plan allows 4"):
        psu_shuffle.encrypt(union.plan, union.segment, 0, 0, np.arange(5), bytes(32))

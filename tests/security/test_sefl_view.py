"""What aggregator and key holder see of a round, what they refuse, and the limit that stays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scripts.attacks.sefl_limits import decrypt, open_one_client, read_key
from tests.sefl.small import (
    constant_update,
    make_draft,
    make_servers,
    plain_sums,
    random_update,
    same_sums,
)
from torchfsl.crypto.homomorphic import Ciphertexts, KeyPair, PublicKey
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.sefl import Aggregator, Client, KeyHolder, SeflPlan, renew, run_round
from torchfsl.sefl import messages as wire
from torchfsl.sefl.messages import Kind, Named
from torchfsl.sefl.round import InProcess
from torchfsl.submodel.update import Update

pytest.importorskip("tenseal", reason="needs the extra homomorphic")

RARE = 1e-9
"""A statistic of right masks is less likely than that in one of 10**9 runs."""


def fill(aggregator: Aggregator, updates: dict[int, Update], number: int = 0) -> bytes:
    """SUM of a round with these updates."""
    aggregator.open_round(number)
    link = InProcess(aggregator)
    for client, update in updates.items():
        Client(aggregator.plan, link, client_id=client).start_round(number).submit(update)
    return aggregator.close_round()


def summed(
    aggregator: Aggregator, number: int, *parts: bytes, plan: SeflPlan | None = None
) -> bytes:
    """SUM of whatever parts, signed by the aggregator."""
    plan = plan or aggregator.plan
    return wire.encode(plan, Kind.SUM, number, 0, *parts, signing=aggregator._signing)


def decrypted(key_holder: KeyHolder, plan: SeflPlan, question: bytes) -> np.ndarray:
    """All slots that the key holder decrypts, padding too."""
    _, body = wire.decode_names(plan, wire.decode(plan, question, Kind.SUM))
    return key_holder._keys.decrypt(Ciphertexts.decode(plan.scheme, body, plan.ciphertexts))


def chi_square_p(slots: np.ndarray, modulus: int, cells: int = 64) -> float:
    """Probability of a statistic at least so large, by Wilson and Hilferty."""
    counts = np.bincount((slots.astype(object) * cells // modulus).astype(int), minlength=cells)
    expected = len(slots) / cells
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), cells - 1
    z = ((statistic / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["zero", "largest", "random"])
def test_view_of_the_key_holder_is_uniform(what: str) -> None:
    """All slots of two rounds of the same updates, those behind the last value too."""
    aggregator, key_holder, plan = make_servers(make_draft(sizes=(1_000_000,), max_clients=2))
    if what == "random":
        updates = {n: random_update(plan, n) for n in range(2)}
    else:
        value = 0 if what == "zero" else plan.encoding.q_max
        updates = {n: constant_update(plan, value) for n in range(2)}
    seen, modulus = [], plan.scheme.modulus
    for number in range(2):
        question = fill(aggregator, updates, number)
        seen.append(decrypted(key_holder, plan, question).astype(np.int64))
        assert len(seen[number]) == plan.ciphertexts * plan.slots > plan.num_values
        assert chi_square_p(seen[number], modulus) > RARE
        aggregator.abandon_round()
    # What one round tells about the other: their difference is uniform, so nothing.
    assert chi_square_p((seen[0] - seen[1]) % modulus, modulus) > RARE
    # Equal numbers stand in both by chance alone: 2**20 of them, one in 2**20 and rarer.
    assert np.count_nonzero(seen[0] == seen[1]) < 10


@pytest.mark.parametrize("what", [0, 1, -1])
def test_view_of_padding_is_random_and_rounds_share_no_pattern(what: int) -> None:
    aggregator, key_holder, plan = make_servers(make_draft(sizes=(8,)))
    updates = {n: constant_update(plan, what * plan.encoding.q_max) for n in range(2)}
    seen, modulus = [], plan.scheme.modulus
    for number in range(2):
        question = fill(aggregator, updates, number)
        seen.append(decrypted(key_holder, plan, question).astype(np.int64))
        aggregator.open(key_holder.open(question))
    for slots in (seen[0][8:], seen[1][8:], (seen[0] - seen[1]) % modulus):
        assert chi_square_p(slots, modulus) > RARE
    # By chance one pair of the 2048 is equal once in 500 runs, four once in 10**12.
    assert np.count_nonzero(seen[0] == seen[1]) < 4
    # Values are equal within a round; what is seen of them is not (two by chance, perhaps).
    assert all(len(set(slots[:8].tolist())) > 5 for slots in seen)


def test_a_mask_that_leaves_out_the_padding_would_be_seen() -> None:
    """The statistic finds a mask of half the range, and one that stops at the last value."""
    draw, modulus = np.random.default_rng(5), 4_294_991_873
    uniform = draw.integers(0, modulus, 4096)
    assert chi_square_p(uniform, modulus) > RARE
    assert chi_square_p(uniform // 2, modulus) < RARE**2
    assert chi_square_p(np.concatenate([uniform[:2048], np.zeros(2048, int)]), modulus) < RARE**2


@pytest.mark.slow
def test_view_of_the_aggregator_holds_the_key_holders_noise() -> None:
    sigma, size = 300, 1_000_000
    draft = make_draft(sizes=(size,), l2_bound=1 << 30, noise_sigma=sigma, max_clients=2)
    none = lambda _, count: np.zeros(count, dtype=np.int64)  # noqa: E731
    aggregator, key_holder, plan = make_servers(draft, aggregator_draw=none)
    updates = {n: constant_update(plan, n) for n in (1, 2)}
    opened = run_round(aggregator, key_holder, updates, round_number=0)
    left = opened.sums["part0"] - plain_sums(plan, updates)["part0"]
    # The variance of a million draws has itself a deviation of 0.14 %.
    assert abs(float(np.var(left)) / sigma**2 - 1) < 0.01
    assert abs(float(left.mean())) < 6 * sigma / math.sqrt(size)


def test_key_holder_refuses_a_second_opening_and_too_few_names() -> None:
    aggregator, key_holder, plan = make_servers(make_draft(min_clients=2, max_rounds=2))
    updates = {n: random_update(plan, n) for n in range(3)}
    question = fill(aggregator, updates, 4)
    answer = key_holder.open(question)
    with pytest.raises(RejectedSubmission, match="decrypts each round once"):
        key_holder.open(question)
    opened = aggregator.open(answer)
    assert same_sums(opened.sums, plain_sums(plan, updates))
    one = Named(1, bytes(32))
    body = question[-wire.ciphertext_bytes(plan) :]
    for names, number in (([], 5), ([one], 5), ([one, Named(2, bytes(32))], 3)):
        with pytest.raises(RejectedSubmission):
            key_holder.open(summed(aggregator, number, wire.encode_names(names), body))
    key_holder.open(fill(aggregator, updates, 6))
    aggregator.abandon_round()
    with pytest.raises(RejectedSubmission, match="all 2 rounds"):
        key_holder.open(fill(aggregator, updates, 7))


def test_key_holder_refuses_malformed_sums() -> None:
    aggregator, key_holder, plan = make_servers(make_draft())
    question = fill(aggregator, {n: random_update(plan, n) for n in range(3)})
    names, body = wire.decode_names(plan, wire.decode(plan, question, Kind.SUM))
    flipped = bytearray(question)
    flipped[-20_000] ^= 1
    listed = wire.encode_names(names)
    unordered = wire.encode_names(names[::-1])

    def again(*parts: bytes) -> bytes:
        return summed(aggregator, 0, *parts)

    bad = [
        question[:-1], question + b"\0", bytes(flipped), again(unordered, bytes(body)),
        again(listed, bytes(body)[:-1]), again(listed, bytes(body) * 2), again(listed, b""),
        summed(aggregator, 0, listed, bytes(body), plan=plan.draft),
    ]  # fmt: skip
    for message in bad:
        with pytest.raises(DecodeError):
            key_holder.open(message)
    foreign = PublicKey(plan.scheme, KeyPair(plan.scheme).public)
    under_another = foreign.encrypt(np.zeros(2048, np.uint64)).encode()
    key_holder.open(question)  # what was malformed has spent nothing
    with pytest.raises(RejectedSubmission, match="another key"):
        key_holder.open(summed(aggregator, 1, listed, under_another))


def test_aggregator_refuses_malformed_and_replayed_updates() -> None:
    aggregator, _, plan = make_servers(make_draft(max_clients=2))
    kept: list[bytes] = []

    class Tapped(InProcess):
        def send(self, message: bytes) -> bytes:
            kept.append(message)
            return super().send(message)

    link = Tapped(aggregator)
    aggregator.open_round(0)
    session = Client(plan, link, client_id=1).start_round(0)
    session.submit(random_update(plan, 1))
    message = kept[0]
    receipt = aggregator.receive(message)  # again: the same receipt, counted once
    assert aggregator.clients == (1,)
    assert receipt[-64:] == session.signed
    flipped = bytearray(message)
    flipped[10_000] ^= 1
    for bad in (message[:-1], message + b"\0", bytes(flipped)):
        with pytest.raises(DecodeError):
            aggregator.receive(bad)
    with pytest.raises(RejectedSubmission, match="two different"):
        Client(plan, link, client_id=1).start_round(0).submit(random_update(plan, 1))
    Client(plan, link, client_id=2).start_round(0).submit(random_update(plan, 2))
    with pytest.raises(RejectedSubmission, match="maximum of 2 clients"):
        Client(plan, link, client_id=3).start_round(0).submit(random_update(plan, 3))
    aggregator.abandon_round()
    aggregator.open_round(1)
    with pytest.raises(RejectedSubmission, match="round 0"):
        aggregator.receive(message)
    with pytest.raises(ProtocolError, match="0 clients"):
        aggregator.close_round()


def test_client_refuses_a_key_that_the_plan_does_not_name() -> None:
    aggregator, _, plan = make_servers(make_draft())
    other = KeyPair(plan.scheme).public

    class Between(InProcess):
        def fetch(self, kind: Kind, round_number: int, client: int) -> bytes:
            if kind is Kind.KEY:
                return wire.encode(plan, Kind.KEY, 0, 0, other)
            return super().fetch(kind, round_number, client)

    aggregator.open_round(0)
    with pytest.raises(DecodeError, match="expected the public key of the plan"):
        Client(plan, Between(aggregator), client_id=1).start_round(0)


def test_receipts_convict_an_aggregator_that_leaves_a_client_out() -> None:
    aggregator, key_holder, plan = make_servers(make_draft())
    updates = {n: random_update(plan, n) for n in range(3)}
    aggregator.open_round(0)
    link = InProcess(aggregator)
    sessions = {}
    for client, update in updates.items():
        sessions[client] = Client(plan, link, client_id=client).start_round(0)
        sessions[client].submit(update)
    question = aggregator.close_round()
    names, body = wire.decode_names(plan, wire.decode(plan, question, Kind.SUM))
    fewer = wire.encode_names(names[1:])
    key_holder.open(summed(aggregator, 0, fewer, bytes(body)))
    with pytest.raises(ProtocolError, match="the sum lacks this update"):
        sessions[0].check_listed(key_holder.listed(0))
    sessions[1].check_listed(key_holder.listed(0))
    assert len(sessions[0].signed) == 64


def test_limit_a_malicious_aggregator_opens_one_client() -> None:
    """Documented in docs/sefl.md: the key holder cannot tell one ciphertext from a sum."""
    aggregator, key_holder, plan = make_servers(make_draft())
    victim = random_update(plan, 1)
    others = {n: random_update(plan, n) for n in (2, 3)}
    found = open_one_client(aggregator, key_holder, victim, others)
    assert same_sums(found, {name: part.values for name, part in victim.items()})


def test_limit_is_not_there_between_honest_servers() -> None:
    aggregator, key_holder, plan = make_servers(make_draft())
    updates = {n: random_update(plan, n) for n in (1, 2, 3)}
    opened = run_round(aggregator, key_holder, updates, round_number=0)
    assert same_sums(opened.sums, plain_sums(plan, updates))
    with pytest.raises(ParameterError):
        KeyHolder(plan)  # a plan's key is made once


def test_limit_a_malicious_aggregator_reads_the_secret_key() -> None:
    """Documented in docs/sefl.md: one opening of a made-up ciphertext gives the whole key."""
    aggregator, key_holder, plan = make_servers(make_draft(sizes=(2048,)))
    key = read_key(aggregator, key_holder, 0)
    assert set(key.tolist()) == {-1, 0, 1}
    secret = np.random.default_rng(3).integers(0, plan.scheme.modulus, 2048, dtype=np.uint64)
    part = PublicKey(plan.scheme, key_holder._keys.public).encrypt(secret)._parts[0]
    assert np.array_equal(decrypt(plan.scheme, key, part), secret)
    other = KeyPair(plan.scheme)
    part = PublicKey(plan.scheme, other.public).encrypt(secret)._parts[0]
    assert not np.array_equal(decrypt(plan.scheme, key, part), secret)


def test_servers_refuse_what_the_other_one_has_not_signed() -> None:
    aggregator, key_holder, plan = make_servers(make_draft())
    stranger = Ed25519PrivateKey.generate()
    question = fill(aggregator, {n: random_update(plan, n) for n in range(3)})
    names, body = wire.decode_names(plan, wire.decode(plan, question, Kind.SUM))
    parts = wire.encode_names(names), bytes(body)
    forged = bytearray(question)
    forged[wire.HEADER_BYTES + 32] ^= 1
    for message in (bytes(forged), wire.encode(plan, Kind.SUM, 0, 0, *parts, signing=stranger)):
        with pytest.raises(RejectedSubmission, match="signature is not from"):
            key_holder.open(message)
    assert key_holder.last_round == -1  # a stranger spends no round
    answer = key_holder.open(question)
    _, rest = wire.digested(wire.decode(plan, answer, Kind.VALUE))
    again = wire.encode(plan, Kind.VALUE, 0, 0, bytes(rest), signing=stranger)
    shifted = bytearray(answer)
    shifted[-1] ^= 1
    with pytest.raises(RejectedSubmission, match="signature is not from"):
        aggregator.open(again)
    with pytest.raises(DecodeError, match="does not match the message"):
        aggregator.open(bytes(shifted))
    assert aggregator.open(answer).clients == (0, 1, 2)


def test_renewed_servers_go_on_and_take_nothing_of_the_old_plan() -> None:
    aggregator, key_holder, plan = make_servers(make_draft(max_rounds=1))
    updates = {n: random_update(plan, n) for n in range(3)}
    run_round(aggregator, key_holder, updates, round_number=4)
    with pytest.raises(RejectedSubmission, match="renew"):
        key_holder.open(fill(aggregator, updates, 5))
    with pytest.raises(ProtocolError, match="another round can begin only when"):
        renew(aggregator)
    aggregator.abandon_round()
    fresh, holder = renew(aggregator)
    assert fresh.plan != plan
    assert fresh.plan.draft == plan.draft
    assert fresh.plan.public_key != plan.public_key
    assert fresh.model is aggregator.model
    with pytest.raises(ProtocolError, match="choose a number above 5"):
        fresh.open_round(5)
    fresh.open_round(6)
    with pytest.raises(DecodeError, match="another plan"):
        fresh.receive(wire.encode(plan, Kind.UPDATE, 6, 1, bytes(wire.ciphertext_bytes(plan))))
    with pytest.raises(DecodeError, match="another plan"):
        Client(plan, InProcess(fresh), client_id=1).start_round(6)
    fresh.abandon_round()
    opened = run_round(fresh, holder, updates, round_number=7)
    assert same_sums(opened.sums, plain_sums(plan, updates))

"""Reads one client's update and the secret key, as a malicious aggregator of SEFL.

    python -m scripts.attacks.sefl_limits

This program does not switch a defence off and on. `torchfsl.sefl` trusts its aggregator to follow
the protocol, and SECURITY.md states this. If that is too much trust, use two servers with additive
shares (`--aggregation dense`).

The key holder sees a masked plaintext, a list of names and receipts. One client's ciphertext under
the mask looks like the sum of all of them. It must, because a party that could distinguish them
could decrypt the rest. The opened values still contain the noise of both servers.

A ciphertext is a pair of polynomials (c0, c1) with c0 + c1 s near the message times q / t, where s
is the secret key. The pair (0, q / t) is well formed, has next to no noise, and its message is s
itself. If a plan has as many values as a ciphertext has slots, one opening gives every coefficient
of s. The aggregator can then read all that clients ever sent under the key.

A key holder that looks for a c0 of zeros does not prevent this attack. The aggregator may add
anything to c0 that it can take off again. The plan here does not have noise. With noise, the attack
would need more openings (not tried).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from scripts.program import Options, program
from torchfsl.crypto import homomorphic
from torchfsl.crypto.bfv_parameters import Scheme
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.homomorphic import Ciphertexts, Slots
from torchfsl.sefl import Aggregator, Client, KeyHolder, SeflPlan, build_plan, introduce, messages
from torchfsl.sefl.messages import Kind
from torchfsl.sefl.packing import centred, unpack
from torchfsl.sefl.round import InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole


def open_one_client(
    aggregator: Aggregator, key_holder: KeyHolder, victim: Update, others: Mapping[int, Update]
) -> dict[str, Whole]:
    """Values for an aggregator that lists all clients and sends only the victim's ciphertext.

    Args:
        aggregator: idle aggregator; its class is honest, the party that runs it is not.
        key_holder: honest key holder.
        victim: client 1's update.
        others: updates of clients with other numbers.

    Returns:
        By segment, the values that the aggregator opens.
    """
    number = aggregator.last_round + 1
    aggregator.open_round(number)
    link = InProcess(aggregator)
    Client(aggregator.plan, link, client_id=1).start_round(number).submit(victim)
    held = aggregator._round
    assert held is not None
    kept = held.total.encode()  # the mask and one ciphertext
    for client, update in others.items():
        Client(aggregator.plan, link, client_id=client).start_round(number).submit(update)
    held.total = type(held.total).decode(held.total.scheme, kept, len(held.total))
    return aggregator.open(key_holder.open(aggregator.close_round())).sums


def parties(size: int) -> tuple[SeflPlan, Aggregator, KeyHolder]:
    """A plan of one dense segment, and both parties, who know each other."""
    spec = SegmentSpec("weights", "dense", (TensorSpec("w", (size,)),))
    draft = build_plan([spec], encoding=FixedPoint(), max_clients=10)
    model = ServerModel({"w": np.zeros(size, dtype=np.float32)})
    aggregator, key_holder = Aggregator(draft, model=model), KeyHolder(draft)
    return introduce(aggregator, key_holder, draft), aggregator, key_holder


def one_client_is_read() -> bool:
    """Play it and print what came out; whether the update was read."""
    _, aggregator, key_holder = parties(100)
    updates = {
        n: {"weights": SegmentUpdate(None, np.arange(100)[:, None] * n)} for n in range(1, 11)
    }
    victim = updates.pop(1)
    found = open_one_client(aggregator, key_holder, victim, updates)
    right = np.array_equal(found["weights"], victim["weights"].values)
    print(
        "the key holder was given ten names and ten receipts; the aggregator opened "
        + ("client 1's update, every value of it" if right else "something else")
    )
    return right


_HEADER_OF_ARRAY = bytes.fromhex("5ea11004030000") + b"\0"
"""SEAL's header in front of the numbers: magic, its size, version, no compression."""


def made_up(scheme: Scheme) -> Ciphertexts:
    """The ciphertext (0, q / t), of 2,048 slots."""
    count = 2 * scheme.degree
    scale = scheme.ring.modulus // scheme.modulus
    front = struct.pack("<4Q", *homomorphic._machine(scheme).context.first_parms_id())
    front += struct.pack("<BQQQdQ", 0, 2, scheme.degree, 1, 1.0, 1)
    front += _HEADER_OF_ARRAY + struct.pack("<QQ", 16 + 8 + 8 * count, count)
    blocks = [raw_block(front), zero_block(8 * scheme.degree)]
    blocks.append(raw_block(scale.to_bytes(8, "little")))
    blocks.append(zero_block(8 * (scheme.degree - 1), last=True))
    size = len(front) + 8 * count
    frame = bytes.fromhex("28b52ffda0") + size.to_bytes(4, "little") + b"".join(blocks)
    saved = bytes.fromhex("5ea1100403020000") + (16 + len(frame)).to_bytes(8, "little") + frame
    framed = homomorphic._framed(saved, scheme.ring.ciphertext_bytes)
    return Ciphertexts.decode(scheme, framed, 1)


def raw_block(data: bytes, *, last: bool = False) -> bytes:
    """A block of a zstd frame that holds its bytes as they are."""
    return (len(data) << 3 | last).to_bytes(3, "little") + data


def zero_block(size: int, *, last: bool = False) -> bytes:
    """A block of so many zeros."""
    return (size << 3 | 1 << 1 | last).to_bytes(3, "little") + b"\0"


def read_key(aggregator: Aggregator, key_holder: KeyHolder, number: int) -> Whole:
    """The secret key's coefficients, -1, 0 or 1, from one opening in round `number`.

    Args:
        aggregator: whose key signs; the round takes place behind its back.
        key_holder: honest.
        number: a round that has not been opened.
    """
    plan = aggregator.plan
    names = messages.encode_names(
        [messages.Named(client, bytes(32)) for client in range(plan.min_clients)]
    )
    rest = [aggregator._key.encrypt(np.zeros(plan.slots, np.uint64))] * (plan.ciphertexts - 1)
    body = b"".join(part.encode() for part in (made_up(plan.scheme), *rest))
    question = messages.encode(plan, Kind.SUM, number, 0, names, body, signing=aggregator._signing)
    answer = messages.decode(plan, key_holder.open(question), Kind.VALUE)
    _, found = messages.digested(answer)
    slots = unpack(plan, found[32:])[: plan.slots]
    return centred(plan, coefficients(plan.scheme, slots))


def coefficients(scheme: Scheme, slots: Slots) -> Slots:
    """The polynomial whose slots these are."""
    machine = homomorphic._machine(scheme)
    plain = machine.seal.Plaintext()
    machine.encoder.encode(slots.tolist(), plain)
    return np.array([plain[n] for n in range(plain.coeff_count())], dtype=np.uint64)


def decrypt(scheme: Scheme, key: Whole, part: Any) -> Slots:
    """The slots of a ciphertext of SEAL's, by the secret key alone."""
    q, t, n = scheme.ring.modulus, scheme.modulus, scheme.degree
    pair = np.array([part[i] for i in range(2 * n)], dtype=object).reshape(2, n)
    twice = np.concatenate([-pair[1], pair[1]])  # X**n is -1
    total = pair[0].copy()
    for place in np.flatnonzero(key):
        total += int(key[place]) * twice[n - place : 2 * n - place]
    message = [int(c * t * 2 + q) // (2 * q) % t for c in total % q]
    machine = homomorphic._machine(scheme)
    terms = [f"{c:X}x^{i}" if i else f"{c:X}" for i, c in enumerate(message) if c]
    plain = machine.seal.Plaintext(" + ".join(reversed(terms)) or "0")
    return np.array(machine.encoder.decode_uint64(plain), dtype=np.uint64)


def key_is_read() -> bool:
    """Play it and print what came out; whether the key was read."""
    size = 2048
    plan, aggregator, key_holder = parties(size)
    sent = np.random.default_rng(0).integers(-1000, 1001, (size, 1))
    kept: list[bytes] = []

    class Tapped(InProcess):
        def send(self, message: bytes) -> bytes:
            kept.append(message)
            return super().send(message)

    aggregator.open_round(0)
    client = Client(plan, Tapped(aggregator), client_id=1).start_round(0)
    client.submit({"weights": SegmentUpdate(None, sent)})
    aggregator.abandon_round()  # nothing of that round is ever opened
    key = read_key(aggregator, key_holder, 1)
    _, body = messages.digested(messages.decode(plan, kept[0], Kind.UPDATE))
    part = Ciphertexts.decode(plan.scheme, body, 1)._parts[0]
    right = np.array_equal(centred(plan, decrypt(plan.scheme, key, part)), sent[:, 0])
    print(
        f"one opening gave a key of {np.count_nonzero(key)} coefficients that are not 0, with "
        "which the aggregator read " + ("all of client 1's update" if right else "nothing")
    )
    return right


@program(finds=False)
def main(options: Options) -> int:
    """Play both."""
    return int(not (one_client_is_read() & key_is_read()))

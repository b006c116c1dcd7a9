"""Vectors of an aggregator and a key holder: parameters, plan, numbers modulo t, messages.

What SEAL makes, keys and ciphertexts, takes its randomness from the operating system and has no
vector: bytes that look random stand in its place, which is all that the framing sees of it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scripts.generate.primitive_vectors import Json, drawn
from torchfsl.crypto.bfv_parameters import least_modulus
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.sefl import SeflPlan, build_plan, messages
from torchfsl.sefl.messages import HEADER_BYTES, Kind, Named
from torchfsl.sefl.packing import centred, pack, to_slots
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.submodel.whole_model import encode_model

ROUND = 7
AGGREGATOR = Ed25519PrivateKey.from_private_bytes(drawn("aggregator", 32))
KEY_HOLDER = Ed25519PrivateKey.from_private_bytes(drawn("key holder", 32))
VALUES = [5, 0, -6, 262144, -262144]
WEIGHT = 2
FRONT = HEADER_BYTES + 96
"""So much of a long message stands as it is; of all of it the digest."""


def small_plan() -> SeflPlan:
    """Two segments, weights, 2,048 slots; bound to keys."""
    specs = [
        SegmentSpec("kernel", "dense", (TensorSpec("w", (2, 2)),)),
        SegmentSpec("bias", "dense", (TensorSpec("b", (1,)),)),
    ]
    sizes = {"max_clients": 5, "lane": "weight", "max_weight": 3, "max_rounds": 9}
    encoding, session = FixedPoint(32, 16, 4.0), drawn("session", 16)
    draft = build_plan(specs, encoding=encoding, session=session, **sizes)
    public = messages.key_digest(drawn("public key", draft.scheme.ring.key_bytes))
    servers = (key.public_key().public_bytes_raw() for key in (AGGREGATOR, KEY_HOLDER))
    return draft.bound_to(public, *servers)


def sefl_vectors() -> Json:
    """See the module."""
    plan = small_plan()
    update = {
        "kernel": SegmentUpdate(None, np.array(VALUES[:4])[:, None]),
        "bias": SegmentUpdate(None, np.array(VALUES[4:])[:, None]),
    }
    slots = to_slots(plan, update, WEIGHT)
    return {
        "moduli": [
            {"slots": degree, "bound": str(bound), "modulus": str(least_modulus(degree, bound))}
            for degree in (2048, 4096)
            for bound in (1, 1 << 20, (1 << 32) - 1, 1 << 45)
        ],
        "plan": plan.to_json(),
        "digest": plan.digest.hex(),
        "modulus": plan.scheme.modulus,
        "values": VALUES,
        "weight": WEIGHT,
        "numbers": slots[: plan.num_values].tolist(),
        "padding": int(slots[plan.num_values :].sum()),
        "packed": pack(plan, slots[: plan.num_values]).hex(),
        "read": centred(plan, slots[: plan.num_values]).tolist(),
        "messages": [_shown(kind, data) for kind, data in play(plan)],
    }


def play(plan: SeflPlan) -> list[tuple[Kind, bytes]]:
    """A message of each kind, of clients 4 and 9."""
    ciphertexts = {name: drawn(name, messages.ciphertext_bytes(plan)) for name in ("4", "9", "sum")}
    state = {
        "w": np.arange(4, dtype=np.float32).reshape(2, 2) / 16,
        "b": np.array([-1.5], dtype=np.float32),
    }
    updates = {
        client: messages.encode(plan, Kind.UPDATE, ROUND, client, ciphertexts[str(client)])
        for client in (4, 9)
    }
    named = [Named(client, _digest(data)) for client, data in updates.items()]
    signed = AGGREGATOR.sign(messages.receipt_text(plan, ROUND, named[0]))
    body = messages.encode_names(named), ciphertexts["sum"]
    total = messages.encode(plan, Kind.SUM, ROUND, 0, *body, signing=AGGREGATOR)
    numbers = np.arange(plan.num_values, dtype=np.uint64) * 1_000_003 % plan.scheme.modulus
    value = messages.encode(
        plan, Kind.VALUE, ROUND, 0, _digest(total), pack(plan, numbers), signing=KEY_HOLDER
    )
    public = drawn("public key", plan.scheme.ring.key_bytes)
    return [
        (Kind.KEY, messages.encode(plan, Kind.KEY, 0, 0, public)),
        (Kind.MODEL, messages.encode(plan, Kind.MODEL, ROUND, 4, *encode_model(plan, state))),
        (Kind.UPDATE, updates[4]),
        (Kind.RECEIPT, messages.encode(plan, Kind.RECEIPT, ROUND, 4, named[0].digest, signed)),
        (Kind.SUM, total),
        (Kind.VALUE, value),
    ]


def _digest(message: bytes) -> bytes:
    return message[HEADER_BYTES:][:32]


def _shown(kind: Kind, data: bytes) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "length": len(data),
        "begins": data[:FRONT].hex(),
        "sha256": hashlib.sha256(data).hexdigest(),
    }

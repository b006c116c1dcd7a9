"""The vectors of `tests/vectors/sefl.json`: parameters, plan, numbers and messages are frozen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.generate import sefl_vectors
from torchfsl.crypto.bfv_parameters import is_prime, least_modulus
from torchfsl.errors import DecodeError, RejectedSubmission
from torchfsl.sefl import SeflPlan, messages
from torchfsl.sefl.messages import Kind
from torchfsl.sefl.packing import centred, unpack

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "sefl.json").read_text()
)
PLAN = SeflPlan.from_json(VECTORS["plan"])


def test_moduli_are_the_least_primes_for_their_sums() -> None:
    for case in VECTORS["moduli"]:
        slots, bound, modulus = (int(case[name]) for name in ("slots", "bound", "modulus"))
        assert least_modulus(slots, bound) == modulus
        assert is_prime(modulus)
        assert modulus % (2 * slots) == 1
        between = range(modulus - 2 * slots, 2 * bound, -2 * slots)
        assert not any(is_prime(number) for number in between)


def test_the_plan_its_digest_and_its_numbers() -> None:
    assert PLAN.digest.hex() == VECTORS["digest"]
    assert PLAN.digest == hashlib.sha256(VECTORS["plan"].encode()).digest()
    assert PLAN.scheme.modulus == VECTORS["modulus"]
    sent = [VECTORS["weight"] * value for value in VECTORS["values"]] + [VECTORS["weight"]]
    assert [n % PLAN.scheme.modulus for n in sent] == VECTORS["numbers"]
    assert VECTORS["padding"] == 0
    numbers = unpack(PLAN, bytes.fromhex(VECTORS["packed"]))
    assert numbers.tolist() == VECTORS["numbers"]
    assert centred(PLAN, numbers).tolist() == VECTORS["read"] == sent


def test_messages_begin_and_hash_as_they_did() -> None:
    played = sefl_vectors.play(PLAN)
    assert [kind.name for kind, _ in played] == [m["kind"] for m in VECTORS["messages"]]
    for (_, data), shown in zip(played, VECTORS["messages"], strict=True):
        assert len(data) == shown["length"]
        assert data[: sefl_vectors.FRONT].hex() == shown["begins"]
        assert hashlib.sha256(data).hexdigest() == shown["sha256"]


def test_frozen_messages_are_read_and_altered_ones_refused() -> None:
    keys = {Kind.SUM: PLAN.receipt_key, Kind.VALUE: PLAN.answer_key}
    for kind, data in sefl_vectors.play(PLAN):
        message = messages.decode(PLAN, data, kind)
        assert message.round_number == (0 if kind is Kind.KEY else 7)
        if kind in (Kind.UPDATE, Kind.SUM, Kind.VALUE):
            messages.digested(message)
            altered = bytearray(data)
            altered[-1] ^= 1
            with pytest.raises(DecodeError, match="does not match the message"):
                messages.digested(messages.decode(PLAN, bytes(altered), kind))
        if kind in keys:
            messages.check_signature(message, keys[kind])
            other = PLAN.answer_key if kind is Kind.SUM else PLAN.receipt_key
            with pytest.raises(RejectedSubmission, match="signature is not from"):
                messages.check_signature(message, other)
    names, body = messages.decode_names(PLAN, messages.decode(PLAN, played_sum(), Kind.SUM))
    assert [named.client for named in names] == [4, 9]
    assert len(body) == messages.ciphertext_bytes(PLAN)


def played_sum() -> bytes:
    return dict(sefl_vectors.play(PLAN))[Kind.SUM]


def test_values_come_back_from_the_frozen_answer() -> None:
    data = dict(sefl_vectors.play(PLAN))[Kind.VALUE]
    _, rest = messages.digested(messages.decode(PLAN, data, Kind.VALUE))
    expected = np.arange(PLAN.num_values) * 1_000_003 % PLAN.scheme.modulus
    assert unpack(PLAN, rest[32:]).tolist() == expected.tolist()

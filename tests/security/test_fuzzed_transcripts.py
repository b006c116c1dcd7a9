"""Altered transcripts: refused with an error of torchfsl, or the replay has an end."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded
from tests.security.test_audited_lies import PLANS
from tests.security.test_audited_noise import PLAN as CORRELATED
from tests.support.audited import audited, audited_servers, auditors, reported, until_verified
from torchfsl.crypto.hpke import SealKey, seal_pieces
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.messages import HEADER_BYTES
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.auditor import judged
from torchfsl.service.state.audits import transcript_info

ALL = {name: audited(plan) for name, plan in PLANS.items()} | {"correlated": CORRELATED}
Rng = np.random.Generator
Pieces = list[bytes]


def shown(plan: Plan) -> tuple[bytes, bytes]:
    """What both servers show of a round, for the same plan."""
    servers = audited_servers(plan)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1)})
    until_verified(servers)
    one, two = (b"".join(transcript.parts(s, s.commit())) for s in servers)
    return one, two


def framed(pieces: Pieces) -> bytes:
    return b"".join(struct.pack("<Q", len(piece)) + piece for piece in pieces)


def flipped(data: bytes, rng: Rng) -> bytes:
    altered = bytearray(data)
    for place in rng.integers(len(data), size=rng.integers(1, 4)):
        altered[place] ^= 1 << int(rng.integers(8))
    return bytes(altered)


def cut(data: bytes, rng: Rng) -> bytes:
    return data[: int(rng.integers(len(data)))]


def other_length(data: bytes, rng: Rng) -> bytes:
    """One piece says another length."""
    starts = [HEADER_BYTES]
    while starts[-1] < len(data):
        (size,) = struct.unpack_from("<Q", data, starts[-1])
        starts.append(starts[-1] + 8 + size)
    at = starts[int(rng.integers(len(starts) - 1))]
    size = (0, 7, 1 << 31, (1 << 64) - 1, int(rng.integers(1 << 12)))[int(rng.integers(5))]
    return data[:at] + struct.pack("<Q", size) + data[at + 8 :]


def other_pieces(data: bytes, rng: Rng) -> bytes:
    """Two pieces swapped, or one there twice, or none, behind a header that says the length."""
    pieces: Pieces = [bytes(piece) for piece in transcript._cut(memoryview(data)[HEADER_BYTES:])]
    first, second = (int(place) for place in rng.integers(len(pieces), size=2))
    how = int(rng.integers(3))
    if how == 0:
        pieces[first], pieces[second] = pieces[second], pieces[first]
    elif how == 1:
        pieces[first] = pieces[second]
    else:
        del pieces[first]
    body = framed(pieces)
    (length,) = struct.unpack_from("<Q", data, 24)
    assert length == len(data) - HEADER_BYTES
    return data[:24] + struct.pack("<Q", len(body)) + data[32:HEADER_BYTES] + body


HOW: tuple[Callable[[bytes, Rng], bytes], ...] = (flipped, cut, other_length, other_pieces)


@pytest.mark.parametrize("name", ALL)
def test_whatever_a_server_shows_its_auditor_the_replay_has_an_end(name: str) -> None:
    """It is refused, or what the server promised and signed contradicts it, or it passes."""
    plan = ALL[name]
    whole, others = shown(plan)
    judge, rng, refused = auditors(plan)[0], np.random.default_rng(9), 0
    assert judge.replay(whole).step == ""
    for attempt in range(200):
        data = HOW[attempt % len(HOW)](whole, rng)
        try:
            found = judge.replay(data)
        except (DecodeError, ProtocolError):
            refused += 1
        else:
            assert found.step or data == whole
    assert refused > 100
    with pytest.raises(DecodeError):
        judge.replay(others)


def test_a_sealed_transcript_that_somebody_else_altered_names_no_server() -> None:
    plan, key, rng = CORRELATED, SealKey.generate(), np.random.default_rng(9)
    info = transcript_info(plan.digest, 1, 0)
    judge = auditors(plan)[0]
    sealed = b"".join(seal_pieces(key.public, info, [shown(plan)[0]]))
    assert judged(judge, 1, key.raw, sealed).step == ""
    for attempt in range(60):
        with pytest.raises(ProtocolError, match=r"cannot open|so its authentication fails|shorter"):
            judged(judge, 1, key.raw, (flipped, cut)[attempt % 2](sealed, rng))

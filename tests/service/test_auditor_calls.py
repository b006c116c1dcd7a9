"""Calls of auditors at a server: every odd request is refused as such, and the round goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_audits import PLAN, Audited
from torchfsl.crypto import kdf
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.auditor import AuditorProcess
from torchfsl.service.net import calls
from torchfsl.service.state.audits import transcript_info
from torchfsl.service.state.steps import StoredState
from torchfsl.version import __version__

SIGNATURE, NUMBER = "00" * 64, 1
FIELDS: dict[str, dict[str, Any]] = {
    "AuditKey": {"round": NUMBER, "key": "00" * 32, "signature": SIGNATURE},
    "Transcript": {"round": NUMBER},
    "Passed": {"round": NUMBER, "message": "00" * 128},
    "Named": {"round": NUMBER, "step": "share", "why": "?", "signature": SIGNATURE},
    "Signed": {
        "round": NUMBER,
        "record": "00" * 32,
        "commitment": "00" * 32,
        "signed": SIGNATURE,
        "twice": SIGNATURE,
    },
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    with Audited(tmp_path_factory.mktemp("audited"), seconds=2.0) as pair:
        pair._plan = PLAN
        pair.start()
        pair.set_up()
        pair.open()
        yield pair


@pytest.fixture
def judge(pair: Audited) -> Iterator[AuditorProcess]:
    with contextlib.closing(pair.auditor(0)) as judge:
        yield judge


def call(judge: AuditorProcess, method: str, data: bytes) -> bytes:
    server = 0 if method in ("AuditKey", "Transcript") else 1
    return judge.links.links[server].once(method, data, limit=1 << 20)


def odd(fields: dict[str, Any]) -> Iterator[bytes]:
    """Requests with one thing wrong."""
    for name, value in fields.items():
        yield json.dumps({k: v for k, v in fields.items() if k != name}).encode()
        others: tuple[Any, ...] = (None, [], {}, 1.5, "0" if isinstance(value, int) else 7)
        for other in others:
            yield json.dumps(fields | {name: other}).encode()
    hexadecimal = [name for name in fields if name not in ("round", "step", "why")]
    for name in hexadecimal:
        right = fields[name]
        for text in (right[:-1], right[:-2], right + "00", right.replace("0", "g"), " " + right):
            yield json.dumps(fields | {name: text}).encode()
    whole = json.dumps(fields).encode()
    yield from (b"", b"{", b"[]", whole[:-1], whole + b"}", whole + b" " * 4096, b"\xff" + whole)
    for number in (-1, 1 << 64):
        yield json.dumps(fields | {"round": number}).encode()
    yield json.dumps(fields | {"more": 1}).encode()


@pytest.mark.parametrize("method", FIELDS)
def test_odd_requests_are_decode_errors(method: str, judge: AuditorProcess) -> None:
    for data in odd(FIELDS[method]):
        with pytest.raises(DecodeError):
            call(judge, method, data)


@pytest.mark.parametrize("method", FIELDS)
def test_a_call_of_another_wire_version_is_refused_as_that(
    method: str, judge: AuditorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (WIRE_VERSION - 1, WIRE_VERSION + 1):
        about = (("torchfsl-wire", str(version)), ("torchfsl-library", __version__))
        monkeypatch.setattr(calls, "metadata", lambda about=about: about)
        with pytest.raises(calls.VersionMismatch):
            call(judge, method, json.dumps(FIELDS[method]).encode())


def test_a_pass_of_another_version_kind_plan_or_length_is_a_decode_error(
    pair: Audited, judge: AuditorProcess
) -> None:
    right = messages.encode(pair.plan, Kind.AUDIT_PASS, 1, NUMBER, 0, bytes(64))
    for place in (0, 4, 5, 6, 7, 24, 31, 32, 63):
        data = bytearray(right)
        data[place] ^= 0x40
        request = calls.encode_request(round=NUMBER, message=data.hex())
        with pytest.raises(DecodeError):
            call(judge, "Passed", request)
    with pytest.raises(ProtocolError):  # it is not due
        call(judge, "Passed", calls.encode_request(round=NUMBER, message=right.hex()))


def test_a_signed_key_that_is_none_ends_its_round_alone(
    pair: Audited, judge: AuditorProcess
) -> None:
    key, info = bytes(32), transcript_info(pair.plan.digest, NUMBER, 0)  # of small order
    signature = judge.key.sign(kdf.LABEL_AUDIT_KEY, info, key).hex()
    fields = {"round": NUMBER, "key": key.hex(), "signature": signature}
    call(judge, "AuditKey", calls.encode_request(**fields))
    with pair.audited_by(1):
        pair.report(2, 3)
        with pytest.raises(ProtocolError, match="is not a public key"):
            pair.owner.close_round(NUMBER)
    with pair.audited_by(0, 1):
        assert pair.round_of(2, 3).clients == (2, 3)
    assert pair.owner.links.info(0)["state"] == StoredState.APPLIED
    assert not [*Path(pair.folder).glob("auditor?/named/*")]

"""The HTTPS door as it meets strangers: what it serves, what it refuses, what it drops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import textwrap
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.network import wait_until
from tests.support.web import ORIGIN, Answer, WebPair, make_public_certificate
from torchfsl.errors import ParameterError
from torchfsl.service.client.links import Links
from torchfsl.service.command import main
from torchfsl.service.net import calls
from torchfsl.service.net.answers import PLAN_BYTES
from torchfsl.service.net.issuers import Issuers
from torchfsl.service.server.web_settings import WebSettings

pytest.importorskip("h11")

LIMITS = "handshake_seconds = 5.0\nhandshakes = 64\nconversation_seconds = 4.0\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPair]:
    with WebPair(tmp_path_factory.mktemp("pair"), limits=LIMITS) as started:
        started.start()
        started.set_up()
        yield started


def head(*lines: str, name: str = "Plan") -> bytes:
    given = (f"POST /torchfsl/v1/{name} HTTP/1.1", "Host: a", "Torchfsl-Wire: 4", *lines, "", "")
    return "\r\n".join(given).encode()


def refused(answer: Answer, status: int, code: str) -> None:
    told = json.loads(answer.body)
    assert (answer.status, told["code"]) == (status, code), told
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["vary"] == "Origin"


def sent(pair: WebPair, data: bytes) -> Answer:
    with pair.raw() as connection:
        connection.sendall(data)
        return Answer.read_from(connection)


def ends(connection: socket.socket) -> bool:
    """Whether the server has closed, or does so soon."""
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def test_a_stranger_gets_plan_and_certificate_in_the_bytes_of_grpc(pair: WebPair) -> None:
    links = Links(pair.urls, pair.files("client-1"), pair.policy)
    for name in ("Plan", "Certificate"):
        answer = pair.post(name, calls.encode_request())
        assert answer.status == 200
        ours = links.links[0].call(name, calls.encode_request(), limit=PLAN_BYTES)
        assert answer.body == ours
    links.close()


def test_calls_of_clients_need_a_token_and_those_of_others_are_not_there(pair: WebPair) -> None:
    for name in ("Info", "Model", "Retrieve", "Answer", "Upload", "Submit", "Fetch"):
        refused(answer := pair.post(name), 401, json.loads(answer.body)["code"])
        assert answer.headers["torchfsl-nonce"]
    for name in ("SetUp", "Open", "Step", "Relay", "Transcript", "Converse", "", "../v1/Plan"):
        refused(pair.post(name), 404, "unknown-call")
    refused(sent(pair, b"GET /torchfsl/v1/Plan HTTP/1.1\r\nHost: a\r\n\r\n"), 404, "unknown-call")


def test_another_wire_version_is_told_which_side_to_upgrade(pair: WebPair) -> None:
    refused(answer := pair.post("Plan", headers={"Torchfsl-Wire": "3"}), 426, "version")
    assert b"upgrade the client" in answer.body
    refused(sent(pair, head("Content-Length: 2", "Torchfsl-Wire: 4") + b"{}"), 400, "decode")


@pytest.mark.parametrize(
    ("lines", "body", "status", "code"),
    [
        ((), b"", 411, "length-required"),
        (("Transfer-Encoding: chunked",), b"2\r\n{}\r\n0\r\n\r\n", 411, "length-required"),
        (("Content-Length: 2", "Transfer-Encoding: chunked"), b"{}", 411, "length-required"),
        (("Content-Length: 2", "Content-Length: 3"), b"{}", 400, "decode"),
        (("Content-Length: -1",), b"{}", 400, "decode"),
        (("Content-Length: 4097",), b"{}" + b" " * 4095, 400, "length"),
        (("Content-Length: 99999999999",), b"{}", 400, "length"),
        (("Content-Length: 2", "X: " + "x" * 40000), b"{}", 400, "decode"),
    ],
)
def test_a_body_is_in_one_piece_of_a_length_that_is_said_and_allowed(
    pair: WebPair, lines: tuple[str, ...], body: bytes, status: int, code: str
) -> None:
    refused(sent(pair, head(*lines) + body), status, code)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01" * 9, b"POST / HTTP/1.1\r\nHost : a", b"x",
        *(head("Content-Length:" + fold)[:-4] for fold in ("\r\n 2", "\r\n\t2", "\n 2")),
    ],
)  # fmt: skip
def test_what_is_no_request_gets_one_clean_refusal(pair: WebPair, data: bytes) -> None:
    with pair.raw() as connection:
        connection.sendall(data + b"\r\n\r\n")
        refused(Answer.read_from(connection), 400, "decode")
        assert ends(connection)


def test_a_request_before_the_answer_to_the_last_one_is_not_answered(pair: WebPair) -> None:
    one = head("Content-Length: 2") + b"{}"
    with pair.raw() as connection:
        connection.sendall(one)
        assert Answer.read_from(connection).status == 200
        connection.sendall(one)  # one after the other is served
        assert Answer.read_from(connection).status == 200
        connection.sendall(one + one)
        assert Answer.read_from(connection).status == 200
        assert ends(connection)


def test_only_pages_of_named_origins_may_call(pair: WebPair) -> None:
    answer = pair.post("Plan", headers={"Origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "torchfsl-nonce" in answer.headers["access-control-expose-headers"]
    for origin in ("https://other.example", "null", ORIGIN + ".other", ORIGIN.upper(), ""):
        refused(answer := pair.post("Plan", headers={"Origin": origin}), 403, "origin-refused")
        assert "access-control-allow-origin" not in answer.headers
    twice = head("Content-Length: 2", f"Origin: {ORIGIN}", "Origin: null") + b"{}"
    refused(sent(pair, twice), 403, "origin-refused")


def test_a_preflight_is_answered_for_named_origins_and_for_no_other(pair: WebPair) -> None:
    asked = "OPTIONS /torchfsl/v1/Submit HTTP/1.1\r\nHost: a\r\nOrigin: {}\r\n\r\n"
    answer = sent(pair, asked.format(ORIGIN).encode())
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-max-age"] == "7200"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    refused(sent(pair, asked.format("null").encode()), 403, "origin-refused")


def test_slow_heads_and_bodies_are_dropped(pair: WebPair) -> None:
    whole = head("Content-Length: 2")
    for begun in (b"", whole[:9], whole, whole + b"{"):
        with pair.raw() as connection:
            connection.sendall(begun)
            start = time.monotonic()
            if begun.startswith(whole):
                refused(Answer.read_from(connection), 503, "not-ready")
            assert ends(connection)
            assert time.monotonic() - start < 30  # idle_seconds 3, conversation_seconds 4


def test_tls_before_1_3_is_refused(pair: WebPair) -> None:
    old = pair.tls_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    plain = socket.create_connection(("127.0.0.1", pair.web_ports[0]), timeout=60)
    with plain, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(plain, server_hostname="127.0.0.1")


def test_two_hundred_silent_connections_leave_both_doors_open(pair: WebPair) -> None:
    port = pair.web_ports[0]
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
    try:
        assert pair.post("Plan").status == 200
        link = Links(pair.urls, pair.files("client-1"), pair.policy).links[0]
        assert link.call("Info", calls.encode_request(), limit=PLAN_BYTES)
        gone = sum(1 for one in silent if _is_gone(one))
        assert gone >= 200 - 32  # handshakes_per_address
    finally:
        for one in silent:
            one.close()


def _is_gone(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_renewed_certificate_is_taken_without_a_restart(pair: WebPair) -> None:
    key = (pair.web / "web.key").read_bytes()
    make_public_certificate(pair.web)
    fresh = (pair.web / "web.key").read_bytes()
    (pair.web / "web.key").write_bytes(key)  # half of it, as while it is being written
    time.sleep(1.1)
    with pytest.raises(ssl.SSLError):
        pair.post("Plan")  # the old one is still there, which this side has forgotten
    (pair.web / "web.key").write_bytes(fresh)
    time.sleep(1.1)
    assert pair.post("Plan").status == 200


def test_settings_of_the_door_are_checked_and_h11_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_public_certificate(tmp_path)
    good = {"listen": "127.0.0.1:0", "certificate": f"{tmp_path}/web.pem",
            "key": f"{tmp_path}/web.key", "admission": f"{tmp_path}/a.toml"}  # fmt: skip
    assert WebSettings.from_mapping(good | {"origins": [ORIGIN, "capacitor://localhost"]}).origins
    for bad in (
        {"origins": ["*"]}, {"origins": ["null"]}, {"origins": ["https://a/"]}, {"origins": "a"},
        {"listen": 7443}, {"listen": "7443"}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(ParameterError):
            WebSettings.from_mapping(good | bad)
    make_public_certificate(tmp_path / "other")
    other = WebSettings.from_mapping(good | {"key": f"{tmp_path}/other/web.key"})
    with pytest.raises(ParameterError, match=r"expected a certificate in .* and its key"):
        other.context()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ParameterError, match=r"pip install 'torchfsl\[web\]'"):
        other.check_installed()


def test_doctor_looks_at_the_door(
    pair: WebPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(old: str = "", new: str = "", *, denies: bool = True) -> list[str]:
        config = tmp_path / "serve.toml"
        text = pair.config.read_text()
        config.write_text(text.replace(old, new) if old else text)
        given = pair.command(0)[4 : None if denies else -2]
        given[given.index("--config") + 1] = str(config)
        main(["doctor", *given])
        return [line for line in capsys.readouterr().out.splitlines() if " web: " in line]

    good = found()
    assert len(good) == 6
    assert all(line.startswith("ok ") for line in good)
    assert good[-2].endswith("issuers: 1")
    assert good[-1].endswith(f"digest {Issuers(pair.admission).digest()}, as at server 1")
    others = tmp_path / "admission.toml"
    others.write_text(pair.admission.read_text().replace("counts = 99", "counts = 98"))
    (differs,) = [line for line in found(str(pair.admission), str(others)) if line[0] == "F"]
    assert "make both admission files equal" in differs
    make_public_certificate(tmp_path / "other")
    for old, new, what in (
        (f"{pair.web}/web.key", f"{tmp_path}/other/web.key", "certificate and key"),
        (str(pair.admission), f"{tmp_path}/none.toml", "admission"),
    ):
        failed = [line for line in found(old, new) if line.startswith("FAILED")]
        assert len(failed) == 1
        assert what in failed[0]
    assert found(f'"{ORIGIN}"', "")[-2].startswith("note ")
    assert found(denies=False)[-2].startswith("note    web: no deny list")


def test_the_page_prints_settings_and_an_entry_that_are_taken(tmp_path: Path) -> None:
    from torchfsl.service.server.admission import Tokens  # which needs h11

    page = (Path(__file__).resolve().parents[2] / "docs" / "web-door.md").read_text()
    entry, section = (
        textwrap.dedent(block) for block in re.findall(r" ```toml\n(.*?) +```", page, re.DOTALL)
    )
    (tmp_path / "admission.toml").write_text(entry)
    assert Issuers(tmp_path / "admission.toml").whose(1000017) is not None
    assert WebSettings.from_mapping(tomllib.loads(section)["web"]).origins == (ORIGIN,)
    named = set(re.findall(r"^\| `(Torchfsl-\w+|Authorization)`", page, re.MULTILINE))
    assert {name.lower() for name in named} == {*Tokens.headers, "torchfsl-wire"}


def test_a_refusal_before_the_body_has_come_leaves_the_connection_usable(pair: WebPair) -> None:
    refusable = head("Content-Length: 2", "Authorization: Torchfsl x", name="Model")
    one = head("Content-Length: 2") + b"{}"
    with pair.raw() as connection:
        connection.sendall(refusable)
        refused(Answer.read_from(connection), 401, "nonce-expired")
        connection.sendall(b"{}" + one)  # the rest, and the next request with it
        assert Answer.read_from(connection).status == 200


class Apart(WebPair):
    """Each server has an admission file of its own."""

    def admitted_by(self, party: int) -> Path:
        return self.admission.with_name(f"admission{party}.toml")

    def command(self, party: int) -> list[str]:
        own, text = self.config.with_name(f"serve{party}.toml"), self.config.read_text()
        own.write_text(text.replace(str(self.admission), str(self.admitted_by(party))))
        return [str(own) if word == str(self.config) else word for word in super().command(party)]


def test_reloads_at_one_server_after_the_other_end_in_equal_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Apart(tmp_path) as pair:
        kept = pair.admission.read_text()
        removed = f'[[issuer]]\nname = "b"\nkey = "{"1" * 64}"\nshare = 0.5\ncounts = 2\n'
        for party in (0, 1):
            pair.admitted_by(party).write_text(f"{kept}{removed}numbers = [[9000, 9999]]\n")
        old, new = (Issuers(path).digest() for path in (pair.admitted_by(0), pair.admission))
        pair.start()
        pair.set_up()

        def told(party: int) -> set[str]:
            answer = json.loads(pair.post("Plan", party=party).body)
            return {answer["issuers"], str(pair.owner.links.info(party)["issuers"])}

        for party in (0, 1):
            assert told(party) == {old}
            pair.admitted_by(party).write_text(kept)
            process = pair.processes[party]
            assert process is not None
            os.kill(process.pid, signal.SIGHUP)
            wait_until(lambda party=party: told(party) != {old})  # type: ignore[misc]
            assert told(party) == {new}
        main(["doctor", *pair.command(0)[4:]])
        assert f"digest {new}, as at server 1" in capsys.readouterr().out

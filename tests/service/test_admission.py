"""Tokens and signed requests: each rule lets the good request in and keeps the altered one out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import raises
from tests.support.federation import mixed_plan
from tests.support.web import FIRST, Answer, WebKey, WebLink, WebLinks, WebPair
from torchfsl.errors import ParameterError
from torchfsl.fsl import messages
from torchfsl.service.client.remote import RemoteTransport
from torchfsl.service.command import main
from torchfsl.service.net import tokens
from torchfsl.service.net.identity import NotAdmitted
from torchfsl.service.net.issuers import Issuers

pytest.importorskip("h11")

ROUND = b'{"round": 1}'
KEY = WebKey()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPair]:
    with WebPair(tmp_path_factory.mktemp("pair"), mixed_plan()) as started:
        started.start()
        started.set_up()
        started.open()
        yield started


def claims(pair: WebPair, **changed: Any) -> dict[str, Any]:
    now = int(time.time())
    good: dict[str, Any] = {
        "iss": "login.example", "aud": "torchfsl:server:0", "sub": f"torchfsl:client:{FIRST}",
        "task": pair.plan.session, "rounds": [1, 100], "nbf": now, "exp": now + 3600,
        "cnf": {"jkt": KEY.jkt}, "jti": "a",
    }  # fmt: skip
    return good | changed


def nonce(pair: WebPair, party: int = 0) -> str:
    return pair.post("Info", party=party).headers["torchfsl-nonce"]


def asked(pair: WebPair, token: str, key: WebKey = KEY, body: bytes = ROUND) -> Answer:
    return pair.post("Model", body, key.headers(0, "Model", token, body, nonce(pair)))


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["code"]


# --- the token ---


def test_a_good_token_gets_the_model_in_the_bytes_of_grpc(pair: WebPair) -> None:
    answer = asked(pair, pair.issuer.sign(claims(pair)))
    assert answer.status == 200, answer
    with pair.client(2) as connection:
        link = connection.links.links[0]
        theirs = link.call("Model", ROUND, limit=messages.max_bytes(pair.plan, messages.Kind.MODEL))
    assert answer.body[24:] == theirs[24:]  # behind kind, round and client
    assert asked(pair, pair.issuer.sign(claims(pair, nbf=int(time.time()) + 50))).status == 200


@pytest.mark.parametrize(
    "change",
    [
        lambda now: {"iss": "other.example"},
        lambda now: {"aud": "torchfsl:server:1"},
        lambda now: {"aud": "torchfsl:server:00"},
        lambda now: {"sub": f"torchfsl:client:{FIRST - 1}"},  # outside the range
        lambda now: {"sub": f"torchfsl:client:{FIRST + 1000}"},
        lambda now: {"sub": f"torchfsl:client:0{FIRST}"},
        lambda now: {"sub": "torchfsl:owner"},
        lambda now: {"task": "0" * 32},
        lambda now: {"rounds": [2, 100]},
        lambda now: {"rounds": [1, 101]},
        lambda now: {"rounds": [1]},
        lambda now: {"rounds": [1, True]},
        lambda now: {"rounds": [-1, 9]},
        lambda now: {"nbf": now - 60, "exp": now},
        lambda now: {"nbf": now + 90, "exp": now + 100},
        lambda now: {"exp": now + 3610},
        lambda now: {"exp": now - 1},
        lambda now: {"exp": now + 9.5},
        lambda now: {"exp": str(now + 9)},
        lambda now: {"cnf": {"jkt": WebKey().jkt}},
        lambda now: {"cnf": {"jkt": KEY.jkt, "kid": "1"}},
        lambda now: {"cnf": {"jkt": KEY.jkt + "="}},
        lambda now: {"cnf": KEY.jkt},
        lambda now: {"jti": ""},
        lambda now: {"more": 1},
    ],
)
def test_a_token_with_another_claim_gets_401(
    pair: WebPair, change: Callable[[int], dict[str, Any]]
) -> None:
    status, code = code_of(asked(pair, pair.issuer.sign(claims(pair, **change(int(time.time()))))))
    assert status == 401
    assert code in ("token-refused", "proof-refused")


def _bent(header: str, good: str) -> str:
    return f"{tokens.encode(header.encode())}.{good.partition('.')[2]}"


@pytest.mark.parametrize(
    "bend",
    [
        lambda good: "",
        lambda good: "x",
        lambda good: good[:-1],
        lambda good: good + "A",
        lambda good: good + "=",
        lambda good: good[:-1] + chr(ord(good[-1]) + 1),  # the same bytes, by unused bits
        lambda good: good + ".",
        lambda good: good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB"),
        lambda good: good.replace(".", "..", 1),
        lambda good: good.replace(".", "\u00e9.", 1),
        lambda good: _bent('{"typ":"torchfsl-admission+jwt","alg":"EdDSA"}', good),
        lambda good: "A" * 9000,
    ],
)
def test_a_token_in_another_form_gets_401(pair: WebPair, bend: Callable[[str], str]) -> None:
    good = pair.issuer.sign(claims(pair))
    bent = bend(good)
    headers = KEY.headers(0, "Model", bent, ROUND, nonce(pair))
    assert code_of(pair.post("Model", ROUND, headers))[0] == 401


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"null", b"[]", b"[" * 1400, b"\xff", b'{"iss":"login.example","iss":"login.example"}',
        b'{"exp":1e400}', b'{"exp":NaN}', b'{"exp":' + b"9" * 1400 + b"}",
        b'{"sub":"\\ud800"}',
    ],
)  # fmt: skip
def test_hostile_payloads_give_one_clean_refusal(pair: WebPair, payload: bytes) -> None:
    head = pair.issuer.sign({}).partition(".")[0]
    with raises(NotAdmitted, "token-refused"):
        tokens.read(f"{head}.{tokens.encode(payload)}.{'A' * 86}", lambda name: bytes(32))


@pytest.mark.parametrize("alg", ["none", "HS256", "ES256"])
def test_another_header_is_refused_even_if_the_issuer_signed_it(
    pair: WebPair, monkeypatch: pytest.MonkeyPatch, alg: str
) -> None:
    other = f'{{"alg":"{alg}","typ":"torchfsl-admission+jwt"}}'
    monkeypatch.setattr(tokens, "_HEADER", tokens.encode(other.encode()))
    token = pair.issuer.sign(claims(pair))
    monkeypatch.undo()
    assert code_of(asked(pair, token)) == (401, "token-refused")


def test_repeated_members_are_refused_even_if_the_issuer_signed_them(
    pair: WebPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(claims(pair))
    monkeypatch.setattr(json, "dumps", lambda _: text[:-1] + ', "jti": "a"}')
    token = pair.issuer.sign({})
    monkeypatch.undo()
    assert code_of(asked(pair, token)) == (401, "token-refused")


# --- the proof ---


def test_a_request_without_a_nonce_gets_one_and_goes_on(pair: WebPair) -> None:
    link = WebLink(pair, 0, KEY, pair.issuer.sign(claims(pair)))
    assert link.ask("Model", ROUND).status == 200
    assert link.ask("Model", ROUND).status == 200, "by the nonce that came with the answer"
    link.close()
    for bad in ("", "x", "A" * 43, nonce(pair, party=1)):
        headers = KEY.headers(0, "Model", pair.issuer.sign(claims(pair)), ROUND, bad)
        assert code_of(pair.post("Model", ROUND, headers)) == (401, "nonce-expired")


def test_a_proof_counts_once_and_for_its_body_call_and_server_alone(pair: WebPair) -> None:
    token = pair.issuer.sign(claims(pair))
    headers = KEY.headers(0, "Model", token, ROUND, nonce(pair))
    assert code_of(pair.post("Model", b'{"round": 2}', headers)) == (401, "proof-refused")
    assert code_of(pair.post("Model", ROUND, headers)) == (401, "proof-used")
    headers = KEY.headers(0, "Model", token, ROUND, nonce(pair))
    assert code_of(pair.post("Answer", ROUND, headers)) == (401, "proof-refused")
    assert code_of(pair.post("Model", ROUND + b" ", headers)) == (401, "proof-refused")
    assert pair.post("Model", ROUND, headers).status == 200
    assert code_of(pair.post("Model", ROUND, headers)) == (401, "proof-used")
    headers = KEY.headers(1, "Model", token, ROUND, nonce(pair))
    assert code_of(pair.post("Model", ROUND, headers)) == (401, "proof-refused")


def test_a_proof_by_another_key_or_of_another_token_is_refused(pair: WebPair) -> None:
    token, other = pair.issuer.sign(claims(pair)), WebKey()
    good = KEY.headers(0, "Model", token, ROUND, nonce(pair))
    for changed in (
        {"Torchfsl-Key": tokens.encode(other.point)},
        {"Torchfsl-Key": tokens.encode(b"\x04" + bytes(64))},
        {"Torchfsl-Key": tokens.encode(KEY.point[:33])},
        {"Torchfsl-Proof": tokens.encode(other.sign(b"x"))},
        {"Torchfsl-Proof": tokens.encode(bytes(64))},
        {"Torchfsl-Proof": ""},
        {"Torchfsl-Digest": tokens.encode(hashlib.sha256(b"x").digest())},
        {"Authorization": f"Torchfsl {pair.issuer.sign(claims(pair, jti='b'))}"},
    ):
        assert code_of(pair.post("Model", ROUND, good | changed)) == (401, "proof-refused")
    bearer = {"Authorization": f"Bearer {token}"}
    assert code_of(pair.post("Model", ROUND, good | bearer)) == (401, "not-admitted")
    assert pair.post("Model", ROUND, good).status == 200


def test_more_proofs_than_are_kept_leave_no_old_one_valid(pair: WebPair) -> None:
    token = pair.issuer.sign(claims(pair, sub=f"torchfsl:client:{FIRST + 5}"))
    old = KEY.headers(0, "Info", token, b"{}", nonce(pair))
    assert pair.post("Info", b"{}", old).status == 200
    link = WebLink(pair, 0, KEY, token)
    for _ in range(40):
        assert link.ask("Info", b"{}").status == 200
    link.close()
    assert code_of(pair.post("Info", b"{}", old)) == (401, "nonce-expired")


# --- what a message must keep ---


def test_an_altered_body_another_number_or_round_is_refused_and_nothing_is_filed(
    pair: WebPair,
) -> None:
    number = FIRST + 20
    sent = pair.first_messages(number)[0]
    mine = pair.issuer.sign(claims(pair, sub=f"torchfsl:client:{number}"))
    given = KEY.headers(0, "Upload", mine, sent, nonce(pair))
    altered = sent[:-1] + bytes([sent[-1] ^ 1])
    assert code_of(pair.post("Upload", altered, given)) == (401, "proof-refused")
    for token, status, code in (
        (pair.issuer.sign(claims(pair)), 403, "not-allowed"),
        (pair.issuer.sign(claims(pair, sub=f"torchfsl:client:{number}", rounds=[2, 9])), 401,
         "token-refused"),
    ):  # fmt: skip
        link = WebLink(pair, 0, KEY, token)
        assert code_of(link.ask("Upload", sent)) == (status, code)
        link.close()
    link = WebLink(pair, 0, KEY, mine)
    assert code_of(link.ask("Upload", sent + b"x")) == (400, "length")
    assert code_of(link.ask("Upload", sent[:-1])) == (400, "length")
    other = pair.first_messages(number)[0]
    assert link.ask("Upload", other).status == 200, "nothing else was filed"
    assert link.ask("Upload", other).status == 200, "equal bytes are a retry"
    assert code_of(link.ask("Upload", sent)) == (409, "client-rejected")
    link.close()


def test_the_deny_list_names_a_client_its_key_or_a_token(pair: WebPair) -> None:
    token = pair.issuer.sign(claims(pair, jti="stolen", sub=f"torchfsl:client:{FIRST + 9}"))
    for entry in (f"torchfsl:client:{FIRST + 9}", f"jkt:{KEY.jkt}", "jti:stolen"):
        pair.deny.write_text(f"{entry}\n")
        time.sleep(1.1)
        assert code_of(asked(pair, token)) == (403, "not-allowed")
    pair.deny.write_text("jti:other\n")
    time.sleep(1.1)
    assert asked(pair, token).status == 200


def test_four_slow_uploads_with_a_seen_token_do_not_lock_its_client_out(pair: WebPair) -> None:
    token = pair.issuer.sign(claims(pair, sub=f"torchfsl:client:{FIRST + 30}"))
    slow = []
    for _ in range(9):
        connection = pair.raw()
        lines = [f"{k}: {v}" for k, v in WebKey().headers(0, "Upload", token, b"", "").items()]
        head = ["POST /torchfsl/v1/Upload HTTP/1.1", "Host: a", "Torchfsl-Wire: 4", *lines,
                "Content-Length: 4000", "", ""]  # fmt: skip
        connection.sendall("\r\n".join(head).encode())
        slow.append(connection)
    assert asked(pair, token).status == 200
    for connection in slow:
        connection.close()


# --- the issuer and its listing ---


def test_an_issuer_makes_tokens_that_servers_take_and_refuses_others(pair: WebPair) -> None:
    links = WebLinks(pair, KEY, pair.admit(FIRST + 40, KEY))
    for link in links.links:
        assert link.call("Model", ROUND, limit=1 << 20)
    assert RemoteTransport(links, pair.plan)  # type: ignore[arg-type]
    links.close()
    good: dict[str, Any] = {"task": pair.plan.session, "rounds": (1, 9)}
    for bad in ({"task": "x"}, {"rounds": (1, 200)}, {"seconds": 3601}, {"rounds": (9, 1)}):
        with pytest.raises(ParameterError):
            pair.issuer.admit(FIRST, KEY.jkt, **(good | bad))
    for number, jkt in ((-1, KEY.jkt), (1 << 64, KEY.jkt), (FIRST, "short")):
        with pytest.raises(ParameterError):
            pair.issuer.admit(number, jkt, **good)


ENTRY = (
    '[[issuer]]\nname = "a"\nkey = "{key}"\nnumbers = [[10, 19], [30, 30]]\nshare = 0.5\n'
    "counts = 2\n"
)


def test_listed_issuers_own_ranges_and_count_only_so_far(tmp_path: Path) -> None:
    path = tmp_path / "admission.toml"
    path.write_text(ENTRY.format(key="1" * 64))
    issuers = Issuers(path)
    assert [issuers.whose(n) is not None for n in (9, 10, 19, 20, 30)] == [
        False, True, True, False, True,
    ]  # fmt: skip
    assert issuers.counted((1, 2, 10, 11, 12, 30)) == 4
    path.write_text("broken")
    issuers.look()
    assert issuers.is_stale
    assert issuers.of("a") is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[[10, 19], [30, 30]]", "[[10, 9]]"), ("[[10, 19], [30, 30]]", "[10, 19]"),
        ("[[10, 19], [30, 30]]", "[]"), ("[[10, 19], [30, 30]]", "[[10, 19], [19, 20]]"),
        ("0.5", "-0.5"), ("0.5", "1.5"), ("0.5", '"half"'), ("counts = 2", "counts = -1"),
        ("counts = 2\n", ""), ("counts = 2", "counts = 2\nmore = 1"), ("1" * 64, "1" * 63),
        ('"a"', '"a b"'), ("[[issuer]]", "[other]\n[[issuer]]"),
    ],
)  # fmt: skip
def test_an_admission_file_that_is_not_exact_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "admission.toml"
    path.write_text(ENTRY.format(key="1" * 64).replace(old, new))
    with pytest.raises(ParameterError):
        Issuers(path)


def test_the_digest_is_that_of_a_new_start_after_every_change(tmp_path: Path) -> None:
    path, entry = tmp_path / "admission.toml", ENTRY.format(key="1" * 64)
    path.write_text(entry)
    issuers, seen = Issuers(path), set()
    for text in (entry.replace("counts = 2", "counts = 33"), entry, ""):
        path.write_text(text)
        issuers.look()
        assert issuers.digest() == Issuers(path).digest()
        seen.add(issuers.digest())
    path.write_text("broken")
    issuers.look()
    assert issuers.digest() in seen
    assert len(seen) == 3


def test_two_issuers_share_no_name_key_or_number(tmp_path: Path) -> None:
    path, first = tmp_path / "admission.toml", ENTRY.format(key="1" * 64)
    apart = first.replace('"a"', '"b"').replace("1" * 64, "2" * 64)
    apart = apart.replace("[[10, 19], [30, 30]]", "[[50, 59]]")
    path.write_text(first + apart)
    assert Issuers(path).whose(55) is not None
    for same in (apart.replace('"b"', '"a"'), apart.replace("2" * 64, "1" * 64),
                 apart.replace("50", "15")):  # fmt: skip
        path.write_text(first + same)
        with pytest.raises(ParameterError, match="have the same name or key, or a client number"):
            Issuers(path)


def test_the_command_makes_a_key_its_entry_and_tokens_that_servers_take(
    pair: WebPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ["admit", "--key", str(tmp_path / "issuer.key"), "--issuer", "cli.example"]
    assert main([*key, "--new", "5000-5999"]) == 0
    entry = capsys.readouterr().out
    assert (tmp_path / "issuer.key").stat().st_mode & 0o077 == 0
    before = pair.admission.read_text()
    pair.admission.write_text(before + entry)
    time.sleep(1.1)
    wanted = ["--client", "5001", "--jkt", KEY.jkt, "--task", pair.plan.session]
    assert main([*key, *wanted, "--rounds", "1-9"]) == 0
    first, second = capsys.readouterr().out.split()
    links = WebLinks(pair, KEY, (first, second))
    for link in links.links:
        assert link.ask("Model", ROUND).status == 200
    links.close()
    pair.admission.write_text(before)
    time.sleep(1.1)
    assert code_of(asked(pair, first)) == (401, "token-refused")
    for bad in (["--new", "1-9"], ["--new", "x"], [*wanted, "--rounds", "9-1"], wanted,
                [*wanted, "--rounds", "1-900"]):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main([*key, *bad])
        assert ended.value.code == 2


def test_a_new_key_is_not_overwritten_by_its_public_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ["admit", "--key", str(tmp_path / "issuer.pub"), "--issuer", "cli.example"]
    with pytest.raises(SystemExit) as ended:
        main([*key, "--new", "5000-5999"])
    assert ended.value.code == 2
    assert "give --key issuer.key" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]

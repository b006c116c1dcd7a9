"""Controls in reasons and names move no cursor of a terminal, whoever wrote them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.service import command, reporting
from torchfsl.service.client.links import Links
from torchfsl.service.net import answers, calls
from torchfsl.service.net.text import Plain, printable
from torchfsl.service.server.logs import Problem
from torchfsl.service.server.page import View, render
from torchfsl.service.server.process import _told
from torchfsl.service.state.ledger import Ledger, RoundRow
from torchfsl.service.state.steps import StoredState

ODD = ["\x1b[2J\x1b[H", "\x1b]0;title\x07", "\r\nserver 0: fine", "\x9b31m", "\u202e", "\u2066x",
       "\u2028", "\x00", "\x7f\x08", "\u200b", "\ufeff"]  # fmt: skip
INFO: dict[str, Any] = {
    "party": 0, "library": "1", "wire_version": 4, "plan_digest": "ab", "round": 1, "closes_at": 1,
    "model": {"version": 1, "digest": "ab"}, "state": "unopened", "open": False, "complete": 0,
    "reports": 0, "accepted": 0, "reason": "", "unready": "", "halted": "", "stalled": "",
    "live": True, "may_replace": False,
}  # fmt: skip


def is_clean(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_status_of_a_folder(odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path / "state.sqlite")
    ledger.start_round(1, 0, 0.0)
    ledger.change_round(1, state=StoredState.UNOPENED, reason=f"a{odd}b", ended_at=1.0)
    ledger.put_setting("halted", f"h{odd}".encode())
    ledger.close()
    assert reporting.show_state(tmp_path, 10) == 1
    said = capsys.readouterr().out
    assert is_clean(said)
    assert said.count("\n") == 5  # nobody adds a line
    assert f"  {printable(f'a{odd}b')}\n" in said
    assert f"HALTED: {printable(f'h{odd}')}\n" in said


TEXTS = ("library", "plan_digest", "state", "reason", "unready", "halted", "stalled")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_status_and_page_of_what_a_server_says(
    odd: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = answers.decode_info(json.dumps(INFO | {name: f"a{odd}"}).encode())
    assert is_clean(info[name])
    assert info[name].startswith("a")
    assert is_clean(reporting.of_round(info))
    row = {"number": 1, "state": "open", "reason": odd, "stalled": odd}
    assert all(is_clean(str(v)) for v in answers.decode_row(json.dumps(row).encode()).values())


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_the_page_of_its_own_reasons_and_problems(odd: str) -> None:
    row = RoundRow(1, StoredState.UNOPENED, 2, 0.0, 1.0, 1.0, None, 0, 0, 0, f"a{odd}")
    raw = [INFO | {"reason": odd, "halted": f"h{odd}"}] * 2
    view = View(raw, 0, [row], {}, [Problem(0.0, "error", f"p{odd}")])
    assert is_clean(render(view))
    status, _, body = _told(False, f"halted: {odd}")
    assert status == 503
    assert is_clean(body.decode())


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_what_a_server_answers_when_it_refuses(
    odd: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failed(grpc.RpcError):  # type: ignore[misc]
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.ABORTED

        def details(self) -> str:
            return f"a{odd}"

    error = calls.error_of(Failed(), "server 0")
    assert str(error) == f"server 0: a{printable(odd)}"
    record = logging.LogRecord("x", 30, "f", 1, "%s", (f"a{odd}",), None)
    assert is_clean(Plain("torchfsl: %(message)s").format(record))

    def refuse(_: Any) -> int:
        raise ProtocolError(f"a{odd}")

    monkeypatch.setattr(command, "_certs", refuse)
    with pytest.raises(SystemExit):
        command.main(["certs", "x"])
    assert is_clean(capsys.readouterr().err)


@pytest.mark.parametrize("odd", ["\ud800", 7, None, [], {}, True, 1 << 70, -2, "x"])
@pytest.mark.parametrize("name", sorted(INFO))
def test_what_a_server_says_of_itself_is_checked_field_by_field(name: str, odd: Any) -> None:
    said = json.dumps(INFO | {name: odd}).encode()
    try:
        found = answers.decode_info(said)
    except DecodeError:
        assert json.dumps(INFO).encode() != said
        return
    assert type(found[name]) is type(INFO[name]) or name == "closes_at"
    with pytest.raises(DecodeError):
        answers.decode_info(said[:-1])


def test_a_server_that_lies_about_itself_is_refused_by_callers() -> None:
    said: list[bytes] = []
    link = SimpleNamespace(call=lambda *_, **__: said[0])
    links = Links.__new__(Links)
    links.links = (link, link)  # type: ignore[assignment]
    for answer in (b"", b"[]", b"7", b"\xff", b"{}", b'{"wire_version": 4}', b"[" * 9000):
        said[:] = [answer]
        with pytest.raises((DecodeError, calls.VersionMismatch)):
            links.info(0)

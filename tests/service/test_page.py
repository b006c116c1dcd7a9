"""The status page, as a parser and as a browser see it, and the status that is shown repeatedly."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pty
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import mixed_plan
from tests.support.network import Pair, wait_until
from torchfsl.errors import ProtocolError
from torchfsl.service.reporting import of_round
from torchfsl.service.server.logs import RecentProblems, without_clients
from torchfsl.service.server.page import View, render
from torchfsl.service.state.ledger import RoundRow
from torchfsl.service.state.steps import StoredState
from torchfsl.service.task import rounds_spent

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
YELLOW = (0xFF, 0xF3, 0xC4)


class Seen(HTMLParser):
    """Tables by id as rows of cells, and other marked texts by id; tags that are open or wrong."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = defaultdict(list)
        self.texts: dict[str, str] = defaultdict(str)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        self.tags.append((tag, fields))
        if tag in ("meta", "tbody"):  # the second one is a browser's
            return
        self._open.append((tag, fields.get("id") or ""))
        tables = [name for kind, name in self._open if kind == "table"]
        if tag == "tr":
            self.tables[tables[-1]].append([])
        if tag in ("td", "th"):
            self.tables[tables[-1]][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag != "tbody":
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, name = self._open[-1] if self._open else ("", "")
        if tag in ("td", "th"):
            table = [name for kind, name in self._open if kind == "table"][-1]
            self.tables[table][-1][-1] += data
        elif name:
            self.texts[name] += data


def info(party: int, **fields: Any) -> dict[str, Any]:
    known = {
        "party": party, "library": "0.1.0", "wire_version": 2, "plan_digest": "ab" * 32,
        "model": {"version": 3, "digest": "cd" * 32}, "round": 4, "state": "open",
        "complete": 17, "halted": "", "stalled": "", "open": True,
    }  # fmt: skip
    return known | fields


def view(*infos: dict[str, Any] | str, **fields: Any) -> View:
    given: dict[str, Any] = {
        "infos": infos or (info(0), info(1)), "party": 0, "rounds": (), "traffic": {},
        "problems": (),
    }  # fmt: skip
    return View(**given | fields)


def state_of(page: str) -> tuple[str | None, str]:
    seen = Seen(page)
    (kind,) = (fields["class"] for _, fields in seen.tags if fields.get("id") == "state")
    return kind, seen.texts["state"]


@pytest.mark.parametrize(
    ("infos", "kind", "said"),
    [
        ((info(0), info(1)), "good", "round 4 is open"),
        ((info(0, stalled="waiting for ..."), info(1)), "wait", "server 0 is waiting for ..."),
        ((info(0), info(1, halted="why")), "bad", "server 1 is halted: why"),
        ((info(0, halted="why"), info(1)), "bad", "server 0 is halted: why"),
        ((info(0, unready="a full disk"), info(1)), "bad", "server 0 is not ready: a full disk"),
        ((info(0), "refused"), "wait", "the other server does not answer: refused"),
        (("at work", info(1)), "wait", "at work"),
        (
            (info(0, plan_digest=""), info(1)),
            "wait",
            "no task yet: the coordinator has to start one",
        ),
        ((info(0, state=""), info(1)), "good", "no round yet"),
        (
            (info(0, rounds_opened=3, max_rounds=3), info(1)),
            "good",
            f"round 4 is open, {rounds_spent(3, 3)}",
        ),
    ],
)
def test_the_first_line_says_how_it_stands(infos: Any, kind: str, said: str) -> None:
    assert state_of(render(view(*infos))) == (kind, said)


def test_reports_of_an_open_round_are_counted_before_it_closes() -> None:
    row = RoundRow(4, StoredState.OPEN, 0, 0.0, 0.0, None, None, 0, 0, 0, "")
    for party, shown in ((0, "17"), (1, "5")):
        page = render(view(info(0), info(1, complete=5), party=party, rounds=(row,)))
        assert Seen(page).tables["rounds"][1][:3] == ["4", "open", shown]
    at_work = render(view("at work", info(1), rounds=(row,)))
    assert Seen(at_work).tables["rounds"][1][2] == "0"


@pytest.mark.parametrize(
    ("expected", "reports", "ended", "said"),
    [
        (
            3,
            1,
            60.5,
            "too few (the coordinator expected 3 reports, the 50 s of this round ran out)",
        ),
        (3, 1, 40.0, "too few (the coordinator expected 3 reports)"),
        (0, 1, 60.5, "too few (the 50 s of this round ran out)"),
        (3, 3, 60.5, "too few"),
    ],
)
def test_an_unopened_round_says_what_it_waited_for(
    expected: int, reports: int, ended: float, said: str
) -> None:
    state = StoredState.UNOPENED
    row = RoundRow(4, state, expected, 10.0, 60.0, ended, 1, reports, 0, 9, "too few")
    page = render(
        view(info(0, state=str(state), open=False, reason=row.why), info(1), rounds=(row,))
    )
    assert Seen(page).tables["rounds"][1][-1] == said
    assert state_of(page) == ("wait", f"round 4 ended unopened: {said}")
    assert dataclasses.replace(row, closes_at=0.0).why == "too few"  # as server 1 has it
    assert dataclasses.replace(row, state=StoredState.APPLIED).why == "too few"


@pytest.mark.parametrize(
    ("infos", "said"),
    [
        ((info(0), info(1)), "Both servers hold the same model."),
        ((info(0), info(1, model={"version": 3, "digest": "ee"})), "DIFFERENT"),
        ((info(0), info(1, model={"version": 2, "digest": "ee"})), "a version older"),
        ((info(0), "no answer"), "cannot be compared"),
        ((info(0, model={}), info(1, model={})), "cannot be compared"),
    ],
)
def test_it_compares_the_models(infos: Any, said: str) -> None:
    assert said in Seen(render(view(*infos))).texts["models"]


def test_it_shows_whether_both_servers_admit_the_same_clients() -> None:
    rows = Seen(render(view(info(0, issuers="a1"), info(1)))).tables["servers"]
    assert ["issuers of tokens", "a1", "none"] in rows


def test_what_others_write_is_text_and_names_no_client() -> None:
    bad = "<script>alert(1)</script> client 123456 & clients [77, 78] and client: 99"
    row = RoundRow(9, StoredState.UNOPENED, 0, 1.0, 2.0, 3.5, 5, 1234, 0, 5_000_000, bad)
    handler = RecentProblems()
    record = logging.LogRecord(
        "torchfsl.x", logging.ERROR, "", 1, "client %d lies", (987_654,), None
    )
    record.reason = bad
    record.caller = "client 444"
    handler.handle(record)
    page = render(view(info(0, stalled=bad), info(1), rounds=[row], problems=handler.newest()))
    seen = Seen(page)
    assert "script" not in {tag for tag, _ in seen.tags}
    for number in ("123456", "77", "78", "99", "987654", "444"):
        assert number not in page, number
    assert seen.tables["rounds"][1][:6] == ["9", "unopened", "1,234", "0", "5.00", "2.5"]
    assert seen.tables["problems"][1][1:] == [
        "error",
        "a client lies: <script>alert(1)</script> a client & a client and a client",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("round 7: client 12 failed verification", "round 7: a client failed verification"),
        ("12 clients, 3 of them late", "12 clients, 3 of them late"),
        ("Client 5: refused", "a client: refused"),
    ],
)
def test_clients_are_counted_and_not_named(text: str, shown: str) -> None:
    assert without_clients(text) == shown


def test_only_warnings_are_kept_and_of_those_the_last_twenty() -> None:
    handler = RecentProblems()
    logger = logging.Logger("torchfsl.test")
    logger.addHandler(handler)
    logger.info("nothing")
    for number in range(30):
        logger.warning("trouble %d", number)
    assert [one.text for one in handler.newest()] == [f"trouble {n}" for n in range(29, 9, -1)]


# --- a running pair -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers between rounds: one was applied, one ended unopened."""
    with Pair(tmp_path_factory.mktemp("servers")) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        pair.take_part(range(3))
        pair.close()
        pair.open()
        pair.owner.abandon_round(pair.number, "tried <b>out</b> by client 4")
        yield pair


def fetch(pair: Pair, party: int) -> tuple[str, Any]:
    """The page and the headers of its answer."""
    port = pair.metrics_ports[party]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        return answer.read().decode(), answer.headers


@pytest.mark.parametrize("party", [0, 1])
def test_a_running_server_shows_rounds_bytes_and_both_models(pair: Pair, party: int) -> None:
    page, headers = fetch(pair, party)
    seen = Seen(page)
    digest = pair.owner.model(pair.task).digest().hex()
    rows = {row[0]: row[1:] for row in seen.tables["servers"]}
    assert rows["model digest"] == [digest, digest]
    assert rows["plan"] == [pair.plan.digest.hex()] * 2
    assert seen.texts["models"] == "Both servers hold the same model."
    assert seen.texts["state"] == "round 2 ended unopened: tried <b>out</b> by a client"
    last, first = seen.tables["rounds"][1:]
    assert first[:4] == ["1", "applied", "3", "3"]
    assert [*last[:4], last[6]] == ["2", "unopened", "0", "0", "tried <b>out</b> by a client"]
    traffic = dict(seen.tables["traffic"][1:])
    assert float(traffic["MB received"]) > 0
    assert int(traffic["calls answered OK"].replace(",", "")) >= 9
    assert "round ends unopened" in seen.tables["problems"][1][2]
    for secret in (pair.plan.session, pair.task.nonce.hex(), pair.plan.hash_seed):
        assert secret not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_a_page_of_a_server_whose_peer_is_down_says_so(tmp_path: Path) -> None:
    with Pair(tmp_path) as alone:
        alone.start(1)
        seen = Seen(fetch(alone, 1)[0])
    assert seen.texts["state"].startswith("the other server does not answer: ")
    assert {row[1] for row in seen.tables["servers"][1:]} == {"no answer"}
    assert seen.texts["models"] == "The models of the servers cannot be compared now."


def test_a_browser_shows_it(pair: Pair, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1400",
        "--enable-logging=stderr",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{pair.metrics_ports[0]}/"
    done = subprocess.run(
        [*command, "--dump-dom", url], capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    assert "Content Security Policy" not in done.stderr  # which the page's own style would break
    seen = Seen(done.stdout)
    digest = pair.owner.model(pair.task).digest().hex()
    assert ["model digest", digest, digest] in seen.tables["servers"]
    assert seen.texts["state"] == "round 2 ended unopened: tried <b>out</b> by a client"
    assert seen.tables["rounds"][1][6] == "tried <b>out</b> by a client"
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "page.png"
    subprocess.run(
        [*command, f"--screenshot={picture}", url], capture_output=True, timeout=300,
        check=True,
    )  # fmt: skip
    with image.open(picture) as shown:
        colours = {colour: count for count, colour in shown.convert("RGB").getcolors(1 << 24)}
    assert colours.get(YELLOW, 0) > 10_000  # the first line, as styled


@pytest.mark.parametrize("on_terminal", [False, True])
def test_status_is_shown_again_until_it_is_interrupted(pair: Pair, on_terminal: bool) -> None:
    command = [sys.executable, "-m", "torchfsl.service.command", "status", "--watch", "0.05"]
    command += ["--servers", ",".join(pair.urls), "--tls", str(pair.tls)]
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        said = ""
        while said.count("server 1: torchfsl") < 3:
            said += os.read(ours, 65536).decode()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
        os.close(ours)  # not before: what is being written then has to go somewhere
    pictures = said.split("\x1b[H\x1b[2J")
    assert (len(pictures) > 2) is on_terminal
    assert "round 2 unopened" in said


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_pause_that_is_none_is_refused(
    seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchfsl.service.command import main

    with pytest.raises(SystemExit):
        main(["status", "--state", str(tmp_path), f"--watch={seconds}"])
    assert "give a number of seconds above 0" in capsys.readouterr().err


def test_reports_of_an_unopened_round_are_the_same_number_wherever_it_stands(
    tmp_path: Path,
) -> None:
    with Pair(tmp_path, mixed_plan(min_clients=2)) as pair:
        pair.start()
        pair.set_up()
        for number, how in enumerate(("closed", "abandoned"), start=1):
            pair.open()
            pair.take_part([4])
            if how == "closed":
                with pytest.raises(ProtocolError, match="acceptable reports: 1"):
                    pair.close()
            else:
                pair.owner.abandon_round(number, "tried out")
            wait_until(lambda: pair.owner.links.info(1)["state"] == "unopened")
            infos = [pair.owner.links.info(party) for party in (0, 1)]
            told = [(info["complete"], info["reports"], info["accepted"]) for info in infos]
            assert told == [(1, 1, 0)] * 2, how
            assert of_round(infos[0]).startswith(
                f"round {number} unopened, complete reports 1, in the sum 0, "
            )
        seen = Seen(fetch(pair, 0)[0])
        rows = {row[0]: row[1:] for row in seen.tables["servers"]}
        assert rows["complete reports"] == ["1", "1"]
        assert rows["reports in the sum"] == ["0", "0"]
        assert [row[:4] for row in seen.tables["rounds"]] == [
            ["round", "state", "complete reports", "in the sum"],
            ["2", "unopened", "1", "0"],
            ["1", "unopened", "1", "0"],
        ]
        lines = [json.loads(line) for line in pair.log(0).splitlines()]
        lines = [line for line in lines if "round" in line and line["message"].startswith("round ")]
        assert [(line["round"], line["message"]) for line in lines] == [
            (1, "round open"),
            (1, "round closed"),
            (1, "round ends unopened"),
            (2, "round open"),
            (2, "round ends unopened"),
        ]

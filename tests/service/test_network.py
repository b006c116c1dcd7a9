"""Rounds through two server processes over mutual TLS."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.federation import make_plan, make_segment, mixed_plan, wanted_rows
from tests.support.network import Pair, assert_sums
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl.messages import Kind
from torchfsl.service.client import links
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.outbox import Outbox
from torchfsl.service.client.remote import RemoteTransport, submit
from torchfsl.service.command import main
from torchfsl.service.net import calls

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    plan = dataclasses.replace(mixed_plan(min_clients=2), max_clients=8)
    with Pair(tmp_path_factory.mktemp("pair"), plan) as started:
        started.start()
        started.set_up()
        yield started


def test_a_round_is_exact_and_each_client_sends_one_message_a_server_and_phase(pair: Pair) -> None:
    number = pair.open()
    contributions = pair.take_part([0, 1])
    with pair.client(2) as connection:
        assert connection.wait_for_round(seconds=60) == number
        assert connection.client.open_number() == number
        before = connection.model_version()
        session = connection.client.start_round(
            number, indices=wanted_rows(pair.plan, pair.update(2))
        )
        session.download()
        session.retrieve()
        session.abort()
        for link in connection.links.links:
            phases = {m: link.attempts[m] for m in ("Model", "Retrieve", "Submit", "Upload")}
            assert phases == {"Model": 1, "Retrieve": 1, "Submit": 1, "Upload": 0}
    opened = pair.close()
    with (
        pair.client(2) as connection,
        pytest.raises(ProtocolError, match="no round is open at both servers: call"),
    ):
        connection.client.open_number()
    assert opened.num_clients == 3
    assert_sums(pair.plan, opened, contributions)
    model = pair.owner.model(pair.task)
    with pair.client(2) as connection:
        after = connection.model_version()
    assert after == (before[0] + 1, model.digest().hex())


STEPS = (
    "before anything", "after the model", "trees at one server", "after the trees",
    "after the rows", "report at one server",
)  # fmt: skip
"""The last thing that a client did before it dropped out."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dropped", [2, 4, 6], ids=["25 %", "50 %", "75 %"])
def test_a_round_completes_without_clients_that_drop_out(
    pair: Pair, step: str, dropped: int
) -> None:
    pair.open()
    for client in range(dropped // 2):
        _drop_out(pair, client, step)
    contributions = pair.take_part(range(dropped, 8))
    for client in range(dropped // 2, dropped):
        _drop_out(pair, client, step)
    opened = pair.close()
    assert opened.clients == tuple(range(dropped, 8))
    assert_sums(pair.plan, opened, contributions)


@pytest.mark.parametrize("step", STEPS)
def test_a_round_that_too_many_drop_out_of_closes_unopened_and_says_so(
    pair: Pair, step: str
) -> None:
    before = pair.owner.links.common_model()
    pair.open()
    pair.take_part([7])
    for client in range(3, 7):
        _drop_out(pair, client, step)
    with pytest.raises(
        ProtocolError, match="without an aggregate: acceptable reports: 1, the plan wants 2"
    ):
        pair.close()
    assert pair.owner.links.common_model() == before
    pair.open()
    pair.assert_serves(range(3, 8))  # nobody who dropped out, or was left, is worse off


def _drop_out(pair: Pair, client: int, step: str) -> None:
    """Do what a client does up to a step, and fall silent."""
    if step == "before anything":
        return
    one = client // 2 % 2  # the server that a half message reaches: each for half of the clients
    with pair.client(client) as connection:
        update = pair.update(client)
        transport, links = connection.client.servers, connection.links.links
        assert isinstance(transport, RemoteTransport)
        if step == "after the model":
            transport.fetch(client % 2, Kind.MODEL, pair.number, client)
            return
        held: dict[int, bytes] = {}
        if step == "trees at one server":
            transport.send = held.__setitem__  # type: ignore[method-assign, assignment]
        session = connection.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
        if step == "trees at one server":
            links[one].call("Upload", held[one], limit=64)
        elif step == "after the trees":
            for link in links:
                link.call("Upload", transport._trees[link.party], limit=64)
        else:
            session.retrieve()
        if step == "report at one server":
            transport.send = held.__setitem__  # type: ignore[method-assign, assignment]
            session.submit(update)
            links[one].call("Submit", held[one], limit=64)


def test_a_round_of_too_few_closes_unopened_and_says_so(pair: Pair) -> None:
    pair.open()
    pair.take_part([5])
    with pytest.raises(ProtocolError, match="acceptable reports: 1, the plan wants 2"):
        pair.close()
    pair.open()
    pair.assert_serves([4, 5])


def test_a_round_closes_by_itself_when_all_expected_came_or_time_is_over(pair: Pair) -> None:
    pair.number += 1
    pair.owner.open_round(pair.number, expected=2, seconds=900)
    pair.take_part([0, 1])
    assert pair.close().clients == (0, 1)
    pair.number += 1
    pair.owner.open_round(pair.number, seconds=1.5)  # time to hear that it is open
    with pytest.raises(ProtocolError, match="acceptable reports: 0"):
        pair.close()


def test_a_round_that_has_ended_is_not_taken_for_open(pair: Pair) -> None:
    """`open_round` returns when clients may send, and says why where they never may."""
    number = pair.open()
    pair.assert_serves([0, 1])
    with pytest.raises(ProtocolError, match=f"expected round {number} to be open, got applied"):
        pair.owner.open_round(number, seconds=900)
    number = pair.open()
    pair.owner.abandon_round(number, "tried out")
    with pytest.raises(ProtocolError, match=f"{number} to be open, got unopened tried out"):
        pair.owner.open_round(number, seconds=900)


def test_a_new_task_numbers_its_rounds_anew(pair: Pair) -> None:
    for _ in range(2):
        pair.set_up()
        assert pair.open() == 1
        pair.assert_serves([0, 1])


def test_the_owner_ends_rounds_by_command(pair: Pair) -> None:
    where = ("--servers", ",".join(pair.urls), "--tls", str(pair.tls))
    number = pair.open()
    pair.take_part([0, 1])
    assert f"round {number} is applied: complete reports 2, in the sum 2" in _command(
        "close", *where
    )
    number = pair.open()
    assert f"round {number} ended unopened" in _command("abandon", *where, "--reason", "no power")
    for party in (0, 1):
        assert "no power" in _command("status", "--state", str(pair.state(party)))
    with pytest.raises(subprocess.CalledProcessError) as nothing:
        _command("close", *where)
    assert "no round is running" in nothing.value.stderr
    pair.open()
    pair.assert_serves()


def test_commands_say_what_a_round_waits_for_and_keep_the_first_reason_of_its_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(links, "RetryPolicy", lambda **_: RetryPolicy(total_seconds=7))
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        number = pair.open()
        pair.kill(1)
        where = ("--servers", ",".join(pair.urls), "--tls", str(pair.tls))
        with pytest.raises(SystemExit):
            main(["close", *where])
        assert capsys.readouterr().out == (
            f"closing round {number}: waiting at most 3600 s for both servers\n"
        )
        assert f"round {number} is closed, server 0 is waiting for the other" in caplog.text
        with pytest.raises(SystemExit):
            main(["abandon", *where, "--reason", "no power"])
        assert "has ended at this server, but the other server does not" in capsys.readouterr().err
        pair.start(1)
        main(["abandon", *where, "--reason", "tried out"])
        told = f"round {number} ended unopened before: no power\n"
        assert capsys.readouterr().out == told
        for party in (0, 1):
            main(["status", "--state", str(pair.state(party))])
            said = capsys.readouterr().out
            assert "no power" in said
            assert "tried out" not in said


def test_an_interrupted_client_sends_the_same_bytes_again(pair: Pair, tmp_path: Path) -> None:
    pair.open()
    box = tmp_path / "outbox"
    with pair.client(4, outbox=box) as connection:
        update = pair.update(4)
        session = connection.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
        transport = connection.client.servers
        assert isinstance(transport, RemoteTransport)
        held: dict[int, bytes] = {}
        transport.send = held.__setitem__  # type: ignore[method-assign, assignment]
        session.retrieve()
        session.submit(update)
        Outbox(box).put(held)
        connection.links.links[1].call("Submit", held[1], limit=64)  # then the power fails
    with pair.client(4, outbox=box) as connection:
        assert connection.resume()
        assert not connection.resume()
        assert not box.exists()
        submit(connection.links, held, None)  # again: accepted, and counted once
    pair.take_part([5])
    assert pair.close().clients == (4, 5)


def test_a_client_that_comes_back_in_the_same_round_leaves_its_report_alone(
    pair: Pair, tmp_path: Path
) -> None:
    """Fresh trees would be a second message, for which servers drop the acknowledged report."""
    pair.open()
    box = tmp_path / "outbox"
    for _ in range(2):
        with pair.client(4, outbox=box) as connection:
            wanted = wanted_rows(pair.plan, pair.update(4))
            if box.with_name("outbox.round").exists():
                with pytest.raises(ProtocolError, match="had begun round"):
                    connection.client.start_round(pair.number, indices=wanted)
                with pytest.raises(calls.NotReady):
                    connection.wait_for_round(seconds=0)
            else:
                session = connection.client.start_round(pair.number, indices=wanted)
                session.retrieve()
                session.submit(pair.update(4))
    pair.take_part([5])
    assert pair.close().clients == (4, 5)


def test_late_messages_and_messages_of_old_rounds_are_refused(pair: Pair) -> None:
    pair.open()
    with pair.client(4) as connection:
        update = pair.update(4)
        held: dict[int, bytes] = {}
        session = connection.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
        session.retrieve()
        transport = connection.client.servers
        assert isinstance(transport, RemoteTransport)
        send = transport.send
        transport.send = held.__setitem__  # type: ignore[method-assign, assignment]
        session.submit(update)
        pair.assert_serves()
        with pytest.raises(RejectedSubmission, match=r"closed|no round is open"):
            submit(connection.links, held, None)
        pair.open()
        with pytest.raises(RejectedSubmission, match=f"message is for round {pair.number - 1}"):
            submit(connection.links, held, None)
        transport.send = send  # type: ignore[method-assign]
        pair.assert_serves()


def test_many_clients_at_once(pair: Pair) -> None:
    pair.open()
    threads = [threading.Thread(target=pair.take_part, args=([c],)) for c in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pair.close().clients == tuple(range(8))


def test_serving_imports_no_torch(pair: Pair) -> None:
    for process in pair.processes:
        assert process is not None
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_metrics_health_status_and_logs_show_the_rounds_and_no_secret(pair: Pair) -> None:
    pair.open()
    pair.assert_serves()
    for party in (0, 1):
        base = f"http://127.0.0.1:{pair.metrics_ports[party]}"
        metrics = urllib.request.urlopen(f"{base}/metrics").read().decode()  # noqa: S310
        assert re.search(
            r'torchfsl_calls_total\{code="OK",door="grpc",method="Submit"\} \d', metrics
        )
        assert "torchfsl_rounds_applied_total" in metrics
        health = json.loads(urllib.request.urlopen(f"{base}/health").read())  # noqa: S310
        assert health["ok"]
        assert health["round"] == pair.number
        for page in ("livez", "readyz"):
            assert urllib.request.urlopen(f"{base}/{page}").read() == b"ok\n"  # noqa: S310
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/elsewhere")  # noqa: S310
        told = [json.loads(line) for line in pair.log(party).splitlines()]
        for message in ("round open", "round closed", "round applied"):
            assert pair.number in [one["round"] for one in told if one["message"] == message]
        for line in pair.log(party).splitlines():
            fields = json.loads(line)
            assert fields["logger"].startswith(("torchfsl", "grpc"))
            assert re.fullmatch(r"[\d-]{10}T[\d:.]{12}\+00:00", fields["time"])
            assert not re.search(r"\b[0-9a-f]{32}\b", json.dumps(fields))
    shown = _command("status", "--state", str(pair.state(0)))
    assert re.search(rf"^ +{pair.number} applied +2 +2 ", shown, re.MULTILINE)
    shown = _command("status", "--servers", ",".join(pair.urls), "--tls", str(pair.tls))
    assert "server 1: torchfsl" in shown
    assert "processor features" in _command("doctor", "--tls", str(pair.tls))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({}, "another server runs on the state in"),
        ({"--state": "fresh"}, "--listen: cannot listen on 127.0.0.1:"),
        ({"--peer": "fsl.example"}, "--peer: expected https://HOST:PORT, got 'fsl.example'"),
        (
            {"--peer": "https://fsl.example:7000:1"},
            "--peer: expected https://HOST:PORT, got 'https",
        ),
        ({"--peer": "https://fsl.example:70000"}, "--peer: expected https://HOST:PORT, got 'https"),
        (
            {"--peer": "https://fsl.example/a:7000"},
            "--peer: expected https://HOST:PORT, got 'https",
        ),
        ({"--listen": "everywhere"}, "--listen: expected HOST:PORT, got 'everywhere'"),
        ({"--party": "1"}, "holds the state of server 0"),
        ({"--tls": "nowhere"}, "`torchfsl certs DIR` makes certificates and keys"),
        ({"--config": "missing.toml"}, "cannot read the settings in missing.toml"),
        ({"--metrics": "taken"}, "--metrics: cannot listen on 127.0.0.1:"),
        ({"--metrics": "::1:70"}, "--metrics: expected HOST:PORT or [IPV6]:PORT, got '::1:70'"),
        ({"--log-level": "loud"}, "log-level is 'loud': choose one of debug, info, warning, error"),
        ({"--state": "/proc/nowhere"}, "cannot write in the state folder /proc/nowhere"),
    ],
)
def test_a_server_that_cannot_serve_says_why_and_ends(
    pair: Pair, tmp_path: Path, changed: dict[str, str], complaint: str
) -> None:
    if "--party" in changed:  # a copy, since the folder itself is in use
        shutil.copytree(pair.state(0), tmp_path / "copy")
        changed["--state"] = str(tmp_path / "copy")
    if changed.get("--state") == "fresh" or "--metrics" in changed:
        changed["--state"] = str(tmp_path / "fresh")
    if changed.get("--metrics") == "taken":
        changed["--metrics"] = f"127.0.0.1:{pair.metrics_ports[0]}"
    given = {
        "--party": "0", "--listen": f"127.0.0.1:{pair.ports[0]}", "--peer": pair.urls[1],
        "--state": str(pair.state(0)), "--tls": str(pair.tls), **changed,
    }  # fmt: skip
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _command("serve", *(text for pair in given.items() for text in pair))
    assert failed.value.returncode == 2
    assert complaint in failed.value.stderr
    assert "Traceback" not in failed.value.stderr


def _command(*arguments: str) -> str:
    command = [sys.executable, "-m", "torchfsl.service.command", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def test_sessions_send_trees_once_through_the_network(tmp_path: Path) -> None:
    table = make_segment("t", "rows", (13, 3), k_max=4, tau=3, theta=3, stash=1, retrieve=True)
    with Pair(tmp_path, make_plan(table, max_epochs=3)) as pair:
        pair.start()
        pair.set_up()
        with pair.client(1) as connection:
            update = pair.update(1)
            rows = update["t"].indices
            assert rows is not None
            session = connection.client.open_session(indices={"t": rows})
            for _ in range(2):
                one = session.start_round(pair.open())
                one.retrieve()
                one.submit(update)
                assert np.array_equal(pair.close().sums["t"][rows], update["t"].values)
            for link in connection.links.links:
                assert link.counts["Retrieve"] == 1
                assert link.counts["Answer"] == 1

"""A client keeps the plan's participation limits by its own count, whatever the servers accept."""

from __future__ import annotations

import dataclasses
import errno
import os
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fsl.test_private_rounds import private
from tests.service.test_remote import FakeLinks
from tests.support.errors import raises
from tests.support.federation import mixed_plan, random_update, wanted_rows
from tests.support.network import HANGS_AFTER, Pair, wait_until
from torchfsl.errors import DecodeError, RejectedSubmission
from torchfsl.federation.remote_servers import RemoteServers
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.service.client.remote import RemoteTransport, take_back_unopened
from torchfsl.service.client.sent_reports import SentReports
from torchfsl.service.net import calls
from torchfsl.service.state_checks import check_budget

PLAN = private(
    mixed_plan(), max_participations=2, min_separation=3, noise_taps=(), noise_sigma=1 << 20
)


def rounds_sent(
    path: Path | None, numbers: tuple[int, ...], sent: SentReports | None = None
) -> Any:
    """A new process for each round; the servers accept everything."""
    links = FakeLinks()
    for number in numbers:
        count = sent or SentReports(path, PLAN, 1)
        transport = RemoteTransport(links, PLAN, None, count)  # type: ignore[arg-type]
        update = random_update(PLAN, np.random.default_rng(0))
        client = Client(PLAN, transport, client_id=1)
        client.start_round(number, indices=wanted_rows(PLAN, update)).submit(update)
    return links.sent


def test_a_client_whose_servers_accept_everything_still_sends_no_report_too_many(
    tmp_path: Path,
) -> None:
    path = tmp_path / "outbox.reports"
    assert len(rounds_sent(path, (4, 7))) == 8
    with raises(RejectedSubmission, "participations-spent"):
        rounds_sent(path, (100,))
    assert SentReports(path, PLAN, 1).rounds == [4, 7]
    assert SentReports(path, PLAN, 1).is_spent


def test_a_client_sends_no_report_in_rounds_that_are_too_near(tmp_path: Path) -> None:
    path = tmp_path / "outbox.reports"
    rounds_sent(path, (4,))
    for number in (5, 6):
        with raises(RejectedSubmission, "too-early"):
            rounds_sent(path, (number,))
    rounds_sent(path, (7,))


def test_not_even_trees_leave_in_a_round_that_the_count_refuses(tmp_path: Path) -> None:
    count, links = SentReports(tmp_path / "count", PLAN, 1), FakeLinks()
    count.add(4)
    with raises(RejectedSubmission, "too-early"):
        count.add(5)
    client = Client(PLAN, RemoteTransport(links, PLAN, None, count), client_id=1)  # type: ignore[arg-type]
    update = random_update(PLAN, np.random.default_rng(0))
    with raises(RejectedSubmission, "too-early"):
        client.start_round(5, indices=wanted_rows(PLAN, update)).retrieve()
    assert links.sent == []


def test_without_a_path_the_count_lasts_as_long_as_the_process() -> None:
    count = SentReports(None, PLAN, 1)
    rounds_sent(None, (4, 7), count)
    with raises(RejectedSubmission, "participations-spent"):
        rounds_sent(None, (10,), count)
    rounds_sent(None, (10,))


def test_the_count_is_stored_before_the_first_byte_of_the_report_leaves(tmp_path: Path) -> None:
    path, links = tmp_path / "outbox.reports", FakeLinks()
    seen: list[tuple[str, list[int]]] = []

    class Watching(FakeLinks):
        def both(self, ask: Any) -> tuple[bytes, bytes]:
            seen.append(("", SentReports(path, PLAN, 1).rounds))
            return super().both(ask)

    links = Watching()
    transport = RemoteTransport(links, PLAN, None, SentReports(path, PLAN, 1))  # type: ignore[arg-type]
    update = random_update(PLAN, np.random.default_rng(0))
    client = Client(PLAN, transport, client_id=1)
    client.start_round(4, indices=wanted_rows(PLAN, update)).submit(update)
    assert links.sent[-1][0] == "Submit"
    assert seen[-1][1] == [4]


def test_a_count_that_cannot_be_stored_keeps_the_report_back_also_on_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, links = tmp_path / "outbox.reports", FakeLinks()
    count = SentReports(path, PLAN, 1)
    transport = RemoteTransport(links, PLAN, None, count)  # type: ignore[arg-type]
    update = random_update(PLAN, np.random.default_rng(0))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        client = Client(PLAN, transport, client_id=1)
        with pytest.raises(OSError, match="no space"):
            client.start_round(4, indices=wanted_rows(PLAN, update)).submit(update)
    assert [one for one in links.sent if one[2] in (Kind.REPORT, Kind.REPORT_COMMIT)] == []
    assert SentReports(path, PLAN, 1).rounds == []


def test_a_task_of_another_session_counts_anew_and_both_counts_last(tmp_path: Path) -> None:
    path, other = tmp_path / "count", dataclasses.replace(PLAN, session="ab" * 16)
    for plan, number in ((PLAN, 4), (other, 5)):
        SentReports(path, plan, 1).add(number)
    assert [SentReports(path, plan, 1).rounds for plan in (PLAN, other)] == [[4], [5]]


def test_a_report_sent_again_in_its_round_counts_once(tmp_path: Path) -> None:
    count = SentReports(tmp_path / "count", PLAN, 1)
    count.add(4)
    count.add(4)
    assert count.rounds == [4]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"aa": ["4"]}', b'{"aa": 4}'])
def test_a_count_that_cannot_be_read_stops_the_client(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "count").write_bytes(content)
    with pytest.raises(DecodeError, match=r"cannot read from .* how many reports"):
        SentReports(tmp_path / "count", PLAN, 1)


def info(number: int = 4, state: str = "unopened", **more: Any) -> dict[str, Any]:
    return {"round": number, "state": state, "plan_digest": PLAN.digest.hex(), **more}


FREE = info(may_have_opened=False)


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        (FREE, FREE, []),
        (FREE, info(may_have_opened=True), [4]),
        (info(may_have_opened=True), FREE, [4]),
        (FREE, info(), [4]),
        (FREE, info(state="applied", may_have_opened=False), [4]),
        (FREE, info(state="open", may_have_opened=False), [4]),
        (FREE, info(5, may_have_opened=False), [4]),
        (FREE, info(plan_digest="ab" * 32, may_have_opened=False), [4]),
    ],
)
def test_a_report_is_taken_back_only_if_both_servers_say_that_no_share_has_left(
    one: dict[str, Any], other: dict[str, Any], left: list[int], tmp_path: Path
) -> None:
    count = SentReports(tmp_path / "count", PLAN, 1)
    count.add(4)
    take_back_unopened([one, other], count)
    assert SentReports(tmp_path / "count", PLAN, 1).rounds == left


@pytest.mark.parametrize("code", ["participations-spent", "too-early", "no-such-code", None])
def test_a_refusal_by_a_limit_keeps_its_code_on_the_way_and_no_other_text_becomes_one(
    code: str | None,
) -> None:
    class Refusal(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.FAILED_PRECONDITION

        def details(self) -> str:
            return "client 7 participates too early"

        def trailing_metadata(self) -> list[tuple[str, str]] | None:
            return [(calls.CODE, code)] if code else None

    found = calls.error_of(Refusal(), "server 0")
    assert isinstance(found, RejectedSubmission)
    assert found.code == (code if code in ("participations-spent", "too-early") else "rejected")


@pytest.mark.parametrize("mode", ["after", "before"])
def test_rounds_end_for_a_client_that_has_finished_and_a_round_that_ended_free_is_given_back(
    mode: str, tmp_path: Path
) -> None:
    plan = private(
        mixed_plan(), max_participations=1, min_separation=1, noise_taps=(), noise_sigma=1 << 20
    )
    with Pair(tmp_path / "servers", plan) as pair:
        pair.start()
        pair.set_up()
        connection = pair.client(1, outbox=tmp_path / "outbox")
        with RemoteServers(connection, 1) as servers:
            rounds = servers.rounds(HANGS_AFTER)
            pair.open()
            assert next(rounds) == pair.number
            update = pair.update(1)
            session = connection.client.start_round(
                pair.number, indices=wanted_rows(pair.plan, update)
            )
            session.download()
            session.retrieve()
            session.submit(update)
            if mode == "before":
                pair.owner.abandon_round(pair.number, "the owner changed its mind")
                wait_until(lambda: not connection.has_finished())
                pair.open()
                assert next(rounds) == pair.number
            else:
                pair.take_part([2])
                pair.close()
                assert list(rounds) == []
                pair.open()
                with raises(RejectedSubmission, "participations-spent"):
                    pair.take_part([1])  # without its outbox, so that the servers refuse
                port = pair.metrics_ports[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                    shown = page.read().decode()
                assert "torchfsl_noise_index 1.0" in shown
                assert "torchfsl_max_rounds 60.0" in shown
                assert 'torchfsl_participations_refused_total{why="participations-spent"}' in shown
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
                    assert "Noise and participation at this server" in page.read().decode()
                assert check_budget(pair.state(0)) == (
                    "rounds spent 1 of 60, reports that count 2, bytes of past noise 0"
                )

"""Clients of torchfsl/web beside Python's in rounds of two real servers."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.federation import mixed_plan
from tests.support.network import DOWN_SECONDS, assert_sums
from tests.support.reference.plaintext import Contribution
from tests.support.web import FIRST, WebLink
from tests.support.web_page import Page, PagePair
from torchfsl.fsl.messages import Kind, max_bytes
from torchfsl.service.net.issuers import Issuers

pytest.importorskip("h11")
pytestmark = pytest.mark.slow

PLAN = dataclasses.replace(mixed_plan(), max_clients=8)


@pytest.fixture(params=["node", "chromium"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path, is_page=request.param == "chromium") as made:
        yield made


@pytest.fixture
def pair(page: Page, tmp_path: Path) -> Iterator[PagePair]:
    with PagePair(tmp_path / "pair", PLAN, page.origin) as made:
        made.start()
        made.set_up()
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, PagePair]]:
    """A client in node and a pair for tests that leave both as they were, but for the round."""
    folder = tmp_path_factory.mktemp("shared")
    with Page(folder) as node, PagePair(folder / "pair", PLAN, node.origin) as made:
        made.start()
        made.set_up()
        yield node, made


def assert_opens(pair: PagePair, own: list[Contribution]) -> None:
    """The round ends with the client of the page and two of Python, sums exact."""
    made = own + pair.take_part((2, 3), seed=pair.number)
    opened = pair.close()
    assert opened.clients == (2, 3, FIRST)
    assert_sums(pair.plan, opened, made)


def own_of(pair: PagePair) -> list[Contribution]:
    return [Contribution(pair.update_of(pair.number), 1, {})]


def assert_fetched(pair: PagePair, event: dict[str, Any]) -> None:
    state = pair.owner.model(pair.task).state
    for name, rows in event["fetched"]["rows"].items():
        assert name == "table"
        table = np.concatenate([state["table.0"], state["table.1"]])
        assert np.array_equal(np.float32(rows["values"]).reshape(-1, 3), table[rows["ids"]])
    for name, values in event["fetched"]["tensors"].items():
        assert np.array_equal(np.float32(values), state[name].reshape(-1))


def test_no_report_is_lost_or_doubled_by_a_reload_and_a_restart(page: Page, pair: PagePair) -> None:
    page.set_job(pair, rounds=3, dies=2)
    pair.open()
    page.start()
    assert not page.next("connected")["resumed"]
    assert_fetched(pair, page.next("training"))
    assert page.next("submitted")["round"] == 1
    assert_opens(pair, own_of(pair))

    pair.open()
    assert page.next("training")["round"] == 2
    if not page.is_page:
        assert page.process is not None
        assert page.process.wait(60) == 3
        page.start()
    assert page.next("connected")["resumed"]
    assert_opens(pair, own_of(pair))

    def restart(_: dict[str, Any]) -> None:
        pair.kill(1)
        threading.Timer(DOWN_SECONDS, lambda: pair.start(1)).start()

    page.on["training"] = restart
    pair.open()
    assert page.next("training")["round"] == 3
    assert page.next("submitted")["round"] == 3
    assert_opens(pair, own_of(pair))


def test_a_page_that_is_closed_in_training_leaves_no_report(page: Page, pair: PagePair) -> None:
    page.set_job(pair, rounds=1, closes=pair.open())
    page.start()
    for name in ("connected", "training"):
        page.next(name)
    if not page.is_page:
        assert page.process is not None
        assert page.process.wait(60) == 3
    made = pair.take_part((2, 3))
    opened = pair.close()
    assert opened.clients == (2, 3)
    assert_sums(pair.plan, opened, made)

    page.stop()
    page.start()
    assert not page.next("connected")["resumed"]
    number = pair.open()
    assert page.next("training")["round"] == number
    page.next("submitted")
    assert_opens(pair, own_of(pair))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [("training", None), ("rows", "row-out-of-range"), ("values", "value-too-large")],
)
def test_after_an_error_a_report_leaves_that_adds_nothing(
    shared: tuple[Page, PagePair], wrong: str, code: str | None
) -> None:
    node, pair = shared
    number = pair.open()
    node.set_job(pair, rounds=1, fails=number if wrong == "training" else 0)
    if wrong == "rows":
        node.job["wanted"][number]["table"] = [999]
    if wrong == "values":
        node.job["updates"][number]["bias"]["values"][0] = 1 << 40
    node.start()
    node.next("connected")
    if wrong != "rows":
        node.next("training")
    error = node.next("error")
    assert error.get("code") == code, error
    assert uploaded(error["calls"]) == uploads(pair)
    node.next("end")
    assert_opens(pair, [])


def test_after_an_altered_model_nothing_leaves(shared: tuple[Page, PagePair]) -> None:
    node, pair = shared
    number = pair.open()
    node.set_job(pair, rounds=1, alters=number)
    node.start()
    node.next("connected")
    error = node.next("error")
    assert error.get("code") == "models-differ", error
    assert uploaded(error["calls"]) == []
    node.next("end")
    made = pair.take_part((2, 3))
    opened = pair.close()
    assert opened.clients == (2, 3)
    assert_sums(pair.plan, opened, made)


def uploaded(calls: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Trees and reports, as each was sent first."""
    sent = [(one["name"], one["party"], one["size"]) for one in calls]
    return sorted({one for one in sent if one[0] in ("Retrieve", "Submit")})


def uploads(pair: PagePair) -> list[tuple[str, int, int]]:
    """The same of any client, by the plan."""
    kinds = ((Kind.TREES, Kind.TREES_COMMIT), (Kind.REPORT, Kind.REPORT_COMMIT))
    return sorted(
        (name, (FIRST + place) % 2, max_bytes(pair.plan, kind))
        for name, both in zip(("Retrieve", "Submit"), kinds, strict=True)
        for place, kind in enumerate(both)
    )


def test_order_and_length_of_calls_are_pythons(
    shared: tuple[Page, PagePair], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, pair = shared
    pair.open()
    node.set_job(pair, rounds=1)
    node.start()
    for name in ("connected", "training"):
        node.next(name)
    own = [
        (one["name"], one["party"], one["size"])
        for one in node.next("submitted")["calls"]
        if one["name"] not in ("Plan", "Info")
    ]
    made, call = [], WebLink.call

    def noted(link: WebLink, name: str, body: bytes, *, limit: int) -> bytes:
        made.append((name, link.party, len(body)))
        return call(link, name, body, limit=limit)

    monkeypatch.setattr(WebLink, "call", noted)
    pair.take_part_by_web((FIRST + 2,))
    assert in_pairs(own) == in_pairs(made)
    node.next("end")
    pair.close()


def in_pairs(calls: list[tuple[str, int, int]]) -> list[list[tuple[str, int, int]]]:
    """Calls that leave side by side in either order."""
    return [sorted(calls[at : at + 2]) for at in range(0, len(calls), 2)]


@pytest.mark.parametrize(
    "policy",
    [
        {"minClients": 2}, {"minContributors": 2}, {"maxRounds": 9}, {"maxK": 3},
        {"lanes": ["count"]}, {"noiseMultiplier": 0.1}, {"keys": ["00" * 32, "11" * 32]},
        {"plans": ["00" * 32]}, {"issuers": ["00" * 32]},
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_below_the_policy_is_refused_before_anything_leaves(
    shared: tuple[Page, PagePair], policy: dict[str, Any]
) -> None:
    node, pair = shared
    node.set_job(pair, rounds=1)
    node.job["policy"] |= policy
    node.start()
    error = node.next("error")
    assert error["code"] == "below-policy", error
    calls = [(one["name"], one["party"], one["size"]) for one in error["calls"]]
    assert sorted(calls) == [("Plan", 0, 2), ("Plan", 1, 2)]
    node.next("end")


@pytest.mark.parametrize(
    "policy", [{}, {"keys": None}, {"maxk": 3}, {"minClients": 0}, {"issuers": []}], ids=str
)
def test_a_policy_that_is_none_is_refused(
    shared: tuple[Page, PagePair], policy: dict[str, Any]
) -> None:
    node, pair = shared
    kept = {"keys": pair.plan.server_keys} | policy if policy else {}
    node.set_job(pair, rounds=1, policy=kept)
    node.start()
    error = node.next("error")
    assert (error["code"], error["calls"]) == ("invalid-policy", [])
    node.next("end")


def test_rounds_end_once_a_server_has_another_admission_file(
    shared: tuple[Page, PagePair],
) -> None:
    node, pair = shared
    text = pair.admission.read_text()
    pair.open()
    node.set_job(pair, rounds=2)
    node.job["policy"]["issuers"] = [Issuers(pair.admission).digest()]
    node.start()
    for name in ("connected", "training", "submitted"):
        node.next(name)
    assert_opens(pair, own_of(pair))
    pair.admission.write_text(text.replace("counts = 99", "counts = 98"))
    error = node.next("error")
    pair.admission.write_text(text)
    assert error["code"] == "below-policy", error
    assert uploaded(error["calls"]) == uploads(pair)  # those of the first round
    node.next("end")


def test_a_refusal_for_now_is_answered_by_the_same_bytes_later(
    shared: tuple[Page, PagePair],
) -> None:
    node, pair = shared
    pair.open()
    node.set_job(pair, rounds=1, refuses=2)
    node.start()
    for name in ("connected", "training"):
        node.next(name)
    calls = [one for one in node.next("submitted")["calls"] if one["name"] == "Submit"]
    for party in (0, 1):
        own = [one for one in calls if one["party"] == party]
        assert len(own) == 2
        assert len({one["digest"] for one in own}) == 1
        assert own[1]["at"] - own[0]["at"] >= 1000  # milliseconds: Retry-After
        assert own[1]["proof"] != own[0]["proof"]
    assert_opens(pair, own_of(pair))

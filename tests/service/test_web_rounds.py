"""Clients with tokens take part by HTTPS in rounds of two real servers, beside gRPC clients."""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.support.errors import raises
from tests.support.federation import mixed_plan
from tests.support.network import assert_sums
from tests.support.web import FIRST, WebKey, WebLinks, WebPair
from torchfsl.errors import ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.service.client.remote import RemoteTransport
from torchfsl.service.net.identity import NotAllowed
from torchfsl.service.net.issuers import Issuers

pytest.importorskip("h11")

PLAN = dataclasses.replace(mixed_plan(), max_clients=8)


def test_sums_over_clients_of_both_doors_are_exact(tmp_path: Path) -> None:
    with WebPair(tmp_path, PLAN) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        alone = pair.take_part_by_web((FIRST, FIRST + 1))
        opened = pair.close()
        assert opened.clients == (FIRST, FIRST + 1)
        assert_sums(pair.plan, opened, alone)
        pair.open()
        made = pair.take_part((2, 3), seed=1)
        made += pair.take_part_by_web((FIRST + 2, FIRST + 3), seed=1)
        opened = pair.close()
        assert opened.clients == (2, 3, FIRST + 2, FIRST + 3)
        assert_sums(pair.plan, opened, made)
        _fetched_rows_are_the_models(pair)
        _metrics_and_page_tell_the_doors_apart(pair)


def _fetched_rows_are_the_models(pair: WebPair) -> None:
    key = WebKey()
    links = WebLinks(pair, key, pair.admit(FIRST, key))
    client = Client(pair.plan, RemoteTransport(links, pair.plan), client_id=FIRST)  # type: ignore[arg-type]
    model = pair.owner.model(pair.task)
    ids, values = client.fetch({"table": [1, 2]})[1]["table"]
    assert ids.tolist() == [1, 2]
    assert np.array_equal(values[:, :3], model.state["table.0"][[1, 2]])
    links.close()


def _metrics_and_page_tell_the_doors_apart(pair: WebPair) -> None:
    base = f"http://127.0.0.1:{pair.metrics_ports[0]}"
    metrics = urllib.request.urlopen(f"{base}/metrics").read().decode()  # noqa: S310
    for door, calls in (("grpc", 2), ("web", 4)):
        line = rf'torchfsl_calls_total{{code="OK",door="{door}",method="Submit"}} {calls}.0'
        assert re.search(rf"^{re.escape(line)}$", metrics, re.MULTILINE)
    assert re.search(r"^torchfsl_web_certificate_seconds_left [67]\d{5}\.", metrics, re.MULTILINE)
    assert re.search(
        r'^torchfsl_web_refused_total{why="nonce-expired"} [1-9]', metrics, re.MULTILINE
    )
    page = urllib.request.urlopen(base).read().decode()
    assert page.count(Issuers(pair.admission).digest()) == 2
    assert "calls answered OK</td>" in page
    assert "calls answered OK by HTTPS</td>" in page


def test_reports_of_an_issuer_count_to_min_clients_only_so_far(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, min_clients=3)
    with WebPair(tmp_path, plan, counts=1) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        pair.take_part_by_web((FIRST, FIRST + 1, FIRST + 2, FIRST + 3))
        with pytest.raises(ProtocolError, match="count towards min_clients, got 1 of 4"):
            pair.close()
        pair.open()
        made = pair.take_part_by_web((FIRST, FIRST + 1)) + pair.take_part((2, 3))
        opened = pair.close()
        assert opened.clients == (2, 3, FIRST, FIRST + 1)
        assert_sums(pair.plan, opened, made)


def test_an_issuer_has_its_share_of_a_round_also_after_a_crash(tmp_path: Path) -> None:
    with WebPair(tmp_path, PLAN, share=0.25) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        made = pair.take_part_by_web((FIRST, FIRST + 1))
        for _ in range(2):
            key = WebKey()
            links = WebLinks(pair, key, pair.admit(FIRST + 2, key))
            sent = pair.first_messages(FIRST + 2)
            for party in (0, 1):
                answer = links.links[party].ask("Upload", sent[party])
                assert (answer.status, json.loads(answer.body)["code"]) == (409, "round-full")
            links.close()
            for party in (0, 1):
                pair.kill(party)
            pair.start()
        made += pair.take_part((4,))
        opened = pair.close()
        assert opened.clients == (4, FIRST, FIRST + 1)
        assert_sums(pair.plan, opened, made)


def test_a_certificate_for_a_number_of_an_issuer_is_refused(tmp_path: Path) -> None:
    with WebPair(tmp_path, PLAN) as pair:
        text = pair.admission.read_text()
        pair.admission.write_text(text.replace(f"[{FIRST},", "[3,"))
        pair.start()
        pair.set_up()
        pair.open()
        pair.take_part((2,))
        with raises(NotAllowed, "not-allowed"):
            pair.take_part((3,))
        pair.take_part_by_web((FIRST, 3))
        assert pair.close().clients == (2, 3, FIRST)

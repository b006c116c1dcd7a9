"""Versions that do not fit are refused with the side that has to be upgraded."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from tests.service.test_hostile import messages_of
from tests.support.network import QUICK, Pair
from torchfsl.errors import DecodeError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.client.links import Link, Links
from torchfsl.service.net import calls


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        yield started


@pytest.mark.parametrize(
    ("wire", "library", "older"),
    [
        ("0", "0.0.9", "the client"),
        (str(WIRE_VERSION + 1), "9.0.0", "server 0"),
        ("junk", "?", "the client"),
    ],
)
def test_a_caller_of_another_version_hears_which_side_to_upgrade(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, wire: str, library: str, older: str
) -> None:
    link = Link(pair.urls[0], 0, pair.files("client-0"), QUICK)
    given = (("torchfsl-wire", wire), ("torchfsl-library", library))
    monkeypatch.setattr(calls, "metadata", lambda: given)
    with pytest.raises(calls.VersionMismatch, match=f"upgrade {older}$") as refused:
        link.call("Info", b"{}", limit=1 << 16)
    assert library in str(refused.value)


def test_a_client_refuses_servers_of_another_version(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links(pair.urls, pair.files("client-0"), QUICK)
    answer = links.links[0].call("Info", b"{}", limit=1 << 16)
    newer = {**json.loads(answer), "wire_version": WIRE_VERSION + 1}
    monkeypatch.setattr(Link, "call", lambda *_, **__: json.dumps(newer).encode())
    with pytest.raises(calls.VersionMismatch, match="upgrade this program"):
        links.info(0)


def test_a_method_that_the_server_does_not_know_is_a_version_mismatch(pair: Pair) -> None:
    link = Link(pair.urls[0], 0, pair.files("client-0"), QUICK)
    with pytest.raises(calls.VersionMismatch):
        link.call("Teleport", b"{}", limit=1 << 16)


def test_a_message_of_another_wire_version_is_refused(pair: Pair) -> None:
    pair.open()
    trees, _ = messages_of(pair, 0)
    link = Link(pair.urls[0], 0, pair.files("client-0"), QUICK)
    for version, side in ((0, "sender"), (WIRE_VERSION + 1, "receiver")):
        other = bytearray(trees[0])
        struct.pack_into("<H", other, 4, version)
        with pytest.raises(DecodeError, match=f"upgrade the {side}"):
            link.call("Retrieve", bytes(other), limit=1 << 20)


def test_library_wire_and_plan_carry_versions_of_their_own(pair: Pair) -> None:
    info = pair.owner.links.info(0)
    assert info["library"].count(".") >= 2
    assert info["wire_version"] == WIRE_VERSION
    fields = json.loads(pair.plan.to_json())
    assert fields["wire_version"] == WIRE_VERSION
    for changed in ({"wire_version": 9}, {"suite": "half-tree"}):
        text = json.dumps({**fields, **changed}, sort_keys=True, separators=(",", ":"))
        with pytest.raises(DecodeError, match=r"upgrade torchfsl here|suite 'half-tree'"):
            Plan.from_json(text)

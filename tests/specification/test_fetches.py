"""What a server refuses of a fetch: the blocks and the library side by side."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

from tests.specification import library, pages
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.fetching import Fetches

CONTENT = library.read("transcripts/fetch_tags")
SENT: dict[int, bytes] = {
    one["message"]: bytes.fromhex(one["data"])
    for step in CONTENT["steps"]
    for one in step.get("sends", ())
}
COMMIT, TREES, RELAY = 12, 13, 14
"""Messages of client 5, whose public server is server 1."""


class Twins:
    """One server twice, of the blocks and of the library."""

    def __init__(self, spec: ModuleType, party: int) -> None:
        """Both are idle."""
        own = spec.read_plan(CONTENT["plan"])
        tensors = {name: bytes.fromhex(data) for name, data in CONTENT["model"].items()}
        self.spec, self.ours = spec, spec.Fetching(party, own, spec.Model(own, tensors))
        self.theirs = Fetches(Plan.from_json(CONTENT["plan"]), party, None, 100)

    def take(self, data: bytes) -> None:
        """Both accept it."""
        self.ours.receive_fetch(data)
        self.theirs.receive(data)

    def refuse(self, data: bytes) -> None:
        """Both refuse it."""
        with pytest.raises(self.spec.Rejected):
            self.ours.receive_fetch(data)
        with pytest.raises(RejectedSubmission):
            self.theirs.receive(data)

    def refuse_reply(self, kind: str) -> None:
        """Both refuse to send it."""
        model: Any = None
        with pytest.raises(self.spec.Rejected):
            self.ours.reply_fetch(kind, 5)
        with pytest.raises(RejectedSubmission):
            self.theirs.reply(Kind[kind], 5, model)


def test_a_relay_needs_a_commitment_and_is_taken_once() -> None:
    twins = Twins(pages.run(), 0)
    twins.refuse(SENT[RELAY])
    twins.refuse_reply("FETCH_ANSWER")
    twins.take(SENT[COMMIT])
    twins.refuse_reply("FETCH_ANSWER")
    twins.take(SENT[RELAY])
    twins.refuse(SENT[RELAY])
    twins.refuse_reply("FETCH_MODEL")


def test_a_relay_that_does_not_fit_ends_the_fetch() -> None:
    twins = Twins(pages.run(), 0)
    twins.take(SENT[COMMIT])
    twins.refuse(SENT[RELAY][:80] + bytes([SENT[RELAY][80] ^ 1]) + SENT[RELAY][81:])
    twins.refuse(SENT[RELAY])


def test_a_public_server_gives_the_model() -> None:
    twins = Twins(pages.run(), 1)
    twins.take(SENT[TREES])
    twins.refuse_reply("FETCH_ANSWER")


def test_padding_of_trees_is_refused_on_arrival() -> None:
    spec = pages.run()
    twins, encode = Twins(spec, 1), spec.encode_group

    def spoilt(group: Any, trees: Any, checks: list[bytes]) -> bytes:
        data = bytearray(encode(group, trees, checks))
        assert group.num_trees * group.depth % 8
        data[-group.num_trees * group.check_bytes - 1] |= 0x80
        return bytes(data)

    vars(spec)["encode_group"] = spoilt
    plan = twins.ours.plan
    client = spec.ClientTrees(plan, 5, spec.FETCH_ROUND, lambda name, size: os.urandom(size))
    _, messages = spec.ask_fetch(client, {s.name: [] for s in plan.retrieving})
    twins.refuse(dict(messages)[1])

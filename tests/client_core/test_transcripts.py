"""The core in the transcripts of the specification: the same draws, messages, rows and tensors."""

from __future__ import annotations

import pytest

from tests.specification import library
from tests.specification.replays import edited
from tests.specification.test_transcripts import NAMES, read, visits
from tests.support.client_core import REPORT, SILENT, UNSUPPORTED, Core, CoreClient
from tests.support.errors import raises
from torchfsl.errors import DecodeError, Error
from torchfsl.fsl.plan.plan import Plan

NOT_TAKEN = {"correlated", "fetch_bits", "fetch_tags", "session"}
"""Transcripts whose plan the core does not take: taps, subsets, public bins, sessions."""
MESSAGES = library.read("refused_messages")["cases"]


@pytest.mark.parametrize("name", sorted(NOT_TAKEN))
def test_the_core_says_that_it_does_not_take_a_plan(core: Core, name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        core.open(read(name)["plan"])
    assert caught.value.status == UNSUPPORTED  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_TAKEN))
def test_the_core_sends_and_reads_the_same(core: Core, name: str) -> None:
    content, played, sends, clients = read(name), 0, 0, 0
    plan, messages = Plan.from_json(content["plan"]), library.sent(content["steps"])
    for client, steps in visits(content):
        named = {step["do"]: step for step in steps}
        if "read_model" not in named:  # the core always downloads, and does not fetch
            continue
        script = library.Script(steps, messages)
        sends, clients = sends + len(script.sends), clients + 1
        tape = b"".join(data for _, data in library.drawn(steps))
        member = CoreClient(core, plan, script, client, tape)
        client_round = member.start_round(named["report"]["round"], indices=named["ask"]["wanted"])
        library.same_tensors(plan, client_round.download(), named["read_model"]["tensors"])
        wanted = named.get("read_rows", {"rows": {}})["rows"]
        library.same_rows(plan, client_round.retrieve(), wanted)
        update = library.update_of(plan, named["report"]["update"])
        assert client_round.submit(update, weight=named["report"]["weight"]) == REPORT
        assert not script.sends
        played += script.compared
    assert played == sends >= 2 * clients > 0  # at least a message to each server


@pytest.mark.parametrize(
    "case", [c for c in MESSAGES if c.get("by") == "client 4"], ids=lambda case: case["comment"]
)
def test_the_core_withdraws_from_an_altered_reply(core: Core, case: library.Json) -> None:
    content = read(case["transcript"])
    plan, messages = Plan.from_json(content["plan"]), library.sent(content["steps"])
    for one in case["altered"]:
        messages[one["message"]] = edited(messages[one["message"]], one["edits"])
    steps = next(s for client, s in visits(content) if client == 4)
    script = library.Script(steps, messages)
    tape = b"".join(data for _, data in library.drawn(steps))
    client_round = CoreClient(core, plan, script, 4, tape).start_round(
        steps[0]["round"], indices=steps[0]["wanted"]
    )
    with raises(Error, case["code"]):
        client_round.go()
    assert client_round.step().outcome == SILENT

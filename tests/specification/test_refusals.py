"""Refused plans and messages of `tests/vectors`, at the library; the blocks have made them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import library, pages
from tests.specification.bad_plans import text_of
from tests.specification.replays import Replay, edited
from tests.specification.test_transcripts import visits
from tests.support.errors import raises
from torchfsl import errors
from torchfsl.errors import DecodeError, Error
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.opened import Opened

PLANS, MESSAGES = library.read("refused_plans"), library.read("refused_messages")["cases"]
READ = {"read_model": "download", "read_rows": "retrieve"}
SOURCES = Path(errors.__file__).parent
REFUSING = [
    *(SOURCES / "fsl" / "server").glob("*.py"),
    *(SOURCES / "fsl" / "client").glob("*.py"),
    *(SOURCES / name for name in (
        "fsl/bodies.py", "fsl/messages.py", "fsl/dpf/psr.py", "fsl/dpf/trees.py", "crypto/aead.py",
        "submodel/framing.py", "submodel/rounds.py", "submodel/participation.py",
    )),
]  # fmt: skip
"""Files whose errors are about a message or a step of another party."""
WITHOUT_CASE = {
    "already-applied": "a second apply of one opening: no message",
    "already-submitted": "a second report of one client object: no message",
    "bad-signature": "audits: test_audits",
    "client-withdrew": "a client that goes on after its withdrawal: no message",
    "no-open-round": "a server without a round: the state comes before the message",
    "noise-index-used": "audits: test_audits",
    "participations-spent": "no transcript has so many reports of one client: test_rounds",
    "report-changed": "a file of the server itself",
    "too-many-answers": "a bound that servers choose: service/test_read_answers.py",
    "too-many-fetches": "a bound that servers choose: fsl/test_fetch.py",
}
"""Codes of such errors without a refused message, and why."""


def named(case: library.Json) -> str:
    return f"{case.get('section', case.get('rule'))}: {case['comment']}"


def test_every_rule_of_a_plan_has_a_case() -> None:
    rules = map(int, re.findall(r"need\((\d+),", (pages.FOLDER / "plan.md").read_text()))
    assert {case["rule"] for case in PLANS["cases"]} == set(rules)
    for text in PLANS["bases"]:
        assert Plan.from_json(text).to_json() == text


@pytest.mark.parametrize("case", PLANS["cases"], ids=named)
def test_the_library_refuses_a_plan(case: library.Json) -> None:
    with raises(DecodeError, case["code"]):
        Plan.from_json(text_of(PLANS["bases"], case))


def test_a_plan_breaks_one_rule_alone() -> None:
    """Without it the blocks accept the text; some rules follow from others or keep blocks whole."""
    spec, together = pages.run(), {1, 23, 25, 45, 67}
    honest, found = spec.need, set()
    for case in PLANS["cases"]:

        def need(rule: Any, holds: Any, own: int = case["rule"]) -> None:
            honest(rule, holds or rule == own)

        vars(spec)["need"] = need
        try:
            spec.read_plan(text_of(PLANS["bases"], case))
        except (spec.Malformed, KeyError, IndexError):
            found.add(case["rule"])
    assert found == together


def codes_of(path: Path) -> Iterator[str]:
    """Codes of the errors that a file raises, except those about arguments."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        if getattr(node.exc.func, "id", "") == "ParameterError":
            continue
        for value in [each.value for each in node.exc.keywords if each.arg == "code"]:
            yield from {getattr(one, "value", "") for one in ast.walk(value)} & set(errors.CODES)


def test_every_code_about_a_message_has_a_case_or_a_reason() -> None:
    raised = {code for path in REFUSING for code in codes_of(path)}
    played = {case["code"] for case in MESSAGES}
    assert raised - played == set(WITHOUT_CASE)


@pytest.mark.parametrize(
    "case", [case for case in MESSAGES if "by" not in case], ids=named
)  # fmt: skip
def test_the_servers_of_the_library_refuse_a_message(case: library.Json) -> None:
    content = library.read(f"transcripts/{case['transcript']}")
    servers = library.make_servers(content)
    opened: dict[int, Opened] = {}

    def play(step: library.Json, taken: list[bytes]) -> Any:
        b = int(step["by"][-1])
        if step["do"] == "apply":
            return servers[b].apply(opened.pop(b)) if b in opened else None
        said = library.play(servers[b], step, taken)
        if isinstance(said, Opened):
            opened[b] = said
            return said.clients
        return said

    replay, wanted = Replay(content, case, play, (Error,)), case["refused"]
    assert replay.opened == case["opened"]
    if wanted is None:
        assert replay.refused is None
    else:
        assert replay.refused is not None
        by, do, error = replay.refused
        assert (by, do, error.code) == (wanted["by"], wanted["do"], case["code"])


@pytest.mark.parametrize("case", [case for case in MESSAGES if "by" in case], ids=named)
def test_the_clients_of_the_library_withdraw(case: library.Json) -> None:
    content = library.read(f"transcripts/{case['transcript']}")
    plan, messages = Plan.from_json(content["plan"]), library.sent(content["steps"])
    for one in case["altered"]:
        messages[one["message"]] = edited(messages[one["message"]], one["edits"])
    steps = next(s for client, s in visits(content) if f"client {client}" == case["by"])
    script, what = library.Script(steps, messages), case["refused"]["do"]
    member = Client(plan, script, client_id=int(case["by"].split()[1]))
    with library.on_draws(library.drawn(steps), every=False):
        if what == "read_fetch":
            with raises(Error, case["code"]):
                member.fetch(steps[0]["wanted"])
            return
        client_round = member.start_round(steps[0]["round"], indices=steps[0]["wanted"])
        if what == "read_rows":
            client_round.download()
        with raises(Error, case["code"]):
            getattr(client_round, READ[what])()
        sent = len(script.sends)
        client_round.abort()
        assert len(script.sends) == sent  # silence

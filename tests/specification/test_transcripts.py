"""Transcripts of `tests/vectors/transcripts`: made by the blocks, played by the library."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.specification import library
from tests.specification.test_vectors import imported
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.opened import Opened

NAMES = sorted(path.stem for path in (library.FOLDER / "transcripts").glob("*.json"))
MADE_BY = ["scenes", "entries", "make_transcripts", "pages"]


def read(name: str) -> library.Json:
    return library.read(f"transcripts/{name}")


def test_the_files_are_those_that_the_blocks_make() -> None:
    command = [sys.executable, "-m", "tests.specification.make_transcripts", "--check"]
    root = library.FOLDER.parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MADE_BY)
def test_what_makes_them_imports_nothing_of_the_library(module: str) -> None:
    text = (Path(__file__).parent / f"{module}.py").read_text()
    assert "torchfsl" not in imported(text)


def test_every_kind_is_in_a_transcript() -> None:
    kinds = {one["kind"] for name in NAMES for step in read(name)["steps"]
             for one in step.get("sends", ())}  # fmt: skip
    assert kinds == {kind.name for kind in Kind} - {"AUDIT_PASS"}


@pytest.mark.parametrize("name", NAMES)
def test_the_servers_of_the_library_say_and_open_the_same(name: str) -> None:
    content = read(name)
    servers, messages = library.make_servers(content), library.sent(content["steps"])
    last: dict[int, Any] = {}
    for step in content["steps"]:
        who, _, number = step["by"].partition(" ")
        if who != "server":
            continue
        server = servers[int(number)]
        if step["do"] == "apply":
            server.apply(last.pop(int(number)))
            model = {t: value.tobytes().hex() for t, value in server.model.state.items()}
            assert model == step.get("model", model)  # that of server 0 is noted
        else:
            said = library.play(server, step, [messages[n] for n in step.get("takes", ())])
            if isinstance(said, Opened):
                last[int(number)] = said
                same_sums(said, step.get("opened"))
            else:
                due = [messages[one["message"]] for one in step.get("sends", ())]
                assert ([] if said is None else [said]) == due, step["do"]
        assert library.after(server) == step["after"], step["do"]
    first, second = (server.model.state for server in servers)
    assert all(np.array_equal(first[t], second[t]) for t in first)


def same_sums(said: Opened, wanted: library.Json | None) -> None:
    if wanted is not None:
        assert list(said.clients) == wanted["clients"]
        assert said.total_weight == wanted["weight"]
        assert {name: total.tolist() for name, total in said.sums.items()} == wanted["sums"]
        assert {name: lane.tolist() for name, lane in said.lanes.items()} == wanted["lanes"]


def visits(content: library.Json) -> list[tuple[int, list[library.Json]]]:
    """Steps of clients, cut into rounds and fetches of one client each."""
    own = [step for step in content["steps"] if step["by"].startswith("client")]
    first = ("ask", "ask_fetch")
    found: list[tuple[str, list[library.Json]]] = []
    for by, steps in groupby(own, key=lambda step: step["by"]):
        for step in steps:
            if step["do"] in first or not found or found[-1][0] != by:
                found.append((by, []))
            found[-1][1].append(step)
    return [(int(by.split()[1]), steps) for by, steps in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_of_the_library_send_and_read_the_same(name: str) -> None:
    content = read(name)
    plan, messages = Plan.from_json(content["plan"]), library.sent(content["steps"])
    number, members, compared = 0, {}, 0  # type: ignore[var-annotated]
    for client, steps in visits(content):
        script = library.Script(steps, messages)
        named = {step["do"]: step for step in steps}
        with library.on_draws(library.drawn(steps)):
            member = members.get(client) or Client(plan, script, client_id=client)
            member.servers = script
            if "ask_fetch" in named:
                tensors, rows = member.fetch(named["ask_fetch"]["wanted"])
                library.same_tensors(plan, tensors, named["read_fetch"]["tensors"])
                library.same_rows(plan, rows, named["read_fetch"]["rows"])
            else:
                number = next((s["round"] for s in steps if "round" in s), number)
                play_round(plan, member, number, named, members)
        compared += script.compared
        assert not script.sends
        assert not script.takes
    assert compared >= 2


def play_round(plan: Plan, member: Client, number: int, named: library.Json, members: Any) -> None:
    if plan.max_epochs > 1:
        members[member.client_id] = member
        wanted = named.get("ask", {}).get("wanted", {})
        client_round = member.continue_session(number, indices=wanted)
    else:
        client_round = member.start_round(number, indices=named["ask"]["wanted"])
    if "read_model" in named:
        library.same_tensors(plan, client_round.download(), named["read_model"]["tensors"])
    if "read_rows" in named:
        library.same_rows(plan, client_round.retrieve(), named["read_rows"]["rows"])
    if "report" in named:
        update = library.update_of(plan, named["report"]["update"])
        left = client_round.submit(update, weight=named["report"]["weight"]).unmatched
        assert not any(len(rows) for rows in left.values())

"""The core as WebAssembly in node: every message equals that of Python's client."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client_core.test_c import PLAN, deliver_all
from tests.client_core.test_tape import Tape, cases, on_tape, open_wire, small_update
from tests.support.client_core import REPORT, ROOT, SOURCES, Core, CoreClient
from tests.support.federation import random_update, wanted_rows
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan

pytestmark = pytest.mark.slow
MOST_BYTES = 300_000


def wasm(name: str, *options: str) -> Path:
    """A build, made again where a source is newer."""
    if not shutil.which("em++"):
        pytest.skip("em++ is not installed: apt-get install emscripten")
    if not shutil.which("node"):
        pytest.skip("node is not installed: apt-get install nodejs")
    out = ROOT / "build" / "client_core" / name
    newest = max(p.stat().st_mtime for p in SOURCES.rglob("*") if p.suffix in (".cc", ".h"))
    if not out.exists() or out.stat().st_mtime < newest:
        command = [ROOT / "scripts" / "build_wasm.sh", out, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return out


def job_of(plan: Plan, update: Any, client: int, weight: int, tape: bytes, built: Path) -> Any:
    names = [segment.name for segment in plan.segments]
    wanted = wanted_rows(plan, update)
    parts = [
        {
            "segment": names.index(name),
            "rows": None if part.indices is None else part.indices.tolist(),
            "num": len(part.values),
            "values": part.values.reshape(-1).tolist(),
        }
        for name, part in update.items()
    ]
    rows = [{"segment": names.index(n), "ids": np.asarray(i).tolist()} for n, i in wanted.items()]
    return {
        "wasm": str(built), "plan": plan.to_json(), "client": client, "round": 1,
        "wanted": rows, "parts": parts, "weight": weight, "tape": tape.hex(),
    }  # fmt: skip


@pytest.mark.parametrize("text", [*cases(), PLAN.to_json()], ids=range(len(cases()) + 1))
def test_every_message_in_node_is_equal(text: str, tmp_path: Path) -> None:
    built, plan = wasm("tape.wasm", "--tape"), Plan.from_json(text)
    update = small_update(plan, np.random.default_rng(1))
    wires = [open_wire(plan) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        tape = on_tape(patch, 3)
        wanted = wanted_rows(plan, update)
        theirs = Client(plan, wires[0], client_id=5).start_round(1, indices=wanted)
        theirs.download(), theirs.retrieve()
        theirs.submit(update, weight=plan.max_weight)
    job = tmp_path / "job.json"
    job.write_text(json.dumps(job_of(plan, update, 5, plan.max_weight, tape.data, built)))
    command, pipe = ["node", Path(__file__).with_name("round.mjs"), job], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        deliver_all(process, wires[1])
        status, said = process.wait(60), process.stderr.read().decode() if process.stderr else ""
    assert status == 0, said
    assert [event.data for event in wires[0].events] == [event.data for event in wires[1].events]


def test_a_thousand_draws_in_node_are_those_of_the_native_core(core: Core, tmp_path: Path) -> None:
    """Secrets differ from draw to draw, so that trees, hints, tags and seals do."""
    draws, built = 1000, wasm("tape.wasm", "--tape")
    plan = dataclasses.replace(PLAN, max_clients=draws)
    update, wires = random_update(plan, np.random.default_rng(1)), [open_wire(plan) for _ in (0, 1)]
    size, tape = 4096, Tape(2, 4096 * draws).data
    job = job_of(plan, update, 5, 1, tape, built) | {"clients": draws}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = ["node", Path(__file__).with_name("round.mjs"), tmp_path / "job.json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        deliver_all(process, wires[0])
    assert process.returncode == 0
    own, wanted = CoreClient(core, plan, wires[1], 5), wanted_rows(plan, update)
    for draw in range(draws):
        own.client_id, own.tape = 5 + draw, tape[draw * size : (draw + 1) * size]
        assert own.start_round(1, indices=wanted).submit(update) == REPORT
    made = [[event.data for event in wire.events] for wire in wires]
    assert len(made[0]) == 10 * draws
    assert made[0] == made[1]


def test_a_release_is_small_and_has_no_tape() -> None:
    data = wasm("core.wasm").read_bytes()
    assert len(data) <= MOST_BYTES
    assert b"tfsl_test" not in data
    assert b"tfsl_round_submit" in data

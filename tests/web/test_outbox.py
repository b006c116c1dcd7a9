"""What a page remembers of its rounds and its report, in node, without a network."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.web_page import built_package

pytestmark = pytest.mark.slow
SCRIPT = """
const [dist] = process.argv.slice(1);
const { Connection } = await import(`${dist}/client.js`);
const { memoryOutbox } = await import(`${dist}/outbox.js`);
const { TorchfslError } = await import(`${dist}/errors.js`);
const sent = [];
const outbox = memoryOutbox();
const entry = () => outbox.change("s/7", (found) => found);
const open = (answer, fields = {}) => {
  const call = async (name, body) => {
    sent.push(`${name} ${body[0]}`);
    await answer?.();
  };
  const plan = { digest: "d", fields: { session: "s", ...fields } };
  return new Connection(plan, [{ call }, { call }], 7n, outbox);
};
const fails = (code, status = 0) => () => { throw new TorchfslError(code, "", status); };
const report = (n) => [0, 1].map((party) => ({ party, method: "Submit", body: Uint8Array.of(n) }));
const code = (promise) => promise.then(String, (error) => error.code);
const told = {};
"""


def run(script: str) -> Any:
    dist = built_package(core=False) / "dist"
    text = SCRIPT + script + "console.log(JSON.stringify({ ...told, sent }));"
    command = ["node", "--input-type=module", "-e", text, str(dist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_report_waits_until_both_servers_have_it() -> None:
    told = run("""
    await open().begin(1);
    told.first = await code(open(fails("not-ready")).report(1, report(1)));
    told.waits = !!(await entry()).report;
    told.resumed = await open().resume();
    told.again = await open().resume();
    told.left = await entry();
    """)
    assert told.pop("left") == {"plan": "d", "last": 1, "sent": [1]}
    calls = ["Submit 1"] * 4
    assert told == {
        "first": "not-ready", "waits": True, "resumed": True, "again": False, "sent": calls
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "status", "waits"),
    [("rejected", 409, False), ("token-refused", 401, True), ("not-ready", 503, True)],
)
def test_what_is_refused_for_good_does_not_wait(code: str, status: int, waits: bool) -> None:
    told = run(f"""
    told.first = await code(open(fails("{code}", {status})).report(1, report(1)));
    told.waits = !!(await entry()).report;
    """)
    assert (told["first"], told["waits"]) == (code, waits)


def test_the_report_of_a_later_round_stays() -> None:
    told = run("""
    const releases = [];
    const waits = () => new Promise((resolve) => releases.push(resolve));
    const first = open(waits).report(1, report(1));
    while (releases.length < 2) await new Promise((resolve) => setTimeout(resolve));
    told.second = await code(open(fails("not-ready")).report(2, report(2)));
    for (const release of releases) release();
    await first;
    told.waits = [...(await entry()).report[0].body];
    """)
    assert told["waits"] == [2]


def test_a_round_is_begun_once_and_limits_are_kept() -> None:
    told = run("""
    const limited = open(undefined, { max_participations: 2, min_separation: 2 });
    told.codes = [];
    for (const number of [3, 3, 2]) told.codes.push(await code(limited.begin(number)));
    await limited.report(3, report(3));
    for (const number of [4, 5]) told.codes.push(await code(limited.begin(number)));
    await limited.report(5, report(5));
    told.codes.push(await code(limited.begin(9)));
    """)
    spent, begun = "participations-spent", "interrupted-round"
    assert told["codes"] == ["undefined", begun, begun, spent, "undefined", spent]

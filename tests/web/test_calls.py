"""One call of a page to a server that is not as it should be, in node, without a network."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.web_page import built_package

pytestmark = pytest.mark.slow
SCRIPT = """
const [dist, given] = process.argv.slice(1);
const { Server, Signer } = await import(`${dist}/server.js`);
const { isFinal } = await import(`${dist}/errors.js`);
const { answers, numbers } = JSON.parse(given);
const [requests, tokens] = [[], []];
globalThis.fetch = async (_, { headers, body }) => {
  const { Authorization: token, "Torchfsl-Nonce": nonce } = headers;
  requests.push({ nonce, token, body: [...body] });
  const [status, code, size] = answers.shift();
  if (!status) throw new TypeError("fetch failed");
  const told = status === 200 ? new Uint8Array(size) : JSON.stringify({ code, message: "" });
  return new Response(told, { status, headers: { "Torchfsl-Nonce": `n${requests.length}` } });
};
const source = async ({ task, jkt }) => {
  if (!numbers.length) throw new TypeError("the login is away");
  tokens.push([task, jkt.length]);
  const sub = btoa(JSON.stringify({ sub: `torchfsl:client:${numbers.shift()}` }));
  return [`a${tokens.length}.${sub}.`, "b"];
};
const server = new Server("https://a.example", 0, 3000);
server.signer = await Signer.create("task", source);
const told = await server.call("Submit", Uint8Array.of(1, 2), 64).then(
  (data) => ({ size: data.length }),
  (error) => ({ code: error.code ?? error.message, isFinal: isFinal(error) }),
);
console.log(JSON.stringify({ told, requests, tokens }));
"""


def outcome(*answers: tuple[int, str, int], numbers: tuple[int, ...] = (7,)) -> Any:
    given = json.dumps({"answers": answers, "numbers": numbers})
    dist = built_package(core=False) / "dist"
    command = ["node", "--input-type=module", "-e", SCRIPT, str(dist), given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {tuple(one["body"]) for one in found["requests"]} == {(1, 2)}
    assert all(one == ["task", 43] for one in found["tokens"])
    return found


def test_a_stale_nonce_is_replaced_by_the_answers() -> None:
    found = outcome((401, "nonce-expired", 0), (401, "proof-used", 0), (200, "", 64))
    assert found["told"] == {"size": 64}
    assert [one["nonce"] for one in found["requests"]] == ["", "n1", "n2"]
    assert len(found["tokens"]) == 1


def test_after_a_refused_token_another_is_asked_for_once() -> None:
    refused = (401, "token-refused", 0)
    found = outcome(refused, (200, "", 0), numbers=(7, 7))
    assert found["told"] == {"size": 0}
    assert [one["token"].partition(".")[0] for one in found["requests"]] == [
        "Torchfsl a1", "Torchfsl a2"
    ]  # fmt: skip
    found = outcome(refused, refused, numbers=(7, 7, 7))
    assert found["told"] == {"code": "token-refused", "isFinal": False}
    found = outcome(refused, numbers=(7, 8))
    assert found["told"] == {"code": "token-refused", "isFinal": False}
    found = outcome(refused, numbers=(7,))
    assert found["told"] == {"code": "the login is away", "isFinal": False}


@pytest.mark.parametrize("passing", [(0, "", 0), (500, "", 0), (503, "not-ready", 0), (429, "", 0)])
def test_what_passes_is_tried_again(passing: tuple[int, str, int]) -> None:
    found = outcome(passing, passing, (200, "", 9))
    assert (found["told"], len(found["requests"])) == ({"size": 9}, 3)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412, 426])
def test_a_refusal_is_final(status: int) -> None:
    found = outcome((status, "rejected", 0))
    assert found["told"] == {"code": "rejected", "isFinal": True}
    assert len(found["requests"]) == 1


def test_a_long_answer_is_not_read_to_its_end() -> None:
    assert outcome((200, "", 65))["told"] == {"code": "answer-too-long", "isFinal": False}


def test_it_ends_when_the_time_is_over() -> None:
    found = outcome(*[(503, "not-ready", 0)] * 40)
    assert found["told"] == {"code": "not-ready", "isFinal": False}
    assert 3 < len(found["requests"]) < 20

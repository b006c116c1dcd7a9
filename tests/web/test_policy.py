"""A page's policy refuses the plans that Python's refuses."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.federation import make_plan, make_segment, mixed_plan
from tests.support.web_page import built_package
from torchfsl.errors import ParameterError
from torchfsl.fsl import privacy
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.coin import with_coins
from torchfsl.fsl.plan.plan import Plan

pytestmark = pytest.mark.slow
COINS = (bytes(range(32)), bytes(range(1, 33)))
KEYS = ("11" * 32, "22" * 32)
NAMES = {
    "verified": "verified", "sealed": "sealed", "joint_coin": "jointCoin", "max_k": "maxK",
    "min_clients": "minClients", "min_contributors": "minContributors", "lanes": "lanes",
    "noise_multiplier": "noiseMultiplier", "max_rounds": "maxRounds", "plans": "plans",
}  # fmt: skip
SCRIPT = """
import { readFileSync } from "node:fs";
const [dist] = process.argv.slice(1);
const { loadCore } = await import(`${dist}/index.js`);
const { checkPlan } = await import(`${dist}/policy.js`);
const core = await loadCore(readFileSync(`${dist}/core.wasm`));
const told = [];
for (const [text, policy, coins] of JSON.parse(readFileSync(0, "utf8"))) {
  told.push(await checkPlan(policy, core.open(text), coins).then(() => "", ({ code }) => code));
}
console.log(JSON.stringify(told));
"""


def plans() -> Iterator[Plan]:
    base = dataclasses.replace(mixed_plan(), server_keys=KEYS, min_clients=3)
    noisy = dataclasses.replace(base, l2_bound=1 << 20, noise_sigma=1 << 21, max_rounds=9)
    yield from (base, noisy, dataclasses.replace(base, server_keys=()))
    yield dataclasses.replace(noisy, lane="count", lane_sigma=1 << 4)
    yield dataclasses.replace(noisy, lane="weight", lane_sigma=1 << 4, max_weight=3)
    for theta in (5, 6, 50):
        few = make_segment("few", "scalars", (300,), k_max=8, theta=theta, stash=1)
        yield dataclasses.replace(make_plan(few), server_keys=KEYS, min_clients=3)


def floors(plan: Plan) -> Iterator[dict[str, Any]]:
    yield from ({}, {"sealed": False}, {"verified": False, "min_clients": 1})
    yield from ({"min_clients": 3}, {"min_clients": 4}, {"min_contributors": 2})
    yield from ({"max_k": 4}, {"max_k": 3}, {"max_rounds": 8}, {"max_rounds": 9})
    yield from ({"lanes": ("count",)}, {"lanes": ("none", "weight")}, {"joint_coin": False})
    yield from ({"plans": ("00" * 32,)}, {"noise_multiplier": 0.1})
    if plan.noise_sigma:
        yield from ({"noise_multiplier": privacy.multiplier(plan) * by} for by in (0.999, 1.001))


def verdict(plan: Plan, given: dict[str, Any], coins: Any) -> str:
    try:
        ClientPolicy(**given).check(plan, coins=coins)
    except ParameterError as error:
        return "below-policy" if error.code == "wrong-hash-seed" else error.code
    return ""


def test_verdicts_are_pythons() -> None:
    dist = built_package() / "dist"
    cases, wanted = [], []
    for made in plans():
        plan = with_coins(made, COINS)
        for given in floors(plan):
            for coins in (COINS, (), COINS[::-1]):
                own = {NAMES[name]: value for name, value in given.items()}
                own["keys"] = plan.server_keys
                cases.append((plan.to_json(), own, [coin.hex() for coin in coins]))
                wanted.append(verdict(plan, given, coins))
    command = ["node", "--input-type=module", "-e", SCRIPT, str(dist)]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    unlike = [
        (case[1:], one, own)
        for case, one, own in zip(cases, wanted, told, strict=True)
        if one != own
    ]
    assert not unlike, unlike[:5]
    assert set(wanted) == {"", "below-policy"}

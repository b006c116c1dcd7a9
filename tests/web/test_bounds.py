"""The cuckoo bound in a page is that of Python, as far as its table goes."""

from __future__ import annotations

import json
import subprocess

import pytest

from scripts.generate import web_bounds
from tests.support.web_page import built_package
from torchfsl.fsl.cuckoo.bounds import ALWAYS_SAFE_THETA, ITEMS, is_within_bound, min_bins

SCRIPT = """
const { isWithinBound } = await import(process.argv[1]);
let text = "";
for await (const piece of process.stdin) text += piece;
console.log(JSON.stringify(JSON.parse(text).map((one) => isWithinBound(...one))));
"""


def test_the_script_is_the_generators() -> None:
    assert web_bounds.main(["--check"]) == 0


@pytest.mark.slow
def test_layouts_are_within_the_bound_as_in_python() -> None:
    built = built_package(core=False) / "dist" / "bounds.js"
    layouts, theta = [(10, 9, 3, 0), (10, 2, 9, 2)], ALWAYS_SAFE_THETA + 1
    for stash in range(4):
        most = web_bounds.LARGEST[min(stash, 1)]
        for k in sorted({*range(1, 530), *ITEMS, *(k + 1 for k in ITEMS)}):
            bins = [min_bins(k, min(stash, counted)) or 0 for counted in (1, 2) if k <= most]
            layouts += [(full * theta, k, theta, stash) for one in bins for full in (one, one - 1)]
    command = ["node", "--input-type=module", "-e", SCRIPT, str(built)]
    done = subprocess.run(
        command, input=json.dumps(layouts), capture_output=True, text=True, check=True
    )
    wanted = [is_within_bound(m, k, t, s if k <= 64 else min(s, 1)) for m, k, t, s in layouts]
    assert json.loads(done.stdout) == wanted
    assert 1000 < sum(wanted) < len(wanted) - 1000
    beyond = json.dumps([(1 << 40, k, theta, stash) for k, stash in ((4097, 0), (1025, 1))])
    done = subprocess.run(command, input=beyond, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, False]

"""The package itself: its sizes, what it installs, and its example."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.client_core import ROOT
from tests.support.web_page import SOURCES, built_package, chromium
from torchfsl.errors import CODES

pytestmark = pytest.mark.slow
MOST_CORE, MOST_SCRIPT = 300_000, 30_000


def test_the_core_is_small() -> None:
    assert (built_package() / "dist" / "core.wasm").stat().st_size <= MOST_CORE


def test_the_scripts_are_small() -> None:
    built = built_package(core=False) / "dist"
    assert 0 < sum(path.stat().st_size for path in built.glob("*.js")) <= MOST_SCRIPT
    assert (built / "index.d.ts").exists()


LOADS = """
import { readFileSync } from "node:fs";
const [dist, ...given] = process.argv.slice(1);
const { loadCore } = await import(`${dist}/index.js`);
const core = readFileSync(`${dist}/core.wasm`);
const told = [];
for (const one of given) told.push(await loadCore(core, one).then(() => "", ({ code }) => code));
console.log(JSON.stringify(told));
"""


def test_a_core_with_another_digest_or_a_digest_in_another_form_is_refused() -> None:
    dist = built_package() / "dist"
    digest = hashlib.sha256((dist / "core.wasm").read_bytes()).digest()
    good, other = (base64.b64encode(one).decode() for one in (digest, digest[::-1]))
    given = [f"sha256-{good}", "", f"sha256-{other}", digest.hex(), f"sha256-{digest.hex()}", good]
    command = ["node", "--input-type=module", "-e", LOADS, str(dist), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["", ""] + ["altered-message"] * 4


def test_nothing_is_installed_with_the_package() -> None:
    told = json.loads((SOURCES / "package.json").read_text())
    assert "dependencies" not in told
    lock = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    assert [name for name, one in lock.items() if name and not one.get("dev")] == []
    assert all("integrity" in one for name, one in lock.items() if name)


OLD = r"""
const [dist, missing] = process.argv.slice(2);
const { loadCore } = await import(`${dist}/index.js`);
const { readFileSync } = await import("node:fs");
const core = readFileSync(`${dist}/core.wasm`);
await loadCore(core);
if (missing === "Exception") delete WebAssembly.Exception;
else delete AbortSignal.timeout;
await loadCore(core).catch(({ code, message }) => console.log(code, message));
"""


@pytest.mark.parametrize("missing", ["Exception", "timeout"])
def test_an_old_browser_is_told_so(missing: str, tmp_path: Path) -> None:
    program = tmp_path / "old.mjs"
    program.write_text(OLD)
    command = ["node", program, built_package() / "dist", missing]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "version the browser is too old: use Chrome 103, Firefox 100, Safari 16 or newer\n"
    )


@pytest.mark.parametrize("page", ["two-tower/index.html?user=7&likes=3,14,15", "own.html"])
def test_the_example_takes_part_in_a_page(page: str, tmp_path: Path) -> None:
    if not shutil.which("chromium"):
        pytest.skip("chromium is not installed: apt-get install chromium")
    pytest.importorskip("h11")
    package = built_package()
    assert (SOURCES / "examples" / "two-tower" / "main.ts").read_text().count("\n") <= 120
    log, pipe = tmp_path / "chromium.log", subprocess.PIPE
    command = [sys.executable, "-u", "examples/web_page.py", "--package", str(package),
               "--port", "0", "--rounds", "2"]  # fmt: skip
    with (
        log.open("w") as said,
        subprocess.Popen(command, cwd=ROOT, stdout=pipe, text=True) as servers,
    ):
        assert servers.stdout is not None
        servers.stdout.readline()
        site, printed = servers.stdout.readline().strip().split("/examples/")
        assert page in (printed, "own.html")
        address = [f"{site}/examples/{page}"]
        browser = subprocess.Popen([*chromium(tmp_path / "profile"), *address], stderr=said)
        try:
            rounds = [servers.stdout.readline() for _ in range(2)]
        finally:
            browser.kill()
            browser.wait()
            servers.send_signal(signal.SIGINT)
    assert [line.split("  ")[:2] for line in rounds] == [
        ["round 0", "3 clients"], ["round 1", "3 clients"]
    ], (rounds, log.read_text())  # fmt: skip


def test_the_own_page_is_short_and_the_one_that_the_documentation_shows() -> None:
    own = (SOURCES / "examples" / "own.html").read_text()
    (shown,) = re.findall(r"```html\n(.*?)```", (ROOT / "docs" / "web-client.md").read_text(), re.S)
    assert shown == own
    assert own.count("\n") <= 35


def test_codes_of_errors_are_registered() -> None:
    text = " ".join(path.read_text() for path in (SOURCES / "src").glob("*.ts"))
    codes = set(re.findall(r'Error\(\s*"([a-z-]+)"', text))
    assert len(codes) > 10
    assert codes <= set(CODES)

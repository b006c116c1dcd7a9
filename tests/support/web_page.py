"""A client of torchfsl/web, in node or in a page of Chromium, with the test on its other side.

It fetches its job from a small HTTP server of the test, asks it for tokens, and reports there what
it has done, so that one script, `tests/web/driver.mjs`, serves both.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from tests.client_core.test_wasm import wasm
from tests.support.client_core import ROOT
from tests.support.federation import random_update, wanted_rows
from tests.support.network import HANGS_AFTER
from tests.support.web import FIRST, ORIGIN, WebPair
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.local import free_ports
from torchfsl.submodel.update import Update

SOURCES = ROOT / "torchfsl" / "web"
DRIVER = ROOT / "tests" / "web" / "driver.mjs"
BUILT = ROOT / "build" / "web"
_TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm",
          ".html": "text/html"}  # fmt: skip
_PAGE = b"""<!doctype html><script type="module">
import { main } from "/driver.mjs";
main(location.origin);
</script>"""


def built_package(*, core: bool = True) -> Path:
    """The package, compiled outside the sources; skips where a tool is missing.

    Args:
        core: with `core.wasm`.
    """
    for tool, package in (("node", "nodejs"), ("npm", "npm")):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed: apt-get install {package}")
    built = wasm("core.wasm") if core else None
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT.parent / "web.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        leave = shutil.ignore_patterns("node_modules", "dist")
        shutil.copytree(SOURCES, BUILT, dirs_exist_ok=True, ignore=leave)
        if not _has_compiler():
            pytest.skip("npm ci cannot install TypeScript: is there a network?")
        stamp = BUILT / "stamp"
        newest = max(path.stat().st_mtime for path in SOURCES.rglob("*") if path.is_file())
        if not stamp.exists() or stamp.stat().st_mtime < newest:
            for script in ("build", "example"):
                done = _npm("run", script)
                assert done.returncode == 0, done.stdout + done.stderr
            stamp.touch()
        if built is not None:
            shutil.copy(built, BUILT / "dist" / "core.wasm")
    return BUILT


@functools.cache
def _has_compiler() -> bool:
    if (BUILT / "node_modules" / "typescript").exists():
        return True
    return _npm("ci", "--no-audit", "--no-fund", "--fetch-retries=0").returncode == 0


def chromium(profile: Path) -> list[str]:
    """The command for a page without a window, which lets any certificate pass."""
    return ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--ignore-certificate-errors", "--remote-debugging-port=0", "--enable-logging=stderr",
            f"--user-data-dir={profile}"]  # fmt: skip


def _npm(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["npm", *words]
    return subprocess.run(command, cwd=BUILT, capture_output=True, text=True, check=False)


class PagePair(WebPair):
    """A pair whose HTTPS doors keep their ports over restarts and serve pages of `origin`."""

    def __init__(self, folder: Path, plan: Plan, origin: str, *, clients: int = 8) -> None:
        super().__init__(folder, plan, clients=clients)
        self._fixed, self._origin = free_ports(2), origin

    def command(self, party: int) -> list[str]:
        text = self.config.read_text().replace(ORIGIN, self._origin)
        own = self.config.with_name(f"serve{party}.toml")
        listen = f'[web]\nlisten = "127.0.0.1:{self._fixed[party]}"'
        own.write_text(text.replace('[web]\nlisten = "127.0.0.1:0"', listen))
        return [str(own) if word == str(self.config) else word for word in super().command(party)]

    def update_of(self, number: int) -> Update:
        """Of the client of the page, in a round."""
        return random_update(self.plan, np.random.default_rng([9, number]))


class Page:
    """One client, over reloads.

    Args:
        folder: of the outbox or, for Chromium, of the profile.
        is_page: in Chromium, else in node.

    Attributes:
        origin: of its pages.
        job: what the client is to do, see `driver.mjs`.
        on: by the name of an event, what the test does before the client goes on.
    """

    def __init__(self, folder: Path, *, is_page: bool = False) -> None:
        self._folder, self.is_page = folder, is_page
        if is_page and not shutil.which("chromium"):
            pytest.skip("chromium is not installed: apt-get install chromium")
        self._package = built_package()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.origin = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.on: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process: subprocess.Popen[bytes] | None = None
        self.pair: PagePair | None = None
        self.job: dict[str, Any] = {}

    def set_job(self, pair: PagePair, rounds: int, **changes: Any) -> None:
        """What the client is to do: so many rounds."""
        self.pair, self._events = pair, queue.Queue()
        updates = {n: pair.update_of(n) for n in range(1, 12)}
        self.job = {
            "urls": [f"https://127.0.0.1:{port}" for port in pair.web_ports],
            "policy": {"minClients": 1, "keys": pair.plan.server_keys},
            "rounds": rounds,
            "wanted": {n: _listed(wanted_rows(pair.plan, one)) for n, one in updates.items()},
            "updates": {
                n: {name: {"ids": None if part.indices is None else part.indices.tolist(),
                           "values": part.values.reshape(-1).tolist()}
                    for name, part in one.items()}
                for n, one in updates.items()
            },
        } | changes  # fmt: skip

    def start(self) -> None:
        """Start the process; a page that is reloaded goes on by itself."""
        assert self.pair is not None
        log = (self._folder / "client.log").open("ab")
        if self.is_page:
            command = [*chromium(self._folder / "profile"), f"{self.origin}/page.html"]
        else:
            command = ["node", str(DRIVER), self.origin, str(self._folder / "outbox.json")]
        extra = {"NODE_EXTRA_CA_CERTS": str(self.pair.web / "web.pem"), "DIST": str(BUILT / "dist")}
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | extra)
        log.close()

    def next(self, name: str) -> dict[str, Any]:
        """The next event, which must have this name."""
        try:
            event = self._events.get(timeout=HANGS_AFTER)
        except queue.Empty:
            event = {"name": "nothing"}
        assert event["name"] == name, (event, self.log())
        return event

    def log(self) -> str:
        return (self._folder / "client.log").read_text()[-3000:]

    def stop(self) -> None:
        """End the process, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = DRIVER if self.path == "/driver.mjs" else page._package / self.path[1:]
                is_page = self.path == "/page.html"
                if not is_page and not path.is_file():
                    return self.send_error(404)
                return self.answer(_PAGE if is_page else path.read_bytes(), _TYPES[path.suffix])

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told = json.dumps(page._answer(self.path, asked)).encode()
                self.answer(told, "application/json")

            def answer(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _answer(self, path: str, asked: dict[str, Any]) -> Any:
        assert self.pair is not None
        if path == "/tokens":
            rounds = (1, 12)
            return self.pair.issuer.admit(FIRST, asked["jkt"], task=asked["task"], rounds=rounds)
        if path == "/job":
            job, self.job = self.job, {**self.job, "dies": 0, "closes": 0}
            return job
        if asked["name"] in self.on:
            self.on.pop(asked["name"])(asked)
        self._events.put(asked)
        return {}


def _listed(rows: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: np.asarray(ids).tolist() for name, ids in rows.items()}

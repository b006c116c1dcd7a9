"""Everything around the page of torchfsl/web/examples/two-tower, on one machine.

    python examples/web_page.py [--rounds 100] [--port 8080]

Two servers with HTTPS doors, an issuer of tokens, two clients in Python, and a web server for the
page, whose clients it takes at their word. One folder holds all keys: it protects no data.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchfsl
from torchfsl.service import Issuer, LoopbackServers
from torchfsl.service.command import main as torchfsl_command

USERS, ITEMS, WIDTH, FIRST = 1000, 2000, 8, 1_000_000
ROUND_SECONDS = 60.0  # so long a round waits for a page, which may have closed in training
PAGE = "/examples/two-tower/index.html"
PACKAGE = Path(__file__).resolve().parents[1] / "torchfsl" / "web"


class TwoTower(nn.Module):
    """Score of items for users."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.user_tower = nn.Linear(WIDTH, WIDTH, bias=False)
        self.item_tower = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Logits, float [B]."""
        user, item = self.user_tower(self.users(users)), self.item_tower(self.items(items))
        return torch.linalg.vecdot(user, item)


def neighbour(urls: list[str], tls: Path, number: int) -> None:
    """A client in Python, whose user likes two items."""
    model = TwoTower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    users, items = torch.full((4,), number), torch.tensor([3, 14, 500 + number, 900 + number])
    labels = torch.tensor([1.0, 1.0, 0.0, 0.0])
    with torchfsl.connect(urls, client_id=number, tls=tls) as servers:
        fed = torchfsl.Federated(model, optimizer, plan=servers.plan)
        for _ in servers.rounds(timeout=3600):
            with fed.round(servers, batches=[(users, items)]):
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), labels)
                loss.backward()
                optimizer.step()


def told(work: Callable[..., None], *given: Any) -> None:
    """Call `work`; an error of torchfsl is one line."""
    try:
        work(*given)
    except torchfsl.Error as error:
        print(f"{work.__name__}: {error}", flush=True)


class Site(SimpleHTTPRequestHandler):
    """The page's files, its settings, and a login that believes what it is told."""

    settings: dict[str, Any]
    issuer: Issuer
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm"}

    def do_GET(self) -> None:
        """Settings, or a file."""
        if self.path == "/settings.json":
            return self.answer(self.settings)
        return super().do_GET()

    def do_POST(self) -> None:
        """Tokens for the user that the page names: here your login says who that is."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/token" or not 0 <= asked["user"] < USERS:
            return self.send_error(404)
        client, rounds = FIRST + asked["user"], (0, 99)
        return self.answer(
            self.issuer.admit(client, asked["jkt"], task=asked["task"], rounds=rounds)
        )

    def answer(self, told: Any) -> None:
        """Send JSON."""
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def section(folder: Path, origin: str) -> str:
    """Make the issuer's key and admission file; the servers' section [web]."""
    command = ["admit", "--key", str(folder / "issuer.key"), "--issuer", "login.example"]
    with (folder / "admission.toml").open("w") as file, contextlib.redirect_stdout(file):
        torchfsl_command([*command, "--new", f"{FIRST}-{FIRST + USERS - 1}"])
    return (
        f'[web]\nlisten = "127.0.0.1:0"\ncertificate = "{folder}/certs/server-0.pem"\n'
        f'key = "{folder}/certs/server-0.key"\nadmission = "{folder}/admission.toml"\n'
        f'origins = ["{origin}"]\n'
    )


def main() -> None:
    """Run the rounds, each over two clients in Python and one page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="rounds to open (default: 100)")
    parser.add_argument("--port", type=int, default=8080, help="of the page (default: 8080)")
    parser.add_argument("--package", type=Path, default=PACKAGE, help="built torchfsl/web")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    files = functools.partial(Site, directory=str(arguments.package))
    try:
        site = ThreadingHTTPServer(("127.0.0.1", arguments.port), files)
    except OSError as error:
        sys.exit(f"web_page: port {arguments.port}: {error.strerror}: add --port 8081")
    origin = f"http://127.0.0.1:{site.server_port}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = section(folder, origin)
        with LoopbackServers(folder, clients=2, config=config) as servers:
            servers.start()
            model = TwoTower()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            fed = torchfsl.Federated(model, optimizer, max_clients=16, rows_per_client=16,
                                     max_rounds=100)  # fmt: skip
            with torchfsl.Coordinator(servers.urls, tls=servers.tls) as task:
                task.start(fed)
                doors = [f"https://127.0.0.1:{port}" for port in servers.web_ports]
                Site.settings = {"servers": doors, "keys": task.plan.server_keys}
                Site.issuer = Issuer("login.example", (folder / "issuer.key").read_bytes())
                threading.Thread(target=site.serve_forever, daemon=True).start()
                for number in (0, 1):
                    given = (servers.urls, servers.tls, number)
                    threading.Thread(target=told, args=(neighbour, *given), daemon=True).start()
                print("accept the certificate of", *doors, "in your browser, then open", flush=True)
                print(f"{origin}{PAGE}?user=7&likes=3,14,15", flush=True)
                for result in task.rounds(arguments.rounds, expected=3, timeout=ROUND_SECONDS):
                    print(result, flush=True)
                print("done: stop this program with Ctrl-C", flush=True)
                threading.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            main()
        except torchfsl.Error as error:  # a round ended unopened, say
            sys.exit(f"web_page: {error}")

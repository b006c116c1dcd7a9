"""The image and the compose file: what they hold; their commands run without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.federation import mixed_plan
from tests.support.network import Pair, assert_sums

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVERS = [COMPOSE["services"][f"server-{party}"] for party in (0, 1)]
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; "
    "from torchfsl.service.command import main; sys.exit(main(sys.argv[1:]))"
)
"""The command as in the image, where there is no torch to import."""


def copied() -> set[str]:
    """What the Dockerfile takes from the checkout."""
    lines = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text())
    return {source for line in lines for source in line.split()}


def test_the_image_is_made_of_files_that_exist_and_of_no_others() -> None:
    root = DEPLOY.parent
    assert all((root / source).exists() for source in copied())
    lines = (root / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"  # no key, certificate or state of the checkout gets near an image
    assert {line[1:] for line in lines if line.startswith("!")} == copied()


def test_the_image_runs_as_a_user_that_may_nothing() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"(?m)^USER 7000:7000$", text)
    assert text.index("USER 7000") < text.index("ENTRYPOINT")
    for server in SERVERS:
        assert server["read_only"] is True
        assert server["cap_drop"] == ["ALL"]
        assert server["security_opt"] == ["no-new-privileges:true"]
        assert server["ulimits"]["core"] == 0
        assert all(port.startswith("127.0.0.1:") for port in server["ports"])


def test_each_server_has_a_state_of_its_own_and_the_keys_are_read_only() -> None:
    first, second = ({v for v in server["volumes"] if "state" in v} for server in SERVERS)
    assert len(first) == len(second) == 1
    assert not first & second
    assert all("certificates:/etc/torchfsl:ro" in server["volumes"] for server in SERVERS)
    named = {volume.split(":")[0] for server in SERVERS for volume in server["volumes"]}
    assert named <= set(COMPOSE["volumes"])


class Composed(Pair):
    """Both services, as processes of this machine: other paths and ports, the same commands."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, mixed_plan(min_clients=2))
        for path in self.tls.iterdir():
            path.unlink()
        words = self.here(COMPOSE["services"]["certificates"]["command"])
        subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], check=True)

    def here(self, words: list[str], party: int = 0) -> list[str]:
        ours, theirs = (str(self.ports[number]) for number in (party, 1 - party))
        places = {
            f"server-{1 - party}:7000": f"127.0.0.1:{theirs}",
            "0.0.0.0:7000": f"127.0.0.1:{ours}",
            "0.0.0.0:9100": "127.0.0.1:0",
            "127.0.0.1:9100": f"127.0.0.1:{self.metrics_ports[party]}",
            "/var/lib/torchfsl": str(self.folder / f"volume{party}"),
            "/etc/torchfsl": str(self.tls),
        }
        for old, new in places.items():
            words = [word.replace(old, new) for word in words]
        return words

    def spawn(self, party: int) -> None:
        words = self.here(SERVERS[party]["command"], party)
        (self.folder / f"volume{party}").mkdir(exist_ok=True)
        with (self.folder / f"server{party}.log").open("a") as log:
            self.processes[party] = subprocess.Popen(
                [sys.executable, "-c", WITHOUT_TORCH, *words],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def is_healthy(self, party: int) -> bool:
        """As the engine asks."""
        mark, _, *words = SERVERS[party]["healthcheck"]["test"]
        assert mark == "CMD"
        done = subprocess.run(
            [sys.executable, *self.here(words, party)], capture_output=True, check=False
        )
        return done.returncode == 0


def test_the_services_commands_run_a_round_and_answer_for_their_health(tmp_path: Path) -> None:
    with Composed(tmp_path) as services:
        services.start()
        assert [services.is_healthy(party) for party in (0, 1)] == [True, True]
        services.set_up()
        services.open()
        made = services.take_part(range(2))
        services.kill(1)
        assert not services.is_healthy(1)
        services.start(1)
        made += services.take_part(range(2, 4))
        opened = services.close()
        assert opened.clients == (0, 1, 2, 3)
        assert_sums(services.plan, opened, made)

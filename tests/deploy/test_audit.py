"""The examples for auditors: every file, volume and option that they name is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchfsl.service import serving
from torchfsl.service.command import make_parser

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BASE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose-audit.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
UNIT = (DEPLOY / "systemd" / "torchfsl-auditor.service").read_text()
SERVERS, AUDITORS = ("server-0", "server-1"), ("auditor-0", "auditor-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/etc/torchfsl as the services `certificates` and `floors` leave it."""
    folder = tmp_path_factory.mktemp("etc")
    words = here(SERVICES["certificates"]["command"], folder)
    subprocess.run([sys.executable, "-m", "torchfsl.service.command", *words], check=True)
    entry, command = SERVICES["floors"]["entrypoint"], here(SERVICES["floors"]["command"], folder)
    subprocess.run([sys.executable, *entry[1:], *command], check=True)
    return folder


def here(words: list[str], folder: Path) -> list[str]:
    return [word.replace("/etc/torchfsl", str(folder)) for word in words]


@pytest.mark.parametrize("name", [*SERVERS, *AUDITORS, "certificates"])
def test_the_command_of_a_service_is_one_of_torchfsl(name: str) -> None:
    assert make_parser().parse_args(SERVICES[name]["command"]).run


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_runs_as_without_auditors_and_pins_both(name: str, folder: Path) -> None:
    words = SERVICES[name]["command"]
    assert [word for word in words if "--config" not in word] == BASE["services"][name]["command"]
    settings, _ = serving.read_settings(make_parser().parse_args(here(words, folder)))
    keys = tuple((folder / f"{one}-sign.pub").read_text().strip() for one in AUDITORS)
    assert (settings.node.floors.auditors, settings.node.floors.audited) == (keys, True)
    assert [path.exists() for path in settings.tls.auditor_authorities] == [True, True]
    assert settings.tls.sign_pair()


@pytest.mark.parametrize(("party", "name"), [*enumerate(AUDITORS)])
def test_an_auditor_has_its_keys_both_servers_and_a_folder_of_its_own(
    party: int, name: str, folder: Path
) -> None:
    service = SERVICES[name]
    options = make_parser().parse_args(here(service["command"], folder))
    assert options.party == party
    assert options.servers.split(",") == [f"https://{server}:7000" for server in SERVERS]
    for kept in (f"{name}.pem", f"{name}.key", f"{name}-sign.key", "ca-server-0.pem"):
        assert (options.tls / kept).exists()
    certificates, state = service["volumes"]
    assert certificates == "certificates:/etc/torchfsl:ro"
    assert state == f"{name}:/var/lib/torchfsl"
    assert options.state.is_relative_to("/var/lib/torchfsl")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert not service.get("ports")


def test_services_and_volumes_that_are_named_are_there() -> None:
    volumes = {*BASE["volumes"], *COMPOSE["volumes"]}
    for service in SERVICES.values():
        assert {volume.split(":")[0] for volume in service.get("volumes", ())} <= volumes
        assert set(service.get("depends_on", ())) <= {*SERVICES, *BASE["services"]}
    images = [one["image"] for one in SERVICES.values() if "image" in one]
    assert set(images) == {BASE["services"]["certificates"]["image"]}


def test_the_units_command_is_one_of_torchfsl() -> None:
    (command,) = re.findall(r"(?m)^ExecStart=\S+/torchfsl (.+)$", UNIT)
    values = {"PARTY": "1", "SERVERS": "https://a:7000,https://b:7000"}
    assert set(re.findall(r"\$\{(\w+)\}", command)) == set(values)
    for name, value in values.items():
        assert re.search(rf"(?m)^#.*\b{name}\b.*/etc/torchfsl/auditor.env", UNIT)
        command = command.replace(f"${{{name}}}", value)
    options = make_parser().parse_args(shlex.split(command))
    assert (options.party, options.servers) == (1, values["SERVERS"])
    (state,) = re.findall(r"(?m)^StateDirectory=(\S+)$", UNIT)
    assert options.state.is_relative_to(f"/var/lib/{state}")
    assert str(options.state / "named") in UNIT


def test_the_page_names_the_examples() -> None:
    page = (DEPLOY.parent / "docs" / "audit.md").read_text()
    named = set(re.findall(r"`(deploy/[\w./-]+)`", page))
    assert named == {"deploy/compose-audit.yml", "deploy/systemd/torchfsl-auditor.service"}
    assert all((DEPLOY.parent / path).exists() for path in named)
    (command,) = re.findall(r"(?m)^ +torchfsl (auditor (?:.*\\\n)*.*)$", page)
    assert make_parser().parse_args(shlex.split(command.replace("\\\n", " "))).party == 0

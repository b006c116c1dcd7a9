"""The `torchfsl` command in this process: what it refuses, and what it says."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.network import HASTY
from torchfsl.errors import ParameterError
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.service import serving
from torchfsl.service.client import links
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.command import main, make_parser
from torchfsl.service.local import free_ports
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import client_numbers, make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.reporting import of_round
from torchfsl.service.server.intake import Limits
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.serving import read_settings
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.task import rounds_spent


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    return capsys.readouterr().err


def test_client_numbers_are_numbers_and_ranges() -> None:
    assert client_numbers("") == []
    assert client_numbers("0-2,7,5-5") == [0, 1, 2, 7, 5]


def test_a_range_that_ends_below_its_start_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = complaint(capsys, "certs", str(tmp_path / "certs"), "--clients", "0,5-2")
    assert "where 5-2 ends below its start: write 2-5" in text
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("given", ["0", "-3"])
def test_fewest_reports_that_a_server_opens_are_at_least_one(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = complaint(
        capsys, "serve", "--party", "0", "--listen", "127.0.0.1:0", "--peer", "https://b:1",
        "--state", str(tmp_path / "state"), "--tls", str(tmp_path), "--min-clients", given,
    )  # fmt: skip
    assert f"--min-clients is {given}: choose 1 or more" in text
    assert "storage" not in text


@pytest.mark.parametrize(
    ("option", "section", "wanted"),
    [
        ("", "", 2),
        ("min-clients = 1", "", 1),
        ("", "min_clients = 7", 7),
        ("min-clients = 1", "min_clients = 7", 7),
        ("min-clients = 9", "min_clients = 7", 9),
    ],
)
def test_a_servers_file_gives_its_floors_and_both_numbers_of_clients_hold(
    option: str, section: str, wanted: int, tmp_path: Path
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f"{option}\n[floors]\nmax_k = 5\n{section}\n")
    arguments = [
        "serve", "--party", "0", "--listen", "127.0.0.1:0", "--peer", "https://b:1",
        "--state", str(tmp_path), "--tls", str(tmp_path), "--config", str(path),
    ]  # fmt: skip
    settings, _ = read_settings(make_parser().parse_args(arguments))
    assert settings.node.floors == ClientPolicy(max_k=5, min_clients=wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("floors = 1", "floors = 1: write it as a section, [floors]"),
        ("[floors]\nmin_cilents = 9", "[floors]: unknown floor 'min_cilents': did you mean"),
        ('[floors]\nmin_clients = "9"', "[floors]: floor min_clients is '9'"),
        ("[storage]\nfloors = 9", "unknown setting floors in [storage]"),
        ("[storage]\nmin_clients = 9", "unknown setting min_clients in [storage]"),
    ],
)
def test_floors_that_mean_nothing_stop_a_server_before_it_starts(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    said = complaint(
        capsys, "serve", "--party", "0", "--listen", "127.0.0.1:0", "--peer", "https://b:1",
        "--state", str(tmp_path), "--tls", str(tmp_path), "--config", str(path),
    )  # fmt: skip
    assert message in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'party = "0"',
            "party = '0' in the settings file: expected a whole number, without quotes",
        ),
        ("party = true", "party = True in the settings file: expected a whole number"),
        ("[storrage]", "unknown setting or section storrage in the file: did you mean storage?"),
        ("max-fetches = 2.5", "max-fetches = 2.5 in the settings file: expected a whole number"),
        ("metrics = 9100", "metrics = 9100 in the settings file: expected text in quotes"),
        (
            "min_clients = 9",
            "unknown setting or section min_clients in the file: did you mean min-clients?",
        ),
        ("[server]\nparty = 0", "unknown setting or section server in the file: choose among"),
        (
            "[storage]\nreserve_byte = 1",
            "unknown setting reserve_byte in [storage]: did you mean reserve_bytes?",
        ),
        (
            '[storage]\nreplace = "owner"',
            "unknown setting replace in [storage]: move the line of replace above the first "
            "[section] of the file",
        ),
        ("[limits]\nlog-level = 1", "unknown setting log-level in [limits]: move the line of"),
        (
            "[floors]\nmetrics = 1",
            "unknown setting metrics in [floors]: move the line of metrics a",
        ),
        ("[web]\ndeny = 1", "unknown setting deny in [web]: move the line of deny above the first"),
        (
            "[floors]\ncalls = 9",
            "unknown setting calls in [floors]: move the line of calls into the section [limits]",
        ),
        (
            "idle_seconds = 9",
            "unknown setting or section idle_seconds in the file: move the line of idle_seconds "
            "into the section [limits]",
        ),
        ("party = 2", "party is 2: choose 0 or 1"),
        ("listen = 127.0.0.1:7000", "): correct this line (write text in quotes)"),
        (
            "-----BEGIN CERTIFICATE-----",
            "): this is not a settings file, so name yours, such as serve.toml",
        ),
        ("storage = 1", "storage = 1: write it as a section, [storage]"),
        ("[limits]\ncalls = 1.5", "calls = 1.5 in [limits]: write a whole number"),
        (
            "[limits]\ncalls = true",
            "calls = True in [limits]: write a positive number, without quotes or unit",
        ),
        ('[storage]\nreserve_bytes = "1G"', "reserve_bytes = '1G' in [storage]: write a positive"),
        (
            'tls-cert = "a.pem"',
            "tls names the folder of all keys and certificates: remove tls-cert",
        ),
        ('log-level = "loud"', "log-level is 'loud': choose one of debug"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    said = complaint(
        capsys, "serve", "--listen", "127.0.0.1:0", "--peer", "https://b:1",
        "--state", str(tmp_path), "--tls", str(tmp_path), "--config", str(path),
        *([] if "party" in text and "server" not in text else ["--party", "0"]),
    )  # fmt: skip
    assert message in said


def test_the_help_of_serve_lists_every_setting_of_the_sections_with_its_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["serve", "--help"])
    assert ended.value.code == 0
    listed = capsys.readouterr().out.partition("with their defaults:")[2]
    path = tmp_path / "serve.toml"
    path.write_text(textwrap.dedent(listed))
    names = tomllib.loads(path.read_text())
    assert {name: len(one) for name, one in names.items()} == {
        "limits": len(dataclasses.fields(Limits)), "storage": 4,
        "floors": len(dataclasses.fields(ClientPolicy)),
    }  # fmt: skip
    settings, _ = read_settings(
        make_parser().parse_args([
            "serve", "--party", "0", "--listen", "127.0.0.1:0", "--peer", "https://b:1",
            "--state", str(tmp_path), "--tls", str(tmp_path), "--config", str(path),
        ])
    )  # fmt: skip
    assert (settings.limits, settings.node) == (Limits(), NodeSettings())


def test_a_shortened_option_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: --min 1" in complaint(capsys, "serve", "--min", "1")


INFO = {
    "round": 3, "state": "applied", "open": False, "complete": 0, "reports": 9, "accepted": 8,
    "reason": "", "halted": "", "stalled": "", "unready": "", "plan_digest": "ab",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "round 3 applied, complete reports 9, in the sum 8"),
        ({"open": True, "complete": 7, "state": "open"}, "round 3 open, complete reports 7"),
        ({"open": True, "complete": 7, "state": "open", "expected": 10},
         "round 3 open, complete reports 7, expected 10"),
        ({"round": -1}, "no round yet"),
        ({"rounds_opened": 3, "max_rounds": 3},
         f"round 3 applied, complete reports 9, in the sum 8, {rounds_spent(3, 3)}"),
        ({"round": -1, "plan_digest": ""}, "no task yet"),
        ({"state": "unopened", "reason": "too few"},
         "round 3 unopened, complete reports 9, in the sum 8, too few"),
        ({"unready": "full"}, "round 3 applied, complete reports 9, in the sum 8, NOT READY: full"),
        ({"halted": "why", "unready": "halted: why"},
         "round 3 applied, complete reports 9, in the sum 8, HALTED: why"),
    ],
)  # fmt: skip
def test_status_says_how_the_last_round_stands(fields: dict[str, Any], said: str) -> None:
    assert of_round(INFO | fields) == said


def test_status_of_a_state_folder_says_how_many_reports_were_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "state.sqlite")
    ledger.start_round(1, 10, 0.0)
    ledger.start_round(2, 0, 0.0)
    ledger.close()
    assert main(["status", "--state", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()[2:4]
    assert first.split()[:5] == ["1", "opening", "-", "10", "0"]
    assert second.split()[:4] == ["2", "opening", "-", "0"]


@pytest.mark.parametrize("command", ["close", "abandon", "status"])
def test_a_server_that_is_down_is_named_at_once_and_once(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_development_certificates(tmp_path, [])
    urls = [f"https://127.0.0.1:{port}" for port in free_ports(2)]
    short = RetryPolicy(total_seconds=0.5)
    monkeypatch.setattr(links, "RetryPolicy", lambda **_: short)
    arguments = [command, "--servers", ",".join(urls), "--tls", str(tmp_path)]
    if command == "status":
        assert main(arguments) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line[:10] for line in lines] == ["server 0: ", "server 1: "]
        for party, line in enumerate(lines):
            assert re.fullmatch(f"server {party}: failed to connect: .*refused", line), line
    else:
        assert "server 0: " in complaint(capsys, *arguments)
    said = [record.getMessage() for record in caplog.records]
    wanted = [f"server {n} ({url}) gives no answer yet, trying" for n, url in enumerate(urls)]
    assert [line[: len(wanted[0])] for line in said] == wanted[: 2 if command == "status" else 1]
    assert all("again for 0 s: " in line and ": server" not in line for line in said)


def test_certificates_are_valid_for_a_day_at_least(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for days in ("0", "-1"):
        said = complaint(capsys, "certs", str(tmp_path / "certs"), f"--days={days}")
        assert "give at least 1" in said
    assert not (tmp_path / "certs").exists()


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchfsl.service.command", "certs", str(tmp_path / "certs")]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_server_that_refuses_for_now_is_not_said_to_give_no_answer(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    make_development_certificates(tmp_path, [0])
    link = links.Link("https://127.0.0.1:1", 1, TlsFiles.in_folder(tmp_path, "client-0"), HASTY)
    link._tell(calls.Overloaded("server 1: the disk is full"), 9.0)
    link._tell(calls.NotReady("server 1: down"), 9.0)
    link.close()
    assert "server 1 (https://127.0.0.1:1) refuses for now, trying again" in caplog.text
    assert "server 1 (https://127.0.0.1:1) gives no answer yet, trying again" in caplog.text


@pytest.mark.parametrize("name", ["state", "witness", "deny", "tls", "tls-cert"])
def test_a_tilde_in_a_setting_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    settings = {
        "listen": "127.0.0.1:7000", "peer": "https://127.0.0.1:7001", "state": "s", "tls": "t",
        name: "~/here",
    }  # fmt: skip
    if name == "tls-cert":
        del settings["tls"]
        settings |= dict.fromkeys(
            ("tls-key", "tls-server-ca-0", "tls-server-ca-1", "tls-clients-ca"), "~/x"
        )
    config = tmp_path / "serve.toml"
    config.write_text("party = 0\n" + "".join(f'{n} = "{v}"\n' for n, v in settings.items()))
    read = serving.read_file(config)
    home = tmp_path / "home" / "here"
    found = {
        "state": read.state, "witness": read.witness, "deny": read.deny,
        "tls": read.tls.certificate.parent, "tls-cert": read.tls.certificate,
    }  # fmt: skip
    assert found[name] == home
    config.write_text(config.read_text().replace("~/here", "~nobody-by-this-name/here"))
    with pytest.raises(ParameterError, match="nobody-by-this-name"):
        serving.read_file(config)
    assert [path.name for path in tmp_path.iterdir()] == ["serve.toml"]


def test_a_tilde_in_an_option_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["certs", "~/certs"]) == 0
    assert (tmp_path / "certs" / "owner.pem").exists()

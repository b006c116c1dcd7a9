"""`torchfsl doctor` finds what would keep a server from working, and names it."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fsl.test_private_rounds import private
from tests.support.certificates import reissue
from tests.support.federation import make_plan, make_segment, mixed_plan
from tests.support.network import Pair
from torchfsl.errors import ParameterError
from torchfsl.service import Owner, connect, doctor, serving
from torchfsl.service.command import main
from torchfsl.service.doctor import _opens_rows
from torchfsl.service.local import LoopbackServers, free_ports
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.server import door, process
from torchfsl.service.server.process import ServerProcess, serve
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.state.witness import Progress, Witness
from torchfsl.service.state_checks import check_budget, check_task
from torchfsl.service.task import rounds_spent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_development_certificates(tmp_path / "certs", [0, 1])
    return tmp_path


def settings(folder: Path, **changed: str) -> Path:
    """A file of settings for server 0, of files in one folder."""
    ports, certs = free_ports(2), folder / "certs"
    given = {
        "listen": f"127.0.0.1:{ports[0]}", "peer": f"https://127.0.0.1:{ports[1]}",
        "state": str(folder / "state"), "tls-cert": f"{certs}/server-0.pem",
        "tls-key": f"{certs}/server-0.key", "tls-server-ca-0": f"{certs}/ca-server-0.pem",
        "tls-server-ca-1": f"{certs}/ca-server-1.pem", "tls-clients-ca": f"{certs}/ca-clients.pem",
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }  # fmt: skip
    path = folder / "serve.toml"
    path.write_text("party = 0\n" + "".join(f'{k} = "{v}"\n' for k, v in given.items()))
    return path


def failures(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    status = main(["doctor", *map(str, arguments)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert status == bool(lines)
    return lines


def test_all_is_well_with_a_folder_of_development_certificates(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failures(capsys, "--tls", folder / "certs") == []


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("server-0.key", "is not the key of the certificate"),
        ("server-1-seal.key", "is not the certificate of the key next to it"),
        ("client-1.key", "is not the key of the certificate"),
        ("owner.pem", "is not the key of the certificate"),
    ],
)
def test_a_key_of_another_certificate_is_found_in_a_folder(
    folder: Path, name: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_development_certificates(folder / "others", [1])
    (folder / "certs" / name).write_bytes((folder / "others" / name).read_bytes())
    found = failures(capsys, "--tls", folder / "certs")
    assert len(found) == 1
    assert complaint in found[0]


def test_only_the_peer_is_missing_before_the_other_server_is_started(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = failures(capsys, "--config", settings(folder))
    assert [line.split(":")[0] for line in found] == ["FAILED  server 1"]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"tls_key": "owner.key"}, "certificate and key: "),
        ({"tls_cert": "server-1.pem"}, "certificate and key: "),
        ({"tls_server_ca_0": "ca-server-1.pem"}, "expected separate certificate authorities"),
        ({"tls_clients_ca": "missing.pem"}, "cannot read"),
        (
            {"listen": "192.0.2.1:7000"},
            "listen: cannot listen on 192.0.2.1:7000 (Cannot assign requested address): name an "
            "address of this machine, or 0.0.0.0 for all of them",
        ),
        (
            {"listen": "127.0.0.1:7009", "peer": "https://127.0.0.1:7009"},
            "got the address of this server",
        ),
        ({"grpc_health": "7000"}, "got '7000'"),
        ({"state": "/proc/nowhere"}, "state: cannot write in /proc"),
        ({"state": "/nowhere/state"}, "state: --state is /nowhere/state, and there is no folder"),
        ({"witness": "/nowhere/w"}, "state: --witness is /nowhere/w, and there is no folder"),
        ({"colour": "red"}, "settings: unknown setting or section colour"),
    ],
)
def test_what_would_keep_a_server_from_working_is_named(
    folder: Path, changed: dict[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {
        name: f"{folder}/certs/{value}" if name.startswith("tls") else value
        for name, value in changed.items()
    }
    found = failures(capsys, "--config", settings(folder, **changed))
    assert any(complaint in line for line in found), found


def test_exchanged_authorities_are_named_with_the_files_to_exchange(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certs = tmp_path / "certs"
    with LoopbackServers(tmp_path, clients=0) as servers:
        servers.start(1)
        path = settings(
            tmp_path, peer=servers.urls[1], tls_server_ca_0=f"{certs}/ca-server-1.pem",
            tls_server_ca_1=f"{certs}/ca-server-0.pem",
        )  # fmt: skip
        found = failures(capsys, "--config", path)
    for line, what, party in (
        (found[0], f"{certs}/server-0.pem: the certificate of server 0", 0),
        (found[1], f"{certs}/server-0-seal.pem: the sealing certificate of server 0", 0),
        (found[-1], "got that of an unknown party: the certificate of server 1", 1),
    ):
        assert line.endswith(
            f"{what} is not from the authority in tls-server-ca-{party} (ca-server-{party}.pem): "
            "exchange the files of tls-server-ca-0 and tls-server-ca-1 if they are exchanged, "
            f"else ask the operator of server {party} for the authority's file"
        )
    with pytest.raises(SystemExit):
        main(["serve", "--config", str(path)])
    assert f"{certs}/server-0" in capsys.readouterr().err


def test_a_coordinator_of_another_authority_is_named_with_its_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_development_certificates(folder / "others", [])
    for name in ("owner.pem", "owner.key"):
        (folder / "certs" / name).write_bytes((folder / "others" / name).read_bytes())
    (found,) = failures(capsys, "--tls", folder / "certs")
    assert found.endswith(
        f"owner: {folder}/certs/owner.pem: the certificate of the coordinator is not from the "
        "authority in tls-clients-ca (ca-clients.pem): issue the certificate again with this "
        "authority"
    )


def test_too_few_files_and_open_keys_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "file_limit", lambda: 256)
    (folder / "certs" / "server-0.key").chmod(0o644)
    found = failures(capsys, "--config", settings(folder))
    assert any("others can read" in line and "chmod 600" in line for line in found)
    assert any("connections, got 256: raise the hard limit" in line for line in found)


def test_a_server_warns_of_a_private_key_that_others_can_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = TlsFiles.in_folder(folder / "certs", "server-0")
    process._warn_of_open_keys(files)
    assert not caplog.records
    files.key.chmod(0o644)
    process._warn_of_open_keys(files)
    assert [record.getMessage() for record in caplog.records] == [
        f"others can read {files.key}: run `chmod 600 {files.key}`"
    ]


def test_a_running_server_is_asked_with_its_own_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LoopbackServers(tmp_path, clients=0) as servers:
        servers.start()
        path = settings(
            tmp_path, listen=f"127.0.0.1:{servers.ports[0]}", peer=servers.urls[1],
            state=str(servers.state(0)),
        )  # fmt: skip
        assert failures(capsys, "--config", path) == []
        assert main(["status", "--config", str(path)]) == 0
        said = capsys.readouterr().out
        assert "server 0: torchfsl" in said
        assert "server 1: torchfsl" in said


def test_a_server_with_a_wrong_key_does_not_say_that_the_port_is_in_use(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = settings(folder, tls_key=f"{folder}/certs/owner.key")
    with pytest.raises(SystemExit):
        main(["serve", "--config", str(path)])
    said = capsys.readouterr().err
    assert "owner.key is not the key of the certificate" in said
    assert "listen" not in said


def test_an_address_in_use_fails_unless_this_states_own_server_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        report = doctor.Report()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (tmp_path / "lock").open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            report.check("listen", lambda: doctor._address(address, tmp_path))
        said = f"ok      listen: {address} is in use while the server with the state in {tmp_path}"
        assert capsys.readouterr().out.startswith(said)
        assert not report.failed
        report.check("listen", lambda: doctor._address(address, tmp_path))
        said = capsys.readouterr().out
    assert said.startswith(f"FAILED  listen: {address} is in use by another program, and no ")
    assert "note" not in said
    assert report.failed


def test_days_are_rounded_and_the_file_that_expires_first_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certs = folder / "certs"
    main(["doctor", "--tls", str(certs)])
    said = capsys.readouterr().out
    assert "ok      server-1: torchfsl:server:1, expires in 30 days\n" in said
    assert "clients: 2, 0 to 1: the earliest certificate, client-0.pem, expires in 30 days" in said
    reissue(certs, "ca-clients", "client-1", days=20)
    reissue(certs, "ca-server-0", "server-0-seal", days=16.4)
    main(["doctor", "--tls", str(certs)])
    assert "earliest certificate, client-1.pem, expires in 20 days" in capsys.readouterr().out
    main(["doctor", "--config", str(settings(folder))])
    earliest = f"first of these files to expire: {certs}/server-0-seal.pem, in 16 days"
    assert earliest in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"), [(None, "cannot read"), ("torchfsl:clients:7\n", "line 1")]
)
def test_a_deny_list_with_which_no_server_starts_is_found(
    text: str | None, complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deny = folder / "deny"
    if text is not None:
        deny.write_text(text)
    found = failures(capsys, "--config", settings(folder, deny=str(deny)))
    assert any("deny" in line and complaint in line for line in found), found


def test_a_server_that_is_refused_is_not_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LoopbackServers(tmp_path / "there", clients=0) as servers:
        servers.start(1)
        make_development_certificates(tmp_path / "certs", [])
        config = settings(tmp_path, peer=servers.urls[1])
        (found,) = failures(capsys, "--config", config)
    assert found.startswith("FAILED  server 1: its certificate is not from its authority")


def test_nobody_starts_with_a_certificate_that_has_expired(folder: Path) -> None:
    certs = folder / "certs"
    for name in ("server-0", "client-0", "owner"):
        (certs / f"{name}.pem").unlink()
    make_development_certificates(certs, [0], days=-1 / 1440)  # type: ignore[arg-type]
    urls = ["https://127.0.0.1:1", "https://127.0.0.1:2"]
    with pytest.raises(ParameterError, match=r"client-0\.pem has EXPIRED"):
        connect(urls, certs, 0)
    with pytest.raises(ParameterError, match=r"owner\.pem has EXPIRED"):
        Owner(urls, certs)
    with pytest.raises(ParameterError, match=r"server-0\.pem has EXPIRED"):
        ServerProcess(serving.read_file(settings(folder)))


@pytest.mark.parametrize(
    "name",
    ["server-0.pem", "server-0.key", "server-0-seal.pem", "server-0-seal.key", "ca-server-1.pem"],
)
def test_a_server_names_the_file_that_holds_no_certificate_or_key(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "certs" / name
    path.write_text("hello")
    with pytest.raises(SystemExit):
        main(["serve", "--config", str(settings(folder))])
    said = capsys.readouterr().err
    assert f"{path}: expected a {'private key' if path.suffix == '.key' else 'certificate'}" in said
    assert "cryptography.io" not in said
    assert not (folder / "state").exists()


def test_a_server_names_its_sealing_certificate_that_has_expired(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reissue(folder / "certs", "ca-server-0", "server-0-seal", days=-1)
    with pytest.raises(SystemExit):
        main(["serve", "--config", str(settings(folder))])
    assert f"{folder}/certs/server-0-seal.pem has EXPIRED" in capsys.readouterr().err


def test_a_coordinator_is_sent_from_the_auditors_option_to_status(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = "https://127.0.0.1:7000,https://127.0.0.1:7001"
    assert main(["doctor", "--servers", servers, "--tls", str(folder / "certs")]) == 1
    assert "A coordinator runs `torchfsl status`" in capsys.readouterr().out


def test_noise_that_was_removed_is_told_with_what_it_costs(tmp_path: Path) -> None:
    plan = private(mixed_plan(), max_participations=2)
    with Pair(tmp_path, plan) as pair:
        pair.start()
        pair.set_up()
        assert check_budget(pair.state(1)).startswith("rounds spent 0 of 60, ")
        pair.kill(1)
        next(pair.state(1).glob("noise-*.ring")).unlink()
        with pytest.raises(ParameterError, match="Privacy holds, but later rounds have more noise"):
            check_budget(pair.state(1))
        ledger = Ledger(pair.state(1) / "state.sqlite")
        ledger.put_setting("halted", b"the models differ")  # which wipes the noise
        ledger.close()
        assert check_budget(pair.state(1)) == (
            "rounds spent 0 of 60, reports that count 0, bytes of past noise 0"
        )


@pytest.mark.parametrize("taken", ["listen", "grpc_health", "none"])
def test_a_start_that_fails_leaves_nothing_of_its_own(taken: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = {taken: f"127.0.0.1:{other.getsockname()[1]}"} if taken != "none" else {}
        state = folder / "deep" / "state"
        state.parent.mkdir()
        path = settings(folder, state=str(state), **used)
        before = set(folder.rglob("*"))
        for made in (False, True):
            if made:  # a file of somebody else
                state.mkdir()
                (state / "mine").write_text("x")
            if taken == "none":
                _start(path)
                assert (state / "state.sqlite").exists()
                assert (folder / "deep" / "state.witness").exists()
                _start(path)
                return
            where = rf"^--{taken.replace('_', '-')}: cannot listen on .*: name a free port"
            with pytest.raises(ParameterError, match=where):
                _start(path)
            others = {state, state / "mine"} if made else set()
            assert set(folder.rglob("*")) == before | others


@pytest.mark.parametrize("name", ["state", "witness"])
def test_a_mistyped_path_makes_no_folder(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(folder.rglob("*"))
    path = settings(folder, **{name: str(folder / "typo" / "here")})
    with pytest.raises(SystemExit) as leaving:
        main(["serve", "--config", str(path)])
    assert leaving.value.code == 2
    said = capsys.readouterr().err
    assert f"--{name} is {folder}/typo/here, and there is no folder {folder}/typo: correct" in said
    assert set(folder.rglob("*")) == before | {path}


def test_a_removal_that_fails_hides_no_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with socket.create_server(("127.0.0.1", 0)) as other:
        path = settings(folder, listen=f"127.0.0.1:{other.getsockname()[1]}")
        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.raises(ParameterError, match="cannot listen"):
            _start(path)
    assert (
        "cannot remove the files that this failed start made: [Errno 30] Read-only" in caplog.text
    )
    monkeypatch.undo()
    _start(settings(folder))


def _start(path: Path) -> None:
    """Start a server and stop it at once, as `torchfsl serve` does."""
    run = serve(
        serving.read_file(path), ready=lambda _: os.kill(os.getpid(), 15), reread=lambda _: None
    )
    asyncio.run(run)


def _files(state: Path) -> set[str]:
    """Names of the files of a state, less those that SQLite removes when it closes."""
    return {name for name in os.listdir(state) if not name.endswith(("-wal", "-shm"))}


def test_a_state_that_was_there_survives_a_start_that_fails(folder: Path) -> None:
    path = settings(folder)
    _start(path)
    before = _files(folder / "state")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for name in ("listen", "grpc_health"):
            with pytest.raises(ParameterError, match="cannot listen"):
                _start(settings(folder, **{name: address}))
    assert "state.sqlite" in before <= _files(folder / "state")
    assert (folder / "state.witness").exists()
    _start(path)


@pytest.mark.parametrize(
    ("proofs", "least", "counts", "opens"),
    [("none", 1, 9, False), ("none", 9, 1, True), ("none", 9, 0, False),
     ("lanes", 9, 3, False), ("lanes", 9, 4, True), ("lanes", 5, 2, True)],
)  # fmt: skip
def test_lying_clients_count_once_per_tree_of_a_row_or_without_proofs_at_will(
    proofs: Any, least: int, counts: int, opens: bool
) -> None:
    items = make_segment("items", "rows", (20, 2), k_max=2, tau=2, retrieve=True)
    plan = make_plan(items, lane="count", max_clients=12)  # one row can stand in both trees
    plan = dataclasses.replace(plan, min_contributors=least, proofs=proofs)
    assert _opens_rows(plan, counts) == opens


def test_a_sealing_key_that_the_plan_does_not_name_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        path = settings(
            tmp_path, listen=f"127.0.0.1:{pair.ports[0]}", peer=pair.urls[1],
            state=str(pair.state(0)),
        )  # fmt: skip
        assert failures(capsys, "--config", path) == []
        for kind in ("key", "pem"):
            (pair.tls / f"server-0-seal.{kind}").unlink()
        make_development_certificates(pair.tls, [])
        (found,) = failures(capsys, "--config", path)
    assert found.startswith("FAILED  sealing certificate and key: ")
    assert f"the task's plan names the sealing key {pair.plan.server_keys[0][:16]}" in found
    assert "put back the plan's key and its certificate" in found


def test_a_state_that_serve_refuses_is_refused_by_doctor_in_the_same_words(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, state = settings(folder), folder / "state"
    _start(path)
    assert [line.split(":")[0] for line in failures(capsys, "--config", path)] == [
        "FAILED  server 1"
    ]
    shutil.move(state, folder / "away")
    witness, kept = folder / "state.witness", (folder / "state.witness").read_bytes()
    for damage in ("folder lost", "ledger lost", "counter lost", "counter of another"):
        if damage == "ledger lost":
            (state / "models").mkdir(parents=True)
        elif damage == "counter lost":
            shutil.rmtree(state)
            shutil.move(folder / "away", state)
            witness.unlink()
        elif damage == "counter of another":
            Witness(witness).mark(Progress(bytes(16), 1))
        refusal = _refusal(path, capsys)
        before = set(folder.rglob("*"))
        found = [line for line in failures(capsys, "--config", path) if "  state: " in line]
        assert found == [f"FAILED  state: {refusal}"], damage
        assert set(folder.rglob("*")) == before
    witness.write_bytes(kept)
    assert not any("  state: " in line for line in failures(capsys, "--config", path))


def _refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `torchfsl serve` says to a state that must not be used."""
    assert main(["serve", "--config", str(path)]) == 65
    last = capsys.readouterr().err.splitlines()[-1]
    return last.removeprefix("torchfsl: ")


def test_a_task_whose_rounds_are_spent_says_so_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Pair(tmp_path, dataclasses.replace(mixed_plan(), max_rounds=1)) as pair:
        pair.start()
        pair.set_up()
        assert check_task(pair.state(0)) == "goes on; aggregates beyond their bound: 0"
        pair.open()
        pair.assert_serves()
        where = ["--servers", ",".join(pair.urls), "--tls", str(pair.tls)]
        told = rounds_spent(1, 1)
        for shown in (where, ["--state", str(pair.state(0))]):
            assert main(["status", *shown]) == 0
            assert told in capsys.readouterr().out
        assert check_task(pair.state(1)) == f"{told}; aggregates beyond their bound: 0"
    assert 'operators set replace = "owner" and the coordinator starts another task' in told
    assert rounds_spent(1, 2) == rounds_spent(9, 0) == ""

"""Who may call is what the files say now: authorities, and the deny list."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.errors import raises
from tests.support.network import HASTY, Pair, wait_until
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.service.client.links import Link
from torchfsl.service.net import calls, trust
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import NotAllowed
from torchfsl.service.net.trust import Trust, read_deny_list


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(trust, "_LOOK_SECONDS", 0.0)
    make_development_certificates(tmp_path, [0, 1])
    return tmp_path


def fingerprint(path: Path) -> str:
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    return "sha256:" + hashlib.sha256(der).hexdigest()


def may_call(who: Trust, path: Path) -> bool:
    try:
        who.identify(path.read_bytes())
    except NotAllowed:
        return False
    return True


def test_a_deny_list_names_clients_owners_and_certificates(tmp_path: Path) -> None:
    path = tmp_path / "deny"
    digits = "AB:" * 31 + "cd"
    path.write_text(f"\n# remark\ntorchfsl:client:17  # left\n torchfsl:owner\nsha256:{digits}\n")
    wanted = {"torchfsl:client:17", "torchfsl:owner", "sha256:" + "ab" * 31 + "cd"}
    assert read_deny_list(path) == wanted
    assert read_deny_list(None) == frozenset()
    path.write_text(f"sha256 Fingerprint={digits}\nSHA256 Fingerprint={digits}  # older openssl\n")
    assert read_deny_list(path) == {"sha256:" + "ab" * 31 + "cd"}


@pytest.mark.parametrize(
    "line", ["17", "client:17", "torchfsl:client:x", "torchfsl:server:0", "sha256:ab", "owner"]
)
def test_a_line_that_names_nobody_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "deny"
    path.write_text(f"torchfsl:owner\n{line}\n")
    with pytest.raises(ParameterError, match=r"line 2: .* is neither torchfsl:client:N nor"):
        read_deny_list(path)


def test_who_is_put_on_the_list_is_shut_out_and_comes_back_when_taken_off(folder: Path) -> None:
    deny, clients = folder / "deny", [folder / f"client-{number}.pem" for number in (0, 1)]
    deny.write_text("")
    who = Trust(TlsFiles.in_folder(folder, "server-0"), deny)
    assert all(may_call(who, path) for path in clients)  # nobody is denied
    deny.write_text(f"torchfsl:client:0\n{fingerprint(folder / 'owner.pem')}\n")
    assert [may_call(who, path) for path in clients] == [False, True]
    assert not may_call(who, folder / "owner.pem")
    with pytest.raises(
        NotAllowed, match="client 0 is on this server's deny list: ask both operators"
    ):
        who.identify(clients[0].read_bytes())
    deny.write_text("")
    assert all(may_call(who, path) for path in (*clients, folder / "owner.pem"))


def test_what_cannot_be_read_leaves_in_force_what_was_read_before(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deny, client = folder / "deny", folder / "client-0.pem"
    deny.write_text("torchfsl:client:0\n")
    who = Trust(TlsFiles.in_folder(folder, "server-0"), deny)
    deny.write_text("nonsense\n")
    assert not may_call(who, client)
    deny.unlink()
    assert not may_call(who, client)
    assert who.is_stale
    assert "the list of who may call stays as it was: " in caplog.text
    deny.write_text("")
    assert may_call(who, client)
    assert not who.is_stale
    with pytest.raises(ParameterError, match="cannot read"):
        Trust(TlsFiles.in_folder(folder, "server-0"), folder / "missing")


def test_a_deny_list_that_is_missing_is_refused_with_a_command_that_mends_it(folder: Path) -> None:
    deny, files = folder / "deny", TlsFiles.in_folder(folder, "server-0")
    with pytest.raises(ParameterError, match="No such file") as refused:
        Trust(files, deny)
    said, command = str(refused.value).removesuffix("`").split("`")
    assert said.startswith(f"cannot read the deny list {deny} (")
    assert command == f"touch {deny}"
    subprocess.run(command.split(), check=True)
    assert may_call(Trust(files, deny), folder / "client-0.pem")
    deny.write_bytes(b"\xff")
    with pytest.raises(ParameterError, match=r"not UTF-8\): correct the path or the file"):
        read_deny_list(deny)


def test_a_hang_up_names_the_bad_line_of_a_deny_list_each_time_and_keeps_the_old_list(
    pair: Pair, tmp_path: Path
) -> None:
    deny, client = tmp_path / "deny", pair.files("client-0")
    deny.write_text("torchfsl:client:0\n")
    wait_until(lambda: "on this server's deny list" in asks(pair, client))
    deny.write_text("torchfsl:owner\ntorchfsl:klient:0\n")
    for times in (1, 2):
        hang_up(pair)
        wait_until(lambda times=times: pair.log(0).count("nothing needs a restart") == times)  # type: ignore[misc]
        lines = [json.loads(line) for line in pair.log(0).splitlines()]
        errors = [line for line in lines if "line 2" in line["message"]]
        assert len(errors) == times
        assert errors[-1]["level"] == "error"
        assert errors[-1]["message"].startswith(
            f"the list of who may call stays as it was: {deny}, line 2: 'torchfsl:klient:0' is "
        )
        assert errors[-1]["message"].endswith(": correct the line")
    assert "on this server's deny list" in asks(pair, client)
    assert asks(pair, pair.files("owner")) == ""


def test_clients_may_have_two_authorities_while_one_takes_the_place_of_the_other(
    folder: Path,
) -> None:
    make_development_certificates(folder / "new", [0])
    old, new = (place / "ca-clients.pem" for place in (folder, folder / "new"))
    paths = [folder / "client-0.pem", folder / "new" / "client-0.pem"]
    who = Trust(TlsFiles.in_folder(folder, "server-0"))
    first = old.read_bytes()
    assert [may_call(who, path) for path in paths] == [True, False]
    old.write_bytes(first + new.read_bytes())
    assert [may_call(who, path) for path in paths] == [True, True]
    old.write_bytes(new.read_bytes())
    assert [may_call(who, path) for path in paths] == [False, True]


def test_other_authorities_of_the_servers_are_another_task(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_development_certificates(folder / "new", [0])
    who = Trust(TlsFiles.in_folder(folder, "server-0"))
    for name in ("ca-server-1.pem", "ca-clients.pem"):
        (folder / name).write_bytes((folder / "new" / name).read_bytes())
    assert may_call(who, folder / "client-0.pem")
    assert not may_call(who, folder / "new" / "server-1.pem")
    assert "put the old files back" in caplog.text


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    (tmp_path / "deny").write_text("")
    with Pair(tmp_path, config=f'deny = "{tmp_path}/deny"\n') as started:
        started.start()
        yield started


def hang_up(pair: Pair) -> None:
    for process in pair.processes:
        assert process is not None
        os.kill(process.pid, signal.SIGHUP)


def asks(pair: Pair, files: TlsFiles) -> str:
    """How server 0 answers on a new connection; empty if it does."""
    link = Link(pair.urls[0], 0, files, HASTY)
    try:
        link.call("Info", b"{}", limit=1 << 16)
    except (NotAllowed, calls.NotReady) as error:
        return str(error)
    finally:
        link.close()
    return ""


def test_running_servers_read_their_files_again(pair: Pair, tmp_path: Path) -> None:
    client, other = pair.files("client-0"), tmp_path / "other"
    make_development_certificates(other, [0])
    new = TlsFiles(
        other / "client-0.pem", other / "client-0.key",
        client.server_authorities, client.clients_authority,
    )  # fmt: skip
    assert asks(pair, client) == ""
    assert asks(pair, new) != ""
    (tmp_path / "deny").write_text("torchfsl:client:0\n")
    hang_up(pair)
    wait_until(lambda: "client 0 is on this server's deny list" in asks(pair, client))
    lines = [json.loads(line) for line in pair.log(0).splitlines()]
    refused = next(line for line in lines if line["message"].startswith("refused"))
    assert refused["peer"].startswith("127.0.0.1:")
    assert refused["caller"].startswith("certificate sha256:")
    (tmp_path / "deny").write_text("")
    authority = pair.tls / "ca-clients.pem"
    authority.write_bytes(authority.read_bytes() + (other / "ca-clients.pem").read_bytes())
    hang_up(pair)
    wait_until(lambda: asks(pair, client) == asks(pair, new) == "")


def test_the_level_of_the_log_changes_at_run_time(pair: Pair) -> None:
    pair.config.write_text(pair.config.read_text().replace('"info"', '"error"'))
    hang_up(pair)
    wait_until(lambda: "read again: log-level = error" in pair.log(0))
    pair.set_up()
    pair.open()
    pair.assert_serves()
    assert '"round applied"' not in pair.log(0)
    pair.config.write_text(pair.config.read_text().replace('"error"', '"loud"'))
    hang_up(pair)
    wait_until(lambda: "the settings stay as they were: log-level is 'loud'" in pair.log(0))
    pair.config.write_text(pair.config.read_text().replace('"loud"', '"info"'))
    hang_up(pair)

    def is_told() -> bool:
        pair.open()
        pair.assert_serves()
        return '"round applied"' in pair.log(0)

    wait_until(is_told)
    assert "read again: log-level = info" in pair.log(0)


def test_a_hang_up_takes_replace_and_names_what_needs_a_restart(pair: Pair) -> None:
    text = pair.config.read_text()
    pair.config.write_text(text.replace('"owner"', '"nobody"'))
    hang_up(pair)
    taken = "read again: log-level = info, replace = nobody, authorities, deny list; "
    wait_until(lambda: taken + "nothing needs a restart" in pair.log(0))
    pair.set_up()
    pair.open()
    pair.assert_serves()
    with raises(ProtocolError, "another-task"):
        pair.set_up()
    pair.config.write_text(f"max-fetches = 3\n{text}[limits]\ncalls = 9\n")
    hang_up(pair)
    taken = taken.replace("nobody", "owner") + "restart the server for [limits], max-fetches"
    wait_until(lambda: all(taken in pair.log(party) for party in (0, 1)))
    pair.set_up()
    assert pair.owner.links.common_model()[0] == 0

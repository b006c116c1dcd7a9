"""A server knows which of its certificates and authorities have run out, and takes renewed ones."""

from __future__ import annotations

import json
import shutil
import socketserver
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.certificates import reissue
from tests.support.network import HASTY, Pair, wait_until
from torchfsl.errors import Error, ParameterError
from torchfsl.service import reporting
from torchfsl.service.client.links import Link
from torchfsl.service.net import trust
from torchfsl.service.net.calls import NotReady
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles, channel, server_certificate
from torchfsl.service.net.identity import load_certificate
from torchfsl.service.net.trust import Validity

FILES = [
    ("ca-server-0", "server-0"), ("ca-server-0", "server-0-seal"), ("ca-server-0", "ca-server-0"),
    ("ca-server-1", "ca-server-1"), ("ca-clients", "ca-clients"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(trust, "_LOOK_SECONDS", 0.0)
    make_development_certificates(tmp_path, [0])
    return tmp_path


@pytest.mark.parametrize(("authority", "name"), FILES)
def test_what_has_run_out_is_named_until_it_is_renewed(
    authority: str, name: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = TlsFiles.in_folder(folder, "server-0")
    known = Validity(files, 0)
    assert known.expired == ""
    assert known.first[1] == pytest.approx(30 * 86400, abs=600)
    reissue(folder, authority, name, days=-0.01)
    assert known.expired.startswith(f"{folder / name}.pem has EXPIRED")
    assert known.first[1] == pytest.approx(-864, abs=60)
    reissue(folder, authority, name, days=3)
    assert known.expired == ""
    caplog.clear()
    Validity(files, 0)
    assert f"{name}.pem expires in 3 days" in caplog.text


def test_of_two_authorities_of_clients_the_new_one_counts(folder: Path, tmp_path: Path) -> None:
    make_development_certificates(tmp_path / "other", [0])
    reissue(folder, "ca-clients", "ca-clients", days=-1)
    path = folder / "ca-clients.pem"
    known = Validity(TlsFiles.in_folder(folder, "server-0"), 0)
    assert known.expired != ""
    path.write_bytes(path.read_bytes() + (tmp_path / "other" / "ca-clients.pem").read_bytes())
    assert known.expired == ""


def test_a_new_sealing_certificate_is_taken_if_it_is_for_the_same_key(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "server-0-seal.pem"
    known = Validity(TlsFiles.in_folder(folder, "server-0"), 0)
    first = known.seal_certificate()
    reissue(folder, "ca-server-0", "server-0-seal", days=9)
    renewed = known.seal_certificate()
    assert renewed == path.read_bytes() != first
    other = tmp_path / "other"
    other.mkdir()
    for name in ("ca-server-0.pem", "ca-server-0.key"):
        shutil.copy(folder / name, other)
    make_development_certificates(other, [])  # the same authority, another key
    shutil.copy(other / "server-0-seal.pem", path)
    assert [known.seal_certificate() for _ in range(3)] == [renewed] * 3
    assert caplog.text.count("does not have the key that the plan names") == 1
    assert known.is_stale
    with pytest.raises(ParameterError, match="not the certificate of the key next to it"):
        Validity(TlsFiles.in_folder(folder, "server-0"), 0)
    shutil.copy(other / "server-0-seal.key", folder)  # a pair, which no plan names
    assert [known.seal_certificate() for _ in range(3)] == [renewed] * 3
    assert known.is_stale


def test_the_log_names_a_renewed_certificate_once_with_subject_and_end(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torchfsl.service.validity")
    known = Validity(TlsFiles.in_folder(folder, "server-0"), 0)
    assert [known.expired for _ in range(3)] == [""] * 3
    assert not caplog.records
    reissue(folder, "ca-server-0", "server-0", days=20)
    assert [known.expired for _ in range(3)] == [""] * 3
    end = load_certificate((folder / "server-0.pem").read_bytes()).not_valid_after_utc
    (line,) = [(one.levelname, one.getMessage()) for one in caplog.records]
    wanted = f"new connections use the new certificate {folder}/server-0.pem: CN=server-0, until "
    assert line == ("INFO", f"{wanted}{end:%Y-%m-%d %H:%M UTC}")


def another_key(folder: Path) -> None:
    """A valid key, of another certificate."""
    shutil.copy(folder / "client-0.key", folder / "server-0.key")


def half_a_key(folder: Path) -> None:
    (folder / "server-0.key").write_text("-----BEGIN PRIVATE KEY-----\n")


def no_key(folder: Path) -> None:
    (folder / "server-0.key").unlink()


def another_party(folder: Path) -> None:
    for kind in ("pem", "key"):
        shutil.copy(folder / f"server-1.{kind}", folder / f"server-0.{kind}")


def a_client(folder: Path) -> None:
    for kind in ("pem", "key"):
        shutil.copy(folder / f"client-0.{kind}", folder / f"server-0.{kind}")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (another_key, "is not the key of the certificate"), (half_a_key, "expected a private key"),
        (no_key, "cannot read"), (another_party, "got that of server 1"),
        (a_client, "got that of client 0"),
    ],
)  # fmt: skip
def test_what_cannot_take_the_certificates_place_is_logged_once_and_the_old_one_stays(
    spoil: Callable[[Path], None], said: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torchfsl.service.validity")
    files = TlsFiles.in_folder(folder, "server-0")
    good = {kind: (folder / f"server-0.{kind}").read_bytes() for kind in ("pem", "key")}
    known = Validity(files, 0)
    spoil(folder)
    assert not caplog.records
    assert [known.expired for _ in range(5)] == [""] * 5
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("the certificates stay as they were: ")
    assert said in lines[0]
    assert known.is_stale
    with pytest.raises(Error):
        files.server_pair(0)  # which is what TLS would take
    for kind, content in good.items():
        (folder / f"server-0.{kind}").write_bytes(content)
    assert known.expired == ""
    assert not known.is_stale
    assert known.expired == ""
    assert caplog.text.count("keys and certificates can be used again") == 1


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path) as started:
        started.start()
        yield started


def ready(pair: Pair, party: int) -> str:
    """Empty if it is, else why not."""
    url = f"http://127.0.0.1:{pair.metrics_ports[party]}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=60):
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()


def answer(pair: Pair, files: TlsFiles) -> str:
    """What a caller with these files hears on a new connection to server 0; empty if it is in."""
    link = Link(pair.urls[0], 0, files, HASTY)
    try:
        link.call("Info", b"{}", limit=1 << 16)
    except Error as error:
        return str(error)
    finally:
        link.close()
    return ""


@pytest.mark.parametrize(
    ("authority", "name", "heard"),
    [
        ("ca-server-0", "server-0", "its certificate, or its authority's, has expired"),
        ("ca-server-0", "ca-server-0", "its certificate, or its authority's, has expired"),
        ("ca-clients", "ca-clients", "if it refuses your certificate"),
    ],
)
def test_a_server_nobody_gets_in_to_says_why_and_goes_on_once_that_is_renewed(
    authority: str, name: str, heard: str, pair: Pair
) -> None:
    client = pair.files("client-0")
    reissue(pair.tls, authority, name, days=-0.01)
    wait_until(lambda: f"{name}.pem has EXPIRED: renew it" in ready(pair, 0))
    wait_until(lambda: "not ready" in pair.log(0))
    assert heard in answer(pair, client)
    reissue(pair.tls, authority, name, days=9)
    wait_until(lambda: ready(pair, 0) == "")
    assert answer(pair, client) == ""


def test_the_other_server_shows_a_certificate_that_has_expired_until_it_is_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Pair(tmp_path) as pair:
        reissue(pair.tls, "ca-server-1", "server-1", days=20 / 86400)
        pair.start()
        pair.set_up()
        pair.open()
        assert health_of(pair, 0) == (True, "")
        assert "torchfsl_peer_unreachable 0.0" in page_of(pair, 0, "metrics")
        told = "waiting for server 1 to renew its certificate or its authority's, which has expired"
        wait_until(lambda: health_of(pair, 0) == (False, told))
        assert "torchfsl_peer_unreachable 1.0" in page_of(pair, 0, "metrics")
        assert pair.owner.links.info(0)["stalled"] == told
        reissue(pair.tls, "ca-server-1", "server-1", days=9)
        wait_until(lambda: health_of(pair, 0) == (True, ""))
        wait_until(lambda: "torchfsl_peer_unreachable 0.0" in page_of(pair, 0, "metrics"))
        pair.assert_serves()


def page_of(pair: Pair, party: int, page: str) -> str:
    """A page of the metrics port, whatever its status."""
    url = f"http://127.0.0.1:{pair.metrics_ports[party]}/{page}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def health_of(pair: Pair, party: int) -> tuple[bool, str]:
    told = json.loads(page_of(pair, party, "health"))
    return told["ok"], told["stalled"]


def test_clients_get_a_renewed_sealing_certificate_without_a_restart(pair: Pair) -> None:
    pair.set_up()
    reissue(pair.tls, "ca-server-0", "server-0-seal", days=9)
    reissue(pair.tls, "ca-server-1", "server-1-seal", days=9)

    def told() -> bool:
        said = pair.owner.links.links[0].call("Certificate", b"{}", limit=1 << 16)
        return said == (pair.tls / "server-0-seal.pem").read_bytes()

    wait_until(told)
    pair.open()
    pair.take_part([0, 1])
    assert pair.close().clients == (0, 1)


def test_a_link_leaves_the_channel_of_a_certificate_that_was_renewed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on to connect, and the server would refuse it for as long as the client runs."""
    made: list[grpc.Channel] = []

    def counted(*given: Any) -> grpc.Channel:
        made.append(channel(*given))
        return made[-1]

    monkeypatch.setattr("torchfsl.service.client.links.channel", counted)
    link = Link(pair.urls[0], 0, pair.files("client-0"), HASTY)
    link.call("Info", b"{}", limit=1 << 16)
    pair.kill(0)
    reissue(pair.tls, "ca-server-0", "server-0", days=9)
    pair.start(0)
    link.call("Info", b"{}", limit=1 << 16, seconds=60)
    assert len(made) == 2
    with pytest.raises(ValueError, match="closed"):
        made[0].unary_unary("/any")(b"")
    made[1].close()  # as another thread that has just found a third certificate
    for name in ("Info", "Model"):
        with pytest.raises(NotReady, match=r"[Cc]hannel"):
            link.once(name, b"{}", limit=1 << 16)
    link.close()


def test_a_handshake_that_fails_is_explained(pair: Pair, tmp_path: Path) -> None:
    client, other = pair.files("client-0"), tmp_path / "other"
    make_development_certificates(other, [0])
    stranger = TlsFiles.in_folder(other, "client-0")
    assert "compare the files ca-server" in answer(pair, stranger)
    reissue(pair.tls, "ca-clients", "client-0", days=-0.01)
    assert "if it refuses your certificate" in answer(pair, client)
    with pytest.raises(ParameterError, match=r"client-0\.pem has EXPIRED"):
        reporting.show_servers(pair.urls, client)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"])
def test_a_port_without_tls_is_explained(folder: Path, said: bytes) -> None:
    class Plain(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(16)
            self.request.sendall(said)

    files = TlsFiles.in_folder(folder, "client-0")
    with socketserver.TCPServer(("127.0.0.1", 0), Plain) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{other.server_address[1]}"
        with pytest.raises(NotReady, match="check host and port of this server's URL"):
            server_certificate(url, 0, files)
        other.shutdown()


def test_a_wrong_key_in_place_is_logged_by_the_server_that_goes_on_with_the_old_one(
    pair: Pair,
) -> None:
    kept = {path: path.read_bytes() for path in pair.tls.glob("server-0.*")}
    another_key(pair.tls)
    wait_until(lambda: "the certificates stay as they were" in pair.log(0))
    assert answer(pair, pair.files("client-0")) == ""
    another_party(pair.tls)
    wait_until(lambda: "got that of server 1" in pair.log(0))
    assert answer(pair, pair.files("client-0")) == ""
    for path, content in kept.items():
        path.write_bytes(content)
    assert pair.log(0).count("the certificates stay as they were") == 2

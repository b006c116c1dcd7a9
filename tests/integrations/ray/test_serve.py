"""`torchfsl serve --engine`: a server on a cluster of Ray with its token and TLS on."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

pytest.importorskip("ray", reason="needs the extra ray: scripts/checks/ray.sh")
pytest.importorskip("grpc")

import ray

from tests.fsl.test_proofs import bounded, small
from tests.service.test_audits import PLAN, Audited, verdicts
from tests.support.federation import wanted_rows
from tests.support.network import Pair, assert_sums, wait_until
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service import connect
from torchfsl.service.client.remote import Connection
from torchfsl.service.net.certificates import make_development_certificates

SESSION = small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3, max_epochs=3)
ADDRESS = ray.util.get_node_ip_address()  # Ray takes loopback addresses for this one


def write_certificate(folder: Path) -> None:
    """One that is its own authority, for this machine."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ray")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    own = {ADDRESS, "127.0.0.1"}  # parts of the head speak with each other there
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(a)) for a in own])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - day).not_valid_after(now + day)
    made = made.add_extension(names, False)
    certificate = made.add_extension(x509.BasicConstraints(True, None), True).sign(
        key, hashes.SHA256()
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip


def low_ports(count: int) -> list[int]:
    """Free ones below 10,000, where those of Ray's workers begin."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.randbelow(8000) + 2000
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("", port))
            found.append(port)
    return found


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=1):
        return True
    return False


class Cluster:
    """A cluster of this machine alone, protected.

    Attributes:
        environment: variables of whoever may use it.
        url: for a front on this machine; client: for one that is not.
    """

    def __init__(self, folder: Path) -> None:
        write_certificate(folder)
        (folder / "token").write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(folder / "cert.pem"),
            "RAY_TLS_SERVER_KEY": str(folder / "key.pem"),
            "RAY_TLS_CA_CERT": str(folder / "cert.pem"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
        }
        port, client = low_ports(2)
        self.url, self.client = f"ray-node://{ADDRESS}:{port}", f"ray://{ADDRESS}:{client}"
        command = Path(sys.executable).parent / "ray"
        self.session = Path("/tmp") / f"torchfsl-ray-{os.getpid()}"  # noqa: S108 (sockets' paths are short)
        self.process = subprocess.Popen(
            [
                str(command), "start", "--head", "--block", f"--node-ip-address={ADDRESS}",
                f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=4",
                "--include-dashboard=false", "--object-store-memory=100000000",
                f"--temp-dir={self.session}",
            ],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

        for address in (port, client):
            wait_until(lambda address=address: listens(address), 60)

    def close(self) -> None:
        """End the head, and then whatever of its own it has left behind."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.session, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    one = Cluster(tmp_path_factory.mktemp("ray"))
    yield one
    one.close()


class Engined(Pair):
    """A pair whose server 0 evaluates at an engine."""

    engine: tuple[str, ...] = ()

    def command(self, party: int) -> list[str]:
        return [*super().command(party), *(self.engine if party == 0 else ())]


def doctor(pair: Engined, *options: str) -> tuple[int, str]:
    command = [c if c != "serve" else "doctor" for c in pair.command(0)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("way", ["url", "client"])
def test_a_server_evaluates_on_a_cluster_and_goes_on_after_it_was_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    with Engined(tmp_path / "pair") as pair:
        shutil.copytree(cluster_certificates(tmp_path, pair.tls), pair.tls, dirs_exist_ok=True)
        pair.engine = ("--engine", getattr(cluster, way), "--shards", "2")
        pair.start()
        pair.set_up()
        pair.open()
        pair.assert_serves([1, 2])
        pair.open()
        made = pair.take_part([1])
        pair.kill(0)  # its shards end with it
        pair.start(0)
        made += pair.take_part([2, 3])
        opened = pair.close()
        assert opened.clients == (1, 2, 3)
        assert_sums(pair.plan, opened, made)
        pair.owner.model(pair.task)
        process = pair.processes[0]
        assert process is not None
        process.terminate()
        assert process.wait(60) == 0  # Ray has not taken the signal


class AuditedAtEngine(Engined, Audited):
    """The same with an audit; clients go on in their sessions, where the plan has them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.members: dict[int, Connection] = {}
        self.connections = contextlib.ExitStack()

    def report(self, *clients: int) -> None:
        if self.plan.max_epochs == 1:
            super().report(*clients)
            return
        floors = ClientPolicy(min_clients=1, auditors=self.keys, audited=True)
        for client in clients:
            if client not in self.members:
                link = connect(self.urls, self.tls, client, require=floors, policy=self.policy)
                self.members[client] = self.connections.enter_context(link)
            update = bounded(self.plan, np.random.default_rng(client))
            wanted = wanted_rows(self.plan, update)
            own = self.members[client].client
            own.continue_session(self.number, indices=wanted).submit(update)


@pytest.mark.parametrize("plan", [PLAN, SESSION], ids=["plain", "session"])
def test_a_server_on_a_cluster_is_audited_also_after_it_was_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    tls = tmp_path / "pair" / "certs"
    make_development_certificates(tls, range(8))
    shutil.copytree(cluster_certificates(tmp_path, tls), tls, dirs_exist_ok=True)
    with AuditedAtEngine(tmp_path / "pair") as pair:
        pair._plan = plan
        pair.engine = ("--engine", cluster.url, "--shards", "2")
        pair.start()
        pair.set_up()
        with pair.audited_by(0, 1), pair.connections:
            assert pair.round_of(1, 2).clients == (1, 2)
            pair.open()
            pair.report(1 if pair.members else 3)
            pair.kill(0)  # its shards end with it
            pair.start(0)
            pair.report(4)
            assert pair.close().clients == ((1, 4) if pair.members else (3, 4))
        pair.owner.model(pair.task)
        assert [len(verdicts(pair, party)) for party in (0, 1)] == [2, 2]


def cluster_certificates(tmp_path: Path, tls: Path) -> Path:
    """The same authority in every test of the cluster, since it belongs to the first."""
    kept = tmp_path.parent / "authority"
    if not kept.exists():
        shutil.copytree(tls, kept)
    return kept


def test_a_foreign_or_open_cluster_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    with Engined(tmp_path / "own") as own:
        shutil.copytree(cluster_certificates(tmp_path, own.tls), own.tls, dirs_exist_ok=True)
        own.engine = ("--engine", cluster.url, "--shards", "2")
        own.start(0)  # from here on the cluster is its
        assert "ok      engine: 1 machines with 4 cores, 2 shards, token and TLS" in doctor(own)[1]
        own.engine = ("--engine", cluster.url, "--shards", "9")
        assert "FAILED  engine: --engine: 1 machines with 4 cores, 9 shards" in doctor(own)[1]
    with Engined(tmp_path / "other") as other:
        other.engine = ("--engine", cluster.url)
        with pytest.raises(RuntimeError, match="already works for another server"):
            other.start(0)
        assert "FAILED  engine: --engine: the cluster" in doctor(other)[1]
        for variable in ("RAY_AUTH_MODE", "RAY_USE_TLS"):
            with monkeypatch.context() as patch:
                patch.delenv(variable)
                with pytest.raises(RuntimeError, match="engine-insecure"):
                    other.start(0)

"""Settings and certificates of the operator's pages are taken by two servers as printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from cryptography.x509 import load_pem_x509_certificate

import torchfsl
from torchfsl.errors import Error
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.command import main
from torchfsl.service.local import LoopbackServers

PAGES = Path(__file__).resolve().parents[2] / "docs" / "operate"


def test_the_printed_settings_of_a_server_take_a_plan_of_two_clients(tmp_path: Path) -> None:
    page = (PAGES / "quickstart.md").read_text()
    sections = re.search(r"\n( +\[floors\].*?)\n +```", page, flags=re.DOTALL)
    assert sections is not None
    config = textwrap.dedent(sections[1])
    assert "min_clients" in config
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(5000, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with LoopbackServers(tmp_path, clients=2, config=config) as servers:
        servers.start()
        with torchfsl.Coordinator(servers.urls, tls=servers.tls) as task:
            fed = torchfsl.Federated(model, optimizer, max_clients=100, rows_per_client=64)
            with pytest.raises(Error, match="max_rounds"):
                task.start(fed)
            fed.make_plan(max_rounds=9)
            task.start(fed)
            assert task.rounds_applied == 0


def test_the_page_says_how_long_callers_retry() -> None:
    page = (PAGES / "deploy.md").read_text()
    assert f"clients retry a call for {RetryPolicy().total_seconds:.0f} s" in page


def test_certificates_made_as_printed_are_taken_by_all_parties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    page = (PAGES / "certificates.md").read_text()
    server, client = re.findall(r"```sh\n(new=.*?)```", page, flags=re.DOTALL)
    (renewal,) = re.findall(r"```sh\n(openssl.*?)```", page, flags=re.DOTALL)
    authority = "\n".join(server.splitlines()[:3])
    printed = [
        server, server.replace("server:0", "server:1").replace("server-0", "server-1"),
        authority.replace("ca-server-0", "ca-clients"), client.replace("17", "0"),
        client.replace("client-17", "owner").replace("client:17", "owner"),
    ]  # fmt: skip
    certs = tmp_path / "certs"
    certs.mkdir()
    for commands in printed:
        subprocess.run(["bash", "-ec", commands], cwd=certs, check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in certs.iterdir()}
    with LoopbackServers(tmp_path, clients=1) as servers:  # makes what is missing: nothing
        assert {path.name: path.read_bytes() for path in certs.iterdir()} == made
        servers.start()
        assert main(["doctor", "--tls", str(certs)]) == 0
        where = ["--servers", ",".join(servers.urls), "--tls", str(certs)]
        for name in ("owner", "client-0", "server-0", "server-1"):
            assert main(["status", *where, "--as", name]) == 0
        subprocess.run(["bash", "-ec", renewal], cwd=certs, check=True, capture_output=True)
        pems = made["server-0-seal.pem"], (certs / "server-0-seal.pem").read_bytes()
        old, new = (load_pem_x509_certificate(pem) for pem in pems)
        assert old.serial_number != new.serial_number
        assert old.public_key() == new.public_key()
        assert main(["doctor", "--tls", str(certs)]) == 0
        assert main(["status", *where]) == 0
        assert "FAILED" not in capsys.readouterr().out

"""The programs on the operator's page run as printed, against two servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torchfsl.service.client.owner import Owner
from torchfsl.service.command import main
from torchfsl.service.local import LoopbackServers

ROOT = Path(__file__).resolve().parents[2]


def program(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_owner_and_clients_work_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    sections = re.search(r"\n( +\[floors\].*?)\n\n\d\.", page, flags=re.DOTALL)
    assert sections is not None
    config = textwrap.dedent(sections[1])  # the owner's plan passes the operators' floors
    assert "min_clients" in config
    with LoopbackServers(
        tmp_path, clients=2, config=config
    ) as servers:  # certificates in its folder `certs`
        servers.start()
        for name, text in zip(("common", "owner", "client"), blocks, strict=True):
            for printed, real in zip((7000, 7001), servers.ports, strict=True):
                text = text.replace(f"https://127.0.0.1:{printed}", f"https://127.0.0.1:{real}")
            (tmp_path / f"{name}.py").write_text(text)
        owner = program(tmp_path, "owner.py")
        assert owner.stdout is not None
        lines = [owner.stdout.readline()]
        assert lines == ["round 1 is open, Enter closes it\n"], owner.communicate()
        clients = [program(tmp_path, "client.py", str(number)) for number in (0, 1)]
        for client in clients:
            said, _ = client.communicate(timeout=300)
            assert re.fullmatch(r"round 1: sent \d+ bytes\n", said), said
        said, _ = owner.communicate("\n", timeout=300)
        watcher = Owner(servers.urls, servers.tls)
        version, digest = watcher.links.common_model()
        watcher.close()
        assert (version, said) == (1, f"round 1: 2 reports, model {digest[:16]}\n")


def test_certificates_made_as_printed_are_taken_by_all_parties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    page = (ROOT / "docs" / "operations.md").read_text()
    server, client = re.findall(r"```sh\n(new=.*?)```", page, flags=re.DOTALL)
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
        assert "FAILED" not in capsys.readouterr().out

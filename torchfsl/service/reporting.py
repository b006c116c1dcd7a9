"""What `torchfsl status` and `torchfsl doctor` print."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from torchfsl.errors import FslError, ParameterError
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.kernels.backends import backend
from torchfsl.service.net.identity import load_certificate
from torchfsl.version import __version__

_CPU_FLAGS = ("aes", "vaes", "avx2", "avx512f", "avx512vl", "vpclmulqdq", "asimd", "sha2")


def show_state(folder: Path, num_rounds: int) -> int:
    """Rounds and sizes of a state folder; the server may be running."""
    from torchfsl.service.state.ledger import Ledger

    if not (folder / "state.sqlite").exists():
        raise ParameterError(f"{folder} is no state folder: it has no state.sqlite")
    ledger = Ledger(folder / "state.sqlite")
    try:
        party = (ledger.setting("party") or b"?").decode()
        model = (ledger.setting("model") or b"none").decode()
        halted = (ledger.setting("halted") or b"").decode()
        print(f"server {party}, model {model}" + (f", HALTED: {halted}" if halted else ""))
        print("   round state       reports  accepted        MB  seconds  why")
        rounds = ledger.rounds("ORDER BY number DESC LIMIT ?", num_rounds)
        for row in reversed(rounds):
            seconds = (row.ended_at or time.time()) - row.opened_at
            print(
                f"{row.number:>8} {row.state:<10} {row.reports:>8} {row.accepted:>9} "
                f"{row.bytes / 1e6:>9.2f} {seconds:>8.1f}  {row.reason}"
            )
        for name in ("reports", "models"):
            files = [path for path in (folder / name).rglob("*") if path.is_file()]
            size = sum(path.stat().st_blocks * 512 for path in files)
            print(f"{name}: {len(files)} files, {size / 1e6:.2f} MB")
    finally:
        ledger.close()
    return 1 if halted else 0


def show_servers(urls: Sequence[str], tls: Path, name: str) -> int:
    """What two running servers say of themselves."""
    from torchfsl.service.client.links import Links, RetryPolicy
    from torchfsl.service.net.channels import TlsFiles

    files = TlsFiles.in_folder(tls, name)
    links = Links(urls, files, RetryPolicy(attempt_seconds=10, total_seconds=10))
    failed = 0
    for party in (0, 1):
        try:
            info = links.info(party)
        except FslError as error:
            print(error)  # it names the server
            failed = 1
            continue
        print(
            f"server {party}: torchfsl {info['library']}, wire {info['wire_version']}, plan "
            f"{info['plan_digest'][:16] or 'none'}, model {info['model'].get('version', 'none')} "
            f"{info['model'].get('digest', '')[:16]}"
        )
        print(
            f"  round {info['round']} {info['state']}, complete reports {info['complete']}"
            + (f", HALTED: {info['halted']}" if info["halted"] else "")
            + (f", {info['stalled']}" if info["stalled"] else "")
        )
        failed |= bool(info["halted"])
    links.close()
    return failed


def show_machine(tls: Path | None) -> int:
    """Backend, processor, AES rate, torch, certificates; 1 if something is wrong."""
    failed = 0
    print(f"torchfsl {__version__}, wire version {WIRE_VERSION}")
    print(f"python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors")
    active = backend()
    print(f"backend: {active}" + ("" if active == "native" else " (slow; build the extension)"))
    flags = _cpu_flags()
    found = [flag for flag in _CPU_FLAGS if flag in flags]
    print("processor features: " + (", ".join(found) or "unknown"))
    print(f"AES-128: {aes_rate() / 1e6:.0f} million blocks a second (one thread, OpenSSL)")
    for package in ("numpy", "cryptography", "grpcio", "prometheus-client"):
        try:
            print(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{package}: missing; install torchfsl[service]")
            failed = 1
    if importlib.util.find_spec("torch") is None:
        print("torch: not installed (a server does not need it)")
    else:
        print(f"torch {importlib.metadata.version('torch')} (a server does not load it)")
    return _show_certificates(tls) or failed if tls is not None else failed


def aes_rate(num_bytes: int = 1 << 24) -> float:
    """AES-128 blocks a second of OpenSSL in ECB mode, one thread."""
    data = bytes(num_bytes)
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.ECB()).encryptor()  # noqa: S305 (a benchmark)
    encryptor.update(data)
    start = time.perf_counter()
    encryptor.update(data)
    return num_bytes / 16 / (time.perf_counter() - start)


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _show_certificates(tls: Path) -> int:
    now = datetime.datetime.now(datetime.UTC)
    paths = sorted(tls.glob("*.pem"))
    if not paths:
        print(f"no certificates in {tls}")
        return 1
    failed = 0
    shown = [path for path in paths if not path.name.startswith("client-")]
    clients = [path for path in paths if path.name.startswith("client-")]
    for path in (*shown, *clients[:3]):
        left = (load_certificate(path.read_bytes()).not_valid_after_utc - now).days
        note = "" if left >= 14 else "  RENEW IT SOON" if left >= 0 else "  EXPIRED"
        failed |= left < 0
        print(f"{path.name}: {left} days left{note}")
    if len(clients) > 3:
        print(f"... and {len(clients) - 3} more clients")
    for path in tls.glob("*.key"):
        if path.stat().st_mode & 0o077:
            print(f"{path.name}: others can read this key; chmod 600 it")
            failed = 1
    return failed

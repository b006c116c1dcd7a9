"""Limits of memory and disk: callers wait or are refused, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.federation import mixed_plan, wanted_rows
from tests.support.network import CONFIG, Pair, assert_sums, wait_until
from tests.support.reference import plaintext
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.service.client.links import Links, RetryPolicy
from torchfsl.service.net import calls

PLAN = dataclasses.replace(mixed_plan(), max_clients=8)


def test_many_clients_pass_one_after_the_other_where_memory_is_for_one(tmp_path: Path) -> None:
    config = CONFIG + "bytes_in_flight = 1000\ncalls = 4\nwait_seconds = 60\n"
    with Pair(tmp_path, PLAN, config) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        threads = [threading.Thread(target=pair.take_part, args=([c],)) for c in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pair.close().clients == tuple(range(8))

        def in_flight() -> float:
            url = f"http://127.0.0.1:{pair.metrics_ports[0]}/metrics"
            found = urllib.request.urlopen(url).read().decode()
            value = re.search(r"^torchfsl_bytes_in_flight (.*)$", found, re.MULTILINE)
            assert value is not None
            return float(value[1])

        wait_until(lambda: in_flight() == 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB, where the system lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount).returncode:
        pytest.skip("needs root to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_refuses_reports_until_there_is_room_and_loses_none(
    tmp_path: Path, small_disk: Path
) -> None:
    config = "[storage]\nreserve_bytes = 8388608\nsegment_bytes = 4096\n"
    pair = Pair(tmp_path / "pair", PLAN, config)
    pair.state(0).symlink_to(small_disk)
    with pair:
        pair.start()
        pair.set_up()
        pair.open()
        contributions = pair.take_part([0, 1])
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - (8 << 20)))
        refused, why = _first_refused(pair, contributions)
        assert "bytes are free on the disk" in why
        pair.kill(0)
        pair.start(0)  # with the disk still full
        opened = pair.close()
        assert opened.clients == tuple(range(refused))
        assert_sums(pair.plan, opened, contributions)
        ballast.unlink()
        pair.open()
        pair.assert_serves(range(8))


def _first_refused(pair: Pair, contributions: list[plaintext.Contribution]) -> tuple[int, str]:
    """Clients take part until one is refused for lack of room; the same bytes after a timeout."""
    policy = RetryPolicy(attempt_seconds=5, total_seconds=5, longest_pause=0.3)
    for client in range(2, 8):
        kept = Kept()
        update = pair.update(client)
        session = Client(pair.plan, kept, client_id=client).start_round(
            pair.number, indices=wanted_rows(pair.plan, update)
        )
        missing = {name: rows.tolist() for name, rows in session.submit(update).unmatched.items()}
        links = Links(pair.urls, pair.files(f"client-{client}"), policy)
        for method, sent in (("Upload", kept.trees), ("Submit", kept.report)):
            why = _send(links, method, sent)
            if why:
                return client, why
        contributions.append(plaintext.Contribution(update, 1, missing))
    raise AssertionError("nobody was refused")


def _send(links: Links, method: str, sent: dict[int, bytes]) -> str:
    """Send until it is acknowledged or there is no room; why not."""
    while True:
        with contextlib.suppress(calls.NotReady):
            try:
                links.both(lambda link: link.call(method, sent[link.party], limit=64))
            except calls.Overloaded as error:
                return str(error)
            return ""


class Kept:
    """A transport that keeps what a client sends."""

    def __init__(self) -> None:
        self.trees: dict[int, bytes] = {}
        self.report: dict[int, bytes] = {}

    def send(self, party: int, message: bytes) -> None:
        is_tree = message[6] in (Kind.TREES, Kind.TREES_COMMIT)
        (self.trees if is_tree else self.report)[party] = message

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        raise AssertionError

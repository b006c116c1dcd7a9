"""Limits of memory and disk: callers wait or are refused, and nothing acknowledged is lost."""

from __future__ import annotations

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
from federation import mixed_plan
from network import CONFIG, Pair, assert_sums, wait_until
from reference import plaintext

from torchfsl.service import calls
from torchfsl.service.links import RetryPolicy

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
    """Clients take part until one is refused."""
    policy = RetryPolicy(attempt_seconds=10, total_seconds=10, longest_pause=0.3)
    for client in range(2, 8):
        try:
            contributions += pair.take_part([client], policy=policy)
        except calls.Overloaded as error:
            return client, str(error)
    raise AssertionError("nobody was refused")

"""A round that ends while clients send: nothing is written into a log that is being wiped."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.test_node import Duo
from tests.support.federation import mixed_plan, random_update, wanted_rows
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Header, Kind
from torchfsl.service.net.answers import decode_info
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.server.failures import Failures
from torchfsl.service.server.intake import GroupWriter, Limits
from torchfsl.service.server.station import Station
from torchfsl.service.server.worker import Worker
from torchfsl.service.state.records import ReportLog
from torchfsl.service.state.steps import StoredState


class Sent:
    """Keeps what a client sends to server 0."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send(self, party: int, message: bytes) -> None:
        if party == 0:
            self.messages.append(message)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        raise AssertionError


def trees_of(duo: Duo, number: int, client: int) -> tuple[Header, bytes]:
    update, sent = random_update(duo.plan, np.random.default_rng(client)), Sent()
    one = Client(duo.plan, sent, client_id=client)
    one.start_round(number, indices=wanted_rows(duo.plan, update)).submit(update)
    message = sent.messages[0]
    return messages.decode_header(duo.plan, message, Kind.TREES, Kind.TREES_COMMIT), message


def test_a_round_is_abandoned_while_messages_are_written_and_the_next_one_takes_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_development_certificates(tmp_path, [])
    duo = Duo(tmp_path, TlsFiles.in_folder(tmp_path, "server-0").authorities(), mixed_plan())
    begin = Kind.ROUND_STATE
    write, writing = os.pwritev, threading.Event()

    def slow(*given: Any) -> int:
        writing.set()
        time.sleep(0.2)
        return write(*given)

    async def run() -> None:
        for number in (1, 2):
            duo.step(number, begin)
            station = Station(duo.nodes[0], Limits())
            ended: list[object] = []
            station.failures = Failures(ended.append)
            writing.clear()
            sending = [
                asyncio.create_task(station.accept(*trees_of(duo, number, c))) for c in (0, 1)
            ]
            await asyncio.to_thread(writing.wait)
            await station.abandon(number, "the test ends it")
            taken = await asyncio.gather(*sending, return_exceptions=True)
            assert True in taken  # what was inside was filed first
            assert all(one is True or isinstance(one, RejectedSubmission) for one in taken)
            assert ended == []
            row = duo.nodes[0].storage.ledger.round(number)
            assert row is not None
            assert row.state is StoredState.UNOPENED
            duo.nodes[1].abandon(number, "likewise")

    monkeypatch.setattr(os, "pwritev", slow)
    asyncio.run(run())


def test_who_names_another_round_abandons_nothing_and_shuts_nobody_out(tmp_path: Path) -> None:
    make_development_certificates(tmp_path, [])
    duo = Duo(tmp_path, TlsFiles.in_folder(tmp_path, "server-0").authorities(), mixed_plan())
    duo.step(1, Kind.ROUND_STATE)

    async def run() -> bool:
        station = Station(duo.nodes[0], Limits())
        with pytest.raises(Exception, match="round 7"):
            await station.abandon(7, "")
        return await station.accept(*trees_of(duo, 1, 0))

    assert asyncio.run(run())


def test_a_round_that_could_not_be_abandoned_goes_on_taking_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_development_certificates(tmp_path, [])
    duo = Duo(tmp_path, TlsFiles.in_folder(tmp_path, "server-0").authorities(), mixed_plan())
    duo.step(1, Kind.ROUND_STATE)

    def refuse(*_: object, **__: object) -> None:
        raise ProtocolError("which is too late to abandon it")

    async def run() -> bool:
        station = Station(duo.nodes[0], Limits())
        with pytest.raises(ProtocolError, match="too late to abandon"):
            await station.abandon(1, "")
        return await station.accept(*trees_of(duo, 1, 0))

    monkeypatch.setattr(duo.nodes[0], "abandon", refuse)
    assert asyncio.run(run())


def test_a_message_that_comes_too_late_for_its_log_stops_none_of_another_log() -> None:
    class Log:
        def __init__(self, error: Exception | None = None) -> None:
            self.error = error

        def append(self, given: Sequence[bytes]) -> list[memoryview]:
            if self.error is not None:
                raise self.error
            return [memoryview(one) for one in given]

    async def run() -> tuple[list[object], list[bytes]]:
        worker, filed = Worker("test"), list[bytes]()
        writer = GroupWriter(worker)

        def file(view: memoryview) -> None:
            filed.append(bytes(view))

        logs = (Log(RejectedSubmission("too late")), Log())
        sending = [writer.append(log, b"1", file) for log in logs]  # type: ignore[arg-type]
        taken = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 60)
        worker.close()
        return [*map(type, taken)], filed

    assert asyncio.run(run()) == ([RejectedSubmission, type(None)], [b"1"])


def test_a_log_that_was_wiped_takes_nothing_and_makes_no_file(tmp_path: Path) -> None:
    for number in range(20):
        log = ReportLog(tmp_path / str(number), segment_bytes=1 << 12)
        refused = threading.Event()

        def fill(log: ReportLog = log, refused: threading.Event = refused) -> None:
            try:
                while True:
                    log.append([bytes(1000)])
            except RejectedSubmission:
                refused.set()

        filling = threading.Thread(target=fill)
        filling.start()
        while not len(log):
            time.sleep(0.001)
        log.wipe(iter(()))
        filling.join()
        assert refused.is_set()
        assert not log.folder.exists()


def test_an_unforeseen_error_of_the_log_reaches_its_sender_and_the_next_message_is_taken() -> None:
    class Log:
        is_bad = True

        def append(self, given: Sequence[bytes]) -> list[memoryview]:
            if self.is_bad:
                raise IndexError("a bug")
            return [memoryview(one) for one in given]

    async def run() -> list[bytes]:
        worker, log, filed = Worker("test"), Log(), list[bytes]()
        writer = GroupWriter(worker)

        def file(view: memoryview) -> None:
            filed.append(bytes(view))

        with pytest.raises(IndexError, match="a bug"):
            await asyncio.wait_for(writer.append(log, b"1", file), 60)  # type: ignore[arg-type]
        log.is_bad = False
        await asyncio.wait_for(writer.append(log, b"2", file), 60)  # type: ignore[arg-type]
        worker.close()
        return filed

    assert asyncio.run(run()) == [b"2"]


def test_what_a_server_tells_can_be_read_whenever_its_round_closes(tmp_path: Path) -> None:
    make_development_certificates(tmp_path, [])
    duo = Duo(tmp_path, TlsFiles.in_folder(tmp_path, "server-0").authorities(), mixed_plan())
    duo.nodes[0].begin(1, closes_at=2.0**65)
    info = asyncio.run(_info(duo))
    assert decode_info(json.dumps(info).encode())["closes_at"] > time.time()


async def _info(duo: Duo) -> dict[str, Any]:
    return await Station(duo.nodes[0], Limits()).info()

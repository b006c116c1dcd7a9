"""Clients of a task that servers have replaced end with one sentence, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.errors import raises
from tests.support.federation import wanted_rows
from tests.support.network import Pair
from torchfsl.errors import ProtocolError
from torchfsl.fsl.client.round import ClientRound
from torchfsl.service.client import remote
from torchfsl.service.client.outbox import Outbox
from torchfsl.service.client.remote import Connection


def begun(pair: Pair, connection: Connection) -> ClientRound:
    """A round of the task before, begun and not yet sent."""
    update = pair.update(4)
    return connection.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))


@pytest.mark.parametrize("where", ["waits", "opens", "downloads", "retrieves", "submits"])
def test_a_client_says_that_the_task_changed_and_what_to_do(where: str, tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        update = pair.update(4)
        with pair.client(4) as client:
            session = begun(pair, client)
            steps: dict[str, Callable[[], object]] = {
                "waits": lambda: client.wait_for_round(seconds=30),
                "opens": client.client.open_number,
                "downloads": session.download,
                "retrieves": session.retrieve,
                "submits": lambda: session.submit(update),
            }
            for step in ("downloads", "retrieves", "submits"):
                if where in ("waits", "opens") or step == where:
                    break
                steps[step]()
            old = pair.plan.digest.hex()[:16]
            pair.owner.abandon_round(pair.number, "another task follows")
            pair.number = 0
            pair.set_up()
            pair.open()
            new = pair.owner.plan().digest.hex()[:16]
            with raises(ProtocolError, "another-plan") as ended:
                steps[where]()
        told = f"the servers' task changed from plan {old} to plan {new}: start this client again"
        assert str(ended.value) == told


def test_a_client_that_is_started_again_drops_the_report_of_the_task_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        outbox, update = tmp_path / "outbox", pair.update(4)

        def killed(_: object, report: dict[int, bytes], box: Outbox) -> None:
            box.put(report)

        with pair.client(4, outbox=outbox) as client, monkeypatch.context() as way:
            way.setattr(remote, "submit", killed)
            session = begun(pair, client)
            session.download()
            session.retrieve()
            session.submit(update)
        assert outbox.exists()
        pair.owner.abandon_round(pair.number, "another task follows")
        pair.number = 0
        pair.set_up()
        with pair.client(4, outbox=outbox) as client:
            assert not client.resume()
        assert not outbox.exists()

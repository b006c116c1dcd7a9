"""Past noise that an auditor holds: of which rounds it is, and what names no server."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.test_audits import Audited, held, verdicts, with_correlated_noise
from tests.support.network import wait_until
from torchfsl.errors import ProtocolError
from torchfsl.service.auditor import AuditorProcess
from torchfsl.service.state.steps import StoredState


@contextlib.contextmanager
def both_committed(pair: Audited, judge: AuditorProcess) -> Iterator[None]:
    """A round that waits for passes; abandoned at the end."""
    pair.open()
    judge.look()
    with contextlib.closing(pair.auditor(1)) as other:
        other.look()
    pair.report(2, 3)

    def closes() -> None:
        with pytest.raises(ProtocolError, match="enough"):
            pair.close()

    closing = threading.Thread(target=closes)
    closing.start()
    wait_until(lambda: pair.owner.links.info(0)["state"] == StoredState.AUDITING)
    yield
    pair.owner.abandon_round(pair.number, "enough")
    closing.join()


def test_an_auditor_keeps_no_noise_of_a_round_whose_pass_the_other_server_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its server could make up rounds: the other one's messages in a record are not signed."""
    with with_correlated_noise(tmp_path) as pair, contextlib.closing(pair.auditor(0)) as judge:
        with both_committed(pair, judge), monkeypatch.context() as patch:
            patch.setattr(judge, "_tell", lambda: None)
            judge.look()
        judge.look()
        verdict = json.loads(verdicts(pair, 0)[1].read_bytes())
        assert (verdict["told"], "message" in verdict) == (True, True)
        assert held(pair, 0) == {1}
        assert judge._auditor is not None
        assert judge._auditor.offer() == (1,)


def test_noise_that_changes_on_an_auditors_disk_names_no_server(tmp_path: Path) -> None:
    with with_correlated_noise(tmp_path) as pair:
        with contextlib.closing(pair.auditor(0)) as judge:
            judge.look()
            (ring,) = (pair.folder / "auditor0" / "noise").glob("*.ring")
            with ring.open("r+b") as file:
                file.write(bytes(64))
            with both_committed(pair, judge):
                judge.look()
            assert "index 0 has changed" in json.loads(verdicts(pair, 0)[1].read_bytes())["refused"]
            assert not [*(pair.folder / "auditor0" / "named").iterdir()]
            assert not pair.owner.links.info(1)["halted"]
            assert judge._auditor is not None
            assert judge._auditor.offer() == ()
        with pair.audited_by(0, 1):
            assert pair.round_of(4, 5).clients == (4, 5)

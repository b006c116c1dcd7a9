"""What is counted and shown of audited rounds that end early, and of findings that come late."""

from __future__ import annotations

import contextlib
import html
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_audits import Audited, verdicts
from tests.support.network import Pair, wait_until
from tests.support.odd_servers import ODD
from torchfsl.crypto import kdf
from torchfsl.crypto.signing import SignKey, is_signed
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl.bodies import ShareCommit
from torchfsl.service.auditor import AuditorProcess
from torchfsl.service.net import calls
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.state.audits import TWICE, AuditStore, named_parts
from torchfsl.service.state.ledger import Ledger


def alerts(pair: Audited) -> dict[str, float]:
    """Alerts of audits at server 0 that are not 0, by why."""
    lines = [line for line in pair.metrics(0).splitlines() if "audit_alerts_total{" in line]
    counts = {line.split('"')[1]: float(line.split()[-1]) for line in lines}
    assert len(counts) == 4
    return {why: count for why, count in counts.items() if count}


def page(pair: Audited) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.metrics_ports[0]}/") as answer:
        return str(answer.read().decode())


def ends_unopened(pair: Audited, why: str) -> None:
    pair.open()
    pair.report(2, 3)
    with pytest.raises(ProtocolError, match=why):
        pair.owner.close_round(pair.number)


def ends_untold(pair: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round in which auditors take no verdict to the other server."""
    with monkeypatch.context() as patch, pair.audited_by(0, 1):
        patch.setattr(AuditorProcess, "_tell", lambda _: None)
        ends_unopened(pair, "audit_missing")
        wait_until(lambda: bool(verdicts(pair, 1)))


@pytest.mark.parametrize("audited", [True, False])
def test_a_finding_about_a_task_that_has_made_way_is_logged_counted_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audited: bool
) -> None:
    monkeypatch.setenv(ODD, "add")
    with Audited(tmp_path, seconds=3.0, odd=1) as pair:
        pair.start()
        pair.set_up()
        ends_untold(pair, monkeypatch)
        pair.set_up() if audited else Pair.set_up(pair)
        pair.open()  # a round of the same number runs when the finding comes
        assert "audit_finding_refused" not in page(pair)
        for _ in range(2):
            with contextlib.closing(pair.auditor(1)) as late:
                late.look()
        assert json.loads(verdicts(pair, 1)[0].read_bytes())["told"]
        assert not pair.owner.links.info(0)["halted"]
        assert alerts(pair) == {"audit_missing": 1, "audit_finding_refused": 1}
        assert '"message": "an auditor\'s finding is refused"' in pair.log(0)
        why = "this server has no signed" if audited else "this server's task has no audit"
        assert f"finding is refused: {html.escape(why)}" in page(pair)
        pair.kill(0)
        pair.start(0)
        assert '<td>audit_finding_refused</td><td class="n">1</td>' in page(pair)


def test_rounds_that_end_before_both_servers_have_committed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Audited(tmp_path, seconds=3.0) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        pair.owner.abandon_round(pair.number, "nobody came")
        assert alerts(pair) == {"audit_uncommitted": 1}
        ends_unopened(pair, "to send a key")
        assert alerts(pair) == {"audit_missing": 1, "audit_uncommitted": 2}
        with monkeypatch.context() as patch, pair.audited_by(0, 1):
            patch.setattr(AuditorProcess, "_audit", lambda *_: None)
            ends_unopened(pair, "to approve the round")  # both have committed
        assert alerts(pair) == {"audit_missing": 2, "audit_uncommitted": 2}
        with pair.audited_by(0, 1):
            assert pair.round_of(2, 3).clients == (2, 3)
        pair.kill(0)
        pair.start(0)
        assert alerts(pair) == {"audit_missing": 2, "audit_uncommitted": 2}
        Pair.set_up(pair)  # without an audit
        pair.open()
        pair.owner.abandon_round(pair.number, "nobody came")
        assert alerts(pair) == {"audit_missing": 2, "audit_uncommitted": 2}


def name(pair: Audited, number: int, held: tuple[bytes, bytes]) -> None:
    """Tell server 0 a finding about server 1, signed for this record and commitment."""
    with contextlib.closing(pair.auditor(1)) as judge:
        parts = named_parts(pair.plan, number, 1, held, "share", "?")
        signature = judge.key.sign(kdf.LABEL_NAMED, *parts).hex()
        request = calls.encode_request(round=number, step="share", why="?", signature=signature)
        judge.links.links[0].once("Named", request, limit=0)


def test_a_finding_counts_for_the_commitment_that_the_server_holds_and_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Audited(tmp_path, seconds=3.0) as pair:
        pair.start()
        pair.set_up()
        ends_untold(pair, monkeypatch)
        committed = pair.number
        told = json.loads(verdicts(pair, 1)[0].read_bytes())
        record, commitment = (bytes.fromhex(told[key]) for key in ("record", "commitment"))
        pair.open()
        pair.owner.abandon_round(pair.number, "try")  # nobody has committed to anything
        others = [(bytes(32), commitment), (record, bytes(32)), (b"", b"")]
        odd = [(committed, held) for held in others]
        odd += [(pair.number, held) for held in ((record, commitment), (b"", b""))]
        for number, held in odd:
            with pytest.raises(ProtocolError, match=r"not signed by the plan|no signed commitment"):
                name(pair, number, held)
        assert not pair.owner.links.info(0)["halted"]
        assert alerts(pair)["audit_finding_refused"] == len(odd)
        name(pair, committed, (record, commitment))
        assert "audit_liar_named" in pair.owner.links.info(0)["halted"]


@pytest.mark.parametrize("error", [DecodeError, ProtocolError])
def test_a_verdict_that_a_server_cannot_read_or_refuses_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(method: str, *given: Any, **named: Any) -> bytes:
        if method == "Info":
            return call(method, *given, **named)
        asked.append(method)
        raise error("no")

    asked: list[str] = []
    with Audited(tmp_path, seconds=3.0) as pair:
        pair.start()
        pair.set_up()
        ends_untold(pair, monkeypatch)
        with contextlib.closing(pair.auditor(1)) as late:
            call = late.links.links[0].call
            monkeypatch.setattr(late.links.links[0], "call", refuse)
            for _ in range(3):
                late._tell()
        assert asked == ["Passed", "Signed"]
        assert json.loads(verdicts(pair, 1)[0].read_bytes())["told"]


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize("odd", ["two", "shown"])
def test_a_server_that_signs_two_commitments_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, shows: bool
) -> None:
    """Its auditor sees another one than server 0: a good one, which passes, or a lie."""
    if not shows:
        monkeypatch.setattr(AuditorProcess, "_shows_second", lambda *_: False)
    monkeypatch.setenv(ODD, odd)
    with Audited(tmp_path, seconds=3.0, odd=1) as pair:
        pair.start()
        pair.set_up()
        with pair.audited_by(0, 1):
            ends_unopened(pair, "audit_liar_named" if shows else "audit_missing")
        halted = pair.owner.links.info(0)["halted"]
        assert ("it has signed two commitments" in halted) is shows
        pair.kill(0)
        ledger = Ledger(pair.state(0) / "state.sqlite")
        known = AuditStore(pair.state(0), ledger).record(pair.plan, 1)
        ledger.close()
    assert ("second" in known) is shows
    if shows:  # both are over one record, so they are a proof by themselves
        key, record = bytes.fromhex(pair.plan.audit_keys[1]), bytes.fromhex(known["record"])
        first = ShareCommit.read(pair.plan, bytes.fromhex(known["share_commit"]))
        second = bytes.fromhex(known["second"])
        assert known["second_record"] == known["record"]
        assert first.commitment != second[:32]
        for commitment, signature in (
            (first.commitment, first.signature),
            (second[:32], second[32:]),
        ):
            assert is_signed(key, signature, kdf.LABEL_RECORD, record, b"\x01", commitment)


def test_a_second_commitment_counts_if_its_server_and_its_auditor_have_signed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Audited(tmp_path, seconds=3.0) as pair:
        pair.start()
        pair.set_up()
        ends_untold(pair, monkeypatch)
        told = json.loads(verdicts(pair, 1)[0].read_bytes())
        held = bytes.fromhex(told["record"]), bytes.fromhex(told["commitment"])
        sign = TlsFiles.in_folder(pair.tls, "server-1").sign_pair()
        assert sign is not None
        other = (held[0], bytes(32)), (bytes(32), held[1])
        with contextlib.closing(pair.auditor(1)) as judge:

            def show(
                number: int, about: tuple[bytes, bytes], server: SignKey, auditor: SignKey
            ) -> None:
                parts = named_parts(pair.plan, number, 1, about, *TWICE)
                fields = {"record": about[0].hex(), "commitment": about[1].hex()}
                fields["signed"] = server.sign(kdf.LABEL_RECORD, about[0], b"\x01", about[1]).hex()
                fields["twice"] = auditor.sign(kdf.LABEL_NAMED, *parts).hex()
                request = calls.encode_request(round=number, **fields)
                judge.links.links[0].once("Signed", request, limit=0)

            number, good = pair.number, (sign[0], judge.key)
            for odd in (
                (number, held, *good),  # the one that server 0 holds
                (number + 1, other[0], *good),  # of a round in which it holds none
                (number, other[0], judge.key, judge.key),
                (number, other[0], sign[0], sign[0]),
            ):
                with pytest.raises(
                    ProtocolError, match=r"is the stored one|did not sign|not signed by"
                ):
                    show(*odd)
            assert not pair.owner.links.info(0)["halted"]
            assert alerts(pair) == {"audit_missing": 1}
            show(number, other[1], *good)  # over another record
        assert "it has signed two commitments" in pair.owner.links.info(0)["halted"]
        assert alerts(pair) == {"audit_missing": 1, "audit_liar_named": 1}

"""What one malicious server of `dense` can do against a single client: `sefl`'s limit is not there.

Server 0 is malicious and wants client 1's update. It can forget, lie about which reports it holds,
replay, or ask twice; server 1 gives its share of the sum over the set that both agreed on, once a
round. (What a lie about its own share does is in `test_malicious_server.py`: it spoils the sum.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.federation import Wire, make_plan, make_segment, make_servers, submit
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl.bodies import ReportSet, ShareBody, ShareCommit
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.update import SegmentUpdate, Update

PLAN = make_plan(make_segment("bias", "dense", (64,)), min_clients=2)
VICTIM, OTHERS = 1, (2, 3)
Entries = tuple[tuple[int, bytes], ...]


def update_of(client: int) -> Update:
    values = np.random.default_rng(client).integers(-1000, 1001, (64, 1))
    return {"bias": SegmentUpdate(None, values)}


def filled(servers: tuple[Server, Server], number: int = 1) -> Wire:
    """A round with the victim and two others, and all that went over the wire."""
    begin_round(servers, number)
    wire = Wire(servers)
    for client in (VICTIM, *OTHERS):
        submit(wire, client, number, update_of(client))
    return wire


def values_of(share: bytes) -> npt.NDArray[np.int32]:
    """Numbers of the 32-bit ring, which wrap when they are added."""
    return np.frombuffer(share, dtype="<i4")


LIES: dict[str, Callable[[Entries], Entries]] = {
    "the victim alone": lambda held: tuple(e for e in held if e[0] == VICTIM),
    "the others with other digests": lambda held: tuple(
        (client, digest if client == VICTIM else bytes(32)) for client, digest in held
    ),
    "the victim, and clients that it made up": lambda held: (
        *(e for e in held if e[0] == VICTIM), (98, bytes(32)), (99, bytes(32)),
    ),
    "nobody": lambda held: (),
    "all, in another order": lambda held: held[::-1],
    "all, one of them twice": lambda held: (*held, held[-1]),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_lie_about_the_reports_leaves_the_victim_unopened(lie: Callable[..., Entries]) -> None:
    malicious, honest = servers = make_servers(PLAN)
    filled(servers)
    held = ReportSet.from_peer(honest, malicious.close_round())
    honest.close_round()
    told = ReportSet(held.coin, lie(held.entries)).message(PLAN, 1, 1)
    with pytest.raises(ProtocolError):
        honest.agree(told)
    for step in (honest.commit, lambda: honest.reveal(ShareCommit(bytes(32)).message(PLAN, 1, 1))):
        with pytest.raises(ProtocolError):  # its share is not to be had any more
            step()
    assert honest.rounds_opened == 0


def test_a_set_of_two_is_the_least_that_opens_and_opens_their_sum() -> None:
    malicious, honest = servers = make_servers(PLAN)
    filled(servers)
    shares, told = agreed(malicious, honest, lambda held: held[:2])
    total = values_of(shares[1]) + values_of(shares[0])
    expected = update_of(VICTIM)["bias"].values + update_of(2)["bias"].values
    assert [client for client, _ in told] == [VICTIM, 2]
    assert np.array_equal(total, expected[:, 0])


def agreed(
    malicious: Server, honest: Server, choose: Callable[[Entries], Entries]
) -> tuple[tuple[bytes, bytes], Entries]:
    """Both servers' shares over the reports that the malicious one chooses to hold."""
    lists = malicious.close_round(), honest.close_round()
    held = ReportSet.from_peer(honest, lists[0])
    chosen = choose(held.entries)
    theirs = ReportSet.from_peer(malicious, lists[1])
    folds = (
        malicious.agree(ReportSet(theirs.coin, chosen).message(PLAN, 0, malicious.last_round)),
        honest.agree(ReportSet(held.coin, chosen).message(PLAN, 1, honest.last_round)),
    )
    malicious.verify(folds[1])
    honest.verify(folds[0])
    commitments = malicious.commit(), honest.commit()
    own = malicious.committed()[1]
    given = ShareBody.from_peer(malicious, honest.reveal(commitments[0]))
    return (own, bytes(given.sums)), chosen


def test_a_second_opening_of_the_round_over_another_set_is_refused() -> None:
    """The difference of two sums would be the victim's update."""
    malicious, honest = servers = make_servers(PLAN)
    filled(servers)
    lists = malicious.close_round(), honest.close_round()
    held = ReportSet.from_peer(honest, lists[0])
    folds = malicious.agree(lists[1]), honest.agree(lists[0])
    honest.verify(folds[0])
    malicious.verify(folds[1])
    commitment = malicious.commit()
    honest.commit()
    honest.reveal(commitment)
    fewer = ReportSet(held.coin, held.entries[1:]).message(PLAN, 1, 1)
    for again in (lambda: honest.agree(fewer), honest.commit, lambda: honest.reveal(commitment)):
        with pytest.raises(ProtocolError, match="this step needs"):
            again()
    assert honest.rounds_opened == 1


def test_reports_of_an_earlier_round_do_not_make_up_the_number() -> None:
    """The others of round 1, replayed beside the victim in round 2."""
    malicious, honest = servers = make_servers(PLAN)
    wire = filled(servers)
    for server in servers:
        server.abandon_round()
    begin_round(servers, 2)
    submit(Wire(servers), VICTIM, 2, update_of(VICTIM))
    refused = 0
    for event in wire.events:
        client = int.from_bytes(event.data[16:24], "little")
        if event.party == 1 and not event.is_reply and client in OTHERS:
            renumbered = event.data[:8] + (2).to_bytes(8, "little") + event.data[16:]
            for message in (event.data, renumbered):
                with pytest.raises((RejectedSubmission, DecodeError, ProtocolError)):
                    honest.receive(message)
                refused += 1
    assert refused >= 4
    honest.close_round()
    with pytest.raises(ProtocolError, match="acceptable reports: 1"):
        honest.agree(malicious.close_round())


def test_what_one_server_holds_of_a_client_is_uniform() -> None:
    """Its share of the victim's update, over 64 rounds of one and the same update."""
    malicious, _ = servers = make_servers(PLAN)
    seen = []
    for number in range(1, 65):
        filled(servers, number)
        malicious.close_round()
        report = malicious.reports.complete()[VICTIM]
        seen.append(values_of(malicious._evaluator.share([report])))
        for server in servers:
            server.abandon_round()
    top = np.concatenate(seen) >> (PLAN.encoding.ring_bits - 4)  # one of sixteen parts of the ring
    counts = np.bincount(top + 8, minlength=16)
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert statistic < 60  # chi-square of 15 degrees: above it with probability 2e-7
    assert len(np.unique(seen[0])) == len(seen[0])

"""One federated round, in this process, on one screen (paper, Fig. 4).

`run_round` calls the same client and server methods, through the same encoded messages, as any
network does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from torchfsl.errors import ParameterError, ProtocolError, expect_a, expect_able
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan_fields import check_number
from torchfsl.submodel.rounds import abandoned_on_error
from torchfsl.submodel.update import Update

_CLOSING: Final = threading.Lock()
"""Held while a round is closed, so that of two calls at once one closes it."""


class Auditor(Protocol):
    """Part of `torchfsl.fsl.audit.replay.Auditor` that a round calls."""

    @property
    def party(self) -> int:
        """The server that it audits."""

    def offer(self) -> Collection[int] | None:
        """Rounds whose noise it holds; None where noise is not correlated."""

    def audit(self, server: Server, commitment: bytes) -> bytes:
        """Its AUDIT_PASS for the other server; raises ProtocolError if it names this one."""


def run_round(
    servers: tuple[Server, Server], updates: Mapping[int, Update], *, round_number: int
) -> Opened:
    """Aggregate the quantised updates of clients exactly, and update both servers' models.

    Args:
        servers: both servers, idle, with equal plans and models.
        updates: by client number.
        round_number: above every earlier one.

    Returns:
        The aggregates; law: bit-identical to the plaintext sums.

    Raises:
        ParameterError: an update does not fit the plan. The round ends unopened.
        RejectedSubmission: more clients than the plan allows. The round ends unopened.
        ProtocolError: see `finish_round`.
    """
    begin_round(servers, round_number)
    link = InProcess(*servers)
    plan = servers[0].plan
    with abandoned_on_error(*servers):
        for client_id, update in updates.items():
            client = Client(plan, link, client_id=client_id)
            wanted = {s.name: update[s.name].positions for s in plan.retrieving}
            with client.start_round(round_number, indices=wanted) as client_round:
                client_round.submit(update)
    return finish_round(servers)


def begin_round(servers: tuple[Server, Server], round_number: int) -> None:
    """Open a round at both servers, which first compare their models.

    Raises:
        ProtocolError: the models differ; both servers halt.
        ParameterError: not server 0 and server 1 in this order, one model or optimizer object at
            both, or `round_number` is not a whole number in [0, 2**64). Nothing is opened then.
    """
    check_number("round_number", round_number)
    _check_pair(servers)
    if servers[0].model is servers[1].model:
        raise ParameterError(
            "both servers have one ServerModel object, so each aggregate would be applied twice: "
            "pass each server its own ServerModel(state)",
            code="shared-model",
        )
    if servers[0].model.optimizer is servers[1].model.optimizer:
        raise ParameterError(
            "both servers' models have one optimizer object, so its state would change twice: "
            "pass each server its own ServerModel(state, ServerAdam(0.01))",
            code="shared-optimizer",
        )
    states: list[bytes] = []
    try:
        for server in servers:
            states.append(server.open_round(round_number))
    except BaseException:
        for server in servers[: len(states)]:  # the one that refused may be in another round
            server.abandon_round()
        raise
    try:
        servers[0].start(states[1])
    finally:  # each notices for itself that the models differ
        servers[1].start(states[0])


def finish_round(servers: tuple[Server, Server], *, auditors: tuple[Auditor, ...] = ()) -> Opened:
    """Close the round at both servers, open the sum once, apply it at both.

    Args:
        servers: server 0 and server 1.
        auditors: of server 0 and of server 1, in a plan with an audit.

    Returns:
        The exact sums, which both servers have applied.

    Raises:
        ProtocolError: the servers disagree, or too few reports are acceptable: the round ends
            unopened. Or no round is open, or another call is finishing it, which goes on.
        ParameterError: not server 0 and server 1 in this order, or auditors are missing.
    """
    _check_pair(servers)
    if servers[0].plan.audited and [auditor.party for auditor in auditors] != [0, 1]:
        raise ParameterError(
            "this plan has an audit: call finish_round(servers, auditors=(Auditor(plan, 0, key_0), "
            "Auditor(plan, 1, key_1))), with the key of each auditor",
            code="audit-conditions",
        )
    with _CLOSING:
        states = [server.state for server in servers]
        if RoundState.OPEN not in states:
            names = " and ".join(f"{state.value!r}" for state in states)
            raise ProtocolError(
                f"no round is open (the servers' states: {names}): call begin_round() first, or "
                "wait until the other call of finish_round() returns",
                code="no-open-round",
            )
        with abandoned_on_error(*servers):
            lists = servers[0].close_round(), servers[1].close_round()
    with abandoned_on_error(*servers):
        return _open(*servers, lists, auditors)


def _check_pair(servers: object) -> None:
    """Refuse anything but both servers in their order.

    Raises:
        ParameterError: with what to pass instead.
    """
    pair, remedy = (
        "a round needs (server 0, server 1), in this order",
        "pass the tuple (server 0, server 1)",
    )
    expect_a((tuple, list), servers, f"{pair}; the argument servers", remedy)
    assert isinstance(servers, tuple | list)
    for server in servers:
        expect_able(("party", "open_round"), server, f"{pair}; one element", remedy)
    if [server.party for server in servers] != [0, 1]:
        raise ParameterError(
            f"{pair}, and got {[server.party for server in servers]}: {remedy}", code="server-order"
        )


def _open(
    first: Server, second: Server, lists: tuple[bytes, bytes], auditors: tuple[Auditor, ...]
) -> Opened:
    folds = first.agree(lists[1]), second.agree(lists[0])
    accepted = first.verify(folds[1]), second.verify(folds[0])
    for auditor, server in zip(auditors, (first, second), strict=False):
        if server.audit is not None:
            server.audit.offered = auditor.offer()
    commitments = first.commit(), second.commit()
    if auditors:
        commitments = _audited(first, second, commitments, auditors)
    if first.plan.opens_counts_first:
        counts = first.reveal_counts(commitments[1]), second.reveal_counts(commitments[0])
        shares = first.reveal_kept(counts[1]), second.reveal_kept(counts[0])
    else:
        shares = first.reveal(commitments[1]), second.reveal(commitments[0])
    try:
        sums = first.open(shares[1])
    finally:  # each notices for itself that the sum cannot be
        opened = second.open(shares[0])
    del shares  # as long as the model's table, and not needed while the sums are applied
    first.apply(sums)
    second.apply(opened)
    assert accepted[0] == sums.clients
    return sums


def _audited(
    first: Server, second: Server, commitments: tuple[bytes, bytes], auditors: tuple[Auditor, ...]
) -> tuple[bytes, bytes]:
    """The passes of both servers' auditors; raises ProtocolError if one names its server."""
    passes = [
        auditor.audit(server, said)
        for auditor, server, said in zip(auditors, (first, second), commitments, strict=True)
    ]
    first.hear_commit(commitments[1])
    second.hear_commit(commitments[0])
    return passes[0], passes[1]

"""One federated round, in this process, on one screen (paper, Fig. 4).

`run_round` calls the same client and server methods, through the same encoded messages, as any
network does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchfsl import messages
from torchfsl.client import Client
from torchfsl.errors import ProtocolError
from torchfsl.opened import Opened
from torchfsl.server import Server
from torchfsl.transport import InProcess
from torchfsl.update import Update


def run_round(
    servers: tuple[Server, Server], updates: Mapping[int, Update], *, round_number: int
) -> Opened:
    """Aggregate the quantised updates of clients exactly, and update both servers' models.

    Args:
        servers: both servers, idle, with equal plans and models.
        updates: by client number.
        round_number: above every earlier one.

    Returns:
        The opened sums; law: equal to the plaintext sums, bit for bit.
    """
    for server in servers:
        server.open_round(round_number)
    link = InProcess(*servers)
    plan = servers[0].plan
    for client_id, update in updates.items():
        client = Client(plan, link, client_id=client_id)
        wanted = {s.name: update[s.name].indices for s in messages.retrieving(plan)}
        with client.start_round(round_number, indices=wanted) as session:  # type: ignore[arg-type]
            session.submit(update)
    return finish_round(servers)


def finish_round(servers: tuple[Server, Server]) -> Opened:
    """Close the round at both servers, open the sum once, apply it at both.

    Raises:
        ProtocolError: the servers disagree, or too few reports are complete.
    """
    first, second = servers
    lists = [server.close_round() for server in servers]
    agreed = [first.agree(lists[1]), second.agree(lists[0])]
    if agreed[0] != agreed[1]:
        raise ProtocolError("the servers agree on different sets of reports")
    commitments = [server.commit() for server in servers]
    shares = [first.reveal(commitments[1]), second.reveal(commitments[0])]
    opened = [first.open(shares[1]), second.open(shares[0])]
    for server, result in zip(servers, opened, strict=True):
        server.apply(result)
    assert all(np.array_equal(opened[0].sums[k], opened[1].sums[k]) for k in opened[0].sums)
    return opened[0]

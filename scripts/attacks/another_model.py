"""Who carries messages shows all clients but one a model on which nobody can train.

Their training fails, as it may over values of their own, so each of them sends a dummy report,
which counts towards `min_clients`; the aggregate is the update of the one. With the defence on the
tag of a report also covers the digests of the model that the client heard, dummy or not.
"""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np

from scripts.attacks import timing
from scripts.attacks.altered_on_the_way import defence
from scripts.attacks.carried_masks import make_plan
from scripts.attacks.read_seeds import sealed_servers
from scripts.attacks.result import AttackResult
from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl import bodies
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.update import SegmentUpdate

VICTIM: Final = 2
_CLIENTS: Final = range(3)


class Carrier(InProcess):
    """Shows every client but the victim a huge model, with digests to fit."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        """Between these servers and all clients."""
        super().__init__(*servers)
        self._plan = plan

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch, altered."""
        data = super().fetch(party, kind, round_number, client)
        if client == VICTIM:
            return data
        size = sum(tensor.numel for tensor in self._plan.clear_tensors)
        clear = np.full(size, 1e30, dtype="<f4").tobytes()
        digests = bodies.ModelDigest.of(clear, b"")
        body = digests if kind is Kind.MODEL_DIGEST else bodies.ModelBody(digests, clear)
        return body.message(self._plan, party, round_number, client)


def take_part(client: Client) -> None:
    """Download, train, send; training fails on a model beyond reason, like any user's code."""
    with client.start_round(1) as client_round:
        model = client_round.download()["rest"]
        if np.abs(model.astype(np.float64)).max() > 1e6:
            raise OverflowError("the loss is not finite")
        client_round.submit({"rest": SegmentUpdate(None, np.full((model.size, 1), 7))})


def alone_in_the_sum(*, on: bool) -> bool:
    """Whether a sum is opened that holds nothing but the victim's update."""
    plan, servers = sealed_servers(make_plan(), {"rest": np.zeros(5, np.float32)})
    carrier = Carrier(plan, servers)
    begin_round(servers, 1)
    with defence(on=on):
        for number in _CLIENTS:
            with contextlib.suppress(OverflowError, Error):
                take_part(Client(plan, carrier, client_id=number))
        try:
            opened = finish_round(servers)
        except ProtocolError:
            return False
    return bool(np.all(opened.sums["rest"] == 7))


def run() -> AttackResult:
    """With tags that cover what the clients heard, and without."""
    off, on = (alone_in_the_sum(on=on) for on in (False, True))
    return AttackResult(
        "dummies by a model that others are shown",
        off="one client's update, with min_clients = 3 of 3" if off else "nothing",
        on="its update" if on else "nothing is opened",
        worked_off=off,
        worked_on=on,
        time_ratio=timing.ratio(lambda: _honest(on=False), lambda: _honest(on=True)),
    )


def _honest(*, on: bool) -> None:
    with defence(on=on):
        timing.honest_round(timing.honest_plan())

"""One round of aggregator and key holder, in this process, on one screen.

`run_round` and `AggregatorAndKeyHolder` call the same methods of clients and servers, through the
same encoded messages, as any network would.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from torchfsl.crypto import discrete_gaussian
from torchfsl.sefl.aggregator import Aggregator
from torchfsl.sefl.client import Client, ClientRound
from torchfsl.sefl.provider import KeyHolder
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.submodel.aggregation import Closed
from torchfsl.submodel.in_process import InProcess, OfCohort, Remembered, Stopwatch, receipts
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.rounds import abandoned_on_error
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import Update
from torchfsl.types import Whole


def introduce(aggregator: Aggregator, key_holder: KeyHolder, draft: SeflPlan) -> SeflPlan:
    """The draft completed with both servers' keys, which both servers then hold.

    Args:
        aggregator: not bound yet.
        key_holder: not bound yet.
        draft: plan without keys.
    """
    plan = draft.bound_to(key_holder.key_digest, aggregator.receipt_key, key_holder.answer_key)
    key_holder.bind(plan)
    aggregator.bind(plan, key_holder.key_message())
    return plan


def renew(aggregator: Aggregator) -> tuple[Aggregator, KeyHolder]:
    """Both servers under fresh keys and so under a new plan, which counts its rounds anew.

    The model and the round numbers go on; messages of the old plan are refused. With noise,
    `privacy.guarantee` is of the rounds of all plans together: give it their number.

    Args:
        aggregator: between two rounds; of no use afterwards.

    Raises:
        ProtocolError: a round is open.
    """
    draft = aggregator.plan.draft
    key_holder = KeyHolder(draft)
    fresh = aggregator.renewed()
    introduce(fresh, key_holder, draft)
    return fresh, key_holder


def run_round(
    aggregator: Aggregator,
    key_holder: KeyHolder,
    updates: Mapping[int, Update | None],
    *,
    round_number: int,
    weights: Mapping[int, int] | None = None,
) -> Opened:
    """Aggregate the quantised updates of clients exactly, and update the model.

    Args:
        aggregator: idle, introduced to the key holder.
        key_holder: the one it was introduced to.
        updates: by client number; None for a client that starts and drops out.
        round_number: above every earlier one.
        weights: by client number; 1 for those that are not named.

    Returns:
        The aggregates; law: bit-identical to the plaintext sums of weight times update, and both
        servers' noise if the plan has any.

    Raises:
        ParameterError: an update does not fit the plan. The round ends unopened.
        ProtocolError: too few updates. The round ends unopened.
    """
    link = InProcess(aggregator)
    with abandoned_on_error(aggregator):
        aggregator.open_round(round_number)
        for number, update in updates.items():
            session = Client(aggregator.plan, link, client_id=number).start_round(round_number)
            if update is not None:
                session.submit(update, weight=(weights or {}).get(number, 1))
        opened = aggregator.open(key_holder.open(aggregator.close_round()))
    aggregator.apply(opened)
    return opened


class AggregatorAndKeyHolder(OfCohort[Remembered[ClientRound]]):
    """The protocol as an `Aggregation`, with fresh keys.

    Args:
        draft: the plan without keys.
        model: the model.

    Attributes:
        plan: the completed plan.
        aggregator: adds.
        key_holder: decrypts.
        between_bytes: sent between both servers in the last round.
    """

    def __init__(self, draft: SeflPlan, model: ServerModel) -> None:
        """No round open."""
        self._drawn: list[Whole] = []
        self.key_holder = KeyHolder(draft, draw=self._draw)
        self.aggregator = Aggregator(draft, model=model, draw=self._draw)
        self.plan = introduce(self.aggregator, self.key_holder, draft)
        self._link = InProcess(self.aggregator)
        self._clients: dict[int, Client] = {}
        self._cohort: dict[int, Remembered[ClientRound]] = {}
        self._key_holder_watch = Stopwatch()
        self.between_bytes = 0

    @property
    def server_seconds(self) -> float:
        """See `Aggregation`."""
        return self._link.seconds + self.key_holder_seconds

    @property
    def key_holder_seconds(self) -> float:
        """The key holder's part of `server_seconds`."""
        return self._key_holder_watch.seconds

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`."""
        self._link.seconds = self._key_holder_watch.seconds = 0.0
        self._drawn.clear()
        self._link.timed(self.aggregator.open_round, round_number)
        for number in set(cohort) - set(self._clients):
            self._clients[number] = Client(self.plan, self._link, client_id=number)
        self._cohort = {number: Remembered(self._clients[number]) for number in sorted(cohort)}

    def _draw(self, sigma: int, count: int) -> Whole:
        self._drawn.append(discrete_gaussian.sample(sigma, count))
        return self._drawn[-1]

    def noise_sums(self) -> dict[str, Whole]:
        """By segment what both servers have added to the last round's sums, `int64[m, 1]`.

        For an audit. Only a process that plays both servers has it; empty without noise.
        """
        if not self._drawn:
            return {}
        # Each server draws for the values and, where there is a weight lane, for the weight.
        total = np.sum(self._drawn[:: 1 + self.plan.lane_values], axis=0, dtype=np.int64)
        ends = np.cumsum([segment.m for segment in self.plan.segments])
        parts = np.split(total, ends[:-1])
        names = [segment.name for segment in self.plan.segments]
        return {name: part[:, None] for name, part in zip(names, parts, strict=True)}

    def close_round(self) -> Closed:
        """See `Aggregation`: mask, decryption, unmasking, and every client's look at the list.

        Raises:
            ProtocolError: too few clients; the round ends unopened.
        """
        with abandoned_on_error(self.aggregator):
            question = self._link.timed(self.aggregator.close_round)
            answer = self._key_holder_watch.timed(self.key_holder.open, question)
            opened = self._link.timed(self.aggregator.open, answer)
        self._link.timed(self.aggregator.apply, opened)
        self.between_bytes = len(question) + len(answer)
        listed = self.key_holder.listed(self.aggregator.last_round)
        for client in self._cohort.values():
            if client.session is not None and client.session.signed:
                client.session.check_listed(listed)
        return Closed(opened, receipts(self._cohort.values()))

"""The querying party P_Q: deals for each answering party, sends masked queries, gets one sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.privhfl.dealer import Dealer, Dithers, weight_masks
from torchfsl.privhfl.draws import LABEL_QA, LABEL_SQ, Identity, Pair
from torchfsl.privhfl.messages import Kind, Topic, cut, decode, encode
from torchfsl.privhfl.plan import QueryPlan


@dataclass(slots=True)
class _Batch:
    """State of a batch that waits for its sum."""

    query_masks: dict[int, torch.Tensor]
    logit_masks: dict[int, torch.Tensor]
    dithers: dict[int, Dithers]
    asked: bool = False


class QueryingParty:
    """One client that asks.

    Args:
        plan: public.
        client: its number.
        identity: its key.
        server: the server's public key.
        others: by answering client its public key.

    The party keeps only in memory for which batches it dealt. A party that restarts with a kept
    identity takes a plan of a new session, because otherwise equal masks hide two pictures.
    """

    def __init__(
        self,
        plan: QueryPlan,
        client: int,
        identity: Identity,
        server: bytes,
        others: dict[int, bytes],
    ) -> None:
        self.plan, self.client = plan, client
        sq = identity.pair(LABEL_SQ, server, plan.digest)
        self._sq = {a: Pair(sq, client, a) for a in others}
        self._qa = {
            a: Pair(identity.pair(LABEL_QA, key, plan.digest), client, a)
            for a, key in others.items()
        }
        self._versions: dict[int, int] = {}
        self._a: dict[int, dict[int, torch.Tensor]] = {}
        self._batches: dict[tuple[int, int], _Batch] = {}
        self._dealt: set[tuple[int, int]] = set()
        self.opened: dict[tuple[int, int], tuple[torch.Tensor, tuple[int, ...]]] = {}

    def __repr__(self) -> str:
        return f"QueryingParty({self.client}, {len(self._versions)} ready)"

    def deal(self, iteration: int, batch: int, answering: list[int]) -> list[bytes]:
        """Messages DEALING to the server for a batch that the clients `answering` answer.

        You may call it before the queries are known. Afterwards the party only sends the queries
        and receives the sum.

        Raises:
            ParameterError: an answering party has not sent its masked weights, or `answering` has
                too many, too few or equal clients.
            ProtocolError: the party has already dealt for this batch, for any clients.
        """
        plan = self.plan
        if not plan.min_answering <= len(set(answering)) == len(answering) <= plan.max_answering:
            raise ParameterError(
                f"answering is {answering}, expected {plan.min_answering} to {plan.max_answering} "
                "different clients"
            )
        missing = [a for a in answering if a not in self._versions]
        if missing:
            raise ParameterError(
                f"clients {missing} have not sent their masked weights yet: wait for their READY "
                "messages"
            )
        if (iteration, batch) in self._dealt:
            raise ProtocolError(f"batch {batch} was already dealt: use the next number")
        self._dealt.add((iteration, batch))
        state = _Batch({}, {}, {})
        messages = []
        for a in answering:
            qa = self._qa[a].batch(self._versions[a], iteration, batch)
            sq = self._sq[a].batch(self._versions[a], iteration, batch)
            dealt = Dealer(plan, plan.graphs[a], self._a[a], qa, sq).deal()
            state.query_masks[a], state.logit_masks[a] = dealt.query_mask, dealt.logit_mask
            state.dithers[a] = dealt.dithers
            for step, body in enumerate(cut(dealt.body, plan.dealing_parts(plan.graphs[a]))):
                topic = Topic(self.client, a, iteration, batch, step)
                messages.append(encode(plan, Kind.DEALING, topic, *body))
        self._batches[iteration, batch] = state
        return messages

    def query(self, iteration: int, batch: int, images: torch.Tensor) -> list[bytes]:
        """Messages QUERY to the server: the images, masked for each answering party.

        Args:
            iteration: as it was dealt for.
            batch: as it was dealt for.
            images: `[B, C, H, W]`, exactly the plan's batch.

        Raises:
            ParameterError: another shape or values that do not fit the ring.
            ProtocolError: nothing is dealt for the batch, or it was asked already.
        """
        plan = self.plan
        state = self._batches.get((iteration, batch))
        if state is None or state.asked:
            raise ProtocolError(
                f"batch {batch} was not dealt yet, or was already queried: call deal() with a new "
                "number, and query this batch once"
            )
        if tuple(images.shape) != (plan.batch, *plan.input_shape):
            raise ParameterError(
                f"the images have shape {tuple(images.shape)}, expected "
                f"{(plan.batch, *plan.input_shape)}: add zeros to a shorter batch"
            )
        whole = plan.ring.encode(images, plan.ring.frac_bits)
        state.asked = True
        queries = []
        for a, mask in state.query_masks.items():
            topic, body = Topic(self.client, a, iteration, batch), plan.ring.words(whole - mask)
            queries.append(encode(plan, Kind.QUERY, topic, body.tobytes()))
        return queries

    def receive(self, data: bytes | memoryview) -> list[bytes]:
        """Take READY or SUM; there is never anything to send back.

        The sum of the logits and the set of those in it are in `opened` then.

        Raises:
            DecodeError: the bytes are malformed.
            RejectedSubmission: not for this client, or nothing waits for it.
        """
        message = decode(self.plan, data, Kind.READY, Kind.SUM)
        topic = message.topic
        if topic.querying != self.client:
            raise RejectedSubmission(f"the message is for client {topic.querying}")
        if message.kind == Kind.READY:
            self._ready(topic.answering, int.from_bytes(message.body, "little"))
            return []
        state = self._batches.get((topic.iteration, topic.batch))
        clients = self.plan.clients
        who = tuple(a for place, a in enumerate(clients) if topic.answering >> place & 1)
        if state is None or not state.asked or not set(who) <= set(state.logit_masks):
            raise RejectedSubmission(
                f"SUM of batch {topic.batch} arrived, but this client does not wait for this sum"
            )
        if len(who) < self.plan.min_answering:
            raise RejectedSubmission(
                f"SUM includes {len(who)} clients, fewer than min_answering = "
                f"{self.plan.min_answering}"
            )
        del self._batches[topic.iteration, topic.batch]
        shape = (self.plan.batch, self.plan.num_classes)
        total = self.plan.ring.from_bytes(message.body, shape)
        for a in who:
            total -= state.logit_masks[a]
        self.opened[topic.iteration, topic.batch] = total, who
        return []

    def version(self, answering: int) -> int:
        """Last version of that client's weights that READY came of; 0 before."""
        return self._versions.get(answering, 0)

    def dithers(self, iteration: int, batch: int) -> dict[int, Dithers]:
        """By answering client the dithers of a batch; only the integer twin asks for them."""
        return self._batches[iteration, batch].dithers

    def forget(self, iteration: int, batch: int) -> None:
        """Drop a batch that no client will answer."""
        self._batches.pop((iteration, batch), None)

    def logits(self, total: torch.Tensor) -> torch.Tensor:
        """A sum of ring elements as the sum of the parties' logits, float64."""
        ring = self.plan.ring
        return ring.decode(total, ring.product_bits) / self.plan.output_scale

    def _ready(self, answering: int, version: int) -> None:
        if answering not in self._qa:
            raise RejectedSubmission("a client cannot answer its own queries")
        known = self.version(answering)
        if version < known or not version:
            raise RejectedSubmission(
                f"client {answering} announced an old version {version} of its weights"
            )
        if version == known:
            return
        qa = self._qa[answering].weights(version)
        self._versions[answering] = version
        self._a[answering] = weight_masks(self.plan, self.plan.graphs[answering], qa)

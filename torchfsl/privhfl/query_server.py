"""The server S: evaluates with each answering party, adds up logits, learns neither side's data."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.privhfl.dealer import remask
from torchfsl.privhfl.draws import LABEL_SQ, Draws, Identity, Pair
from torchfsl.privhfl.graph import Graph
from torchfsl.privhfl.lane import Lane
from torchfsl.privhfl.linear_maps import apply_linear, apply_shape, lifted
from torchfsl.privhfl.messages import Kind, Message, Topic, cut, decode, encode
from torchfsl.privhfl.online import Dealt, Half, cut_shares
from torchfsl.privhfl.plan import MAX_OPEN_BATCHES, QueryPlan, Unit
from torchfsl.privhfl.ring_tensors import Words


class Outgoing(NamedTuple):
    """A message and the client that it is for, as querying or as answering party."""

    client: int
    to_querying: bool
    data: bytes


_Name = tuple[int, int, int]


@dataclass(slots=True)
class _Sum:
    """A batch of one querying party: which clients participate, and whose logits are there."""

    running: dict[int, _Serve] = field(default_factory=dict)
    shares: dict[int, torch.Tensor] = field(default_factory=dict)
    taken: dict[tuple[int, Kind, int], memoryview] = field(default_factory=dict)
    parts: dict[int, dict[int, memoryview]] = field(default_factory=dict)

    @property
    def clients(self) -> set[int]:
        """Everyone dealt for."""
        return {*self.running, *self.shares, *self.parts}

    def expect_once(self, message: Message) -> None:
        """Refuse DEALING or QUERY that came before.

        If two of them differ, one was for another client. The server cannot tell which one, and
        leaves this client out.
        """
        client = message.topic.answering
        name = (client, message.kind, message.topic.step)
        first = self.taken.setdefault(name, message.body)
        if first is not message.body:
            if first != message.body:
                self.running.pop(client, None)
                self.shares.pop(client, None)
                self.parts.pop(client, None)
            raise RejectedSubmission(
                f"{message.kind.name} of client {client} arrived twice: send each message once"
            )


class QueryServer:
    """The server of one plan.

    Args:
        plan: public.
        identity: its key.
        querying: by querying client its public key.
    """

    def __init__(self, plan: QueryPlan, identity: Identity, querying: dict[int, bytes]) -> None:
        self.plan = plan
        self._seeds = {q: identity.pair(LABEL_SQ, k, plan.digest) for q, k in querying.items()}
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._weights: dict[tuple[int, int], tuple[int, dict[int, torch.Tensor]]] = {}
        self._sums: dict[_Name, _Sum] = {}
        self._closed: set[_Name] = set()

    def __repr__(self) -> str:
        return f"QueryServer({len(self._weights)} masked networks, {len(self._sums)} batches)"

    def receive(self, sender: int, data: bytes | memoryview) -> list[Outgoing]:
        """Take WEIGHTS, DEALING, QUERY or ANSWER.

        Args:
            sender: the client whose link the message came by. WEIGHTS and ANSWER come from the
                answering client that they name, DEALING and QUERY from the querying one: who asks
                cannot play an answering client, and take its own numbers from the sum.
            data: the message.

        Raises:
            DecodeError: the bytes are malformed.
            RejectedSubmission: unknown client, another sender, out of turn, or a batch that is
                closed, or one too many.
        """
        expected = (Kind.WEIGHTS, Kind.DEALING, Kind.QUERY, Kind.ANSWER)
        message = decode(self.plan, data, *expected)
        topic = message.topic
        if topic.querying not in self._seeds or topic.querying == topic.answering:
            raise RejectedSubmission(
                f"client {topic.querying} cannot query client {topic.answering}, expected two "
                "different clients of the plan"
            )
        asks = message.kind in (Kind.DEALING, Kind.QUERY)
        if sender != (topic.querying if asks else topic.answering):
            raise RejectedSubmission(
                f"client {sender} sent a {message.kind.name} message that names another client as "
                "its sender"
            )
        if message.kind == Kind.WEIGHTS:
            return self._take_weights(message)
        if message.kind == Kind.DEALING:
            return self._take_dealing(message)
        entry = self._sums.get((topic.querying, topic.iteration, topic.batch))
        serve = entry.running.get(topic.answering) if entry else None
        if entry is None or serve is None:
            raise RejectedSubmission(
                f"{message.kind.name} arrived for a batch without a dealing message: "
                "call deal() first"
            )
        if message.kind == Kind.QUERY:
            entry.expect_once(message)
            return [self._to_answering(Kind.INPUT, topic, serve.input(message.body))]
        try:
            result = serve.go_on(message)
        except DecodeError:  # this client is left out, the others count
            del entry.running[topic.answering]
            raise
        if isinstance(result, torch.Tensor):
            entry.shares[topic.answering] = result
            del entry.running[topic.answering]
            return []
        step = Topic(topic.querying, topic.answering, topic.iteration, topic.batch, topic.step + 1)
        return [self._to_answering(Kind.SERVE, step, result)]

    def close(self, querying: int, iteration: int, batch: int) -> list[Outgoing]:
        """End a batch: the sum over those who have answered. A batch is closed once.

        Raises:
            ProtocolError: no such batch, or fewer than `min_answering` have answered; the batch is
                closed then as well, since a second sum over others would tell the difference.
        """
        name = (querying, iteration, batch)
        entry = self._sums.pop(name, None)
        if entry is None:
            raise ProtocolError(f"batch {batch} is not open: deal and query the batch first")
        self._closed.add(name)
        if len(entry.shares) < self.plan.min_answering:
            raise ProtocolError(
                f"{len(entry.shares)} clients answered, but the plan needs "
                f"{self.plan.min_answering}: query again with more clients"
            )
        total = sum(entry.shares.values(), torch.zeros((), dtype=self.plan.ring.dtype))
        assert isinstance(total, torch.Tensor)
        places = {client: place for place, client in enumerate(self.plan.clients)}
        who = sum(1 << places[client] for client in entry.shares)
        topic = Topic(querying, who, iteration, batch)
        body = self.plan.ring.words(total).tobytes()
        return [Outgoing(querying, True, encode(self.plan, Kind.SUM, topic, body))]

    def abandon(self, querying: int, iteration: int, batch: int) -> None:
        """Drop a batch without a sum; it counts as closed."""
        self._sums.pop((querying, iteration, batch), None)
        self._closed.add((querying, iteration, batch))

    def open_batches(self, querying: int) -> list[tuple[int, int]]:
        """Iteration and batch of what is open of a querying client."""
        return [name[1:] for name in self._sums if name[0] == querying]

    def _take_weights(self, message: Message) -> list[Outgoing]:
        topic = message.topic
        version = int.from_bytes(message.body[:8], "little")
        known, before = self._weights.get((topic.querying, topic.answering), (0, {}))
        graph, ring = self.plan.graphs[topic.answering], self.plan.ring
        masked, start = {}, 8
        for i in graph.linears:
            shape = graph.nodes[i].weight_shape
            size = torch.Size(shape).numel() * ring.item_bytes
            masked[i] = ring.from_bytes(message.body[start : start + size], shape)
            start += size
        again = version == known and all(torch.equal(masked[i], before[i]) for i in masked)
        if version <= known and not again:
            raise RejectedSubmission(
                f"client {topic.answering} sent an old version {version} of its weights: load the "
                "weights again under a higher version"
            )
        self._weights[topic.querying, topic.answering] = version, masked
        ready = encode(self.plan, Kind.READY, topic, message.body[:8])
        return [Outgoing(topic.querying, True, ready)]

    def _take_dealing(self, message: Message) -> list[Outgoing]:
        topic = message.topic
        name = (topic.querying, topic.iteration, topic.batch)
        version, masked = self._weights.get((topic.querying, topic.answering), (0, {}))
        entry = self._sums.get(name, _Sum())
        if name in self._closed or not version:
            raise RejectedSubmission(
                "DEALING arrived for a closed batch, or before the weights of the answering client"
            )
        is_open = sum(querying == topic.querying for querying, _, _ in self._sums)
        if name not in self._sums and is_open >= MAX_OPEN_BATCHES:
            raise RejectedSubmission(
                f"client {topic.querying} has the maximum of {is_open} open batches: close some of "
                "these batches first"
            )
        if len(entry.clients - {topic.answering}) >= self.plan.max_answering:
            raise RejectedSubmission(
                f"the batch has more than {self.plan.max_answering} answering clients: choose "
                "fewer clients"
            )
        entry.expect_once(message)
        self._sums[name] = entry
        graph = self.plan.graphs[topic.answering]
        parts = entry.parts.setdefault(topic.answering, {})
        parts[topic.step] = message.body
        if len(parts) < len(self.plan.dealing_parts(graph)):
            return []
        del entry.parts[topic.answering]
        dealing = [parts[step] for step in sorted(parts)]
        topic = replace(topic, step=0)
        pair = self._pairs.setdefault(
            (topic.querying, topic.answering),
            Pair(self._seeds[topic.querying], topic.querying, topic.answering),
        )
        sq = pair.batch(version, topic.iteration, topic.batch)
        serve = _Serve(self.plan, graph, masked, sq, dealing)
        entry.running[topic.answering] = serve
        out = [self._to_answering(Kind.PRODUCTS, topic, *serve.products())]
        if self.plan.backend.relayed:
            out.append(self._to_answering(Kind.TREES, topic, *serve.relayed()))
        return out

    def _to_answering(self, kind: Kind, topic: Topic, *parts: Any) -> Outgoing:
        return Outgoing(topic.answering, False, encode(self.plan, kind, topic, *parts))


class _Serve:
    """One batch with one answering party: S's masks b and kappa, and what they meet."""

    def __init__(
        self,
        plan: QueryPlan,
        graph: Graph,
        masked: dict[int, torch.Tensor],
        sq: Draws,
        dealing: list[memoryview],
    ) -> None:
        self._plan, self._graph, self._masked, self._sq = plan, graph, masked, sq
        self._dealing: dict[tuple[int, str], memoryview] = {}
        self._units: dict[int, list[Unit]] = {}
        units = plan.units(graph)
        sizes = [plan.backend.dealt_bytes(unit.count) + plan.share_bytes(unit) for unit in units]
        for unit, pieces in zip(units, cut(dealing, sizes), strict=True):
            whole = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
            self._dealing[unit.node, unit.step] = whole
            self._units.setdefault(unit.node, []).append(unit)
        self._wires: dict[int, torch.Tensor] = {}
        self._products: dict[int, torch.Tensor] = {}
        self._multiply()
        self._lane = Lane()
        self._half = Half(plan, self._lane, leading=False, dealt=self._dealt, mask=self._mask)
        self._program = self._serve()
        next(self._program)
        self._step, self._asked = -2, False

    def _multiply(self) -> None:
        """Draw b of every wire, and compute m = W' * b + kappa; the last layer's without kappa."""
        ring, graph = self._plan.ring, self._graph
        for number, node in enumerate(graph.nodes):
            shape = (self._plan.batch, *node.shape)
            given = [self._wires[s] for s in node.inputs if graph.is_wire(s)]
            if node.op in ("input", "relu"):
                self._wires[number] = ring.uniform(self._sq.key(number, "wire"), shape)
            elif number in self._masked:
                m = apply_linear(node, self._masked[number], given[0])
                if len(given) > 1:
                    m += lifted(ring, given[1])
                if number != graph.linears[-1]:
                    m += ring.uniform(self._sq.key(number, "kappa"), shape)
                self._products[number] = m
            elif graph.is_wire(number):
                self._wires[number] = (
                    given[0] + given[1] if node.op == "add" else apply_shape(node, given[0])
                )

    def products(self) -> list[Any]:
        """The body of PRODUCTS, in parts."""
        return [self._plan.ring.words(self._products[i]) for i in self._graph.linears[:-1]]

    def relayed(self) -> list[Any]:
        """The body of TREES, in parts."""
        return [
            self._dealing[unit.node, unit.step][: self._plan.backend.dealt_bytes(unit.count)]
            for units in self._units.values()
            for unit in units
        ]

    def input(self, share: memoryview) -> bytes:
        """The body of INPUT from that of QUERY: x - r - b."""
        self._asked = True
        b = self._wires[0]
        ring = self._plan.ring
        return ring.words(ring.from_bytes(share, tuple(b.shape)) - b).tobytes()

    def go_on(self, message: Message) -> bytes | torch.Tensor:
        """The body of SERVE, or at the end this server's part of the masked logits.

        Raises:
            RejectedSubmission: ANSWER out of turn.
        """
        if not self._asked or message.topic.step != self._step + 2:
            raise RejectedSubmission(
                "ANSWER arrived out of order: send the answers in the order of the batches"
            )
        self._step += 2
        try:
            return self._program.send(message.body)
        except StopIteration as end:
            logits: torch.Tensor = end.value
            return logits

    def _serve(self) -> Generator[bytes, memoryview, torch.Tensor]:
        ring, graph = self._plan.ring, self._graph
        values: dict[int, torch.Tensor] = {}
        for number, node in enumerate(graph.nodes):
            shape = (self._plan.batch, *node.shape)
            given = [values[source] for source in node.inputs if source in values]
            if number in self._masked:
                m = self._products[number]
                p = yield from self._lane.receive(m.numel() * ring.item_bytes)
                values[number] = m + ring.from_bytes(p, shape)
            elif node.op == "relu":
                own = yield from self._half.relu(self._units[number][0], given[0])
                b = ring.words(self._wires[number])
                self._lane.send(own - b)
            elif node.op == "max":
                values[number] = yield from self._half.maximum(node, self._units[number], given[0])
            elif not graph.is_wire(number):
                values[number] = (
                    given[0] + given[1] if node.op == "add" else apply_shape(node, given[0])
                )
        return values[len(graph.nodes) - 1]

    def _dealt(self, unit: Unit) -> Dealt:
        data = self._dealing.pop((unit.node, unit.step))
        cut = self._plan.backend.dealt_bytes(unit.count)
        share = self._plan.backend.serving(self._sq, unit.node, unit.step, unit.count, data[:cut])
        return share, cut_shares(self._plan, unit, data[cut:])

    def _mask(self, unit: Unit) -> Words:
        return remask(self._plan, self._sq, unit, "kappa")

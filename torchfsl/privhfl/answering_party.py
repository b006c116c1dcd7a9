"""P_A holds a network and answers queries, of which it sees only uniform values."""

from __future__ import annotations

from collections.abc import Generator

import torch

from torchfsl.errors import DecodeError, ParameterError, RejectedSubmission
from torchfsl.privhfl.dealer import answering_shares, remask, weight_masks
from torchfsl.privhfl.draws import LABEL_QA, Draws, Identity, Pair
from torchfsl.privhfl.graph import Graph
from torchfsl.privhfl.lane import Lane
from torchfsl.privhfl.linear_maps import apply_linear, apply_shape, lifted, with_bias
from torchfsl.privhfl.messages import Kind, Message, Topic, decode, encode
from torchfsl.privhfl.online import Dealt, Half, cut_shares
from torchfsl.privhfl.plan import MAX_OPEN_BATCHES, QueryPlan, Unit
from torchfsl.privhfl.quantise import Quantised
from torchfsl.privhfl.ring_tensors import Words

_BatchName = tuple[int, int, int]
_Program = Generator[bytes, memoryview, bytes]


class AnsweringParty:
    """One client that answers.

    Args:
        plan: public.
        client: its number, one of the plan's.
        identity: its key.
        others: by querying client its public key.
        last_version: of the weights that this identity answered with under this plan, 0 to
            2**64 - 2; 0 where the identity or the plan's session is new. Which draws were made is
            kept in memory alone: who starts again with a kept identity names it, since masks of
            a version that serves twice show the server the weights.

    Raises:
        ParameterError: the client is not in the plan, or `last_version` is out of range.
    """

    def __init__(
        self,
        plan: QueryPlan,
        client: int,
        identity: Identity,
        others: dict[int, bytes],
        *,
        last_version: int,
    ) -> None:
        if client not in plan.graphs:
            raise ParameterError(
                f"client {client} is not in the plan: make the plan with the network of this client"
            )
        if not 0 <= last_version < (1 << 64) - 1:
            raise ParameterError(
                f"last_version is {last_version}: choose a whole number from 0 to 2**64 - 2"
            )
        self.plan, self.client = plan, client
        self.version = last_version
        self._network: Quantised | None = None
        self._qa = {
            q: Pair(identity.pair(LABEL_QA, key, plan.digest), q, client)
            for q, key in others.items()
        }
        self._offered: dict[int, tuple[int, list[bytes]]] = {}
        self._waiting: dict[_BatchName, dict[Kind, memoryview]] = {}
        self._running: dict[_BatchName, tuple[int, _Program]] = {}
        self._begun: set[_BatchName] = set()

    def __repr__(self) -> str:
        return f"AnsweringParty({self.client}, version {self.version})"

    def load(self, network: Quantised, version: int | None = None) -> None:
        """Answer with these weights from now on; other weights than before are a new version.

        Args:
            network: of the plan's graph.
            version: number of other weights, above the last one; the next one when None.

        Raises:
            ParameterError: they belong to another graph, batches are being answered, or the number
                is not above the last one.
        """
        if network.graph != self.plan.graphs[self.client]:
            raise ParameterError(
                "the layers of the network differ from those in the plan: make a new plan with "
                "this network"
            )
        if self._running or self._waiting:
            raise ParameterError(
                "the client still answers batches: call load() after these batches"
            )
        if self._network is not None and self._network.equals(network):
            return
        number = self.version + 1 if version is None else version
        if not self.version < number < 1 << 64:
            raise ParameterError(
                f"version is {number}, expected a number above the last version, {self.version}"
            )
        self._network, self.version = network, number

    def offer(self, querying: int) -> list[bytes]:
        """WEIGHTS to the server, the same ones until `confirm` says that READY has come."""
        if self._network is None:
            raise ParameterError("the client has not loaded a network: call load(network) first")
        version, message = self._offered.get(querying, (0, []))
        if version == self.version:
            return message
        ring, graph = self.plan.ring, self._network.graph
        masks = weight_masks(self.plan, graph, self._qa[querying].weights(self.version))
        masked = (ring.words(self._network.weights[i][0] + masks[i]) for i in graph.linears)
        topic, number = Topic(querying, self.client), self.version.to_bytes(8, "little")
        message = [encode(self.plan, Kind.WEIGHTS, topic, number, *masked)]
        self._offered[querying] = self.version, message
        return message

    def confirm(self, querying: int, version: int) -> None:
        """Offer this version no more: the querying client has READY of it."""
        if self._offered.get(querying, (0, []))[0] == version:
            self._offered[querying] = version, []

    def receive(self, data: bytes | memoryview) -> list[bytes]:
        """Take TREES, PRODUCTS, INPUT or SERVE; what it gives goes to the server.

        Raises:
            DecodeError: the bytes are malformed.
            RejectedSubmission: not for this client, out of turn, a batch that was answered, or one
                too many.
        """
        expected = (Kind.TREES, Kind.PRODUCTS, Kind.INPUT, Kind.SERVE)
        message = decode(self.plan, data, *expected)
        topic = message.topic
        if topic.answering != self.client or topic.querying not in self._offered:
            raise RejectedSubmission(
                "the message is for another client, or from an unknown querying client: "
                "check which client sent it"
            )
        name = (topic.querying, topic.iteration, topic.batch)
        if message.kind == Kind.SERVE:
            return self._go_on(name, message)
        parts = self._waiting.get(name, {})
        if message.kind in parts or name in self._begun:
            raise RejectedSubmission(f"{message.kind.name} of batch {topic.batch} arrived twice")
        is_open = sum(other[0] == topic.querying for other in (*self._waiting, *self._running))
        if not parts and is_open >= MAX_OPEN_BATCHES:
            raise RejectedSubmission(
                f"client {topic.querying} has the maximum of {is_open} open batches"
            )
        self._waiting[name] = {**parts, message.kind: message.body}
        needed = 3 if self.plan.backend.relayed else 2  # in any order
        return self._start(name) if len(self._waiting[name]) == needed else []

    def _start(self, name: _BatchName) -> list[bytes]:
        parts = self._waiting.pop(name)
        self._begun.add(name)
        querying, iteration, batch = name
        qa = self._qa[querying].batch(self.version, iteration, batch)
        assert self._network is not None
        run = _Answer(self.plan, self._network, qa, parts)
        return self._advance(name, 0, run.program(), None)

    def _go_on(self, name: _BatchName, message: Message) -> list[bytes]:
        step, program = self._running.get(name, (-1, None))
        if program is None or message.topic.step != step + 1:
            raise RejectedSubmission("SERVE arrived out of order")
        return self._advance(name, step + 2, program, message.body)

    def _advance(
        self, name: _BatchName, step: int, program: _Program, body: memoryview | None
    ) -> list[bytes]:
        """Let the program run until it waits or ends; what it says then."""
        try:
            result = next(program) if body is None else program.send(body)
            self._running[name] = step, program
        except StopIteration as end:
            result = end.value
            self._running.pop(name, None)
        except DecodeError:
            self._running.pop(name, None)
            raise
        topic = Topic(name[0], self.client, name[1], name[2], step)
        return [encode(self.plan, Kind.ANSWER, topic, result)]

    def abandon(self, querying: int, iteration: int, batch: int) -> None:
        """Drop a batch that the server closed, and refuse its messages from now on."""
        self._waiting.pop((querying, iteration, batch), None)
        self._running.pop((querying, iteration, batch), None)
        self._begun.add((querying, iteration, batch))

    def open_batches(self, querying: int) -> list[tuple[int, int]]:
        """Iteration and batch of what this party holds of a querying client."""
        return [name[1:] for name in (*self._waiting, *self._running) if name[0] == querying]


class _Answer:
    """One batch: P_A's values, masked by b on wires, public to S and P_A on products."""

    def __init__(
        self, plan: QueryPlan, network: Quantised, qa: Draws, parts: dict[Kind, memoryview]
    ) -> None:
        self._plan, self._network, self._qa, self._parts = plan, network, qa, parts
        self._graph: Graph = network.graph
        self._products = parts[Kind.PRODUCTS]
        self._trees = parts.get(Kind.TREES, memoryview(b""))
        self._lane = Lane()
        self._half = Half(plan, self._lane, leading=True, dealt=self._dealt, mask=self._mask)
        self._units: dict[int, list[Unit]] = {}
        for unit in plan.units(self._graph):
            self._units.setdefault(unit.node, []).append(unit)

    def program(self) -> Generator[bytes, memoryview, bytes]:
        """The online phase; its value is the last message, the masked logits."""
        ring, values = self._plan.ring, list[torch.Tensor]()
        for number, node in enumerate(self._graph.nodes):
            shape = (self._plan.batch, *node.shape)
            given = [values[source] for source in node.inputs]
            if node.op == "input":
                came = ring.from_bytes(self._parts[Kind.INPUT], shape)
                values.append(came + ring.uniform(self._qa.key(number, "input"), shape))
            elif number in self._network.weights:
                values.append(self._linear(number, given, shape))
            elif node.op == "add":
                values.append(given[0] + given[1])
            elif node.op == "relu":
                unit = self._units[number][0]
                own = yield from self._half.relu(unit, given[0])
                other = yield from self._lane.receive(own.nbytes)
                values.append(ring.tensor(own, shape) + ring.from_bytes(other, shape))
            elif node.op == "max":
                values.append((yield from self._half.maximum(node, self._units[number], given[0])))
            else:
                values.append(apply_shape(node, given[0]))
        return self._lane.flush()

    def _linear(
        self, number: int, given: list[torch.Tensor], shape: tuple[int, ...]
    ) -> torch.Tensor:
        """Send p = w * xh + bias + rho to S; c = p + m."""
        ring, node = self._plan.ring, self._graph.nodes[number]
        weight, bias = self._network.weights[number]
        p = apply_linear(node, weight, given[0]) + with_bias(node, bias)
        if len(given) > 1:
            p += lifted(ring, given[1])
        p += ring.uniform(self._qa.key(number, "rho"), shape)
        self._lane.send(ring.words(p))
        if number == self._graph.linears[-1]:
            return p
        size = p.numel() * ring.item_bytes
        m, self._products = self._products[:size], self._products[size:]
        return p + ring.from_bytes(m, shape)

    def _dealt(self, unit: Unit) -> Dealt:
        backend = self._plan.backend
        size = backend.dealt_bytes(unit.count) if backend.relayed else 0
        relayed, self._trees = self._trees[:size], self._trees[size:]
        share = backend.answering(self._qa, unit.node, unit.step, unit.count, relayed)
        return share, cut_shares(self._plan, unit, answering_shares(self._plan, self._qa, unit))

    def _mask(self, unit: Unit) -> Words:
        return remask(self._plan, self._qa, unit, "rho")

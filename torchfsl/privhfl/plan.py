"""What all parties of a querying phase agree on, and the length of every message under it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Final, Literal

from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import ParameterError
from torchfsl.privhfl.comparison_tables import Tables
from torchfsl.privhfl.comparison_trees import Trees
from torchfsl.privhfl.gates import MAX_SHARES, RELU_SHARES, Comparison
from torchfsl.privhfl.graph import Graph, max_levels
from torchfsl.privhfl.ring_tensors import Ring
from torchfsl.submodel.framing import HEADER_BYTES

WIRE_VERSION: Final = 1
MAX_CLIENTS: Final = 64
MAX_DEALING_BYTES: Final = 1 << 28
"""Of one message DEALING."""
MAX_DEALING_PARTS: Final = 8
"""Messages DEALING of one batch and answering client, with `tables`; `trees` have one."""
MAX_OPEN_BATCHES: Final = 8
"""Batches that a querying client may have dealt for and not seen closed."""

Back = Literal["tables", "trees"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One batch of comparisons: of a ReLU, or of one level of a maximum.

    Attributes:
        node: whose.
        step: tells a maximum's levels apart.
        count: comparisons.
        shares: ring elements that the dealer shares for each.
    """

    node: int
    step: str
    count: int
    shares: int


@dataclass(frozen=True)
class QueryPlan:
    """The public plan. Equal plans have equal digests, and every message carries the digest.

    Args:
        graphs: by client what its network computes; of everybody who may answer.
        batch: queries that are answered together, 1 or more.
        ring: ring and fixed point.
        comparison: `tables` (fewest bytes) or `trees` (fewest round trips).
        max_answering: most clients whose logits are added up.
        min_answering: fewest; with one, the querying party reads that client's logits.
        logit_bound: magnitude that no sum of logits divided by `max_answering` may reach.
        session: tells tasks apart: keys of one do not work in another. Drawn by default, so that no
            run uses masks of another one again. The same text twice is for experiments alone.

    Raises:
        ParameterError: a field is out of range, or graphs do not fit together.
    """

    graphs: dict[int, Graph]
    batch: int = 16
    ring: Ring = field(default_factory=Ring)
    comparison: Back = "tables"
    max_answering: int = 8
    min_answering: int = 2
    logit_bound: float = 128.0
    session: str = field(default_factory=lambda: random_bytes(16).hex())

    def __post_init__(self) -> None:
        if not self.graphs or len(self.graphs) > MAX_CLIENTS:
            raise ParameterError(
                f"the plan has {len(self.graphs)} clients: choose 1 to {MAX_CLIENTS} clients"
            )
        if any(type(client) is not int or not 0 <= client < 1 << 16 for client in self.graphs):
            raise ParameterError(
                f"the client numbers are {list(self.graphs)[:3]}, expected whole numbers from 0 "
                "to 65535: number the clients"
            )
        ends = {(graph.nodes[0].shape, graph.num_classes) for graph in self.graphs.values()}
        if len(ends) != 1:
            raise ParameterError(
                "expected networks with one input shape and one number of logits, got "
                f"{', '.join(f'{shape} and {logits}' for shape, logits in sorted(ends))}: make all "
                "networks for the same inputs and classes"
            )
        if not 1 <= self.min_answering <= self.max_answering <= MAX_CLIENTS:
            raise ParameterError(
                f"min_answering is {self.min_answering} and max_answering is {self.max_answering}: "
                f"choose 1 <= min_answering <= max_answering <= {MAX_CLIENTS}"
            )
        if self.comparison not in ("tables", "trees"):
            raise ParameterError(f"comparison is {self.comparison!r}: choose 'tables' or 'trees'")
        if not (0 < self.logit_bound < math.inf):
            raise ParameterError(f"logit_bound is {self.logit_bound}: choose a number above 0")
        self.backend  # noqa: B018 -- refuses lengths that it cannot compare
        if not self.session:
            raise ParameterError("session is empty: leave out session=, for a random session")
        if self.batch < 1:
            raise ParameterError(f"batch is {self.batch}: choose 1 query or more")
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Refuse batches and networks whose dealing messages are too large."""
        for graph in self.graphs.values():
            size = self.dealing_bytes(graph)
            most = MAX_DEALING_BYTES * (1 if self.backend.relayed else MAX_DEALING_PARTS)
            if size > most:
                fits = self.batch * most // size
                raise ParameterError(
                    f"dealing for a batch of {self.batch} takes {size} bytes, more than {most}: "
                    f"use batch={fits}"
                    if fits
                    else f"dealing for one query takes {size} bytes, more than {most}: use a "
                    "smaller network"
                )

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON, 32 bytes."""
        fields = {
            "wire": WIRE_VERSION,
            "session": self.session,
            "graphs": {str(client): self.graphs[client].canonical() for client in self.clients},
            "batch": self.batch,
            "ring": [self.ring.bits, self.ring.frac_bits, self.ring.weight_frac_bits],
            "comparison": self.comparison,
            "answering": [self.min_answering, self.max_answering],
            "logit_bound": self.logit_bound,
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, QueryPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    @functools.cached_property
    def clients(self) -> tuple[int, ...]:
        """Who may answer, in order; a client's place is its bit in a set of clients."""
        return tuple(sorted(self.graphs))

    @functools.cached_property
    def backend(self) -> Comparison:
        """The way to compare."""
        bits = self.ring.compare_bits
        return Tables(bits) if self.comparison == "tables" else Trees(bits)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one query."""
        return self.graphs[self.clients[0]].nodes[0].shape

    @property
    def num_classes(self) -> int:
        """Logits of one query."""
        return self.graphs[self.clients[0]].num_classes

    @property
    def output_scale(self) -> float:
        """Factor of each party's logits under which the sum of all stays below the limit."""
        return self.ring.limit / (self.max_answering * self.logit_bound)

    def units(self, graph: Graph) -> list[Unit]:
        """Comparisons of a batch through `graph`, in the order in which they are made."""
        units = []
        for number, node in enumerate(graph.nodes):
            values = self.batch * node.numel
            if node.op == "relu":
                units.append(Unit(number, "0", values, RELU_SHARES))
            elif node.op == "max":
                units += [
                    Unit(number, str(level), pairs * values, MAX_SHARES)
                    for level, (pairs, _) in enumerate(max_levels(node))
                ]
        return units

    def explain(self) -> str:
        """The plan in words: who answers, and what one batch costs with each of them."""
        return explain(self)

    # --- lengths of bodies ------------------------------------------------------------------------

    def weights_bytes(self, graph: Graph) -> int:
        """Bytes of the masked weights of `graph`, with their version."""
        return 8 + self.ring.item_bytes * graph.num_weights

    def share_bytes(self, unit: Unit) -> int:
        """Bytes of the ring elements that the dealer shares for a unit."""
        return unit.shares * unit.count * self.ring.item_bytes

    def dealing_bytes(self, graph: Graph) -> int:
        """Bytes that the dealer sends the server for a batch through `graph`."""
        return sum(
            self.backend.dealt_bytes(unit.count) + self.share_bytes(unit)
            for unit in self.units(graph)
        )

    def dealing_parts(self, graph: Graph) -> list[int]:
        """Bytes of the messages in which the dealer sends `dealing_bytes` of `graph`, in order."""
        whole, rest = divmod(self.dealing_bytes(graph), MAX_DEALING_BYTES)
        return [MAX_DEALING_BYTES] * whole + [rest] * (rest > 0 or not whole)

    def relayed_bytes(self, graph: Graph) -> int:
        """Bytes of `dealing_bytes` of `graph` that the server passes on."""
        if not self.backend.relayed:
            return 0
        return sum(self.backend.dealt_bytes(unit.count) for unit in self.units(graph))

    def products_bytes(self, graph: Graph) -> int:
        """Bytes of the server's masked products in `graph`, for a batch."""
        values = sum(graph.nodes[i].numel for i in graph.linears[:-1])
        return self.ring.item_bytes * self.batch * values

    def query_bytes(self) -> int:
        """Bytes of a share of a batch of queries."""
        return self.ring.item_bytes * self.batch * math.prod(self.input_shape)

    def sum_bytes(self) -> int:
        """Bytes of the sum of logits of a batch."""
        return self.ring.item_bytes * self.batch * self.num_classes

    def steps(self, client: int) -> list[int]:
        """Lengths of the messages of the online phase, P_A's first, then in turns.

        Raises:
            ParameterError: the client is not in the plan.
        """
        self.graph_of(client)
        return self._steps[client]

    def graph_of(self, client: int) -> Graph:
        """The graph of a client's network.

        Raises:
            ParameterError: the client is not in the plan.
        """
        if client not in self.graphs:
            raise ParameterError(
                f"the client is {client!r}, expected one of the plan's clients "
                f"{list(self.clients)}: make the plan with the network of this client",
                code="unknown-client",
            )
        return self.graphs[client]

    @functools.cached_property
    def _steps(self) -> dict[int, list[int]]:
        return {client: _turns(*_programs(self, g)) for client, g in self.graphs.items()}

    def phase_bytes(self, client: int) -> dict[str, int]:
        """Bytes by phase that one batch with one answering client takes, headers included.

        `setup` is once a version of its weights and querying party; the sum of logits, one message
        for all answering clients, is not in it.

        Raises:
            ParameterError: the client is not in the plan.
        """
        graph, head = self.graph_of(client), HEADER_BYTES
        offline = (1 + len(self.dealing_parts(graph))) * head
        offline += self.dealing_bytes(graph) + self.products_bytes(graph)
        if self.backend.relayed:
            offline += head + self.relayed_bytes(graph)
        return {
            "setup": 2 * head + self.weights_bytes(graph) + 8,
            "offline": offline,
            "online": 2 * (head + self.query_bytes())
            + sum(head + size for size in self.steps(client)),
        }


def _programs(plan: QueryPlan, graph: Graph) -> tuple[list[int], list[int]]:
    """What P_A and S do in order: bytes sent, or, negative, bytes waited for."""
    answering: list[int] = []
    serving: list[int] = []
    units = {(unit.node, unit.step): unit for unit in plan.units(graph)}
    for number, node in enumerate(graph.nodes):
        size = plan.ring.item_bytes * plan.batch * node.numel
        if number in graph.linears:
            answering.append(size)
            serving.append(-size)
        for unit in (u for key, u in units.items() if key[0] == number):
            for part in plan.backend.traffic(unit.count):
                answering += (part, -part)
                serving += (part, -part)
            size = plan.ring.item_bytes * unit.count
            answering += (-size,) if node.op == "relu" else (size, -size)
            serving += (size,) if node.op == "relu" else (size, -size)
    return answering, serving


def _turns(first: list[int], second: list[int]) -> list[int]:
    """Lengths of messages when each party sends what it has whenever it must wait."""
    programs = [list(reversed(first)), list(reversed(second))]
    waiting = [0, 0]  # bytes that lie before each party
    lengths: list[int] = []
    turn = 0
    while any(programs):
        size = 0
        todo = programs[turn]
        while todo and (todo[-1] >= 0 or waiting[turn] > 0):
            step = todo.pop()
            if step >= 0:
                size += step
            else:
                waiting[turn] += step
                assert waiting[turn] >= 0
        if size:
            lengths.append(size)
        waiting[1 - turn] += size
        turn = 1 - turn
    return lengths


def explain(plan: QueryPlan) -> str:
    """Some lines about a plan, computed from it and not measured."""
    ring = plan.ring
    lines = [
        f"private queries, plan {plan.digest.hex()[:16]}",
        f"  batches of {plan.batch} inputs {list(plan.input_shape)}, {plan.num_classes} logits; "
        f"{plan.min_answering} to {plan.max_answering} of {len(plan.clients)} clients answer",
        f"  ring of {ring.bits} bits, {ring.frac_bits} after the point ({ring.weight_frac_bits} of "
        f"weights); sums of logits below {plan.max_answering} x {plan.logit_bound:g}",
        f"  comparison of {ring.compare_bits} bits by {plan.comparison}",
        "  client   weights  compares a query   offline MB   online MB   set-up MB   round trips",
    ]
    for client in plan.clients:
        graph, sizes = plan.graphs[client], plan.phase_bytes(client)
        compares = sum(unit.count for unit in plan.units(graph)) // plan.batch
        lines.append(
            f"  {client:6} {graph.num_weights:9} {compares:17} "
            f"{sizes['offline'] / plan.batch / 1e6:12.3f} "
            f"{sizes['online'] / plan.batch / 1e6:11.3f} "
            f"{sizes['setup'] / 1e6:11.3f} {len(plan.steps(client)) // 2 + 1:13}"
        )
    lines += [
        "  offline and online: a query, over all links; set-up: once for each querying client and",
        f"  version of the weights; the sum of logits: {64 + plan.sum_bytes()} bytes a batch.",
    ]
    if plan.min_answering < 2:
        lines.append("  min_answering is 1: whoever asks one client alone reads its logits")
    return "\n".join(lines)

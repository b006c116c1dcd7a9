"""Private queries in one process: every party of a plan, through encoded messages.

A federation makes a plan from its networks (`make_plan`), and a `Querying` from the plan. Then it
loads weights and asks, as often as it likes:

    plan = make_plan({client: module, ...}, (3, 32, 32), max_answering=4)
    querying = Querying(plan)
    for client, module in modules.items():
        querying.load(client, module, own_images)
    answer = querying.ask(0, [1, 2, 3], images, iteration=0)
    answer.logits   # sum over clients 1, 2, 3; no other party saw the images or any single answer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torchfsl.crypto import kdf
from torchfsl.errors import ParameterError, ProtocolError, expect_a, whole_numbers
from torchfsl.privhfl.answering_party import AnsweringParty
from torchfsl.privhfl.draws import KEY_BYTES, LABEL_OWN, Identity
from torchfsl.privhfl.integer_twin import run_twin
from torchfsl.privhfl.network import read_network
from torchfsl.privhfl.plan import QueryPlan
from torchfsl.privhfl.quantise import SPARE, Quantised, quantise
from torchfsl.privhfl.query_server import QueryServer
from torchfsl.privhfl.querying_party import QueryingParty
from torchfsl.privhfl.relay import Cost, Relay

Mode = Literal["fixed", "secure"]
Pictures = torch.Tensor | npt.NDArray[Any]
_Batch = tuple[int, int]
"""Iteration, and number in it."""

_OFFERS: Final = 3
"""How often a client sends its weights in one question, before it counts as silent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that the querying party gets, and its cost.

    Attributes:
        logits: `[M, classes]` float64, the sum over those who answered.
        answered: by batch of the plan's size who is in its sums.
        cost: bytes by link and phase, processor seconds by party.
    """

    logits: torch.Tensor
    answered: tuple[tuple[int, ...], ...]
    cost: Cost


def make_plan(
    modules: Mapping[int, nn.Module], input_shape: tuple[int, ...], **fields: Any
) -> QueryPlan:
    """The plan of clients with these modules.

    Every plan has a fresh session from the operating system: parties share one plan.

    Args:
        modules: by client number, the module that it answers with.
        input_shape: of one input, without the batch.
        **fields: the other fields of `QueryPlan`.

    Raises:
        ParameterError: if a module holds what the protocol lacks, or fields do not fit.
    """
    graphs = {c: read_network(module, input_shape).graph for c, module in modules.items()}
    return QueryPlan(graphs, **fields)


class Querying:
    """All parties of a plan: each client asks and, where the plan names it, answers.

    Args:
        plan: public.
        mode: `secure`, the protocol; or `fixed`, the same numbers without protection.
        seed: makes keys repeatable and, under a plan whose `session` is given, dealt masks: for
            experiments alone, since a second run draws the same masks again. From the operating
            system when None.
        dithers: whether `fixed` rounds as `secure` does under the same seed, which takes the
            dealer's work; without, it rounds down.
        lose: see `Relay`; whoever loses messages is left out of the sum.
        watch: see `Relay`.

    Raises:
        ParameterError: an unknown mode.
    """

    def __init__(
        self,
        plan: QueryPlan,
        *,
        mode: Mode = "secure",
        seed: bytes | None = None,
        dithers: bool = True,
        lose: Callable[[int, bytes], bool] | None = None,
        watch: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        if mode not in ("fixed", "secure"):
            raise ParameterError(f"mode is {mode!r}: choose 'fixed' or 'secure'")
        self.plan, self.mode = plan, mode
        self._seed, self._dithers, self._lose, self._watch = seed, dithers, lose, watch
        self._identities: dict[int, Identity] = {}
        self._asking: dict[int, QueryingParty] = {}
        self._networks: dict[int, Quantised] = {}
        self._largest: dict[int, float] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._spent: set[tuple[int, int, int]] = set()
        clients = {client: self._identity(client) for client in plan.clients}
        own = Identity(self._secret(b"server"))
        publics = {client: identity.public for client, identity in clients.items()}
        self.server = QueryServer(plan, own, publics)
        self.answering = {
            c: AnsweringParty(plan, c, i, publics, last_version=0) for c, i in clients.items()
        }
        self._publics, self._server_public = publics, own.public

    def __repr__(self) -> str:
        return f"Querying({self.mode}, {len(self.plan.clients)} clients)"

    def load(
        self, client: int, module: nn.Module, samples: Pictures, version: int | None = None
    ) -> None:
        """Let a client answer with a module's weights.

        Args:
            client: one of the plan's.
            module: of the plan's graph.
            samples: `[M, C, H, W]` of the client's own data, a tensor or a NumPy array, for the
                ranges of activations.
            version: see `AnsweringParty.load`; a run that is resumed names it.

        Raises:
            ParameterError: unknown client, another graph, or values that do not fit the ring.
        """
        self.plan.graph_of(client)
        samples = self._pictures("samples", samples)
        network = read_network(module, self.plan.input_shape)
        limits = {"output_scale": self.plan.output_scale, "logit_bound": self.plan.logit_bound}
        whole = quantise(network, self.plan.ring, samples, **limits)
        self.load_quantised(client, whole, version)
        self._largest[client] = float(samples.abs().max())

    def load_quantised(self, client: int, network: Quantised, version: int | None = None) -> None:
        """`load` of weights that are ring elements already; the range of the samples stays.

        Args:
            client: one of the plan's.
            network: its weights, as ring elements.
            version: see `load`.

        Raises:
            ParameterError: if the client is unknown, or the graph is another one.
        """
        self.plan.graph_of(client)
        self.answering[client].load(network, version)
        self._networks[client] = network

    def ask(
        self, querying: int, answering: Sequence[int], images: Pictures, iteration: int = 0
    ) -> Answer:
        """The sums of the answering clients' logits for images of one client.

        Args:
            querying: who asks.
            answering: who answers; not the one who asks.
            images: `[M, C, H, W]` reals, a tensor or a NumPy array; cut into batches of the plan's
                size. At most `SPARE` = 4 times as large in magnitude as the samples with which this
                client loaded weights.
            iteration: of the learning, in [0, 2**16).

        Raises:
            ParameterError: who answers does not fit the plan, or has loaded nothing, or the images
                are larger.
            ProtocolError: fewer than the plan's least number have answered, or the sum got lost.
        """
        who = list(answering)
        self._check_parties(querying, who)
        if not 0 <= whole_numbers(iteration=iteration)[0] < 1 << 16:
            raise ParameterError(
                f"iteration is {iteration}: choose a whole number from 0 to 65535",
                code="out-of-range",
            )
        images = self._pictures("images", images)
        self._check_range(querying, images)
        asked = {c: self.answering[c] for c in who}
        asking = self._querying(querying)
        relay = Relay(self.server, asking, asked, lose=self._lose, watch=self._watch)
        who = self._ready(relay, querying, who)
        totals, answered, size = [], [], self.plan.batch
        for start in range(0, len(images), size):
            part = images[start : start + size]
            full = torch.cat([part, part.new_zeros(size - len(part), *part.shape[1:])])
            batch = self._next.get((querying, iteration), 0)
            while (querying, iteration, batch) in self._spent:
                batch += 1
            self._next[querying, iteration] = batch + 1
            run = self._fixed if self.mode == "fixed" else self._secure
            total, there = run(relay, querying, who, full, (iteration, batch))
            totals.append(self._asking[querying].logits(total)[: len(part)])
            answered.append(there)
        return Answer(torch.cat(totals), tuple(answered), relay.cost)

    def _check_parties(self, querying: int, who: list[int]) -> None:
        """Refuse clients that cannot ask or answer, each cause in a separate message."""
        for client in (querying, *who):
            self.plan.graph_of(client)
        if querying in who:
            raise ParameterError(
                f"client {querying} queries, but is also in answering = {who}: remove client "
                f"{querying} from answering",
                code="client-limits",
            )
        if silent := [client for client in who if client not in self._networks]:
            raise ParameterError(
                f"clients {silent} have loaded no weights: call load(client, module, samples) for "
                "each of them",
                code="weights-missing",
            )

    def _pictures(self, name: str, given: Pictures) -> torch.Tensor:
        """Pictures as a tensor of the plan's shape, on the CPU."""
        shape = self.plan.input_shape
        expect_a((torch.Tensor, np.ndarray), given, name, "pass a tensor [M, C, H, W]")
        images = torch.as_tensor(given).detach().cpu()
        if images.shape[1:] != shape or not len(images) or images.is_complex():
            raise ParameterError(
                f"{name} has shape {tuple(images.shape)}, expected (M, {str(shape)[1:]} with real "
                "numbers, for M of 1 or more images: for one image, pass image[None]",
                code="wrong-shape",
            )
        return images if images.is_floating_point() else images.float()

    def _check_range(self, querying: int, images: torch.Tensor) -> None:
        """Refuse images that the ring holds and that products of it may not hold."""
        most, largest = SPARE * self._largest.get(querying, math.inf), float(images.abs().max())
        if not largest <= most:
            raise ParameterError(
                f"an image has a value of {largest:.3g}, expected at most {most:.3g}, which is "
                f"{SPARE:g} times the largest sample of client {querying}: scale the images like "
                "the samples of load()"
            )

    def _ready(self, relay: Relay, querying: int, who: list[int]) -> list[int]:
        """Those whose weights are at the server; the others offered them `_OFFERS` times.

        Raises:
            ProtocolError: they are fewer than the plan's least number.
        """
        asking = self._querying(querying)
        for client in who:
            party = self.answering[client]
            for _ in range(_OFFERS):
                with relay.cost.at("answering"):
                    offered = party.offer(querying)
                relay.to_server("answering-server", client, offered)
                party.confirm(querying, asking.version(client))
        ready = [a for a in who if asking.version(a) == self.answering[a].version]
        if len(ready) < min(len(who), self.plan.min_answering):
            raise ProtocolError(
                f"of the clients {who}, only {ready} sent weights to the server, but the plan "
                f"needs {self.plan.min_answering} clients: query again, or query more clients"
            )
        return ready

    def _secure(
        self, relay: Relay, querying: int, who: list[int], images: torch.Tensor, name: _Batch
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        asking, (iteration, batch) = self._asking[querying], name
        try:
            with relay.cost.at("querying"):
                dealt = asking.deal(iteration, batch, who)
            relay.to_server("querying-server", querying, dealt)
            del dealt
            with relay.cost.at("querying"):
                queries = asking.query(iteration, batch, images)
            relay.to_server("querying-server", querying, queries)
            relay.close(iteration, batch)
        finally:
            relay.abandon(iteration, batch)
            self._drop_strays(relay, querying)
        if (iteration, batch) not in asking.opened:
            raise ProtocolError(f"the sum of batch {batch} did not arrive: query again")
        return asking.opened.pop((iteration, batch))

    def _drop_strays(self, relay: Relay, querying: int) -> None:
        """Drop what parties took for other batches of this client, which asks one at a time."""
        parties: list[QueryServer | AnsweringParty] = [self.server, *self.answering.values()]
        for stray in {name for party in parties for name in party.open_batches(querying)}:
            relay.abandon(*stray)
            self._spent.add((querying, *stray))

    def _fixed(
        self, relay: Relay, querying: int, who: list[int], images: torch.Tensor, name: _Batch
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        ring, asking, (iteration, batch) = self.plan.ring, self._asking[querying], name
        whole = ring.encode(images, ring.frac_bits)
        total = torch.zeros(len(images), self.plan.num_classes, dtype=ring.dtype)
        dithers = {}
        if self._dithers:
            with relay.cost.at("querying"):
                asking.deal(iteration, batch, who)
            dithers = asking.dithers(iteration, batch)
            asking.forget(iteration, batch)
        for client in who:
            with relay.cost.at("answering"):
                total += run_twin(self._networks[client], ring, whole, dithers.get(client))
        return total, tuple(who)

    def _querying(self, client: int) -> QueryingParty:
        if client not in self._asking:
            others = {c: key for c, key in self._publics.items() if c != client}
            self._asking[client] = QueryingParty(
                self.plan, client, self._identities[client], self._server_public, others
            )
        return self._asking[client]

    def _identity(self, client: int) -> Identity:
        identity = Identity(self._secret(client.to_bytes(8, "little")))
        self._identities[client] = identity
        return identity

    def _secret(self, who: bytes) -> bytes | None:
        if self._seed is None:
            return None
        return kdf.derive(self._seed, LABEL_OWN, who, KEY_BYTES)

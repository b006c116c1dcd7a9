"""The querying protocol as PrivHFL published it, for measurement and attack. It gives models away.

In its DReLU (the paper's figure 4) the querying party P_Q receives z = r y for every hidden value
y, with r > 0 random and known to P_A and S. Theorem 3 of the paper takes z for uniform. It is not:
z = 0 iff y = 0, z has the sign of y, and y divides z. The gcd of several maskings of one y is |y|
most of the time, and from a few hundred exact values of a layer on known inputs its weights follow
by linear algebra (`published_relu`). A random sign of r (`signed_r`) hides signs and nothing else.

If the paper is silent or wrong, as little as possible is added:

* Truncation is not specified; here by the dealer's pairs, exactly: P_A and S open y + r for a
  uniform r of which P_Q deals shares of r, r >> f and the top bit.
* r "random in the ring" would wrap: the sign survives only while |y| r < 2**63. With 40 fractional
  bits and |y| < 2**a that is r < 2**(23 - a).
* The product in ReLU is of two shared values, which the paper's Matmul does not cover: a full
  multiplication triple of P_Q's.

All parties are in one process; every value that crosses a link is counted on each link that it
crosses (from P_A to P_Q: by way of S), without headers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import ParameterError
from torchfsl.privhfl.graph import Node, max_levels
from torchfsl.privhfl.linear_maps import apply_linear, apply_shape, lifted, windows, with_bias
from torchfsl.privhfl.network import read_network
from torchfsl.privhfl.plan import QueryPlan
from torchfsl.privhfl.quantise import SPARE, Quantised, quantise
from torchfsl.privhfl.querying import Answer
from torchfsl.privhfl.relay import Cost
from torchfsl.privhfl.ring_tensors import Ring

log = logging.getLogger("torchfsl.privhfl")

Shares = tuple[torch.Tensor, torch.Tensor]
"""P_A's and S's share."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What P_Q received in one DReLU: z = r y, by node and by level of a maximum."""

    node: int
    step: str
    z: torch.Tensor


class PublishedQuerying:
    """Queries by the paper's protocol; `load` and `ask` are those of `Querying`.

    Args:
        plan: with the paper's ring, `Ring(64, 20, 20)`.
        leaky_on_purpose: must be True: whoever asks learns the answering clients' weights.
        magnitude_bits: a, where hidden values stay below 2**a in magnitude; masks r are drawn from
            [1, 2**(23 - a)).
        signed_r: gives r a random sign.

    Raises:
        ParameterError: not on purpose, another ring, or a outside [1, 20].
    """

    def __init__(
        self,
        plan: QueryPlan,
        *,
        leaky_on_purpose: bool = False,
        magnitude_bits: int = 4,
        signed_r: bool = False,
    ) -> None:
        if not leaky_on_purpose:
            raise ParameterError(
                "the published protocol reveals weights to the querying party: use mode='secure', "
                "or pass leaky_on_purpose=True to measure or attack the protocol"
            )
        if plan.ring != Ring(64, 20, 20) or not 1 <= magnitude_bits <= 20:
            raise ParameterError(
                "the published protocol needs Ring(64, 20, 20) and magnitude_bits in 1..20"
            )
        log.warning("published protocol: hidden values and weights leak to the querying party")
        self.plan, self.magnitude_bits, self.signed_r = plan, magnitude_bits, signed_r
        self.networks: dict[int, Quantised] = {}
        self.seen: list[Seen] = []

    def load(self, client: int, module: nn.Module, samples: torch.Tensor) -> None:
        """Let a client answer with a module's weights."""
        self.networks[client] = quantise(
            read_network(module, self.plan.input_shape),
            self.plan.ring,
            samples.cpu(),
            largest=2.0**self.magnitude_bits / SPARE,
        )

    def ask(
        self, querying: int, answering: Sequence[int], images: torch.Tensor, iteration: int = 0
    ) -> Answer:
        """Sums of logits, and what it took; `seen` holds what P_Q saw of the last call."""
        ring, cost = self.plan.ring, Cost()
        self.seen.clear()
        totals = []
        for part in torch.split(images.cpu(), self.plan.batch):
            whole = ring.encode(part, ring.frac_bits)
            total = torch.zeros(len(part), self.plan.num_classes, dtype=ring.dtype)
            for client in answering:
                run = _Prediction(self, self.networks[client], cost)
                total += run.predict(whole)
            cost.sent["server-querying", "online"] += total.nbytes
            totals.append(ring.decode(total, ring.product_bits))
        batches = math.ceil(len(images) / self.plan.batch)
        return Answer(torch.cat(totals), (tuple(answering),) * batches, cost)


class _Prediction:
    """One batch with one answering party."""

    def __init__(self, querying: PublishedQuerying, network: Quantised, cost: Cost) -> None:
        self._network, self._cost, self._ring = network, cost, querying.plan.ring
        self._seen = querying.seen
        self._r_bits = 23 - querying.magnitude_bits
        self._signed = querying.signed_r

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Logits with 2 f fractional bits; by Agg only their sum reaches P_Q."""
        values: list[Shares] = []
        graph = self._network.graph
        for number, node in enumerate(graph.nodes):
            given = [values[source] for source in node.inputs]
            if node.op == "input":
                values.append(self._share(x, "online"))
            elif number in self._network.weights:
                values.append(self._matmul(number, node, given))
            elif node.op == "add":
                values.append((given[0][0] + given[1][0], given[0][1] + given[1][1]))
            elif node.op == "relu":
                values.append(self._truncate(self._relu(number, "0", given[0])))
            elif node.op == "max":
                values.append(self._maximum(number, node, given[0]))
            else:
                values.append((apply_shape(node, given[0][0]), apply_shape(node, given[0][1])))
        self._count("answering-server", "online", values[-1][0])
        return values[-1][0] + values[-1][1]

    def _share(self, x: torch.Tensor, phase: str) -> Shares:
        """Fig. 2, and every dealt value: P_A's share comes from the seed, S's is sent."""
        own = self._uniform(x.shape)
        self._count("querying-server", phase, x)
        return own, x - own

    def _matmul(self, number: int, node: Node, given: list[Shares]) -> Shares:
        """Fig. 3: w x_0 at P_A, and w x_1 with c = a b, for which S gets w + a and P_A x_1 - b."""
        weight, bias = self._network.weights[number]
        apply: Callable[..., torch.Tensor] = apply_linear
        (x0, x1), a = given[0], self._uniform(weight.shape)
        b = self._uniform(x1.shape)
        with self._cost.at("querying"):
            c0, c1 = self._share(apply(node, a, b), "offline")
        self._count("answering-server", "online", weight)
        self._count("server-answering", "online", x1)
        with self._cost.at("answering"):
            y0 = apply(node, weight, x0 + (x1 - b)) - c0 + with_bias(node, bias)
        with self._cost.at("server"):
            y1 = apply(node, weight + a, b) - c1
        if len(given) > 1:
            y0, y1 = y0 + lifted(self._ring, given[1][0]), y1 + lifted(self._ring, given[1][1])
        return y0, y1

    def _relu(self, number: int, step: str, y: Shares) -> Shares:
        """Fig. 4 for the sign, then a product of shared values."""
        shape = y[0].shape
        drawn = torch.from_numpy(kdf.stream(random_bytes(16), 8 * y[0].numel()).view("<i8"))
        r = (drawn & ((1 << self._r_bits) - 1)).clamp_min(1).reshape(shape)
        if self._signed:
            r = r * (1 - 2 * (drawn < 0).long().reshape(shape))
        for _ in ("answering-server", "server-querying"):  # r y_0 goes by way of S
            self._count(_, "online", y[0])
        self._count("server-querying", "online", y[1])
        with self._cost.at("querying"):
            z = r * y[0] + r * y[1]
            self._seen.append(Seen(number, step, z))
            d0, d1 = self._share((z >= 0).long(), "online")
        flipped = r < 0  # known to P_A and S
        d = torch.where(flipped, 1 - d0, d0), torch.where(flipped, -d1, d1)
        return self._multiply(y, d)

    def _multiply(self, x: Shares, y: Shares) -> Shares:
        """Of two shared values, with a triple a b = c of P_Q's; both sides open x - a and y - b."""
        with self._cost.at("querying"):
            a, b = self._uniform(x[0].shape), self._uniform(x[0].shape)
            c = self._share(a * b, "offline")
        for link in ("answering-server", "server-answering"):
            for _ in range(2):
                self._count(link, "online", x[0])
        e, f = x[0] + x[1] - a, y[0] + y[1] - b
        # x y = (e + a)(f + b); shares of a and b come from the pairs' seeds
        a0, b0 = self._uniform(a.shape), self._uniform(a.shape)
        with self._cost.at("answering"):
            left = e * f + e * b0 + f * a0 + c[0]
        with self._cost.at("server"):
            right = e * (b - b0) + f * (a - a0) + c[1]
        return left, right

    def _maximum(self, number: int, node: Node, y: Shares) -> Shares:
        """max(u, v) = ReLU(u - v) + v, in a tree."""
        cut = [windows(node, share) for share in y]
        values = [share.reshape(len(share), -1) for share in cut]
        for level, (pairs, _) in enumerate(max_levels(node)):
            u, v = ([s[i * pairs : (i + 1) * pairs] for s in values] for i in (0, 1))
            best = self._relu(number, str(level), (u[0] - v[0], u[1] - v[1]))
            values = [
                torch.cat([part + low, rest[2 * pairs :]])
                for part, low, rest in zip(best, v, values, strict=True)
            ]
        shape = (len(y[0]), *node.shape)
        return values[0].reshape(shape), values[1].reshape(shape)

    def _truncate(self, y: Shares) -> Shares:
        """The share without f bits, up to one unit; |y| < 2**(l - 2)."""
        ring = self._ring
        bits, shift, offset = ring.bits, ring.weight_frac_bits, 1 << (ring.bits - 2)
        keep = (1 << (bits - shift)) - 1
        r = self._uniform(y[0].shape)
        with self._cost.at("querying"):
            self._share(r, "offline")
            low = self._share((r >> shift) & keep, "offline")
            top = self._share((r < 0).long(), "offline")
        for link in ("answering-server", "server-answering"):
            self._count(link, "online", y[0])
        c = y[0] + y[1] + r + offset
        lost = (c >= 0).long() << (bits - shift)  # what a wrapped sum has too little
        left = ((c >> shift) & keep) - (offset >> shift) - low[0] + top[0] * lost
        return left, -low[1] + top[1] * lost

    def _uniform(self, shape: Sequence[int]) -> torch.Tensor:
        return self._ring.uniform(random_bytes(kdf.SEED_BYTES), tuple(shape))

    def _count(self, link: str, phase: str, values: torch.Tensor) -> None:
        self._cost.sent[link, phase] += values.nbytes
        self._cost.messages[link, phase] += 1

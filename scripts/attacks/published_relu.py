"""Asks one picture three times, and reads the first layer of the network that answers.

    python -m scripts.attacks.published_relu

The target is the protocol as published for private heterogeneous learning (`published`). Its DReLU
shows the asking party z = r y for every hidden value y, with random r > 0. If the party asks three
times, the gcd of a value's three maskings is its magnitude five times of six. The sign is not
hidden.

Outputs at known positions of a known picture are then linear equations in the layer's weights, some
of them wrong. Reweighted least squares finds the wrong equations, and the rest gives every weight
to the last bit. The asking party follows the protocol to the letter.

The defence is the protocol of torchfsl.privhfl (`secure`). There the asking party receives one sum
of masked logits per batch, and does not receive any z. A random sign of r is not a defence, because
it hides signs, and gcds remain. The program also prints this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from scripts.attacks.published import PublishedQuerying
from scripts.attacks.result import AttackResult
from scripts.program import Options, program
from torchfsl.privhfl import Querying, QueryPlan, Ring, make_plan
from torchfsl.privhfl.messages import Kind, kind_of

CHANNELS: Final = 16
SHAPE: Final = (3, 16, 16)
POSITIONS: Final = 200
MAGNITUDE_BITS: Final = 1  # r < 2**22
ASKER: Final = 0
VICTIM: Final = 1


@dataclass(frozen=True, slots=True)
class Found:
    """Findings of the asking party.

    Attributes:
        channels: channels of the first layer whose weights and bias it has to the last bit.
        gcds: by number of maskings, the share of values whose magnitude is their gcd.
        signs: share of values whose sign is that of z.
        messages: kinds of messages that the party received.
    """

    channels: int
    gcds: dict[int, float]
    signs: float
    messages: set[str]


def network() -> nn.Module:
    """A network with a first layer of 3 x 3 x 3 weights a channel."""
    torch.manual_seed(1)
    first = nn.Conv2d(3, CHANNELS, 3, padding=1)
    second = nn.Conv2d(CHANNELS, 4, 3, stride=4)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))


def plan(ring: Ring, batch: int) -> QueryPlan:
    """Of the asking party and its victim."""
    module = network()
    sizes = {"batch": batch, "min_answering": 1, "max_answering": 1}
    return make_plan({ASKER: module, VICTIM: module}, SHAPE, ring=ring, **sizes)


def attack_published(times: int = 3, signed_r: bool = False) -> Found:
    """Ask one picture a few times, by the published protocol; compare with the weights after."""
    ring = Ring(64, 20, 20)
    querying = PublishedQuerying(
        plan(ring, times), leaky_on_purpose=True, magnitude_bits=MAGNITUDE_BITS, signed_r=signed_r
    )
    samples = torch.rand(32, *SHAPE, generator=torch.Generator().manual_seed(2))
    querying.load(VICTIM, network(), samples)
    picture = samples[:1]
    querying.ask(ASKER, [VICTIM], picture.expand(times, *SHAPE))
    z = querying.seen[0].z.numpy()  # of the first ReLU: [times, channels, H, W]
    weight, bias = querying.networks[VICTIM].weights[1]
    whole = ring.encode(picture, ring.frac_bits)
    truth = torch.nn.functional.conv2d(whole, weight, bias, padding=1)[0].numpy()
    gcds = {
        n: float(np.mean(np.gcd.reduce(np.abs(z[:n]), axis=0) == np.abs(truth)))
        for n in range(2, times + 1)
    }
    found = extract(z, whole[0]) if not signed_r else {}
    right = sum(
        np.array_equal(found[c], np.append(weight[c].numpy().reshape(-1), int(bias[c])))
        for c in found
    )
    signs = float(np.mean(np.sign(z[0]) == np.sign(truth)))
    return Found(right, gcds, signs, {"z"})


def extract(z: np.ndarray, picture: torch.Tensor) -> dict[int, np.ndarray]:
    """By channel 27 weights and the bias as integers, from z and the asker's own picture alone."""
    patches = torch.nn.functional.pad(picture, (1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
    inputs = patches.permute(1, 2, 0, 3, 4).reshape(-1, 27).numpy().astype(np.float64)
    chosen = np.random.default_rng(0).permutation(len(inputs))[:POSITIONS]
    known = np.column_stack([inputs[chosen], np.full(POSITIONS, 2.0**20)])  # the bias: times 2**-20
    values = np.sign(z[0]) * np.gcd.reduce(np.abs(z), axis=0)
    found = {}
    for channel in range(z.shape[1]):
        outputs = values[channel].reshape(-1)[chosen].astype(np.float64)
        solution = robust(known, outputs)
        found[channel] = np.append(np.rint(solution[:27]), np.rint(solution[27] * 2.0**20)).astype(
            np.int64
        )
    return found


def robust(known: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The solution of most equations, where some are wrong by a factor of 2 or more."""
    trust = np.ones(len(outputs))
    solution = np.zeros(known.shape[1])
    for _ in range(60):  # towards the least sum of magnitudes of the errors
        solution = np.linalg.lstsq(known * trust[:, None], outputs * trust, rcond=None)[0]
        errors = np.abs(known @ solution - outputs)
        trust = 1 / np.sqrt(errors + 1e-6 * np.median(np.abs(outputs)))
    best = np.argsort(np.abs(known @ solution - outputs))[: len(outputs) // 2]
    return np.asarray(np.linalg.lstsq(known[best], outputs[best], rcond=None)[0])


def attack_secure(times: int = 3) -> Found:
    """The same party and questions by the protocol that the library uses."""
    received: set[str] = set()

    def watch(link: str, client: int, data: bytes) -> None:
        if link == "server-querying" and kind_of(data) != Kind.READY:
            received.add(kind_of(data).name)

    querying = Querying(plan(Ring(), times), watch=watch)
    samples = torch.rand(32, *SHAPE, generator=torch.Generator().manual_seed(2))
    querying.load(VICTIM, network(), samples)
    querying.ask(ASKER, [VICTIM], samples[:1].expand(times, *SHAPE))
    return Found(0, {}, math.nan, received)


def published_relu() -> AttackResult:
    """Off: the published protocol. On: `secure`."""
    off, on = attack_published(), attack_secure()
    return AttackResult(
        name="weights by the gcds of a masked ReLU",
        off=f"{off.channels} of {CHANNELS} channels of the first layer read to the last bit from "
        "one picture asked three times",
        on=f"the asking party receives {', '.join(sorted(on.messages))} alone: nothing to divide",
        worked_off=off.channels >= 14,
        worked_on=on.messages != {"SUM"},
        cost="another protocol: fewer bytes than the paper reports (docs/privhfl.md)",
    )


@program(finds=False)
def main(options: Options) -> int:
    """Print all; 1 where it is not as it must be."""
    off = attack_published(times=4)
    three, on, signed = attack_published(), attack_secure(), attack_published(signed_r=True)
    shares = ", ".join(f"n = {n}: {share:.3f}" for n, share in off.gcds.items())
    print(
        f"published: {three.channels} of {CHANNELS} channels read to the last bit (one picture, "
        f"three times, {POSITIONS} positions)"
    )
    print(f"published: gcd of n maskings is the value: {shares}; signs right: {off.signs:.3f}")
    print(
        f"published, r of random sign: signs right: {signed.signs:.3f}; gcd of 2 maskings: "
        f"{signed.gcds[2]:.3f}"
    )
    print(f"secure: the asking party received {sorted(on.messages)}: the attack has no input")
    as_it_must = three.channels >= 14 and on.messages == {"SUM"}
    as_it_must &= abs(signed.gcds[2] - 0.61) < 0.02 and abs(signed.signs - 0.5) < 0.05
    return 0 if as_it_must else 1

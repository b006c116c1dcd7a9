"""Simple distinguishers of dummies and of wrapped values, on one server's view of proofs.

    python -m scripts.attacks.distinguish_proofs [--reports 10000] [--json FILE]

A server sees its share of a proof's slack and field elements, carry trees and their hints. It also
sees its peer's message about the proof, and the sum of both verdicts. From each of these, the
program makes numbers: bits set, bytes that are zero, and bytes at both ends.

A rank-sum test compares reports of zeros with reports near the bound. It also compares reports in
which a value has wrapped with other reports. The tests must not find a difference (p > 1e-5 each,
of 88).

The program does not compare shares of slack by wraps. Together with the value, a share of slack
decides whether there is a wrap (near the end of its range), as it must. The share is uniform
whatever the value, and the label `full` tests this.

The distinguishers must find each planted fault (p < 1e-9):

    no masks            slack and elements travel as they are
    idle hints of zeros carry trees that correct nothing have hints of zeros
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import numpy as np

from scripts.attacks.distinguish import judged, rank_sum_p
from scripts.attacks.lies import TAU, plan_with
from scripts.parties import two_servers
from scripts.program import Found, Options, option, program
from torchfsl.crypto import field128
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import uploads
from torchfsl.fsl.client import proof
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import carries
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.messages import HEADER_BYTES
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Bytes, Float64, Whole

CLIENTS: Final = 4
"""In a round: as many as leave the sums in so small a ring, whatever they send."""
OURS_MIN_P, PLANTED_MAX_P = 1e-5, 1e-9

Views = dict[str, list[bytes]]


def plan_to_look_at() -> Plan:
    """A ring so small that one report in some ten has a wrap."""
    plan = plan_with("norm")
    encoding = FixedPoint(16, 0, 100.0)
    return dataclasses.replace(plan, encoding=encoding, l2_bound=4000, max_clients=CLIENTS)


def observe(party: int, rng: np.random.Generator) -> tuple[Views, list[bool], list[bool]]:
    """One round as `party` sees it: parts by report, which are full, which have a wrap."""
    plan, wrapped = plan_to_look_at(), list[bool]()
    statement = plan.statement
    assert statement is not None
    servers, grow = two_servers(plan), carries.grow  # with a planted fault, if there is one

    def noted(given: Any, context: Any, seeds: Any, found: Whole) -> Any:
        wrapped.append(bool(found.any()))
        return grow(given, context, seeds, found)

    begin_round(servers, 1)
    link, full = InProcess(*servers), list[bool]()
    with mock.patch.object(proof.carries, "grow", noted):  # type: ignore[attr-defined]
        for client in range(CLIENTS):
            one = Client(plan, link, client_id=client).start_round(1)
            full.append(bool(rng.integers(2)))
            if full[-1]:
                most = int(100 / math.sqrt(2 * TAU + 3))
                values = rng.integers(-most, most + 1, (2, TAU))
                bias = rng.integers(-most, most + 1, (3, 1))
                table = SegmentUpdate(np.array([1, 5]), values)
                one.submit({"table": table, "bias": SegmentUpdate(None, bias)})
            else:
                one.abort()
    lists = [server.close_round() for server in servers]
    said = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
    views: Views = {name: [] for name in PARTS}
    for client, report in sorted(servers[party].reports.complete().items()):
        slack, elements = LoadedReport(party, report).proof_share()
        public = uploads.carries(plan, report.public or b"")
        trees = statement.carries.tree_bytes
        size = FOLD_BYTES + 16 * statement.said_elements
        start = HEADER_BYTES + client * size + FOLD_BYTES
        verdicts = [bytes(one[start : start + size - FOLD_BYTES]) for one in said]
        both = field128.add(*(field128.checked(one) for one in verdicts))
        views["slack"].append(slack.tobytes())
        views["elements"].append(field128.to_bytes(elements))
        views["carry trees"].append(bytes(public[:trees]))
        views["carry hints"].append(bytes(public[trees:]))
        views["said by the peer"].append(verdicts[1 - party])
        views["opened"].append(field128.to_bytes(both[: statement.shape.arity]))
    return views, full, wrapped


PARTS: Final = ("slack", "elements", "carry trees", "carry hints", "said by the peer", "opened")

FEATURES: Final[dict[str, Callable[[Bytes], Float64]]] = {
    "bits": lambda data: np.unpackbits(data, axis=1).sum(axis=1).astype(np.float64),
    "zero bytes": lambda data: (data == 0).sum(axis=1).astype(np.float64),
    "first byte": lambda data: data[:, 0].astype(np.float64),
    "last bytes": lambda data: data[:, -8:].astype(np.float64) @ 256.0 ** np.arange(8),
}


def look(reports: int, seed: int, parties: tuple[int, ...] = (0, 1)) -> dict[str, float]:
    """The p of every distinguisher, over this number of reports per server."""
    rng, found = np.random.default_rng(seed), dict[str, float]()
    for party in parties:
        rounds = [observe(party, rng) for _ in range(-(-reports // CLIENTS))]
        labels = {
            "full": np.array([x for _, full, _ in rounds for x in full]),
            "wrapped": np.array([x for *_, wrapped in rounds for x in wrapped]),
        }
        for part in PARTS:
            data = np.stack([np.frombuffer(one, np.uint8) for v, *_ in rounds for one in v[part]])
            for name, feature in FEATURES.items():
                for what, label in labels.items():
                    if (part, what) == ("slack", "wrapped"):
                        continue  # see above
                    p = rank_sum_p(feature(data), label)
                    found[f"{what}: {name} of {part} (server {party})"] = p
    return found


# --- planted faults -------------------------------------------------------------------------------


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """Within, clients and servers have the fault."""
    mask, grow = ReportContext.proof_mask, carries.grow

    def no_mask(self: ReportContext, seed: bytes, party: int) -> Any:
        slack, elements = mask(self, seed, party)
        return np.zeros_like(slack), np.zeros_like(elements)

    def idle(statement: Any, context: Any, seeds: Any, wrapped: Whole) -> Any:
        grown = grow(statement, context, seeds, wrapped)
        if grown is not None:
            grown[1][np.count_nonzero(wrapped) :] = 0
        return grown

    patches = {
        "no masks": mock.patch.object(ReportContext, "proof_mask", no_mask),
        "idle hints of zeros": mock.patch.object(carries, "grow", idle),
    }
    with patches[fault]:
        yield


FAULTS: Final = {
    "no masks": "full: bits of slack (server 0)",
    "idle hints of zeros": "wrapped: zero bytes of carry hints (server 0)",
}


def run(reports: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """All p-values: on ours, and of the distinguisher meant for each planted fault."""
    ours, faulty = look(reports, seed), {}
    for fault, name in FAULTS.items():
        with planted(fault):
            faulty[f"{fault}: {name}"] = look(min(reports, 1000), seed, (0,))[name]
    return ours, faulty


@program(option("--reports", 10_000), option("--seed", 0, "of updates; keys are secret"))
def main(options: Options) -> Found:
    """Print all p-values; fails if ours shows something or a planted fault does not."""
    logging.getLogger("torchfsl").setLevel(logging.ERROR)
    ours, faulty = run(options.reports, options.seed)
    return judged(ours, faulty, (OURS_MIN_P, PLANTED_MAX_P))

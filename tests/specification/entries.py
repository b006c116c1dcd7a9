"""The scenes of `tests/vectors/transcripts`: a plan and its visits each."""

from __future__ import annotations

import math
from typing import Any

from tests.specification.scenes import Entry, Json, Visit, drawn


def segment(name: str, policy: str, *shapes: tuple[int, ...], k: int = 0, tau: int = 1,
            theta: int = 0, nu: int = 0, stash: int = 0, retrieve: bool = False,
            secure: bool = True, dtype: str = "float32", **more: Any) -> Json:  # fmt: skip
    """Fields of a segment; without `theta` its trees go over all positions."""
    sizes = [math.prod(shape) for shape in shapes]
    m = sum(shape[0] for shape in shapes) if policy == "rows" else sum(-(-n // tau) for n in sizes)
    m = len(more.get("subset", ())) or m
    is_dense, binned = policy == "dense", bool(more.get("binned"))
    bins = 3 * -(-m // theta) if theta else 0
    return {
        "name": name, "policy": policy, "m": m, "tau": tau, "k_max": m if is_dense else k,
        "tensors": [{"name": f"{name}.{i}", "shape": list(shape), "dtype": dtype}
                    for i, shape in enumerate(shapes)],
        "retrieve": retrieve, "subset": [], "nu": nu,
        "num_bins": k if binned else bins, "theta": -(-m // k) if binned else theta,
        "stash": stash if theta or binned or is_dense else k,
        "check_bytes": 0 if is_dense or not secure else 32,
        "tag_bytes": 16 if retrieve and secure else 0, **more,
    }  # fmt: skip


def encoding(bits: int, frac: int, clip: float, rounding: str = "nearest") -> Json:
    """Fields of an encoding."""
    return {"ring_bits": bits, "frac_bits": frac, "clip": clip, "rounding": rounding}


def plan(about: str, *segments: Json, **more: Any) -> Json:
    """Fields of a plan."""
    return {
        "session": drawn(f"session {about}", 16).hex(), "segments": list(segments),
        "hash_seed": drawn(f"hash seed {about}", 32).hex(), "encoding": encoding(32, 16, 4.0),
        "max_clients": 3, "min_clients": 1, "lane": "none", "max_weight": 1, "max_rounds": 0,
        "min_contributors": 1, "l2_bound": 0, "noise_sigma": 0, "lane_sigma": 0, "max_epochs": 1,
        "server_keys": [], "payload": "values", "wire_version": 4, "suite": "bgi16-aes128-mmo",
        **more,
    }  # fmt: skip


TABLE = segment("table", "rows", (22, 2), k=2, tau=2, theta=8, retrieve=True)
FEW = segment("few", "scalars", (13,), k=2)
BIAS = segment("bias", "dense", (3,))
PUBLIC = [
    "7d34a4815fa6b982535e60af3bd9b49556816080f1641ff81d2b7c8ae8268a44",
    "0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f20",
]
"""Keys of both servers, see `scenes.PRIVATE_KEYS`."""

ENTRIES = {
    "plain": Entry(
        "Rows that clients retrieve, late trees, a dense segment. Client 9 does not download.",
        plan("plain", TABLE, FEW, BIAS, max_clients=2),
        ((7, (Visit(4), Visit(9, downloads=False))),),
    ),
    "stash": Entry(
        "A stash beside bins, leaves of two positions, counts, gradients.",
        plan(
            "stash",
            segment("table", "rows", (21, 2), k=3, tau=2, theta=10, nu=1, stash=1, retrieve=True),
            segment("late", "blocks", (35,), (4,), k=2, tau=3, theta=9, nu=1, stash=1),
            lane="count", encoding=encoding(24, 10, 4.0),
        ),
        ((1, (Visit(3), Visit((1 << 64) - 2))),), (0.3, "gradient", "mean"),
    ),
    "weights": Entry(
        "Weights, and three rings: the weight stands before each of two dense segments.",
        plan(
            "weights",
            segment("bias", "dense", (3,), encoding=encoding(16, 4, 8.25)),
            segment("table", "rows", (12, 1), k=2, tau=1, theta=6, retrieve=True, dtype="float64"),
            segment("buffers", "dense", (2,), dtype="float64", encoding=encoding(128, 30, 1000.5)),
            lane="weight", max_weight=3, encoding=encoding(64, 20, 4.1),
        ),
        ((5, (Visit(2, weight=3), Visit(7, weight=2))),), (0.5, "delta", "mean"),
    ),
    "session": Entry(
        "One set of trees in three rounds. Client 2 sends no report in the second one.",
        plan(
            "session", segment("table", "rows", (14, 1), k=2, tau=1, theta=7, retrieve=True),
            BIAS, max_epochs=3, lane="count",
        ),
        (
            (1, (Visit(1), Visit(2))),
            (4, (Visit(1), Visit(2, reports=False))),
            (5, (Visit(1), Visit(2, downloads=False))),
        ),
        (1.0, "delta", "sum"),
    ),
    "sealed": Entry(
        "Master seeds sealed to both servers, with given ephemeral keys.",
        plan("sealed", segment("table", "rows", (12, 2), k=1, tau=2, theta=6, retrieve=True), BIAS,
             server_keys=PUBLIC),
        ((3, (Visit(6), Visit(5))),),
    ),
    "fetch_tags": Entry(
        "Fetches with tags, in an open round and after it; public bins; 16-bit downloads.",
        plan(
            "fetch tags",
            segment("table", "rows", (12, 2), k=2, tau=2, theta=6, retrieve=True,
                    download="bfloat16"),
            segment("binned", "blocks", (17,), k=3, tau=2, binned=True), BIAS, lane="count",
        ),
        ((2, (Visit(8),)),), fetches=(5, 6),
    ),
    "fetch_bits": Entry(
        "Fetches without tags, by bits, in a plan without check words; a subset of the rows.",
        plan(
            "fetch bits",
            segment("table", "rows", (132, 1), k=2, tau=1, retrieve=True, secure=False),
            segment("part", "scalars", (19,), k=2, theta=3, secure=False,
                    subset=[0, 2, 3, 7, 11, 18]),
        ),
        ((2, (Visit(8),)),), fetches=(3, 6),
    ),
    "noise": Entry(
        "Noise of values and of weights, from given words, and a bound on the sums.",
        plan(
            "noise", segment("s", "scalars", (9,), k=1), BIAS, lane="weight", max_weight=2,
            l2_bound=40000, sum_bound=True, noise_sigma=700, lane_sigma=2,
        ),
        ((1, (Visit(2, weight=2), Visit(3))),), (0.1, "delta", "mean"),
    ),
    "correlated": Entry(
        "Correlated noise in three rounds. Each client stays away for one of them.",
        plan(
            "correlated", segment("s", "scalars", (5,), k=1, secure=False), l2_bound=4000,
            noise_sigma=30, noise_taps=[16, -7], min_separation=2, max_participations=2,
            max_rounds=3,
        ),
        ((1, (Visit(2),)), (2, (Visit(3),)), (5, (Visit(2),))),
    ),
    "closed": Entry(
        "Counts are opened first: values of positions that one client sent stay closed.",
        plan(
            "closed", segment("table", "rows", (6, 2), k=3, tau=2, theta=3, retrieve=True), BIAS,
            lane="count", min_contributors=2,
        ),
        ((1, (Visit(4), Visit(5))),),
    ),
    "proofs": Entry(
        "Proofs of the norm, of the bound of a segment, and of weights.",
        plan(
            "proofs", segment("few", "scalars", (5,), k=1, l2_bound=90),
            segment("d", "dense", (1,)), lane="weight", max_weight=3, l2_bound=100, sum_bound=True,
            proofs="norm", encoding=encoding(48, 4, 8.0),
        ),
        ((1, (Visit(2, weight=2),)),),
    ),
}  # fmt: skip

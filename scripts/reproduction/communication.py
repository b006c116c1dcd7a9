"""Tables 2 and 6, the introduction's example, and section 6's rates: bytes that clients upload."""

from __future__ import annotations

from typing import Any

from scripts.reproduction import paper
from scripts.reproduction.one_round import measure, one_segment_plan
from torchfsl.errors import ParameterError
from torchfsl.fsl import costs
from torchfsl.fsl.costs import predict
from torchfsl.fsl.plan.planner import tree_and_hint_bits

MIB = 1 << 20
SETTINGS = {
    "l128": (128, False),
    "l128_check": (128, True),
    "l32": (32, False),
    "l32_check": (32, True),
}


def table6() -> dict[str, Any]:
    """Upload of a client, sent for real: every cell runs a round and counts."""
    cells = []
    for (log, percent), printed in paper.COMMUNICATION.items():
        m = 1 << log
        k = m * percent // 100
        cell: dict[str, Any] = {"log2_m": log, "percent": percent, "k": k, "paper_mib": printed}
        cell["paper_formula_mib"] = paper.RATE * percent / 100 * m * 16 / MIB
        for name, (bits, check) in SETTINGS.items():
            plan = one_segment_plan(m, k, ring_bits=bits, check=check)
            cell[name + "_bytes"] = measure(plan).upload_bytes
            segment = plan.segments[0]
            cell["mechanism"], cell["bins"] = segment.mechanism, segment.num_bins
        cell["dense_l128_bytes"], cell["dense_l32_bytes"] = 16 * m, 4 * m
        cells.append(cell)
    blocks = {}
    for check in (False, True):
        plan = one_segment_plan(1 << 15, (1 << 15) // 100, ring_bits=32, tau=32, check=check)
        blocks["check" if check else "no_check"] = measure(plan).upload_bytes
    return {"cells": cells, "blocks_of_32_of_2_20_scalars_1_percent_bytes": blocks}


def mnist_example() -> dict[str, Any]:
    """The introduction's example: 1,663,370 weights of which a client sends 1 %."""
    m = 1_663_370
    k = m // 100
    sizes = {
        name: costs.client_bytes(one_segment_plan(m, k, ring_bits=bits, check=check))
        for name, (bits, check) in SETTINGS.items()
    }
    rows = -(-m // 32)
    blocks = one_segment_plan(rows, -(-rows // 100), ring_bits=32, tau=32)
    spent = measure(one_segment_plan(m, k, ring_bits=128, check=False))
    return {
        "weights": m,
        "k": k,
        "paper": "from 203 MB to 24 MB",
        "dense_l128_mebibits": m * 128 / MIB,
        "paper_formula_mebibits": paper.RATE * 0.01 * m * 128 / MIB,
        "upload_bytes": sizes,
        "l128_mebibits": 8 * sizes["l128"] / MIB,
        "blocks_of_32_l32_check_bytes": costs.client_bytes(blocks),
        "client_seconds": spent.client_seconds,
    }


def rates() -> dict[str, Any]:
    """Section 6's break-even rates as printed, corrected, and those of our plans."""
    width, log_theta, epsilon = 128, 9, 1.25
    basic = epsilon * (130 * log_theta + width) / width
    union = epsilon * (130 * 5 + width) / width
    mega = epsilon * (130 * log_theta + 18 * width) / (18 * width)
    return {
        "paper": {
            "basic": {"rate_over_c": basic, "break_even_percent": 100 / basic},
            "psu_theta_5": {"rate_over_c": union, "break_even_percent": 100 / union},
            "mega_18": {"rate_over_c": mega, "break_even_percent": 100 / mega},
        },
        "ours_break_even_percent": {
            f"m=2^{log} tau={tau} l={bits} {'check' if check else 'no check'}": break_even(
                1 << log, tau, bits, check
            )
            for log in (15, 20)
            for tau in (1, 18, 32)
            for bits in (32, 128)
            for check in (False, True)
        },
        "fixed_submodel_m=2^20_1_percent_l=32": _fixed_submodel(),
    }


def break_even(m: int, tau: int, ring_bits: int, check: bool) -> float:
    """Largest percentage of positions at which trees and hints cost no more than dense shares."""

    def cheaper(k: int) -> bool:
        try:
            plan = one_segment_plan(m, k, ring_bits=ring_bits, tau=tau, check=check)
        except ParameterError:
            return False
        return tree_and_hint_bits(plan.segments[0], tau * ring_bits) <= m * tau * ring_bits

    low, high = 1, m
    while high - low > max(1, low // 500):
        middle = (low + high) // 2
        low, high = (middle, high) if cheaper(middle) else (low, middle)
    return 100 * low / m


def _fixed_submodel() -> dict[str, float]:
    """A session of the updatable DPF: the trees go up once, later rounds upload hints."""
    m = 1 << 20
    plan = one_segment_plan(m, m // 100, ring_bits=32, epochs=8)
    costs = predict(plan)
    return {
        "first_round_bytes": costs.upload_bytes,
        "later_round_bytes": costs.later_upload_bytes,
        "paper_formula_later_bytes": m // 100 * 4,
        "dense_bytes": 4 * m,
    }


def table2() -> dict[str, Any]:
    """The paper's scenarios, what to use in torchfsl, and what it costs at one size."""
    m, k = 1 << 20, (1 << 20) // 100
    union, rows = 1 << 16, 1 << 15

    def upload(positions: int, sent: int, tau: int = 1) -> dict[str, int]:
        plan = one_segment_plan(positions, sent, ring_bits=32, tau=tau)
        return {"upload_bytes": costs.client_bytes(plan), "leaves": 3 * positions}

    fixed = predict(one_segment_plan(m, k, ring_bits=32, epochs=8))
    session = {"upload_bytes": fixed.upload_bytes, "later_upload_bytes": fixed.later_upload_bytes}
    scenarios = (
        ("k much smaller than m", "basic protocol", "TopK(0.01)", upload(m, k)),
        (
            "the union of all selections is small (here 2^16 of 2^20)",
            "basic protocol and PSU",
            "a plan restricted to the union (docs/psu.md)",
            upload(union, k),
        ),
        (
            "fixed submodel",
            "basic protocol and U-DPF",
            "Fixed(ids), plan(max_epochs=8)",
            {**session, "leaves": 3 * m},
        ),
        (
            "values can be grouped",
            "basic protocol and mega-elements",
            "Rows or BlockTopK(0.01, block=32)",
            upload(rows, rows // 100, 32),
        ),
    )
    names = ("scenario", "paper", "torchfsl")
    found = [dict(zip(names, words, strict=True)) | costs for *words, costs in scenarios]
    return {"m": m, "k": k, "dense_bytes": 4 * m, "rows": found}

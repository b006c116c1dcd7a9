"""Section 7.5: DIN at its published shape, next to the paper and its comparator, and its AUC."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench import measure as bench_measure
from scripts.bench import round as bench_round
from scripts.parties import two_servers
from scripts.reproduction import paper
from scripts.reproduction.runs import Progress, curve, data_folder, run_or_read, summarised
from torchfsl import FixedPoint, Plan
from torchfsl.fsl import costs
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.segments import SegmentSpec, vars_of
from torchfsl.submodel.update import RawSegment, quantise
from training.presets import PRESETS
from training.sections import Encoding

ROUNDS_OF_A_SESSION = 3
ROWS_CLIP, REST_CLIP = Encoding().rows_clip, Encoding().rest_clip
"""Magnitudes that values in 16 bits keep, those of the presets."""


def din(clients: int = 100) -> dict[str, Any]:
    """One round of 100 clients, a session of a fixed submodel, and the paper's 128 bits a value."""
    measured = bench_round.run(clients, 1)
    fed = bench_round.federated()
    plan = fed.make_plan(max_clients=2, rows_per_client=bench_round.ROWS)
    encodings = sixteen_bits(plan, clients)
    wide = dataclasses.replace(plan.encoding, ring_bits=128)
    return {
        "paper": paper.DIN,
        "environment": bench_measure.environment(),
        "parameters": sum(p.numel() for p in fed.model.parameters()),
        "round": measured,
        "session_upload_bytes": session_uploads(again(plan, plan.encoding, ROUNDS_OF_A_SESSION)),
        "session_upload_bytes_l16": session_uploads(
            again(plan, plan.encoding, ROUNDS_OF_A_SESSION, encodings=encodings)
        ),
        "upload_bytes_l128": costs.client_bytes(again(plan, wide, 1)),
        "upload_bytes_l128_no_check": costs.client_bytes(again(plan, wide, 1, check=False)),
        "upload_bytes_l32_no_check": costs.client_bytes(again(plan, plan.encoding, 1, check=False)),
    }


def sixteen_bits(plan: Plan, clients: int = 0) -> dict[str, FixedPoint]:
    """Encodings in 16 bits for every segment and so many clients: tables finer than the rest."""
    clients = clients or plan.max_clients
    terms: dict[str, Any] = {"max_clients": clients, "rounding": plan.encoding.rounding}
    clips = {s.name: REST_CLIP if s.is_dense else ROWS_CLIP for s in plan.segments}
    return {name: FixedPoint.finest(16, clip, **terms) for name, clip in clips.items()}


def again(
    plan: Plan,
    encoding: FixedPoint,
    epochs: int,
    *,
    check: bool = True,
    encodings: Mapping[str, FixedPoint] | None = None,
) -> Plan:
    """The same segments under other terms."""
    own = encodings or {}
    specs = [SegmentSpec(**vars_of(s) | {"encoding": own.get(s.name)}) for s in plan.segments]
    return build_plan(
        specs,
        encoding=encoding,
        max_clients=plan.max_clients,
        max_epochs=epochs,
        malicious_security=check,
    )


def session_uploads(plan: Plan) -> list[int]:
    """Bytes that a client uploads in each round of a session, retrieval included: counted."""
    rng = np.random.default_rng(0)
    state = {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for segment in plan.segments
        for t in segment.tensors
    }
    servers = two_servers(plan, state)
    link = InProcess(*servers)
    rows = next(s for s in plan.segments if s.retrieve)
    ids = {rows.name: np.sort(rng.choice(rows.m, rows.k_max, replace=False))}
    sessions = [Client(plan, link, client_id=i).open_session(indices=ids) for i in range(2)]
    uploads = []
    for number in range(plan.max_epochs):
        begin_round(servers, number)
        sent = set()
        for session in sessions:
            with session.start_round(number) as taken:
                ((indices, _),) = taken.retrieve().values()
                values = {s.name: _values(s, indices, rng) for s in plan.segments}
                update, _, _ = quantise(plan, values)
                sent.add(taken.submit(update).upload_bytes)
        finish_round(servers)
        uploads.append(sent.pop())
        assert not sent
    return uploads


def _values(segment: Any, indices: Any, rng: np.random.Generator) -> RawSegment:
    if segment.is_dense:
        return RawSegment(None, 1e-3 * rng.standard_normal((segment.m, 1)))
    return RawSegment(indices, 1e-3 * rng.standard_normal((len(indices), segment.tau)))


def auc(data: Path | None, runs: Path, rounds: int) -> dict[str, Any]:
    """Train three times; `fsl` and `plain` must end with the same model."""
    beauty, curves = data_folder(data, "din-auc", "amazon-beauty"), {}
    for aggregation in ("plain", "dense", "fsl"):
        config = dataclasses.replace(
            PRESETS["din-published"],
            data=str(beauty),
            rounds=rounds,
            aggregation=aggregation,
            eval_every=20,
            threads=1,
        )
        folder = runs / "din-auc" / aggregation
        summary = run_or_read(config, folder, Progress("auc"))
        curves[aggregation] = {
            "curve": curve(folder, "auc"),
            "auc_last_three": summary["mean_of_last_three"],
            "popularity_auc": summary["baselines"],
            **summarised(summary, "exact_rounds", "rounds", "model_sha256"),
        }
    if curves["plain"]["model_sha256"] != curves["fsl"]["model_sha256"]:
        raise RuntimeError("fsl and plain ended with different models")
    return curves

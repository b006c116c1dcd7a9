"""DIN on Amazon Beauty with one client in twenty that sends a thousand times its update.

Each round draws its liars anew: the clients that `dropouts = 0.05` would drop. A liar's trees,
hints and masked values carry its update times the factor, cut at the ends of the ring. The liar
also sends the best proof that is known, an honest proof about its true update. All reports of these
runs go through both servers.

With proofs, the servers must refuse every liar and open the exact sum of the others in every round.
The first rounds with factor -1000 must end with the model of a plaintext run in which the same
clients dropped out. The two models must be bit-identical. The result records whether this also
holds for all rounds with factor 1000.

Without OMP_NUM_THREADS=1, the last bits of a gradient differ between processes. No sum depends on
this difference. Runs resume.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np

from scripts.reproduction import runs as kept
from torchfsl.fsl.client import proof, report
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.plan.statement import Statement
from torchfsl.kernels import ring
from torchfsl.types import Bytes, Whole
from training.aggregations import audit
from training.config import Config
from training.data.prf import Stream
from training.presets import PRESETS
from training.sections import Fsl
from training.trainer import Trainer

ROUNDS: Final = 100
SHARE: Final = 0.05
FACTORS: Final = (1000, -1000)
L2_NORM: Final = 1.0
EVAL_EVERY: Final = 20
SHORT: Final = 20
"""Rounds of the second factor without proofs, which are enough to see it."""

FIRST: Final = 5
"""Rounds of short runs that must end with bit-identical models."""


def liars(data: Path | None, runs: Path, rounds: int, seed: int) -> dict[str, Any]:
    """All runs: AUC of each, and how many lies were added up."""
    base = config_of(str(kept.data_folder(data, "liars", "amazon-beauty")), rounds, seed)
    folder = runs / "liars" / f"seed{seed}"
    plain = dataclasses.replace(base, aggregation="plain")
    honest = _run(plain, folder / "honest", 1)
    without = _run(dataclasses.replace(plain, dropouts=SHARE), folder / "without-liars", 1)
    by_factor = {}
    for factor in FACTORS:
        main = factor == FACTORS[0]
        short = dataclasses.replace(_with(base, "none"), rounds=rounds if main else SHORT)
        off = _run(short, folder / f"off{factor}", factor)
        length = rounds if main else min(FIRST, rounds)
        proven = dataclasses.replace(_with(base, "norm"), rounds=length)
        on = _run(proven, folder / f"on{factor}", factor)
        if on["lies_added"] or on["exact_rounds"] != length:
            raise RuntimeError("with proofs, the servers added a lie, or a round was not exact")
        by_factor[str(factor)] = {"off": off, "on": on}
    first = dataclasses.replace(_with(base, "norm"), rounds=min(FIRST, rounds))
    by_servers = _run(first, folder / "honest-by-servers", 1)
    clear = dataclasses.replace(plain, rounds=first.rounds)
    if by_servers["model_sha256"] != _run(clear, folder / "honest-first", 1)["model_sha256"]:
        raise RuntimeError(
            "the model of honest clients with proofs differs from the plaintext model"
        )
    clear = dataclasses.replace(clear, dropouts=SHARE)
    few = _run(clear, folder / "without-liars-first", 1)
    if by_factor[str(FACTORS[1])]["on"]["model_sha256"] != few["model_sha256"]:
        raise RuntimeError("with proofs, the model differs from that of only the honest clients")
    end = by_factor[str(FACTORS[0])]["on"]["model_sha256"]
    settings = {"rounds": rounds, "clients_per_round": base.clients_per_round, "share": SHARE}
    return settings | {
        "l2_norm": L2_NORM,
        "preset": base.preset,
        "seed": seed,
        "honest": honest,
        "without_liars": without,
        "by_factor": by_factor,
        "honest_by_servers": by_servers,
        "first_rounds": first.rounds,
        "model_of_the_others": end == without["model_sha256"],
    }


def config_of(data: str, rounds: int, seed: int) -> Config:
    """`din-small` with a norm that clients keep, gradients of a round's clients taken together."""
    return kept.changed(
        PRESETS["din-small"],
        data=data,
        rounds=rounds,
        seed=seed,
        threads=1,
        eval_every=EVAL_EVERY,
        checkpoint_every=5,
        local={"together": True},
        recommendation={"ranked_users": 0, "catalogue_users": 0},
        fsl=Fsl(l2_norm=L2_NORM, sum_bound=False),
    )


def _with(config: Config, proofs: Any) -> Config:
    return kept.changed(config, aggregation="fsl", fsl={"proofs": proofs})


def _run(config: Config, folder: Path, factor: int) -> dict[str, Any]:
    """A run, and what it tells; its clients lie unless the factor is 1."""
    print(folder.name, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / "lies.jsonl"
    with lying(config, factor, notes) if factor != 1 else contextlib.nullcontext():
        summary = kept.run_or_read(config, folder / "run", kept.Progress("auc"))
    curve = [
        (r["round"], r["auc"], r["mean_auc"]) for r in kept.records(folder / "run") if "auc" in r
    ]
    by_round = {}
    for line in notes.read_text().splitlines() if notes.exists() else ():
        note = json.loads(line)
        by_round[note["round"]] = note  # a round that was run again after an interruption
    names = ("rounds", "exact_rounds", "model_sha256", "client_seconds", "server_seconds_per_round")
    return {
        "curve": curve,
        "auc": curve[-1][1],
        "mean_auc": curve[-1][2],
        "lies": sum(note["lies"] for note in by_round.values()),
        "lies_added": sum(note["added"] for note in by_round.values()),
        "popularity_auc": summary["baselines"]["popularity_auc"],
        **kept.summarised(summary, *names),
    }


@contextlib.contextmanager
def lying(config: Config, factor: int, notes: Path) -> Iterator[None]:
    """Within, the drawn clients lie, and the audit expects the sum of the others.

    A line for each round goes to `notes`: how many lied, and how many of them were added up.
    """
    submit, check = audit._AuditedSession.submit, audit.Audit.check
    rounds = Trainer._run_together
    now: dict[str, Any] = {}

    def begin(self: Trainer, number: int, cohort: list[int], *rest: Any) -> None:
        places = Stream(config.seed, "dropouts", number).choice(len(cohort), _count(config))
        now.update(number=number, lying={cohort[place] for place in places})
        rounds(self, number, cohort, *rest)

    def submitted(self: Any, update: Any, *, weight: int = 1) -> Any:
        if self._session._context.trees.client not in now["lying"]:
            return submit(self, update, weight=weight)
        with _times(factor):
            return self._session.submit(update, weight=weight)

    def checked(self: Any, closed: Any) -> None:
        check(self, closed)
        added = len(now["lying"] & set(closed.opened.clients))
        line = {"round": now["number"], "lies": len(now["lying"]), "added": added}
        with notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    with (
        mock.patch.object(Trainer, "_run_together", begin),
        mock.patch.object(audit._AuditedSession, "submit", submitted),
        mock.patch.object(audit.Audit, "check", checked),
    ):
        yield


def _count(config: Config) -> int:
    """How many of a cohort lie: as many as `dropouts = SHARE` would drop."""
    return dataclasses.replace(config, dropouts=SHARE).num_dropouts


@contextlib.contextmanager
def _times(factor: int) -> Iterator[None]:
    """Within, a report carries `factor` times the update, and a proof about the update itself."""
    carried, whole = report._carried, report._whole

    def larger_rows(trees: Any, segment: Any, part: Any, weight: int) -> Bytes:
        true: Bytes = carried(trees, segment, part, weight)
        values, lanes = ring.to_int64(true), trees.plan.lane_values
        values[:, lanes:] = _cut(values[:, lanes:] * factor, trees.plan.encoding.ring_bits)
        return ring.from_int64(values, trees.plan.encoding.ring_bits)

    def larger(trees: Any, segment: Any, part: Any, weight: int) -> Whole:
        return _cut(whole(trees, segment, part, weight) * factor, trees.plan.encoding.ring_bits)

    def prove(
        statement: Statement, trees: ClientTrees, context: ReportContext, sent: proof.Sent
    ) -> proof.Proven | None:
        true = proof.Sent({}, {}, {}, {}, sent.weight)
        for segment in trees.plan.with_trees:
            values, lanes = ring.to_int64(sent.values[segment.name]), trees.plan.lane_values
            values[:, lanes:] = np.rint(values[:, lanes:] / factor).astype(np.int64)
            true.values[segment.name] = ring.from_int64(values, statement.ring_bits)
            key, leaves = context.convert_key(segment), trees.selection(segment).leaves
            sent_rows = true.values[segment.name]
            true.hints[segment.name] = dpf.gen_hints(segment, key, leaves, sent_rows)
        for segment in trees.plan.dense:
            values = np.rint(sent.dense[segment.name] / factor).astype(np.int64)
            true.dense[segment.name] = values
            true.masked[segment.name] = report._mask(trees, context, segment, values)
        return prove_truly(statement, trees, context, true)

    prove_truly = proof.prove
    with (
        mock.patch.object(report, "_carried", larger_rows),
        mock.patch.object(report, "_whole", larger),
        mock.patch.object(proof, "prove", prove),
    ):
        yield


def _cut(values: Whole, ring_bits: int) -> Whole:
    most = (1 << (ring_bits - 1)) - 1
    return np.clip(values, -most, most)

"""Tables 7 and 8: accuracy against compression, one training run a cell.

Settings are those of section 7.3. One "local iteration" is one local epoch on MNIST and CIFAR-10
and one optimizer step on TREC, the readings that fit the paper's figures. Top-k is the paper's
reference [1], gradient dropping, which keeps what is not sent for later (error feedback).

A run aggregates its rounds in plaintext on the same quantised updates (`plain`), and its first
rounds a second time through both servers (`fsl`); both must then hold the same model, bit for bit.
Runs resume after an interruption, and several processes may work through the same list.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scripts.bench import measure as bench_measure
from scripts.reproduction import paper
from scripts.reproduction.results import write_result
from training.config import Config, Images, Local, Rest, Sentences
from training.experiment import run_experiment
from training.presets import PRESETS

LAST = 5
"""A run's accuracy is the mean of its last so many evaluations, ten rounds apart (fifty for
images): a single evaluation on TREC's 500 questions moves by a point from one to the next."""

PRESET_OF = {"trec": "textcnn", "mnist": "cnn-mnist", "cifar10": "cnn-cifar10"}
SHORT_ROUNDS = {"trec": 500, "mnist": 1000, "cifar10": 1000}
"""Rounds without --rounds and --full."""
Precision = Literal["float32", "bfloat16"]
CLIENTS = {"trec": 4, "mnist": 10, "cifar10": 10}


@dataclass(frozen=True, slots=True)
class Cell:
    """One training run.

    Attributes:
        table: `table7` (scalars of the whole model) or `table8` (rows of the word table).
        dataset: `trec`, `mnist` or `cifar10`.
        percent: of the scalars, or of the rows, that a client sends.
        seed: of the run.
        feedback: whether what is not sent is kept for later.
        block: values of a block; 1 sends single scalars.
        reading: `paper` for the reading of "local iteration" above; `other` for the other one.
        rounds: federated rounds.
        server_rate: by which the servers multiply the mean update.
        server_momentum: of the servers' optimizer.
        server_decay: factor on the servers' rate after every ten rounds.
        augment: whether CIFAR-10's clients train on random crops and mirror images; on central
            crops if not.
        average: weight of the older models in the mean of models that is evaluated, too.
        precision: in which the image networks pass forwards and backwards; TREC's uses float32.
        threads: of the run, by which floating-point sums may differ.
    """

    table: str
    dataset: str
    percent: float
    seed: int
    rounds: int
    feedback: bool = True
    block: int = 1
    reading: str = "paper"
    server_rate: float = 1.0
    server_momentum: float = 0.0
    server_decay: float = 1.0
    augment: bool = True
    average: float = 0.0
    precision: Precision = "bfloat16"
    threads: int = 1

    @property
    def name(self) -> str:
        """Name of its result; says all that is not the table's usual."""
        usual = self.rounds == SHORT_ROUNDS[self.dataset]
        return self.folder if usual else f"{self.folder}-{self.rounds}rounds"

    @property
    def folder(self) -> str:
        """Name of the run, which more rounds go on with."""
        extras = ("" if self.feedback else "-nofeedback") + (
            "" if self.block == 1 else f"-blocks{self.block}"
        )
        extras += "" if self.reading == "paper" else "-otherreading"
        extras += "" if self.server_rate == 1 else f"-rate{self.server_rate:g}"
        extras += "" if self.server_momentum == 0 else f"-momentum{self.server_momentum:g}"
        extras += "" if self.server_decay == 1 else f"-decay{self.server_decay:g}"
        extras += "" if self.augment else "-central"
        extras += "" if self.average == 0 else f"-mean{self.average:g}"
        extras += "" if self.precision == "bfloat16" else f"-{self.precision}"
        extras += "" if self.threads == 1 else f"-{self.threads}threads"
        return f"{self.dataset}-{self.percent:g}{extras}-seed{self.seed}"

    def config(self, data: str | None) -> Config:
        """Settings of the run, aggregated in plaintext."""
        preset = PRESETS[PRESET_OF[self.dataset]]
        images = self.dataset != "trec"
        if images:
            local = dataclasses.replace(preset.local, precision=self.precision)
            if self.reading == "other":
                local = dataclasses.replace(local, steps=1)
        else:
            local = Local(optimizer="adam", lr=1e-3, batch_size=64, epochs=1, steps=2)
            if self.reading == "other":
                local = dataclasses.replace(local, epochs=2, steps=0)
        return dataclasses.replace(
            preset,
            data=data or preset.data,
            rounds=self.rounds,
            aggregation="plain",
            above_break_even="keep",
            eval_every=50 if images else 10,
            checkpoint_every=50,
            seed=self.seed,
            threads=self.threads,
            local=local,
            images=self._images(preset.images),
            server=dataclasses.replace(
                preset.server,
                lr=self.server_rate,
                lr_decay=self.server_decay,
                momentum=self.server_momentum,
                average=self.average,
            ),
            rest=self._rest(),
            sentences=self._sentences(preset.sentences),
        )

    def _rest(self) -> Rest:
        if self.table == "table8" or self.percent == 100:
            return Rest("dense")
        policy = "topk" if self.block == 1 else "blocks"
        return Rest(policy, self.percent / 100, self.block, self.feedback)

    def _images(self, usual: Images) -> Images:
        if self.augment:
            return usual
        return dataclasses.replace(usual, random_crop=False, flip=False)

    def _sentences(self, usual: Sentences) -> Sentences:
        if self.table == "table7":
            return dataclasses.replace(usual, table="rest")
        # 0.0125 % of the paper's 8,256 words is one row; our table has slightly more rows.
        rows = 1e-4 if self.percent == 0.0125 else self.percent / 100
        return dataclasses.replace(usual, rows=rows, error_feedback=self.feedback)


Rounds = int | None
"""Of every run; None for the data set's usual."""


def table7(
    datasets: list[str],
    percents: list[float],
    seeds: list[int],
    rounds: Rounds,
    full: bool,
    *,
    server_rate: float = 1.0,
    server_momentum: float = 0.0,
    server_decay: float = 1.0,
    average: float = 0.0,
    augment: bool = True,
    precision: Precision = "bfloat16",
    threads: int = 1,
) -> list[Cell]:
    """The cells of Table 7, most telling first."""
    return [
        Cell(
            "table7",
            dataset,
            percent,
            seed,
            rounds or _rounds(dataset, full),
            server_rate=server_rate,
            server_momentum=server_momentum,
            server_decay=server_decay,
            augment=augment or dataset != "cifar10",
            average=average,
            precision=precision if dataset != "trec" else "bfloat16",
            threads=threads,
        )
        for dataset in datasets
        for seed in seeds
        for percent in percents
    ]


def table8(percents: list[float], seeds: list[int], rounds: Rounds, full: bool) -> list[Cell]:
    """The cells of Table 8."""
    return [
        Cell("table8", "trec", percent, seed, rounds or _rounds("trec", full))
        for seed in seeds
        for percent in percents
    ]


def beyond() -> list[Cell]:
    """Runs that the paper does not have: no error feedback, blocks, the other reading."""
    rounds = SHORT_ROUNDS["trec"]
    return [
        Cell("table7", "trec", 5, 0, rounds, feedback=False),
        Cell("table7", "trec", 5, 0, rounds, block=32),
        Cell("table7", "trec", 1, 0, rounds),
        Cell("table8", "trec", 1, 0, rounds, feedback=False),
        Cell("table7", "trec", 100, 0, 15, reading="other"),
    ]


def _rounds(dataset: str, full: bool) -> int:
    return paper.ROUNDS[dataset] if full else SHORT_ROUNDS[dataset]


def run_cells(
    cells: list[Cell],
    *,
    data_root: Path | None,
    runs: Path,
    fsl_rounds: int,
    command: str,
) -> None:
    """Run what has no result yet, skipping what another process works on.

    Raises:
        ConfigError: a setting of a cell is out of range, or not that of its unfinished run.
    """
    configs = [
        cell.config(None if data_root is None else str(data_root / cell.dataset)) for cell in cells
    ]
    for number, (cell, config) in enumerate(zip(cells, configs, strict=True), start=1):
        target = Path("results") / cell.table / f"{cell.name}.json"
        folder = runs / cell.table / cell.folder
        folder.mkdir(parents=True, exist_ok=True)
        head = f"[{number}/{len(cells)}] {cell.table} {cell.name}"
        with _claimed(folder) as mine:
            if target.exists():
                print(f"{head}: {target} is here; remove it to run the cell again", flush=True)
            elif not mine:
                print(f"{head}: another process works on it", flush=True)
            else:
                print(head, flush=True)
                result = run_cell(cell, config, folder, fsl_rounds)
                write_result(target, {**result, "command": command})


def run_cell(cell: Cell, config: Config, folder: Path, fsl_rounds: int) -> dict[str, Any]:
    """One run: the first rounds twice, then the rest in plaintext."""
    started = time.time()
    share = min(fsl_rounds, cell.rounds)
    protocol = dataclasses.replace(config, rounds=share, aggregation="fsl")
    progress = Progress("accuracy")
    by_fsl = run_or_read(protocol, folder / "fsl", progress)
    by_plain = run_or_read(dataclasses.replace(config, rounds=share), folder / "plain", progress)
    if by_fsl["model_sha256"] != by_plain["model_sha256"]:
        raise RuntimeError(f"{cell.name}: after {share} rounds fsl and plain hold other models")
    last = run_or_read(config, folder / "plain", progress)
    lines = (folder / "plain" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines[: cell.rounds]]
    curve = [(r["round"], r["accuracy"]) for r in records if "accuracy" in r]
    means = [(r["round"], r["mean_accuracy"]) for r in records if "mean_accuracy" in r]
    return {
        "cell": dataclasses.asdict(cell),
        "accuracy_percent": _final(curve),
        **({"mean_accuracy_percent": _final(means), "mean_curve": means} if means else {}),
        "accuracy_percent_last": 100 * curve[-1][1],
        "evaluations_averaged": min(LAST, len(curve)),
        "curve": curve,
        "rounds": last["rounds"],
        "exact_rounds": last["exact_rounds"],
        "model_sha256": last["model_sha256"],
        "fsl": {
            "rounds": share,
            "exact_rounds": by_fsl["exact_rounds"],
            "model_sha256": by_fsl["model_sha256"],
            "equals_plain": True,
            "upload_bytes": by_fsl["upload_bytes_per_client_round"],
            "client_seconds": by_fsl["client_seconds"],
            "both_servers_seconds": by_fsl["server_seconds_per_round"],
        },
        "clients_per_round": CLIENTS[cell.dataset],
        "clipped_values": last["clipped_values"],
        "segments": last["segments"],
        "wall_seconds_of_last_start": round(time.time() - started),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**last["versions"], "machine": bench_measure.machine()},
    }


def _final(curve: list[tuple[int, float]]) -> float:
    """Percent: the mean of a curve's last evaluations."""
    return 100 * float(np.mean([accuracy for _, accuracy in curve[-LAST:]]))


def run_or_read(config: Config, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run, resume, or read a finished run."""
    summary = folder / "summary.json"
    if summary.exists():
        done: dict[str, Any] = json.loads(summary.read_text())
        if done["rounds"] >= config.rounds:
            if done["rounds"] > config.rounds:
                done = json.loads((folder / f"summary-{config.rounds}.json").read_text())
            return done
    result = run_experiment(config, folder, resume=folder.exists(), console=progress)
    text = json.dumps(result, indent=2) + "\n"
    (folder / f"summary-{config.rounds}.json").write_text(text)
    return result


@contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Whether this process alone works in the folder, until the block ends."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


class Progress:
    """A line for each evaluation: `metric` of `training.tasks.metrics`."""

    def __init__(self, metric: str) -> None:
        """Nothing shown yet."""
        self._metric = metric

    def say(self, text: str) -> None:
        """Plans and summaries are in the run's folder."""

    def start(self, finished: int, rounds: int) -> None:
        """Say where the run starts."""
        self._rounds, self._since = rounds, time.time()
        if finished:
            print(f"  resuming after round {finished}", flush=True)

    def round_done(self, record: Any) -> None:
        """One line where the round evaluates."""
        if record.metrics:
            print(
                f"  round {record.round}/{self._rounds}  {self._metric} "
                f"{record.metrics[self._metric]:.4f}"
                f"  {time.time() - self._since:.0f} s",
                flush=True,
            )

    def stop(self) -> None:
        """Nothing to close."""

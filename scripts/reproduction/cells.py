"""The cells of tables 7 and 8: settings of one training run each.

Settings are those of section 7.3. One "local iteration" is one local epoch on MNIST and CIFAR-10
and one optimizer step on TREC, the readings that fit the paper's figures. Top-k is the paper's
reference [1], gradient dropping, which keeps what is not sent for later (error feedback).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from scripts.reproduction import paper
from scripts.reproduction.runs import changed
from training.config import Config
from training.presets import PRESETS
from training.sections import Local, Rest

PRESET_OF = {"trec": "textcnn", "mnist": "cnn-mnist", "cifar10": "cnn-cifar10"}


SHORT_ROUNDS = {"trec": 500, "mnist": 1000, "cifar10": 1000}
"""Rounds without --rounds and --full."""

BINS_ROUNDS = {"trec": 100, "cifar10": 40}
"""Of the comparison of public bins: as many as an hour of one core has room for. All four clients
train in each round, two steps each. TREC's network has embeddings of 48 and 32 maps."""

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Settings of one training run.

    Attributes:
        table: `table7` (scalars of the whole model), `table8` (rows of the word table) or `bins`
            (scalars or blocks, the largest of all or of public bins).
        dataset: `trec`, `mnist` or `cifar10`.
        percent: share of the scalars, or of the rows, that a client sends.
        seed: seed of the run.
        feedback: whether a client keeps unsent updates for later.
        block: values of a block; 1 sends single scalars.
        bins: whether clients send the largest of each public bin, not the largest of all.
        reading: `paper` for the reading of "local iteration" above; `other` for the other one.
        rounds: federated rounds.
        server_rate: factor by which the servers multiply the mean update.
        server_momentum: momentum of the servers' optimizer.
        server_decay: factor on the servers' rate after every ten rounds.
        augment: whether CIFAR-10's clients train on random crops and mirror images; on central
            crops if not.
        average: weight of the older models in the mean of models that the run also evaluates.
        precision: type of the image networks' forward and backward passes; TREC's uses float32.
        threads: threads of the run, on which floating-point sums may depend.
        held_out: whether the run evaluates a tenth of the training data, which no client holds, in
            place of the test. It does so every ten rounds. Such a trial helps to choose settings.
    """

    table: str
    dataset: str
    percent: float
    seed: int
    rounds: int
    feedback: bool = True
    block: int = 1
    bins: bool = False
    reading: str = "paper"
    server_rate: float = 1.0
    server_momentum: float = 0.0
    server_decay: float = 1.0
    augment: bool = True
    average: float = 0.0
    precision: Precision = "bfloat16"
    threads: int = 1
    held_out: bool = False

    @property
    def results(self) -> str:
        """Table of its result: trials on held-out data have a separate one."""
        return f"{self.table}-held-out" if self.held_out else self.table

    @property
    def name(self) -> str:
        """Name of its result; says all that is not the table's usual."""
        lengths = BINS_ROUNDS if self.table == "bins" else SHORT_ROUNDS
        usual = self.rounds == lengths.get(self.dataset)
        return self.folder if usual else f"{self.folder}-{self.rounds}rounds"

    @property
    def folder(self) -> str:
        """Name of the run, which more rounds go on with."""
        extras = (
            "-nofeedback" * (not self.feedback)
            + f"-blocks{self.block}" * (self.block != 1)
            + "-bins" * self.bins
            + "-otherreading" * (self.reading != "paper")
            + f"-rate{self.server_rate:g}" * (self.server_rate != 1)
            + f"-momentum{self.server_momentum:g}" * (self.server_momentum != 0)
            + f"-decay{self.server_decay:g}" * (self.server_decay != 1)
            + "-central" * (not self.augment)
            + f"-mean{self.average:g}" * (self.average != 0)
            + f"-{self.precision}" * (self.precision != "bfloat16")
            + f"-{self.threads}threads" * (self.threads != 1)
            + "-heldout" * self.held_out
        )
        return f"{self.dataset}-{self.percent:g}{extras}-seed{self.seed}"

    def config(self, data: str | None) -> Config:
        """Settings of the run, aggregated in plaintext."""
        preset = PRESETS[PRESET_OF[self.dataset]]
        if self.table == "bins":
            preset = changed(preset, clients_per_round=4, partition={"clients": 4})
        return changed(
            preset,
            data=data or preset.data,
            rounds=self.rounds,
            aggregation="plain",
            above_break_even="keep",
            eval_every=self._eval_every(),
            evaluate="validation" if self.held_out else "test",
            checkpoint_every=50,
            seed=self.seed,
            threads=self.threads,
            local=self._local(),
            images={} if self.augment else {"random_crop": False, "flip": False},
            server={
                "lr": self.server_rate,
                "lr_decay": self.server_decay,
                "momentum": self.server_momentum,
                "average": self.average,
            },
            rest=self._rest(),
            sentences=self._sentences(),
        )

    def _eval_every(self) -> int:
        if self.table == "bins":  # of 500 questions the mean of the last five, of images one
            return 4 if self.dataset == "trec" else self.rounds
        return 50 if self.dataset != "trec" and not self.held_out else 10

    def _local(self) -> Local | dict[str, Any]:
        is_other = self.reading == "other"
        if self.dataset != "trec":
            steps = 2 if self.table == "bins" else int(is_other)
            return {"precision": self.precision} | ({"steps": steps} if steps else {})
        epochs, steps = (2, 0) if is_other else (1, 2)
        return Local(optimizer="adam", lr=1e-3, batch_size=64, epochs=epochs, steps=steps)

    def _rest(self) -> Rest:
        if self.table == "table8" or self.percent == 100:
            return Rest("dense")
        policy: Any = "topk" if self.block == 1 else "blocks"
        if self.bins:
            policy = "bins"
        return Rest(policy, self.percent / 100, self.block, self.feedback)

    def _sentences(self) -> dict[str, Any]:
        if self.table == "bins":
            return {"dim": 48, "maps": 32, "table": "rest"}
        if self.table == "table7":
            return {"table": "rest"}
        # 0.0125 % of the paper's 8,256 words is one row; our table has slightly more rows.
        rows = 1e-4 if self.percent == 0.0125 else self.percent / 100
        return {"rows": rows, "error_feedback": self.feedback}


Rounds = int | None
"""Of every run; None for the data set's usual."""

SETTINGS = [field.name for field in dataclasses.fields(Cell)[9:]]
"""Fields of a cell that the command line sets."""


def table7(
    datasets: list[str],
    percents: list[float],
    seeds: list[int],
    rounds: Rounds,
    full: bool,
    **settings: Any,
) -> list[Cell]:
    """The cells of Table 7, most telling first; `settings` are those of `SETTINGS`."""
    made = []
    for dataset in datasets:
        usual: dict[str, Any] = {} if dataset == "cifar10" else {"augment": True}
        usual |= {"precision": "bfloat16"} if dataset == "trec" else {}
        length = rounds or _rounds(dataset, full)
        made += [
            Cell("table7", dataset, percent, seed, length, **{**settings, **usual})
            for seed in seeds
            for percent in percents
        ]
    return made


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


def bins(
    datasets: list[str], percents: list[float], seeds: list[int], rounds: Rounds
) -> list[Cell]:
    """The largest of each public bin and the largest of all, scalars and blocks."""
    return [
        Cell("bins", dataset, percent, seed, rounds or BINS_ROUNDS[dataset],
             block=block, bins=binned, precision=_usual_precision(dataset))
        for seed in seeds
        for dataset in datasets
        for percent in percents
        for block in (1, 32)
        for binned in (False, True)
    ]  # fmt: skip


def _usual_precision(dataset: str) -> Precision:
    return "float32" if dataset == "cifar10" else "bfloat16"


def _rounds(dataset: str, full: bool) -> int:
    return paper.ROUNDS[dataset] if full else SHORT_ROUNDS[dataset]

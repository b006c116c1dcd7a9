"""Settings of a PrivHFL experiment: one frozen dataclass, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from training.section_checks import ConfigError

Querying = Literal["plain", "fixed", "secure"]
Expansion = Literal["private", "mixup", "cutmix", "cutout", "flip", "noise"]
Selection = Literal["random", "margin", "entropy", "k-centre", "icd"]
Control = Literal["none", "local", "mixlocal", "selfmix"]
Label = Literal["logits", "probabilities"]
TaskName = Literal["mnist", "cifar10"]

OWN_LABELS: tuple[Expansion, ...] = ("private", "mixup", "cutmix", "cutout", "flip")
"""Expansions whose pictures have labels that follow from those of the private samples."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole experiment.

    Attributes:
        task: data set, which also decides architectures and length of training; see `tasks`.
        data: `synthetic`, a folder, or the name of a data set on the Hugging Face Hub; empty for
            that of the task.
        querying: how clients compute answers: `plain` on floats, `fixed` on the ring integers in
            the clear, or `secure` by the protocol.
        comparison: method of the protocol for comparisons.
        clients: number of clients, n.
        private: number of samples of each client.
        alpha: parameter of the Dirichlet distribution of each client's labels; 0 for IID.
        expansion: how a client makes query pictures from its samples.
        lam: coefficient of mixup; 0 to draw one of 0.1, 0.2, ..., 0.9 for each picture.
        queries: queries per client and iteration, B; at most `private` for the expansions `private`
            and `flip`.
        fraction: share of the other clients that answer, C.
        selection: how a client chooses B pictures from a pool of 4 B.
        label: what the average of the answers is of: `logits`, or `probabilities` (`plain` only).
        temperature: divisor T of averaged logits before the softmax.
        iterations: iterations of querying and retraining.
        control: replacement of the others' answers: `none` for no replacement, `local` to retrain
            without queries, `mixlocal` for the pictures with the labels of the samples, or
            `selfmix` for the client's own answers.
        ring_bits: bits l of the ring 2**l.
        frac_bits: fractional bits of activations and of weights; 0 for 12 (ring of 32 bits) or 20
            (64 bits).
        batch: queries per run of the protocol.
        test: number of test pictures, the same for all clients.
        seed: seed of data, models, training and the protocol's keys. An experiment in one process
            protects no party, so runs may repeat keys. Real parties take keys from the system.
        threads: threads of torch and of the native backend; 0 for the defaults of both.
    """

    task: TaskName
    data: str = ""
    querying: Querying = "plain"
    comparison: Literal["tables", "trees"] = "tables"
    clients: int = 9
    private: int = 100
    alpha: float = 0.0
    expansion: Expansion = "mixup"
    lam: float = 0.0
    queries: int = 1000
    fraction: float = 1.0
    selection: Selection = "random"
    label: Label = "logits"
    temperature: float = 1.0
    iterations: int = 1
    control: Control = "none"
    ring_bits: Literal[32, 64] = 32
    frac_bits: int = 0
    batch: int = 128
    test: int = 2000
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("clients", "private", "queries", "iterations", "test", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: choose 1 or more")
        if self.clients < 3:
            raise ConfigError(
                f"clients is {self.clients}, but a sum hides a client's answer only with two "
                "answering clients or more: choose at least 3 clients"
            )
        for name, kind in get_type_hints(Settings).items():
            values = get_args(kind)  # of a Literal; other types have none
            if values and getattr(self, name) not in values:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}: choose one of "
                    f"{', '.join(map(str, values))}"
                )
        self._check_ranges()
        self._check_combinations()

    @property
    def answering(self) -> int:
        """Clients that answer each of the others' queries, at least two."""
        return max(2, round(self.fraction * (self.clients - 1)))

    @property
    def fractional(self) -> int:
        """Fractional bits in use."""
        return self.frac_bits or (12 if self.ring_bits == 32 else 20)

    def _check_ranges(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction is {self.fraction}: choose a number above 0 and at most 1")
        if not 0 <= self.lam < 1:
            raise ConfigError(
                f"lam is {self.lam}: choose a number above 0 and below 1, or 0 to draw 0.1 to 0.9 "
                "for each picture"
            )
        if not (0 <= self.alpha < math.inf and 0 < self.temperature < math.inf):
            raise ConfigError(
                f"alpha is {self.alpha} and temperature is {self.temperature}: choose a finite "
                "alpha of 0 (IID) or more, and a finite temperature above 0"
            )
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: choose a whole number from 0 to 2**63 - 1")
        if not 0 <= self.frac_bits <= (14 if self.ring_bits == 32 else 28):
            raise ConfigError(
                f"frac_bits is {self.frac_bits}, but products have twice as many fractional bits: "
                f"choose at most {14 if self.ring_bits == 32 else 28} for ring_bits = "
                f"{self.ring_bits}, or 0 for the default"
            )
        if self.threads < 0:
            raise ConfigError(f"threads is {self.threads}: choose 0 (default) or more")

    def _check_combinations(self) -> None:
        if self.label == "probabilities" and self.querying != "plain":
            raise ConfigError(
                f"label is 'probabilities', but querying = {self.querying!r} can average only "
                "logits: choose label = 'logits', or querying = 'plain'"
            )
        if self.control == "mixlocal" and self.expansion not in OWN_LABELS:
            raise ConfigError(
                f"control is 'mixlocal', but expansion {self.expansion!r} makes no labels: choose "
                f"one of {', '.join(OWN_LABELS)} as expansion"
            )
        if self.control != "none" and self.querying != "plain":
            raise ConfigError(
                f"control is {self.control!r}, which queries no other client, so querying = "
                f"{self.querying!r} has no effect: choose querying = 'plain'"
            )

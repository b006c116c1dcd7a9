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
        task: data set, and with it architectures and length of training; see `tasks`.
        data: `synthetic`, a folder, or a Hub name; empty for the task's own Hub name.
        querying: how answers are computed: `plain` on floats; `fixed` on the ring integers in the
            clear; `secure` by the protocol.
        comparison: the protocol's back end for signs.
        clients: n.
        private: samples of each client.
        alpha: of the Dirichlet distribution of each client's labels; 0 for IID.
        expansion: how query pictures are made from private ones.
        lam: the coefficient of mixup; 0 for one of 0.1, 0.2, ..., 0.9 for each picture.
        queries: B, a client and iteration; `private` and `flip` have at most `private` of them.
        fraction: C, the share of the other clients that answer.
        selection: how B pictures are chosen from a pool of 4 B.
        label: what is averaged over the answers: `logits`, or `probabilities` (`plain` only).
        temperature: T, by which averaged logits are divided before the softmax.
        iterations: of querying and retraining.
        control: what replaces the others' answers: `none` nothing; `local` retrains without
            queries; `mixlocal` on the pictures with their own labels; `selfmix` on own answers.
        ring_bits: l of the ring 2**l.
        frac_bits: fractional bits of activations and of weights; 0 for 12 of 32 or 20 of 64.
        batch: queries of one run of the protocol.
        test: test pictures, drawn once, the same for all clients.
        seed: of data, models, training and of the protocol's keys. An experiment in one process
            protects nobody, so it may be repeatable; keys of real parties come from the system.
        threads: of torch and of the native backend; 0 leaves both their defaults.
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
                f"lam is {self.lam}: choose a number above 0 and below 1, or 0 for 0.1 to 0.9"
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
                f"frac_bits is {self.frac_bits}, and products take twice as many of the "
                f"{self.ring_bits} bits: choose at most 14 bits of 32 or 28 bits of 64, or 0 for "
                "12 or 20 bits"
            )
        if self.threads < 0:
            raise ConfigError(f"threads is {self.threads}: choose 0 (default) or more")

    def _check_combinations(self) -> None:
        if self.label == "probabilities" and self.querying != "plain":
            raise ConfigError(
                "label is 'probabilities', which need a softmax of every answer in the clear: "
                "choose querying 'plain', or label 'logits'"
            )
        if self.control == "mixlocal" and self.expansion not in OWN_LABELS:
            raise ConfigError(
                f"control is 'mixlocal', but expansion {self.expansion!r} makes no labels: choose "
                f"one of {', '.join(OWN_LABELS)} as expansion"
            )
        if self.control != "none" and self.querying != "plain":
            raise ConfigError(
                f"control {self.control!r} queries no other client, so querying {self.querying!r} "
                "has no effect: choose querying 'plain'"
            )

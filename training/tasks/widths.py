"""Clients of different widths: who has which, how many of each a round takes, what each trains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from torchfsl.sesa import Sharded
from training.data.prf import Stream
from training.section_checks import ConfigError
from training.sections import Sesa

Shards = Sequence[Sequence[int]]
"""By hidden layer of a `torchfsl.sesa.Sharded` the numbers of shards."""


class Widths:
    """The classes of an experiment's clients. Everything follows from the seed.

    Args:
        settings: shards, budgets, and how shards are chosen.
        layout: a network in as many shards.
        seed: seed of cohorts and choices.
        num_clients: clients of the experiment, spread over the classes in order; the last classes
            get the clients that are left over.
        cohort: clients of a round, spread in the same way.

    Attributes:
        sizes: number of clients in the experiment, by class.
        counts: number of clients in a round, by class.
        rows: number of rows that a client trains, by class and table.

    Raises:
        ConfigError: fewer clients in a round than classes.
    """

    def __init__(
        self, settings: Sesa, layout: Sharded, *, seed: int, num_clients: int, cohort: int
    ) -> None:
        if cohort < len(settings.budgets):
            raise ConfigError(
                f"clients_per_round is {cohort}, fewer than the {len(settings.budgets)} entries "
                "of sesa.budgets: choose one client or more per entry"
            )
        self._settings, self._layout, self._seed = settings, layout, seed
        self.sizes = _spread(num_clients, len(settings.budgets))
        self.counts = _spread(cohort, len(settings.budgets))
        self._ends = list(accumulate(self.sizes))
        self.rows = [
            {name: len(rows) for name, rows in layout.rows(self._first(taken)).items()}
            for taken in settings.taken
        ]

    @property
    def names(self) -> list[str]:
        """By class its budget."""
        return [f"{budget:g}" for budget in self._settings.budgets]

    def of(self, client: int) -> int:
        """The number of a client's class."""
        return next(number for number, end in enumerate(self._ends) if client < end)

    def cohort(self, round_number: int) -> list[int]:
        """The clients of a round, increasing; of each class as many in every round."""
        chosen: list[int] = []
        for number, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            stream = Stream(self._seed, "cohort", round_number, number)
            first = self._ends[number] - size
            chosen += [first + int(place) for place in stream.choice(size, count)]
        return chosen

    def shards(self, round_number: int, client: int) -> Shards:
        """For every hidden layer the shards that the client trains in the round."""
        every, taken = self._settings.shards, self._settings.taken[self.of(client)]
        if self._settings.choice == "static":
            return self._first(taken)
        if self._settings.choice == "rolling":
            window = [(round_number - 1 + place) % every for place in range(taken)]
            return [sorted(window)] * self._layout.num_hidden
        stream = Stream(self._seed, "shards", round_number, client)
        return [stream.choice(every, taken).tolist() for _ in range(self._layout.num_hidden)]

    def table_rows(self, shards: Shards) -> dict[str, npt.NDArray[np.int64]]:
        """By table the increasing rows that these shards are."""
        return {name: rows.numpy() for name, rows in self._layout.rows(shards).items()}

    def _first(self, taken: int) -> Shards:
        return [list(range(taken))] * self._layout.num_hidden


def _spread(count: int, classes: int) -> Sequence[int]:
    """`count` in nearly equal parts, the larger ones last: 100 in 3 is 33, 33, 34."""
    small, left = divmod(count, classes)
    return [small + (number >= classes - left) for number in range(classes)]

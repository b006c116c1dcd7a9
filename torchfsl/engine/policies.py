"""Which part of a client's change is sent: small public policies, each with a fixed budget.

A policy fixes, from public numbers alone, how many positions a segment sends (so that message
sizes say nothing about a client) and how the positions are chosen from the client's own values.
Choices are deterministic: equal scores are taken in index order, and random positions come from a
public seed. Only the positions of `BlockSample` are secret. `residual.Residual` keeps the positions
that are not chosen, unless error feedback is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from torchfsl.errors import ParameterError
from torchfsl.faces import public
from torchfsl.submodel.budgets import budget, check_amount, check_block
from torchfsl.submodel.segments import Policy

Find = Literal["hooks", "scan"]
Untouched = Literal["reject", "restrict", "touched"]
Absent = Literal["nan", "zero"]


def top(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest scores, increasing; among equal scores the first win.

    Args:
        scores: float [m], finite, not negative.
        k: 0..m.

    Returns:
        int64 [k], strictly increasing, on the device of `scores`.
    """
    if k >= scores.numel():
        return torch.arange(scores.numel(), device=scores.device)
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    above = scores > 0
    if int(above.sum()) > k:  # sparse changes leave fewer
        threshold = _kth_largest(scores[above], k)
        above, ties = scores > threshold, scores == threshold
    else:
        ties = ~above
    above[torch.nonzero(ties).flatten()[: k - int(above.sum())]] = True
    return torch.nonzero(above).flatten()


def _kth_largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """The k-th largest of more than k values; NumPy's selection is several times torch's on CPU."""
    if values.device.type == "cpu":
        n = values.numel()
        return values.new_tensor(np.partition(values.detach().numpy(), n - k)[n - k])
    return torch.topk(values, k, sorted=False).values.amin()


@public
@dataclass(frozen=True, slots=True)
class Dense:
    """Send every value, as additive shares. Nothing is left out, so there is no residual."""

    policy: ClassVar[Policy] = "dense"
    block: ClassVar[int] = 1
    error_feedback: ClassVar[bool] = False

    def count(self, m: int) -> int:
        """All m positions."""
        return m

    def choose(self, totals: torch.Tensor, k: int, round_number: int) -> torch.Tensor:
        """All positions, int64 [m].

        Args:
            totals: float `[m, tau]`; only m counts.
            k: not used.
            round_number: not used.
        """
        return torch.arange(totals.shape[0], device=totals.device)


@dataclass(frozen=True, slots=True)
class _Share:
    """A share of the positions (float in (0, 1]) or a number of them (int)."""

    amount: float | int

    def __post_init__(self) -> None:
        check_amount(f"{type(self).__name__} amount", self.amount)
        check_block(getattr(self, "block", 1))

    def count(self, m: int) -> int:
        """Positions sent of m."""
        return budget(self.amount, m)


@public
@dataclass(frozen=True, slots=True)
class TopK(_Share):
    """Send the scalars of largest magnitude.

    Attributes:
        amount: a fraction of the scalars (float in (0, 1]) or a count (int).
        error_feedback: keep what is not sent and add it to the next round's change.
    """

    error_feedback: bool = True
    policy: ClassVar[Policy] = "scalars"
    block: ClassVar[int] = 1

    def choose(self, totals: torch.Tensor, k: int, round_number: int) -> torch.Tensor:
        """Positions of largest L1 norm.

        Args:
            totals: float `[m, tau]`, change and residual.
            k: how many to choose.
            round_number: not used.

        Returns:
            int64 [k], increasing.
        """
        scores = totals.abs()
        return top(scores[:, 0] if scores.shape[1] == 1 else scores.sum(dim=1), k)


@public
@dataclass(frozen=True, slots=True)
class BlockTopK(_Share):
    """Send the blocks of `block` contiguous values with the largest L1 norm.

    Each tensor is cut into separate blocks, the last one padded with zeros. One position costs
    one tree, so blocks carry far more values a byte than single scalars.

    Attributes:
        amount: a fraction of the blocks (float in (0, 1]) or a count (int).
        block: values per block, >= 1.
        error_feedback: keep what is not sent and add it to the next round's change.
    """

    block: int = 32
    error_feedback: bool = True
    policy: ClassVar[Policy] = "blocks"

    def choose(self, totals: torch.Tensor, k: int, round_number: int) -> torch.Tensor:
        """Blocks of largest L1 norm.

        Args:
            totals: float `[m, tau]`, change and residual, a block per row.
            k: how many to choose.
            round_number: not used.

        Returns:
            int64 [k], increasing.
        """
        return top(totals.abs().sum(dim=1), k)


@public
@dataclass(frozen=True, slots=True)
class BinTop(_Share):
    """Send the largest value, or block, of each public bin.

    The positions are parted into as many bins as a client sends, anew each round, by the plan's
    public seed and the round's number. So a client's choice always fits into the trees: one tree
    a bin of m / k positions, in place of three and more in a cuckoo table. Two large values in one
    bin wait for each other; error feedback sends the second in a later round, from another bin.

    Attributes:
        amount: a fraction of the positions (float in (0, 1]) or a count (int).
        block: values per position; 1 sends scalars.
        error_feedback: keep what is not sent and add it to the next round's change.
    """

    block: int = 1
    error_feedback: bool = True

    @property
    def policy(self) -> Policy:
        """`scalars` or `blocks`."""
        return "scalars" if self.block == 1 else "blocks"

    def choose(self, totals: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
        """The position of largest L1 norm of each of k bins: int64 [k], increasing.

        Args:
            totals: [m, tau].
            members: positions of each bin, int64 [k, m / k rounded up], one of them twice where a
                bin has one less. Of equal norms the first in a bin wins.
        """
        scores = totals.abs()
        scores = scores[:, 0] if scores.shape[1] == 1 else scores.sum(dim=1)
        of_members = scores.index_select(0, members.flatten()).reshape(members.shape)
        best = of_members.argmax(dim=1, keepdim=True)
        return members.gather(1, best).flatten().sort().values


@public
@dataclass(frozen=True, slots=True)
class RandomK(_Share):
    """Send positions drawn afresh each round from a public seed, the same for every client.

    Attributes:
        amount: a fraction of the positions (float in (0, 1]) or a count (int).
        block: values per position; 1 sends scalars. Rows have their own width.
        seed: public; positions are a function of (seed, round number).
        error_feedback: keep what is not sent and add it to the next round's change.
    """

    block: int = 1
    seed: int = 0
    error_feedback: bool = True

    @property
    def policy(self) -> Policy:
        """`scalars` or `blocks`."""
        return "scalars" if self.block == 1 else "blocks"

    def positions(self, m: int, k: int, round_number: int) -> torch.Tensor:
        """The positions of a round, drawn from `seed` and the round's number.

        Args:
            m: number of positions.
            k: how many to draw, at most m.
            round_number: number of the round, from 0.

        Returns:
            int64 [k], increasing, in [0, m).
        """
        stream = np.random.Generator(np.random.Philox([self.seed, round_number]))
        return torch.from_numpy(np.sort(stream.choice(m, size=k, replace=False)))

    def choose(self, totals: torch.Tensor, k: int, round_number: int) -> torch.Tensor:
        """The round's positions, whatever the values.

        Args:
            totals: float `[m, tau]`; only m counts.
            k: how many to choose.
            round_number: number of the round, from 0.

        Returns:
            int64 [k], increasing, on the device of `totals`.
        """
        return self.positions(totals.shape[0], k, round_number).to(totals.device)


@public
@dataclass(frozen=True, slots=True)
class BlockSample(_Share):
    """Send a block of each of k equal stretches, drawn in secret, times the stretch's blocks.

    So the mean over the draws is the whole change (after PREAMBLE, Asi and others 2025). Deviation:
    a block of each stretch instead of any k, so that draws are independent and exactly k are sent.
    Under `l2_bound` each block is scaled down to its part of the bound, on which
    `privacy.guarantee(sampled_blocks=True)` rests. Nothing is kept: a residual would send again
    what is in the mean already.

    Attributes:
        amount: a fraction of the blocks (float in (0, 1]) or a count (int).
        block: values per block, >= 1.
    """

    block: int = 32
    policy: ClassVar[Policy] = "blocks"
    error_feedback: ClassVar[bool] = False


@public
@dataclass(frozen=True, slots=True)
class Fixed:
    """Send the same positions every round: a fixed submodel.

    The servers learn how many there are, not which; under Opacus they must be public.

    Attributes:
        positions: distinct, not negative. In `Rows`, a mapping from table name (`items.weight` or
            `items`) to row ids.
        block: values per position; 1 sends scalars. Rows have their own width.
    """

    positions: Sequence[int] | Mapping[str, Sequence[int]]
    block: int = 1
    error_feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        groups = (
            self.positions.values() if isinstance(self.positions, Mapping) else [self.positions]
        )
        for group in groups:
            ids = [int(i) for i in group]
            if not ids or min(ids) < 0 or len(set(ids)) != len(ids):
                raise ParameterError(
                    "Fixed expects distinct positions of 0 or more: remove duplicates and "
                    "negative numbers"
                )
        check_block(self.block)

    @property
    def policy(self) -> Policy:
        """`scalars` or `blocks`."""
        return "scalars" if self.block == 1 else "blocks"

    def ids(self, name: str | None = None) -> torch.Tensor:
        """The positions (of the table `name`): int64, increasing."""
        if isinstance(self.positions, Mapping):
            short = (name or "").removesuffix(".weight")
            group = self.positions.get(name or "", self.positions.get(short, ()))
        else:
            group = self.positions
        return torch.tensor(sorted(int(i) for i in group), dtype=torch.int64)

    def count(self, m: int) -> int:
        """How many positions there are.

        Raises:
            ParameterError: if there is no position, or one is not in [0, m).
        """
        ids = self.ids()
        if ids.numel() == 0 or int(ids[-1]) >= m:
            raise ParameterError(
                f"Fixed has {ids.numel()} positions, the last {ids[-1:].tolist()}: pass one or "
                f"more positions from 0 to {m - 1}"
            )
        return ids.numel()

    def choose(self, totals: torch.Tensor, k: int, round_number: int) -> torch.Tensor:
        """The fixed positions, whatever the values.

        Args:
            totals: float `[m, tau]`; only its device counts.
            k: not used.
            round_number: not used.

        Returns:
            int64, increasing, on the device of `totals`.
        """
        return self.ids().to(totals.device)


ByValue = Dense | TopK | BlockTopK | RandomK | Fixed
"""Policies that choose positions of a change, and send these as they are."""

RestPolicy = ByValue | BinTop | BlockSample
"""The types of `rest`."""

RowChoice = TopK | RandomK | Fixed
"""The types of `choose` in `Rows`."""


@public
@dataclass(frozen=True, slots=True)
class Rows:
    """Embedding rows as units ("mega-elements"): a row is sent in full or not at all.

    By default the rows sent are those the client's batches looked up. With `top`, of these the
    ones that changed most in L1 norm.

    Attributes:
        top: send only this many rows (int), or this fraction of the table's rows (float), of
            largest L1 norm; the rest stays in the residual. Short for `choose=TopK(top)`.
        budget: most rows that a client may send. If the client holds more, those of largest L1
            norm go first, and the others stay in the residual. A plan's `rows_per_client` does the
            same.
        choose: `TopK`, `RandomK` or `Fixed`.
        find: `hooks` learns touched rows from forward pre-hooks, without looking at the table.
            `scan` looks through the whole gradient at each step (for tables that are also used
            outside their embedding module, such as a tied softmax).
        untouched: what to do where the optimizer moves rows that no batch touched (weight decay):
            `reject` raises in `torchfsl.Federated`. `restrict` puts those rows back at the end of
            the round (keeps a copy of the table). `touched` sends the touched rows and leaves the
            others as the optimizer left them, neither sent nor put back.
        absent: what rows that a private retrieval did not fetch hold during a round. `nan` makes
            every use of one show. `zero` is for losses with a regulariser over whole tables (L2 as
            deepctr-torch has it): it then covers the retrieved rows, all of which are sent where
            they moved. Looking an absent row up is refused under both, and under both the rows
            are NaN after the round.
        tables: names of the tables meant (`items.weight` or `items`); None means all. Others go
            to `rest`.
        error_feedback: keep cut rows, unmatched rows and rounding errors for later rounds.
    """

    top: float | int | None = None
    budget: int | None = None
    choose: RowChoice | None = None
    find: Find = "hooks"
    untouched: Untouched = "reject"
    absent: Absent = "nan"
    tables: tuple[str, ...] | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if self.top is not None:
            check_amount("Rows top", self.top)
        if self.top is not None and self.choose is not None:
            raise ParameterError("Rows got both top and choose: pass top or choose")
        if self.budget is not None and self.budget < 1:
            raise ParameterError(f"Rows budget is {self.budget}: choose 1 row or more")
        if self.find not in ("hooks", "scan"):
            raise ParameterError(f"Rows find is {self.find!r}: choose 'hooks' or 'scan'")
        if self.untouched not in ("reject", "restrict", "touched"):
            raise ParameterError(
                f"Rows(untouched={self.untouched!r}) is unknown: choose 'reject', 'restrict' or "
                "'touched'"
            )
        if self.absent not in ("nan", "zero"):
            raise ParameterError(f"Rows(absent={self.absent!r}) is unknown: choose 'nan' or 'zero'")

    @property
    def choice(self) -> RowChoice | None:
        """`choose`, with `top` spelled out; None sends every touched row."""
        return TopK(self.top) if self.top is not None else self.choose

    @property
    def fixed(self) -> Fixed | None:
        """The choice where it is `Fixed`: the same rows every round."""
        return self.choose if isinstance(self.choose, Fixed) else None

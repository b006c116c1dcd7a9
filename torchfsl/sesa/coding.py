"""The mathematics of a round: shares of a choice and of masks, answers, sums.

Letters: K submodels of a segment, T colluding clients, U survivors. Client j owns submodels
p_j1 < p_j2 < ... of a segment, with masks r_jk. For each k the polynomial phi_jk is 1 at p_jk and 0
at the other points of 1..K. One polynomial varphi_j is r_jk at p_jk for all k, and 0 at the other
points of 1..K. All have degree K + T - 1, so T of their values at other points tell nothing about
the first K. With x_jk = g_jk - r_jk in the clear, the value of

    psi = sum over j in U of (sum over k of x_jk phi_jk) + varphi_j

at point p is the sum of the updates of submodel p (Sami and Guler, Eq. 20-28).

There are two deviations from the paper. They change no sum, and no view beyond what follows from
the view in the paper:

- Merged: the paper sends the values of one varphi_jk for each k. A recipient uses only the sum of
  these values, so here the sender adds them up. One polynomial with T fresh random vectors has the
  distribution of the sum of many. The varphi part of a share no longer grows with the submodels
  that a client owns.
- Seeded: the paper draws T random values at points that no member holds. Here the T members after
  the sender get random values themselves, each from a 16-byte seed. Given the first K values, the
  values at any T points and those at any other T points determine each other by a bijection. So
  both ways draw the same polynomials. The seeds make the secrecy of the values computational
  (AES-128), like that of the channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from torchfsl.crypto import field, lagrange
from torchfsl.crypto.field import Words
from torchfsl.sesa.cohort import Cohort
from torchfsl.sesa.sesa_plan import Part, SesaPlan
from torchfsl.types import Indices, Whole


def parts_of(plan: SesaPlan, width: int) -> Iterator[tuple[Part, int, slice]]:
    """Each segment, the submodels a client of the width owns there, its range in a share.

    In a share a segment's phi (one number a submodel) stand before its varphi.
    """
    start = 0
    for part, owned in zip(plan.parts, plan.widths[width].owned, strict=True):
        stop = start + owned + part.size
        yield part, owned, slice(start, stop)
        start = stop


def cut(plan: SesaPlan, width: int, masked: Words) -> list[Words]:
    """A client's values, laid out by segment, as one `[owned, size]` each."""
    pieces, start = [], 0
    for part, owned, _ in parts_of(plan, width):
        stop = start + owned * part.size
        pieces.append(masked[start:stop].reshape(owned, part.size))
        start = stop
    return pieces


def shares(
    cohort: Cohort, sender: int, owned: Sequence[Indices], masks: Sequence[Words], streams: Words
) -> Words:
    """The shares of `sender` that are evaluations.

    Args:
        cohort: the round's members.
        sender: its place.
        owned: by segment its submodels, `int64[k]` in [0, K).
        masks: by segment r, `[k, size]`.
        streams: `[T, share_values]`, uniform: the shares of `cohort.seeded(sender)`.

    Returns:
        `[n - T, share_values]`, for `cohort.evaluated(sender)` in order.
    """
    plan = cohort.plan
    others = cohort.evaluated(sender)
    out = np.empty((len(others), streams.shape[1]), dtype=np.uint32)
    drawn = tuple(cohort.point(place) for place in cohort.seeded(sender))
    wanted = tuple(cohort.point(place) for place in others)
    pieces = parts_of(plan, cohort.width(sender))
    for (part, count, span), chosen, mask in zip(pieces, owned, masks, strict=True):
        known = np.zeros((part.num_submodels, count + part.size), dtype=np.uint32)
        known[chosen, np.arange(count)] = 1
        known[chosen, count:] = mask
        nodes = (*range(1, part.num_submodels + 1), *drawn)
        basis = lagrange.matrix(nodes, wanted)
        out[:, span] = field.multiply(basis, np.concatenate([known, streams[:, span]]))
    return out


class Answer:
    """A survivor's answer psi, put together from one share after another.

    Args:
        cohort: the round's members.
        survivors: U, their places.
    """

    def __init__(self, cohort: Cohort, survivors: Sequence[int]) -> None:
        """No share added yet."""
        self._cohort = cohort
        self._total = np.zeros(cohort.plan.sum_values, dtype=np.uint64)
        self._factors: list[list[Words]] = [[] for _ in cohort.plan.parts]
        self._survivors = survivors

    def add(self, sender: int, share: Words) -> None:
        """Add the share of the survivor at place `sender`; in the order of the survivors."""
        start = 0
        pieces = parts_of(self._cohort.plan, self._cohort.width(sender))
        for factors, (part, owned, span) in zip(self._factors, pieces, strict=True):
            piece = share[span]
            factors.append(piece[:owned])
            # At most 2**32 members of less than 2**32 each.
            self._total[start : start + part.size] += piece[owned:]
            start += part.size

    def finish(self, masked: Words) -> Words:
        """psi, `[sum_values]`.

        Args:
            masked: x of the survivors: segment by segment, there survivor by survivor.
        """
        plan = self._cohort.plan
        psi = (self._total % np.uint64(field.MODULUS)).astype(np.uint32)
        first = start = 0
        for part, factors in zip(plan.parts, self._factors, strict=True):
            phi = np.concatenate(factors)
            stop = start + len(phi) * part.size
            x = masked[start:stop].reshape(len(phi), part.size)
            span = slice(first, first + part.size)
            psi[span] = field.add(psi[span], field.multiply(phi[None], x)[0])
            start, first = stop, span.stop
        return psi


def open_sums(cohort: Cohort, answers: Sequence[tuple[int, Words]]) -> dict[str, Whole]:
    """The sums from K + T answers: by segment `int64[positions, tau]`.

    Args:
        cohort: the round's members.
        answers: place and psi, at least K + T of them; a segment uses as many as it needs.
    """
    plan = cohort.plan
    sums: dict[str, Whole] = {}
    start = 0
    for part in plan.parts:
        used = answers[: part.num_submodels + plan.collusion]
        assert len(used) == part.num_submodels + plan.collusion
        nodes = tuple(cohort.point(place) for place, _ in used)
        basis = lagrange.matrix(nodes, tuple(range(1, part.num_submodels + 1)))
        psi = np.stack([answer[start : start + part.size] for _, answer in used])
        opened = field.decode(field.multiply(basis, psi))
        sums[part.segment.name] = opened.reshape(-1, part.segment.tau)
        start += part.size
    return sums

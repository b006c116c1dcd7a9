"""Which samples belong to which client."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.data.prf import Stream

Positions = npt.NDArray[np.int64]


def iid(num_samples: int, num_clients: int, stream: Stream) -> list[Positions]:
    """Shuffle, then cut into `num_clients` parts whose sizes differ by one at most."""
    return [np.sort(part) for part in np.array_split(stream.permutation(num_samples), num_clients)]


def label_skewed(
    labels: npt.NDArray[np.int64], num_clients: int, alpha: float, stream: Stream
) -> list[Positions]:
    """Draw every client's label mixture from a Dirichlet distribution (Hsu et al. 2019).

    Clients take equal numbers of samples, each label as often as its mixture says while the label
    lasts. Small `alpha` means few labels a client; large `alpha` approaches `iid`.

    Args:
        labels: `[n]` in [0, classes).
        num_clients: number of parts, at most n.
        alpha: concentration, > 0.
        stream: source of the mixtures and orders.

    Raises:
        ValueError: a label is negative.
    """
    if labels.min() < 0:
        raise ValueError(f"a label is {labels.min()}, expected 0 or more: leave out such rows")
    classes = int(labels.max()) + 1
    pools = [np.flatnonzero(labels == c) for c in range(classes)]
    pools = [pool[stream.permutation(len(pool))] for pool in pools]
    sizes = [len(part) for part in np.array_split(np.arange(len(labels)), num_clients)]
    left = np.array([len(pool) for pool in pools])
    parts = []
    for size in sizes:
        counts = _apportion(stream.dirichlet(alpha, classes), size, left)
        parts.append(
            np.sort(
                np.concatenate([pools[c][left[c] - counts[c] : left[c]] for c in range(classes)])
            )
        )
        left = left - counts
    return parts


def _apportion(
    mixture: npt.NDArray[np.float64], size: int, left: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Whole counts near `size * mixture`, at most `left`, that sum to `size <= sum(left)`."""
    counts = np.zeros(len(left), dtype=np.int64)
    while (missing := size - int(counts.sum())) > 0:
        room = left - counts
        weights = np.where(room > 0, mixture, 0.0)
        if weights.sum() <= 0.0:
            weights = room.astype(np.float64)
        share = np.minimum(np.floor(missing * weights / weights.sum()).astype(np.int64), room)
        if share.sum() == 0:
            share[np.argmax(weights)] = 1
        counts += share
    return counts


def by_writer(writers: Positions, num_clients: int, stream: Stream) -> list[Positions]:
    """Each client has the examples of one writer; writers beyond the clients stay out.

    Args:
        writers: `[n]`, with at least `num_clients` distinct ones.
        num_clients: number of parts.
        stream: draws which writers are clients.
    """
    names = np.unique(writers)
    chosen = np.sort(names[stream.choice(len(names), num_clients)])
    return [np.flatnonzero(writers == name) for name in chosen]


def two_labels(labels: npt.NDArray[np.int64], num_clients: int, stream: Stream) -> list[Positions]:
    """Sort by label, cut into twice as many pieces as clients, give each client two of them.

    After McMahan et al. (AISTATS 2017): most clients have examples of two labels, some of one or
    three.

    Args:
        labels: `[n]`, n at least twice `num_clients`.
        num_clients: number of parts.
        stream: source of the order within a label and of who gets which pieces.
    """
    order = stream.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], 2 * num_clients)
    dealt = stream.permutation(2 * num_clients)
    return [
        np.sort(np.concatenate([pieces[one], pieces[other]]))
        for one, other in dealt.reshape(num_clients, 2)
    ]

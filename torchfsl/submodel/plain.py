"""The yardstick: the same quantised integers added up in the clear, without any protection."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from torchfsl.submodel.aggregation import Closed, Participant, Receipt, RoundSession
from torchfsl.submodel.halves import as_heard, check_finite
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment, in_the_clear, tensor_spans
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.sessions import Sessions
from torchfsl.submodel.update import Update, check_update, check_weight
from torchfsl.types import Array, Indices


class Plain:
    """Adds the quantised updates in int64, in the clear. Bytes are those of raw indices and values.

    What is opened is what the plan lets servers open: the lane, if it has one, and no values that
    fewer than `min_contributors` clients sent. Noise is not added.

    Args:
        plan: any protocol's; gives segments, budgets, encoding, lane and weights.
        model: the model.
    """

    def __init__(self, plan: SubmodelPlan, model: ServerModel) -> None:
        """Nothing summed yet."""
        model.check(plan)
        self.plan, self.model = plan, model
        self.server_seconds = 0.0
        self._sessions = Sessions()

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`."""
        self.server_seconds, self._sessions = 0.0, Sessions()
        segments = self.plan.segments
        self._sums = {s.name: np.zeros((s.index_space, s.tau), dtype=np.int64) for s in segments}
        counted = [s for s in segments if self.plan.lane_values and not s.is_dense]
        self._lanes = {s.name: np.zeros(s.index_space, dtype=np.int64) for s in counted}
        self._weights: dict[int, int] = {}

    def participant(self, client: int) -> Participant:
        """See `Aggregation`."""
        return self._sessions.watch(client, _PlainClient(self, client))

    def add(self, client: int, update: Update, weight: int = 1) -> None:
        """Sum one client's update times its weight.

        Raises:
            ParameterError: the plan takes no such update or weight; nothing was added.
        """
        start = time.perf_counter()
        check_update(self.plan, update)
        weight = check_weight(self.plan, weight)
        for segment in self.plan.segments:
            add_to(self._sums[segment.name], update, segment, weight)
        for name, lane in self._lanes.items():
            lane[update[name].positions] += weight
        self._weights[client] = weight
        self.server_seconds += time.perf_counter() - start

    def close_round(self) -> Closed:
        """See `Aggregation`."""
        start = time.perf_counter()
        clients = tuple(sorted(self._weights))
        total = sum(self._weights.values())
        withheld = withhold(self.plan, self._sums, self._lanes)
        opened = Opened(
            self._sums, self._lanes, len(clients), total, clients, withheld=withheld
        )  # fmt: skip
        self.model.apply(self.plan, opened)
        self.server_seconds += time.perf_counter() - start
        return Closed(opened, self._sessions.receipts())


def add_to(sums: npt.NDArray[np.int64], update: Update, segment: Segment, weight: int = 1) -> None:
    """Add a client's values of one segment, times its weight, to `sums` `[m, tau]`, in place."""
    part = update[segment.name]
    values = part.values if weight == 1 else weight * part.values
    if part.indices is None:
        sums += values
    else:
        sums[part.indices] += values


def withhold(
    plan: SubmodelPlan,
    sums: Mapping[str, npt.NDArray[np.int64]],
    counts: Mapping[str, npt.NDArray[np.int64]],
) -> dict[str, int]:
    """Zero sums that fewer than the plan's `min_contributors` sent; by segment how many."""
    withheld: dict[str, int] = {}
    for name, total in sums.items():
        if plan.opens_counts_first and name in counts:
            few = (counts[name] > 0) & (counts[name] < plan.min_contributors)
            total[few] = 0
            withheld |= {name: num_few} if (num_few := int(np.count_nonzero(few))) else {}
    return withheld


class _PlainClient:
    """A `Participant` of `Plain`."""

    def __init__(self, home: Plain, client: int) -> None:
        self.plan, self.client_id, self._home = home.plan, client, home

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        return _PlainSession(self._home, self.client_id, indices or {})


class _PlainSession:
    """A `RoundSession` of `Plain`."""

    def __init__(self, home: Plain, client: int, indices: Mapping[str, npt.ArrayLike]) -> None:
        self._home, self._client = home, client
        self._indices = {name: np.asarray(given, dtype=np.int64) for name, given in indices.items()}
        self._sent, self._received = Counter[str](), Counter[str]()
        self._sent["indices"] = sum(4 * len(given) for given in self._indices.values())

    def download(self) -> dict[str, Array]:
        state, segments = self._home.model.state, in_the_clear(self._home.plan.segments)
        clear: dict[str, Array] = {}
        for segment in segments:
            heard = {t.name: as_heard(state[t.name], segment.download) for t in segment.tensors}
            check_finite(heard, "", segment.download)
            clear |= heard
        self._received["model"] += sum(segment.download_bytes for segment in segments)
        return clear

    def retrieve(self) -> dict[str, tuple[Indices, Array]]:
        rows = {}
        for segment in self._home.plan.segments:
            if segment.retrieve:
                indices = self._indices[segment.name]
                found = model_rows(self._home.model, segment, indices)
                check_finite({segment.name: found}, "rows of ", segment.download)
                rows[segment.name] = (indices, found)
                self._received["rows"] += len(indices) * segment.row_bytes
        return rows

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        plan = self._home.plan
        self._home.add(self._client, update, weight)
        for segment in plan.segments:
            part = update[segment.name]
            self._sent["values"] += plan.ring_bytes(segment) * part.values.size
            if part.indices is not None and not segment.retrieve:
                self._sent["indices"] += 4 * len(part.indices)
        self._sent["weight"] += 4 * (plan.lane == "weight")
        return self.receipt()

    def abort(self) -> Receipt:
        return self.receipt()

    def receipt(self) -> Receipt:
        phases = dict(self._sent + self._received)
        return Receipt(self._sent.total(), self._received.total(), {}, phases)


def model_rows(model: ServerModel, segment: Segment, indices: Indices) -> Array:
    """Some rows (increasing indices) of a rows segment as clients get them: `[k, tau]`."""
    parts = []
    for tensor, span in tensor_spans(segment):
        here = indices[(indices >= span.start) & (indices < span.stop)]
        parts.append(model.state[tensor.name].reshape(tensor.shape[0], -1)[here - span.start])
    return as_heard(np.concatenate(parts), segment.download)

"""The baseline: the same quantised integers added up in the clear, without any protection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.submodel import sum_bound
from torchfsl.submodel.aggregation import Closed, Participant, Receipt, RoundSession, Traffic
from torchfsl.submodel.halves import as_heard, check_finite
from torchfsl.submodel.in_process import Sessions, Stopwatch
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.participation import Participation, check_rounds
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment, in_the_clear, tensor_spans
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update, check_update, check_weight
from torchfsl.types import Array, Indices, Whole

MakeNoise = Callable[[int], dict[str, Whole]]


class PlainSum:
    """The sum of quantised updates of one round, in int64.

    Attributes:
        sums: by segment, int64 [positions, values].
        lanes: by tree segment of a plan with a lane, int64 [positions].
        weights: by client that was added.
    """

    def __init__(self, plan: SubmodelPlan) -> None:
        """Nothing added yet."""
        self._plan = plan
        self.sums = {
            s.name: np.zeros((s.index_space, s.tau), dtype=np.int64) for s in plan.segments
        }
        counted = [s for s in plan.segments if plan.lane_values and not s.is_dense]
        self.lanes = {s.name: np.zeros(s.index_space, dtype=np.int64) for s in counted}
        self.weights: dict[int, int] = {}

    def add(
        self,
        client: int,
        update: Update,
        weight: int = 1,
        unmatched: Mapping[str, Indices] = MappingProxyType({}),
    ) -> None:
        """Add one client's update times its weight.

        Args:
            client: number.
            update: quantised.
            weight: of the client.
            unmatched: by segment positions that were not sent.

        Raises:
            ParameterError: the plan takes no such weight; nothing was added.
        """
        weight = check_weight(self._plan, weight)
        for segment in self._plan.segments:
            part = update[segment.name]
            missing = unmatched.get(segment.name)
            if part.indices is not None and missing is not None and len(missing):
                keep = ~np.isin(part.indices, missing)
                part = SegmentUpdate(part.indices[keep], part.values[keep])
            add_to(self.sums[segment.name], {segment.name: part}, segment, weight)
            if segment.name in self.lanes:
                self.lanes[segment.name][part.positions] += weight
        self.weights[client] = weight

    def equals(self, opened: Opened, noise: Mapping[str, Array] = MappingProxyType({})) -> bool:
        """Whether an aggregate is this sum, and the servers' noise where it is known.

        Sums of too few contributors are zero in both; servers go by counts with their noise. A
        scaled aggregate equals this sum scaled alike.
        """
        counts = {n: lane + noise.get(f"{n}/lane", 0) for n, lane in self.lanes.items()}
        sums = {
            name: total + noise[name].reshape(total.shape) if name in noise else total
            for name, total in self.sums.items()
        }
        if self._plan.opens_counts_first:
            for name, count in counts.items():
                kept = count >= self._plan.min_contributors
                sums[name] = np.where(kept[:, None], sums[name], 0)
        if opened.scaled:
            sums = {name: total.copy() for name, total in sums.items()}
            ours = dataclasses.replace(opened, sums=sums, lanes=counts, scaled={})
            sum_bound.keep(self._plan, ours)
        return all(
            np.array_equal(opened.sums[name].reshape(total.shape), total)
            for name, total in sums.items()
        ) and all(np.array_equal(opened.lanes[name], count) for name, count in counts.items())


class Plain:
    """Adds the quantised updates in int64, in the clear. Bytes are those of raw indices and values.

    It opens what the plan lets servers open: the lane, if it has one, and no values that fewer than
    `min_contributors` clients sent. A client may report as often as the plan says.

    Args:
        plan: any protocol's; gives segments, budgets, encoding, lane and weights.
        model: the model.
        noise: gives by segment what the servers add to the sums that are opened as number t, lanes
            as `NAME/lane`; nothing is added without.

    Attributes:
        noise: as given.
        participation: how many sums hold a report of each client, and the last of them.
        rounds_opened: so many so far.
    """

    def __init__(
        self, plan: SubmodelPlan, model: ServerModel, noise: MakeNoise | None = None
    ) -> None:
        """Nothing summed yet."""
        model.check(plan)
        self.plan, self.model, self.noise = plan, model, noise
        self.participation = Participation(plan.max_participations, plan.min_separation)
        self.rounds_opened, self._added = 0, dict[str, Whole]()
        self._watch, self._sessions, self._sum = Stopwatch(), Sessions(), PlainSum(plan)
        self._number: int | None = None

    @property
    def models(self) -> tuple[ServerModel, ...]:
        """See `Aggregation`."""
        return (self.model,)

    @property
    def server_seconds(self) -> float:
        """See `Aggregation`."""
        return self._watch.seconds

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`."""
        check_rounds(self.plan, self.rounds_opened)
        self._watch, self._sum = Stopwatch(), PlainSum(self.plan)
        self._sessions, self._number = Sessions(), round_number

    def abandon_round(self) -> None:
        """See `Aggregation`."""
        self._sum, self._number = PlainSum(self.plan), None

    def participant(self, client: int) -> Participant:
        """See `Aggregation`."""
        return self._sessions.watch(_PlainClient(self, client))

    def add(self, client: int, update: Update, weight: int = 1) -> None:
        """Sum one client's update times its weight.

        Raises:
            ParameterError: the plan takes no such update or weight; nothing was added.
        """
        with self._watch.running():
            check_update(self.plan, update)
            self._sum.add(client, update, weight)

    def add_nothing(self, client: int) -> None:
        """Count a client whose report adds nothing."""
        self._sum.weights[client] = 0 if self.plan.lane == "weight" else 1

    def check_open(self, round_number: int, client: int) -> None:
        """Refuse what the servers of a protocol refuse.

        Raises:
            RejectedSubmission: another round is open, the client has reported, or all have.
        """
        if round_number != self._number:
            raise RejectedSubmission(
                f"the message is for round {round_number}, and the open round is {self._number}: "
                "call fed.round() again",
                code="wrong-round",
            )
        if client in self._sum.weights:
            raise RejectedSubmission(
                f"client {client} has already reported in this round: participate again in the "
                "next round",
                code="already-submitted",
            )
        if len(self._sum.weights) == self.plan.max_clients:
            raise RejectedSubmission(
                f"the round is full: the plan allows {self.plan.max_clients} clients. Participate "
                "in the next round",
                code="round-full",
            )
        self.participation.check(client, self.rounds_opened)

    def noise_sums(self) -> dict[str, Whole]:
        """By segment what was added to the last round's sums; lanes as `NAME/lane`."""
        return self._added

    def close_round(self) -> Closed:
        """See `Aggregation`."""
        return Closed(self._watch.timed(self._opened), self._sessions.receipts())

    def _opened(self) -> Opened:
        """The sums, applied to the model."""
        total, self._number = self._sum, None
        clients = tuple(sorted(total.weights))
        if len(clients) < self.plan.min_clients:
            raise ProtocolError(
                f"{len(clients)} reports, the plan wants {self.plan.min_clients} (min_clients), so "
                "the round closes unopened: let more clients participate in the next round",
                code="too-few-reports",
            )
        weight = sum(total.weights.values())
        if self.noise is not None:
            self._added = self.noise(self.rounds_opened)
            for name, values in total.sums.items():
                values += self._added[name].reshape(values.shape)
                lane = self._added[f"{name}/lane"]
                if name in total.lanes:
                    total.lanes[name] += lane
                elif lane.size:
                    weight += int(lane[0])
        self.participation.charge(clients, self.rounds_opened)
        self.rounds_opened += 1
        withheld = withhold(self.plan, total.sums, total.lanes)
        sums = total.sums, total.lanes
        opened = Opened(*sums, len(clients), weight, clients, withheld=withheld)
        sum_bound.keep(self.plan, opened)
        self.model.apply(self.plan, opened)
        return opened


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
            few = counts[name] < plan.min_contributors  # with noise also below 0, as at servers
            total[few] = 0
            num_few = int(np.count_nonzero(few & (counts[name] > 0)))
            withheld |= {name: num_few} if num_few else {}
    return withheld


class _PlainClient:
    """A `Participant` of `Plain`."""

    def __init__(self, home: Plain, client: int) -> None:
        self.plan, self.client_id, self._home = home.plan, client, home

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        self._home.check_open(round_number, self.client_id)
        return _PlainSession(self._home, self.client_id, round_number, indices or {})


class _PlainSession:
    """A `RoundSession` of `Plain`."""

    def __init__(
        self, home: Plain, client: int, number: int, indices: Mapping[str, npt.ArrayLike]
    ) -> None:
        self._home, self._client, self._number = home, client, number
        self._indices = {name: np.asarray(given, dtype=np.int64) for name, given in indices.items()}
        self._traffic = Traffic()
        self._traffic.sent["indices"] = sum(4 * len(given) for given in self._indices.values())

    def download(self) -> dict[str, Array]:
        state, segments = self._home.model.state, in_the_clear(self._home.plan.segments)
        clear: dict[str, Array] = {}
        for segment in segments:
            heard = {t.name: as_heard(state[t.name], segment.download) for t in segment.tensors}
            check_finite(heard, "", segment.download)
            clear |= heard
        self._traffic.received["model"] += sum(segment.download_bytes for segment in segments)
        return clear

    def retrieve(self) -> dict[str, tuple[Indices, Array]]:
        rows = {}
        for segment in self._home.plan.segments:
            if segment.retrieve:
                indices = self._indices[segment.name]
                values = model_rows(self._home.model, segment, indices)
                check_finite({segment.name: values}, "rows of ", segment.download)
                rows[segment.name] = (indices, values)
                self._traffic.received["rows"] += len(indices) * segment.row_bytes
        return rows

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        plan, sent = self._home.plan, self._traffic.sent
        self._home.check_open(self._number, self._client)
        self._home.add(self._client, update, weight)
        for segment in plan.segments:
            part = update[segment.name]
            sent["values"] += plan.ring_bytes(segment) * part.values.size
            if part.indices is not None and not segment.retrieve:
                sent["indices"] += 4 * len(part.indices)
        sent["weight"] += 4 * (plan.lane == "weight")
        return self.receipt()

    def abort(self) -> Receipt:
        self._home.check_open(self._number, self._client)
        self._home.add_nothing(self._client)
        return self.receipt()

    def receipt(self) -> Receipt:
        return self._traffic.receipt()


def model_rows(model: ServerModel, segment: Segment, indices: Indices) -> Array:
    """Some rows (increasing indices) of a rows segment as clients get them: `[k, tau]`."""
    parts = []
    for tensor, span in tensor_spans(segment):
        here = indices[(indices >= span.start) & (indices < span.stop)]
        parts.append(model.state[tensor.name].reshape(tensor.shape[0], -1)[here - span.start])
    return as_heard(np.concatenate(parts), segment.download)

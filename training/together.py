"""The gradients of a round's clients, taken together: most of a simulation's time.

Every client still fetches its rows, sends an update and is audited as alone; only the arithmetic
of several clients is one batch (`torch.func.vmap`). A client's samples, and the random numbers of
its dropout, are the same, and so are its own steps under `sgd`. Sums of float32 are taken in
another order, so that a gradient differs from the loop's in its last bits: a run is reproducible
with itself, not with a run of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchfsl.engine.lookups import zeros_for_missing
from torchfsl.submodel.aggregation import Participant, RoundSession
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment, tensor_spans
from torchfsl.submodel.update import RawSegment, quantise
from training.aggregations.dropout import DroppedOut
from training.local import freeze_statistics, rate_of
from training.section_checks import ConfigError
from training.sections import Local
from training.tasks.task import Ids, Work

_CLIENTS: Final = 16
"""Whose gradients are one batch; more make more padding and more memory."""


@dataclass(frozen=True, slots=True)
class Member:
    """A client of a round.

    Attributes:
        participant: its side of the aggregation.
        work: its rows and its one batch, as often as it steps, or none.
        dropout_seed: of torch's generator before it trains.
        rounding_seed: of stochastic rounding, else None.
    """

    participant: Participant
    work: Work
    dropout_seed: int
    rounding_seed: bytes | None


class Together:
    """Rounds in which clients' gradients are taken together.

    Args:
        model: of the experiment's kind; only its shape counts, its values are those fetched.
        plan: the public plan.
        local: training at a client, a single gradient or steps of SGD.
        tables: by argument of the model's forward the table whose ids it holds, or None.

    Raises:
        ConfigError: the plan or the model does something that this cannot.
    """

    def __init__(
        self, model: nn.Module, plan: SubmodelPlan, local: Local, tables: Sequence[str | None]
    ) -> None:
        rows = [segment for segment in plan.segments if segment.retrieve]
        rest = [segment for segment in plan.segments if not segment.retrieve]
        if len(rows) != 1:
            raise ConfigError(
                f"local.together needs one segment of retrieved rows, got {len(rows)}: set "
                "local.together = false, or give all tables one width"
            )
        if not all(segment.is_dense for segment in rest):
            raise ConfigError(
                'local.together needs rest.policy = "dense": set it, or local.together = false'
            )
        self._plan, self._local, self._tables = plan, local, tables
        self._rows: Segment = rows[0]
        self._rest = rest
        self._offsets = {t.name: span.start for t, span in tensor_spans(rows[0])}
        self._model = model.train()
        freeze_statistics(model)
        self._noise = _replace_dropout(model)
        self._gradient = torch.func.grad(self._loss, argnums=(0, 1))

    def indices(self, work: Work) -> Ids:
        """The rows of a client as positions of the segment, increasing."""
        parts = [ids + self._offsets[name] for name, ids in work.rows.items()]
        return np.sort(np.concatenate(parts))

    def run(self, number: int, members: Sequence[Member], done: Callable[[int], None]) -> None:
        """Play a round's clients; calls `done` with the number of values cut at each client."""
        order = sorted(members, key=lambda member: _size(member.work))
        for start in range(0, len(order), _CLIENTS):
            self._run_group(number, order[start : start + _CLIENTS], done)

    def _run_group(
        self, number: int, members: Sequence[Member], done: Callable[[int], None]
    ) -> None:
        asked = [self.indices(member.work) for member in members]
        sessions: list[RoundSession] = []
        tables: list[np.ndarray[Any, Any]] = []
        clear: Mapping[str, Any] = {}
        for member, ids in zip(members, asked, strict=True):
            wanted = {self._rows.name: ids}
            sessions.append(member.participant.start_round(number, indices=wanted))
        for session, ids in zip(sessions, asked, strict=True):
            clear = session.download()  # the same for all, which the servers' digests prove
            found = session.retrieve()[self._rows.name]
            tables.append(zeros_for_missing(ids, *found)[1])
        working = [place for place, member in enumerate(members) if member.work.batches]
        changes = (
            iter(())
            if not working
            else self._changes(
                number,
                [members[place] for place in working],
                [asked[place] for place in working],
                [tables[place] for place in working],
                clear,
            )
        )
        for place, (member, session) in enumerate(zip(members, sessions, strict=True)):
            raw = next(changes) if place in working else self._nothing()
            update, _, report = quantise(self._plan, raw, rounding_seed=member.rounding_seed)
            try:
                session.submit(update)
            except DroppedOut:
                continue
            done(report.num_clipped)

    def _nothing(self) -> dict[str, RawSegment]:
        """The update of a client without samples."""
        raw = {s.name: RawSegment(None, np.zeros((s.m, s.tau))) for s in self._rest}
        none = RawSegment(np.empty(0, np.int64), np.empty((0, self._rows.tau)))
        return raw | {self._rows.name: none}

    def _changes(
        self,
        number: int,
        members: Sequence[Member],
        asked: Sequence[Ids],
        tables: Sequence[np.ndarray[Any, Any]],
        clear: Mapping[str, Any],
    ) -> Iterator[dict[str, RawSegment]]:
        """Each client's update, in their order: its gradient, or what its steps changed."""
        batches = [member.work.batches[0] for member in members]
        most = max(len(ids) for ids in asked)
        table = np.zeros((len(members), most, self._rows.tau), dtype=tables[0].dtype)
        for place, rows in enumerate(tables):
            table[place, : len(rows)] = rows
        pairs = list(zip(batches, asked, strict=True))
        inputs = tuple(
            _stack([self._local_ids(batch.inputs[column], name, ids) for batch, ids in pairs])
            for column, name in enumerate(self._tables)
        )
        labels = [batch.labels for batch in batches if batch.labels is not None]
        weights = _stack([torch.full((len(one),), self._weight(len(one))) for one in labels])
        noises = self._draws(members, [len(one) for one in labels])
        start = {name: torch.from_numpy(value.copy()) for name, value in clear.items()}
        samples = (inputs, _stack(labels), weights)
        if self._local.optimizer == "gradient":
            take = torch.func.vmap(self._gradient, (None, 0, 0, 0, 0, 0))
            of_dense, of_table = take(start, torch.from_numpy(table), *samples, noises[0])
        else:
            rate = rate_of(self._local, number)
            of_dense, of_table = self._steps(start, torch.from_numpy(table), samples, noises, rate)
        for place, ids in enumerate(asked):
            raw = {}
            for segment in self._rest:
                parts = [of_dense[t.name][place].reshape(-1) for t in segment.tensors]
                raw[segment.name] = RawSegment(None, torch.cat(parts).double().numpy()[:, None])
            mine = of_table[place, : len(ids)].double().numpy()
            yield raw | {self._rows.name: RawSegment(ids, mine)}

    def _steps(
        self,
        start: dict[str, Tensor],
        table: Tensor,
        samples: tuple[tuple[Tensor, ...], Tensor, Tensor],
        noises: Sequence[Tensor],
        rate: float,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Changes at clients that begin at `start`, after a step of SGD for each of `noises`."""
        take = torch.func.vmap(self._gradient, (0, 0, 0, 0, 0, 0))
        clients, pull = len(table), self._local.proximal
        before = {n: value.expand(clients, *value.shape) for n, value in start.items()}
        state, rows = before, table
        for noise in noises:
            of_state, of_rows = take(state, rows, *samples, noise)
            state = {
                name: value - rate * (of_state[name] + pull * (value - before[name]))
                for name, value in state.items()
            }
            rows = rows - rate * (of_rows + pull * (rows - table))
        moved = {name: value.double() - before[name].double() for name, value in state.items()}
        return moved, rows.double() - table.double()

    def _loss(
        self,
        dense: dict[str, Tensor],
        table: Tensor,
        inputs: tuple[Tensor, ...],
        labels: Tensor,
        weights: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Of one client; all tables are its fetched rows."""
        state = dense | dict.fromkeys(self._offsets, table)
        if self._noise:
            state[self._noise] = noise
        output = torch.func.functional_call(self._model, state, inputs)
        losses = functional.cross_entropy(output, labels, reduction="none")
        return (losses * weights).sum() / self._local.loss_divisor

    def _weight(self, samples: int) -> float:
        return 1.0 if self._local.loss == "sum" else 1.0 / samples

    def _local_ids(self, ids: Tensor, name: str | None, asked: Ids) -> Tensor:
        """Rows of a table as places among the fetched ones; an argument of no table as it is."""
        if name is None or name not in self._offsets:
            return ids
        return torch.from_numpy(np.searchsorted(asked, ids.numpy() + self._offsets[name]))

    def _draws(self, members: Sequence[Member], samples: Sequence[int]) -> list[Tensor]:
        """By step what dropout multiplies clients' values by, from the numbers drawn alone."""
        steps = len(members[0].work.batches)
        if not self._noise:
            return [torch.zeros(len(members), max(samples))] * steps
        owner = self._model.get_submodule(self._noise.rpartition(".")[0])
        assert isinstance(owner, _Noise)
        drawn: list[list[Tensor]] = [[] for _ in range(steps)]
        for member, count in zip(members, samples, strict=True):
            torch.default_generator.manual_seed(member.dropout_seed)
            ones = torch.ones(count, owner.width)
            for of_step in drawn:
                of_step.append(functional.dropout(ones, owner.share, training=True))
        return [_stack(of_step) for of_step in drawn]


class _Noise(nn.Module):
    """Stands for a dropout whose draws are given."""

    noise: Tensor

    def __init__(self, width: int, share: float) -> None:
        super().__init__()
        self.width, self.share = width, share
        self.register_buffer("noise", torch.ones(1, width))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.noise


def _replace_dropout(model: nn.Module) -> str:
    """Put a `_Noise` in the place of the model's dropout; its buffer's name, or nothing."""
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Dropout) and m.p > 0]
    if not found:
        return ""
    heads = [m for n, m in model.named_modules() if n.endswith("head")]
    first = next((m for head in heads for m in head.modules() if isinstance(m, nn.Linear)), None)
    if len(found) > 1 or first is None:
        raise ConfigError(
            f"local.together supports one dropout, before a head, and {type(model).__name__} has "
            "other dropouts: set dropout = 0, or local.together = false"
        )
    ((name, dropout),) = found
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, _Noise(first.in_features, dropout.p))
    return f"{name}.noise"


def _size(work: Work) -> tuple[int, ...]:
    """The key by which clients are batched: the reversed shape of the largest argument."""
    if not work.batches:
        return (0,)
    largest = max(work.batches[0].inputs, key=lambda tensor: tensor.dim())
    return tuple(largest.shape)[::-1]


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of different sizes as one, zeros (and False) where one is short."""
    shape = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    whole = parts[0].new_zeros(len(parts), *shape)
    for place, part in enumerate(parts):
        whole[place][tuple(slice(size) for size in part.shape)] = part
    return whole

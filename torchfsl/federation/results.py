"""Results of rounds and simulations."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchfsl.errors import ParameterError
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array, Whole

State = Mapping[str, Array]


@dataclass(slots=True, repr=False)
class RoundResult:
    """One round. In the block of `servers.round()` only its number is known yet.

    Attributes:
        number: of the round, from 0.
        clients: numbers of the clients in the sum.
        num_clients: how many those are.
        sums: by segment the opened integer sums, int64 [positions, values].
        counts: by segment for each row what the average divides by, int64 [rows]: under `rows` the
            clients that sent it, under `weight` their weights. Empty under `clients`, and in the
            result of `simulate`.
        loss: mean of the finite losses of clients that did not fail; None without any.
        metrics: what `evaluate` returned, in rounds that were evaluated.
        upload_bytes: mean per client, everything counted.
        download_bytes: mean per client, everything counted.
        seconds: from opening to applying, without evaluation.
        matches_plain: whether the sums, before the servers' noise, equal the plaintext sums of the
            clients' quantised updates exactly, or those scaled alike; None where this process
            cannot know, or if servers left out a report that a client had sent.
        scaled: by segment of a sum that exceeded the plan's `sum_bound`, by what all its values
            were multiplied, in [0, 1).
        failed: those of `clients` whose report was all-zero, because their block raised an error or
            withdrew. Empty where clients are in other processes, whose zeros are private.
    """

    number: int
    clients: tuple[int, ...] = ()
    num_clients: int = 0
    sums: Mapping[str, Whole] = field(default_factory=dict)
    counts: Mapping[str, Whole] = field(default_factory=dict)
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    upload_bytes: float = 0.0
    download_bytes: float = 0.0
    seconds: float = 0.0
    matches_plain: bool | None = None
    scaled: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[int, ...] = ()

    def __str__(self) -> str:
        loss = "-" if self.loss is None else f"{self.loss:.4f}"
        clients = f"{self.num_clients} clients"
        if self.num_clients == 1:
            clients = "1 client, alone in its sum"
        if self.failed:
            clients += f", {len(self.failed)} failed"
        parts = [f"round {self.number}", clients, f"loss {loss}"]
        if self.matches_plain is not None:
            parts.append(f"matches plain {self.matches_plain}")
        parts += [
            f"up {self.upload_bytes / 1e3:.1f} kB per client",
            f"down {self.download_bytes / 1e3:.1f} kB per client",
        ]
        parts += [f"{name} scaled by {left:.3g}" for name, left in self.scaled.items()]
        return "  ".join([*parts, *(f"{k} {v:.4f}" for k, v in self.metrics.items())])

    def __repr__(self) -> str:
        return f"RoundResult({self})"


@dataclass(frozen=True, slots=True)
class RoundEstimate:
    """The cost of a round for one client, and what it discloses; prints as a few lines.

    Attributes:
        rows: by segment how many rows the client's batches use, and the plan's budget.
        upload_bytes: per round, to all servers together.
        download_bytes: per round.
        client_seconds: of one core, without training.
        server_seconds: of one core of one server, for a full round.
        discloses: what servers learn in addition to the sums.
    """

    rows: Mapping[str, tuple[int, int]]
    upload_bytes: int
    download_bytes: int
    client_seconds: float
    server_seconds: float
    discloses: str

    def __str__(self) -> str:
        lines = [
            f"{name}: the client uses {used} rows, rows_per_client is {most}"
            + (
                ": too many, use fewer batches, or the budget of fed.suggest_rows(clients)"
                if used > most
                else ""
            )
            for name, (used, most) in self.rows.items()
        ]
        return "\n".join(
            [
                *lines,
                f"a client uploads {self.upload_bytes:,} bytes and downloads "
                f"{self.download_bytes:,} in a round, whatever its data",
                f"a client computes {self.client_seconds:.3g} s without training, a server "
                f"{self.server_seconds:.3g} s for a full round, on one core of this machine",
                self.discloses,
            ]
        )


_COLUMNS = ("number", "num_clients", "loss", "upload_bytes", "download_bytes", "seconds",
            "matches_plain")  # fmt: skip


@dataclass(slots=True, repr=False)
class SimulationResult:
    """The outcome of a simulation.

    Attributes:
        plan: the public plan.
        model_state: the servers' model by tensor name; `fed.load(result)` takes it.
        rounds: in order, without sums and counts.
        checkpoint: what `simulate(resume=)` goes on from; plain containers, for `torch.save`.
    """

    plan: SubmodelPlan
    model_state: Mapping[str, Array]
    rounds: list[RoundResult] = field(default_factory=list)
    checkpoint: dict[str, Any] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        """A field of each round, or a metric of the rounds that were evaluated, in order.

        Args:
            name: of a field of `RoundResult`, or of a metric.

        Raises:
            ParameterError: no round has it; the message names the nearest ones.
        """
        fields = RoundResult.__dataclass_fields__
        if name in fields:
            return [getattr(one, name) for one in self.rounds]
        found = [one.metrics[name] for one in self.rounds if name in one.metrics]
        if self.rounds and not found:
            known = sorted({*fields, *(metric for one in self.rounds for metric in one.metrics)})
            near = difflib.get_close_matches(name, known, 3, 0.4) or known
            raise ParameterError(
                f"no round has a column {name!r}: choose one of {', '.join(near)}",
                code="unknown-option",
            )
        return found

    def to_frame(self) -> Any:
        """A pandas.DataFrame of one row for each round: its numbers and metrics.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = importlib.import_module("pandas")
        rows = [
            {**{name: getattr(one, name) for name in _COLUMNS}, **one.metrics}
            for one in self.rounds
        ]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        last = f", last: {self.rounds[-1]}" if self.rounds else ""
        return f"SimulationResult({len(self.rounds)} rounds{last})"


def mean_loss(losses: Mapping[int, float]) -> float | None:
    """The mean of the finite losses; None without any, NaN if none is finite."""
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    if not losses:
        return None
    return math.fsum(finite) / len(finite) if finite else math.nan


def state_of(servers: Any) -> State:
    """The state of a servers' model, wherever it is.

    Raises:
        ParameterError: there is none.
        ProtocolError: a round of these servers is open.
    """
    if check := getattr(servers, "check_closed", None):
        check()
    for name in ("model_state", "model"):
        found = getattr(servers, name, None)
        if isinstance(found, ServerModel):
            return found.state
        if isinstance(found, Mapping):
            return found
    if isinstance(servers, ServerModel):
        return servers.state
    if isinstance(servers, Mapping):
        return servers
    raise ParameterError(
        "load() expects LocalServers, a Coordinator, a SimulationResult or a mapping of arrays, "
        f"got {type(servers).__name__}: call fed.load(servers)"
    )

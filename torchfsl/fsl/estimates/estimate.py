"""Estimates a round's bytes, core-hours, memory, disk, machines, money.

Bytes and memory are counted (`torchfsl.fsl.costs`). Seconds are counts divided by rates, which are
measured on this machine or given. Figures of a server are the mean of both servers, because the
client's number decides which server gets its long messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

from torchfsl.errors import ParameterError, expect_a, is_real
from torchfsl.faces import public
from torchfsl.fsl import messages
from torchfsl.fsl.audit.transcript import auditor_bytes, transcript_bytes
from torchfsl.fsl.costs import predict
from torchfsl.fsl.estimates.measuring import Rates, measured_rates
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.noise import noise_values, ring_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import verdict_bytes
from torchfsl.submodel.plan_fields import check_number

_GIGABIT: Final = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a round of `clients`; figures of a server are those of one of the two.

    Attributes:
        clients: that report.
        upload_bytes: of a client, to both servers together.
        download_bytes: of a client, from both.
        client_core_seconds: of a client, without its training.
        received_bytes: of a server, from clients and from the other one.
        sent_bytes: of a server.
        server_core_hours: of a server.
        memory_bytes: of a server: its model and what it works with at most.
        disk_bytes: of a server, for the reports of a round, the model before and after, the sums,
            and under an audit the transcript.
        compute_seconds: with `cores`.
        network_seconds: with `bandwidth`.
        machines: of a server, to be done within the time given: as many as compute or network want,
            whichever is more. Machines above 1 for compute can be shards of an engine
            (docs/ray.md). Messages still pass through one machine. If the network wants more than
            1, split the plan or allow more time.
        cost: of both servers; None without prices.
        noise_seconds: of a server's cores, which `server_core_hours` has too: drawing its noise.
        noise_bytes: of `disk_bytes`: past noise, which is mapped and not loaded.
        bounded_values: of the sum, whose norm a server compares with its bound; 0 without one.
        auditor_bytes: of disk of a server's auditor, 0 without an audit. Past noise, and the
            evidence of a round in which it names its server: that noise and a transcript.
    """

    clients: int
    upload_bytes: int
    download_bytes: int
    client_core_seconds: float
    received_bytes: int
    sent_bytes: int
    server_core_hours: float
    memory_bytes: int
    disk_bytes: int
    compute_seconds: float
    network_seconds: float
    machines: int
    cost: float | None
    noise_seconds: float = 0.0
    noise_bytes: int = 0
    bounded_values: int = 0
    auditor_bytes: int = 0

    def __str__(self) -> str:
        lines = [
            f"{self.clients:,} clients, each {_bytes(self.upload_bytes)} up, "
            f"{_bytes(self.download_bytes)} down, {self.client_core_seconds:.3g} core-seconds",
            f"each server receives {_bytes(self.received_bytes)} and sends "
            f"{_bytes(self.sent_bytes)}: {self.network_seconds:,.3g} s of its network",
            f"each server computes {self.server_core_hours:,.3g} core-hours: "
            f"{self.compute_seconds:,.3g} s of its cores",
            f"each server holds {_bytes(self.memory_bytes)} of memory and "
            f"{_bytes(self.disk_bytes)} of disk",
            f"machines a server, for a round in the time given: {self.machines:,}",
        ]
        if self.noise_seconds:
            lines.append(
                f"of that its noise takes each server {self.noise_seconds:.3g} core-seconds a "
                f"round, and {_bytes(self.noise_bytes)} of disk for the noise of past rounds"
            )
        if self.bounded_values:
            lines.append(
                "the bound on the aggregate adds no bytes, and two passes over "
                f"{self.bounded_values:,} values"
            )
        if self.auditor_bytes:
            lines.append(f"the auditor of each server needs {_bytes(self.auditor_bytes)} of disk")
        if self.cost is not None:
            lines.append(f"rough cost of a round, both servers: {self.cost:,.2f}")
        return "\n".join(lines)


@public
def estimate(
    plan: Plan,
    *,
    clients: int | None = None,
    cores: int = 1,
    bandwidth: float = 1.0,
    within: float = 3600.0,
    rates: Rates | None = None,
    prices: tuple[float, float] | None = None,
) -> Estimate:
    """The cost of a round of a plan.

    Args:
        plan: public plan.
        clients: that report; the plan's `max_clients` when None.
        cores: of one server's machine.
        bandwidth: of one server's machine, gigabits a second, both ways alike.
        within: seconds that a round may take.
        rates: of a core; when None, measured here, once in a process, in about a minute.
        prices: of a core-hour and of a gigabyte sent, in any currency.

    Raises:
        ParameterError: no plan, more clients than it allows, or a number that is not above 0.
    """
    expect_a(Plan, plan, "plan", "pass fed.plan, of torchfsl.Federated(...)")
    _check_prices(prices)
    count = plan.max_clients if clients is None else check_number("clients", clients)
    if not 1 <= count <= plan.max_clients:
        raise ParameterError(
            f"clients is {count}: choose 1 to {plan.max_clients}, or a larger max_clients",
            code="client-limits",
        )
    _check_positive("cores", cores, "4")
    _check_positive("bandwidth", bandwidth, "10 for 10 gigabits a second")
    _check_positive("within", within, "3600 for an hour")
    rates = measured_rates() if rates is None else rates
    expect_a(
        Rates, rates, "rates", "leave it out, or pass a torchfsl.fsl.estimates.measuring.Rates"
    )
    costs = predict(plan, cores=math.ceil(cores))
    received, sent = traffic(plan, count)
    seconds = rates.server(plan, count)
    model = sum(t.numel * t.item_bytes for s in plan.segments for t in s.tensors)
    kept, drawn = ring_bytes(plan), 8 * noise_values(plan) * bool(plan.noise_sigma)
    compute, network = seconds / cores, max(received, sent) / (bandwidth * _GIGABIT)
    return Estimate(
        clients=count,
        upload_bytes=costs.upload_bytes,
        download_bytes=costs.download_bytes,
        client_core_seconds=rates.client(plan),
        received_bytes=received,
        sent_bytes=sent,
        server_core_hours=seconds / 3600,
        memory_bytes=model + costs.server_memory_bytes + drawn,
        disk_bytes=received + 2 * model + kept + _sum_bytes(plan, count),
        compute_seconds=compute,
        network_seconds=network,
        machines=max(1, math.ceil(compute / within), math.ceil(network / within)),
        cost=None if prices is None else 2 * (seconds / 3600 * prices[0] + sent / 1e9 * prices[1]),
        noise_seconds=rates.noise(plan),
        noise_bytes=kept,
        bounded_values=sum(s.m * s.tau for s in plan.segments) * plan.sum_bound,
        auditor_bytes=auditor_bytes(plan, count),
    )


def _sum_bytes(plan: Plan, reports: int) -> int:
    """Bytes of the stored sums, and under an audit of the transcript."""
    shown = transcript_bytes(plan, reports) if plan.audited else 0
    return 8 * sum(s.m * s.tau for s in plan.segments) + shown


def _check_positive(name: str, value: Any, example: str) -> None:
    """Refuse anything but a finite number above 0."""
    if not is_real(value) or not 0 < value < math.inf:
        raise ParameterError(
            f"{name} is {value!r}: choose a number above 0, such as {name}={example}",
            code=None if is_real(value) else "wrong-type",
        )


def _check_prices(prices: object) -> None:
    """Refuse anything but None or two numbers.

    Raises:
        ParameterError: it is something else.
    """
    given = prices if isinstance(prices, tuple | list) else ()
    fits = len(given) == 2 and all(isinstance(p, Real) and 0 <= float(p) < math.inf for p in given)
    if prices is not None and not fits:
        raise ParameterError(
            f"prices is {prices!r}: pass two numbers of 0 or more, for a core-hour and for a "
            "gigabyte sent, such as prices=(0.05, 0.09)"
        )


def traffic(plan: Plan, clients: int) -> tuple[int, int]:
    """Bytes that one server receives and sends in a round, mean of both.

    Half of a client's bytes count for each server, and one server relays what both need.
    Headers and coins of messages between servers, some hundred bytes per round, are not counted.
    """
    costs = predict(plan)
    relayed = messages.max_bytes(plan, Kind.REPORT_RELAY)
    if plan.early:
        relayed += messages.max_bytes(plan, Kind.TREES_RELAY)
    agreed = messages.SET_ENTRY.size + verdict_bytes(plan.statement)
    both = clients * (relayed + 2 * agreed) + 2 * costs.opening_bytes
    return (
        (clients * costs.upload_bytes + both) // 2,
        (clients * costs.download_bytes + both) // 2,
    )


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.4g} PB"

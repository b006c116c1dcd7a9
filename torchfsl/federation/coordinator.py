"""The coordinator of a task on two running servers: starts it, runs its rounds, fetches the model.

with torchfsl.Coordinator(URLS, tls="certs") as task:
    task.start(fed, server_optimizer=torchfsl.optim.SGD(1.0, momentum=0.9))
    for result in task.rounds(50, expected=80, timeout=3600):
        print(result)
    fed.load(task)

A program that was stopped and is started again goes on where it stopped: the servers hold plan,
model, optimizer and the running round. Needs the `service` extra.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.faces import public
from torchfsl.federation.federated import Federated
from torchfsl.federation.results import RoundResult
from torchfsl.fsl.costs import predict
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.client.links import Closing
from torchfsl.service.client.owner import Owner
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.state.steps import OPEN_STATES, StoredState
from torchfsl.service.task import Task
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel

log = logging.getLogger("torchfsl.coordinator")

_LONGEST_PAUSE: Final = 1.0
_LOG_SECONDS: Final = 30.0
_NEXT: Final = "call run_round(), or start this program again, for the next round"


@public
class Coordinator(Closing):
    """Starts a task on two servers and runs its rounds.

    Args:
        urls: of server 0 and server 1, `https://HOST:PORT`.
        tls: folder of the coordinator's files, as `torchfsl certs` makes it.
    """

    def __init__(self, urls: Sequence[str], *, tls: str | Path | TlsFiles) -> None:
        """Nothing is sent yet.

        Raises:
            ParameterError: the certificate cannot be read, or has expired.
        """
        self._owner = Owner(urls, tls if isinstance(tls, TlsFiles) else Path(tls))
        self._task: Task | None = None

    def __repr__(self) -> str:
        return f"Coordinator({'no task' if self._task is None else self._task.plan!r})"

    @property
    def plan(self) -> Plan:
        """The plan of the task, bound to these servers.

        Raises:
            ProtocolError: the task was not started.
        """
        return self._started().plan

    @property
    def rounds_applied(self) -> int:
        """How many rounds the servers' model has seen, in this task."""
        return self._owner.links.common_model()[0]

    @property
    def model(self) -> ServerModel:
        """The servers' model after the last round; both must hold the same one.

        Raises:
            ProtocolError: the task was not started, or the models differ.
        """
        return self._owner.model(self._started())

    def start(
        self,
        fed: Federated,
        *,
        server_optimizer: OptimizerSettings | None = None,
        auditors: Sequence[str] = (),
        replace: bool = False,
    ) -> None:
        """Give both servers the plan and the model, or go on with the task that they hold.

        Called again with the same settings, by a restarted program say, it takes over the task of
        both servers. Afterwards `fed.plan` is the task's plan.

        Args:
            fed: the federated model; its present values are the initial model.
            server_optimizer: of `torchfsl.optim`; see `Federated.default_optimizer` for None.
            auditors: public keys in hex of the auditors of server 0 and of server 1, without whose
                pass no round is opened; the plan needs `l2_bound` and `proofs="norm"`.
            replace: put another task aside whose model has seen rounds; both operators must permit
                that. A task of the same settings goes on nevertheless.

        Raises:
            ParameterError: the plan is for another protocol, or the optimizer is torch's.
            ProtocolError: the servers hold another task.
        """
        plan, chosen = for_two_servers(fed, server_optimizer)
        source = fed.hooks.settings.source
        held = self._owner.task()
        asked = tuple(auditors) or plan.auditors
        if held is not None and asked == held.plan.auditors and _same(held, plan, chosen, source):
            self._task = held
            log.info(
                "continuing the task of both servers after %d applied rounds", self.rounds_applied
            )
        else:
            self._task = self._owner.bind(plan, optimizer=chosen, source=source, auditors=asked)
            self._owner.set_up(self._task, fed.server_state(), replace=replace)
        fed.plan = self._task.plan

    def run_round(self, *, expected: int = 0, timeout: float = 3600.0) -> RoundResult:
        """Open a round, wait until it is applied; a round that runs already is waited for.

        Args:
            expected: reports at both servers after which it closes early; 0 for none.
            timeout: seconds after which it closes in any case.

        Returns:
            The result of the round.

        Raises:
            ProtocolError: if it ended unopened, with the reason.
        """
        start, number = time.perf_counter(), self.open_round(expected=expected, timeout=timeout)
        self._wait(number)
        return self._result(number, time.perf_counter() - start)

    def rounds(
        self, total: int, *, expected: int = 0, timeout: float = 3600.0
    ) -> Iterator[RoundResult]:
        """Run rounds until the model has seen `total` of them since the task was started.

        A restarted program runs those that are left.

        Args:
            total: rounds in all.
            expected: see `run_round`.
            timeout: see `run_round`.

        Yields:
            The result of each round.
        """
        while self.rounds_applied < total:
            yield self.run_round(expected=expected, timeout=timeout)

    def open_round(self, *, expected: int = 0, timeout: float = 3600.0) -> int:
        """Open the next round and return its number once clients may send.

        A round that is running is not opened again; its number is returned.

        Args:
            expected: complete reports at both servers after which it closes early; 0 for none.
            timeout: seconds after which it closes in any case, at most 30 days.
        """
        self._started()
        info = self._owner.links.info(0)
        number = int(info["round"])
        if info["state"] not in OPEN_STATES:
            number = max(number, int(self._owner.links.info(1)["round"])) + 1
        if info["state"] not in OPEN_STATES or info["state"] == StoredState.OPENING:
            self._owner.open_round(number, expected=expected, seconds=timeout)
        return number

    def close_round(self) -> RoundResult:
        """Close the running round now and wait until it is applied.

        Returns:
            The result of the round.

        Raises:
            ProtocolError: if none is running, or it ended unopened.
        """
        start, number = time.perf_counter(), self._owner.running_round()
        self._owner.close_round(number)
        return self._result(number, time.perf_counter() - start)

    def abandon_round(self, reason: str) -> None:
        """End the running round unopened.

        Args:
            reason: why, in words.

        Raises:
            ProtocolError: if no round is running.
        """
        self._owner.abandon_round(self._owner.running_round(), reason)

    def status(self) -> list[dict[str, Any]]:
        """What both servers report: round, state, reports, model, problems."""
        return [self._owner.links.info(party) for party in (0, 1)]

    def close(self) -> None:
        """Close the channels."""
        self._owner.close()

    def _started(self) -> Task:
        if self._task is None:
            raise ProtocolError("the task is not started: call task.start(fed) first")
        return self._task

    def _wait(self, number: int) -> None:
        """Until a round has ended and was applied."""
        pause, logged = 0.05, time.monotonic()
        while True:
            info = self._owner.links.info(0)
            if info["round"] != number or info["state"] not in OPEN_STATES:
                break
            if time.monotonic() - logged >= _LOG_SECONDS:
                logged = time.monotonic()
                left = max(0.0, info["closes_at"] - time.time())
                text = "round %d: complete reports %d, closes in %.0f s %s"
                log.info(text, number, info["complete"], left, info["stalled"])
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        if info["round"] == number and info["state"] != StoredState.APPLIED:
            remedy = "" if info["halted"] else f"; {_NEXT}"
            raise ProtocolError(
                f"round {number} ended without an aggregate: {info['reason']}{remedy}"
            )

    def _result(self, number: int, seconds: float) -> RoundResult:
        opened, found = self._owner.result()
        if found != number:
            raise ProtocolError(
                f"round {number} ended without an aggregate (the last one is of round {found}); "
                f"{_NEXT}"
            )
        cost = predict(self.plan)
        return RoundResult(
            number, opened.clients, opened.num_clients, opened.sums, opened.lanes,
            upload_bytes=cost.upload_bytes, download_bytes=cost.download_bytes, seconds=seconds,
            scaled=opened.scaled,
        )  # fmt: skip


def for_two_servers(
    fed: Federated, server_optimizer: OptimizerSettings | None
) -> tuple[Plan, OptimizerSettings]:
    """The plan and the servers' optimizer, both of kinds that running servers take.

    Raises:
        ParameterError: the plan is missing or for another protocol, or the optimizer is torch's.
    """
    plan = fed.plan
    chosen = fed.default_optimizer() if server_optimizer is None else server_optimizer
    if not isinstance(plan, Plan):
        raise ParameterError(
            f"running servers expect a torchfsl.Plan, got a {type(plan).__name__}: set fed.plan = "
            "fed.make_plan()"
        )
    if not isinstance(chosen, OptimizerSettings):
        raise ParameterError(
            "running servers do not load torch, so the server optimizer cannot be "
            f"{type(chosen).__name__}: choose torchfsl.optim.SGD, Adam, LazyAdam, FTRL or "
            "RowAdagrad"
        )
    return plan, chosen


def _same(held: Task, plan: Plan, optimizer: OptimizerSettings, source: str) -> bool:
    """Whether the servers' task is what this program would start; older ones lack `sum_bound`."""
    plan = dataclasses.replace(plan, sum_bound=plan.sum_bound and held.plan.sum_bound)
    bound: dict[str, Any] = {"session": "00" * 16, "hash_seed": "00" * 32, "server_keys": ()}
    bound |= {"audit": "none", "audit_keys": (), "auditors": ()}
    unbound = [dataclasses.replace(one, **bound) for one in (held.plan, plan)]
    same = unbound[0] == unbound[1] and (held.optimizer, held.source) == (optimizer, source)
    return bool(same and held.reduce == "mean")

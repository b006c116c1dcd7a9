"""The coordinator's calls: set up a task, open and close rounds, fetch the results."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import ProtocolError
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES
from torchfsl.service import task
from torchfsl.service.client.links import Links, RetryPolicy
from torchfsl.service.net import calls
from torchfsl.service.net.answers import INFO_BYTES, PLAN_BYTES, decode_plan, decode_row
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.state import vault
from torchfsl.service.state.steps import OPEN_STATES, StoredState
from torchfsl.service.task import Task
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array

log = logging.getLogger("torchfsl.service.owner")

_SETTLE_ATTEMPTS, _SETTLE_SECONDS = 10, 0.2
_LONGEST_SILENCE = 60.0
"""Most seconds between two lines of the log while a round is waited for."""


class Owner:
    """The coordinator of tasks: sets them up and opens rounds.

    Args:
        servers: URLs of server 0 and server 1.
        tls: the coordinator's files, or a folder made by `torchfsl certs`.
        policy: of retries.
    """

    def __init__(
        self, servers: Sequence[str], tls: Path | TlsFiles, *, policy: RetryPolicy | None = None
    ) -> None:
        """Nothing is sent yet.

        Raises:
            ParameterError: the certificate cannot be read, or has expired.
        """
        self.files = tls if isinstance(tls, TlsFiles) else TlsFiles.in_folder(tls, "owner")
        self.files.days_left()
        self.links = Links(servers, self.files, policy or RetryPolicy())
        self._begun: dict[str, int] = {}  # by plan, the highest round that this owner has opened

    def bind(
        self,
        plan: Plan,
        *,
        optimizer: OptimizerSettings | None = None,
        source: Literal["delta", "gradient"] = "delta",
        reduce: Literal["mean", "sum"] = "mean",
        auditors: tuple[str, ...] = (),
    ) -> Task:
        """A task on the plan for these two servers: session, their keys, a seed of their coins.

        Args:
            plan: its session number and hash seed are replaced.
            optimizer: on the aggregate; plain SGD of rate 1 when None.
            source: see `ServerModel`.
            reduce: see `ServerModel`.
            auditors: public keys in hex of the auditors of server 0 and of server 1. With them, or
                if the plan names some, the task has an audit.
        """
        nonce = random_bytes(16)
        authorities, keys = self.files.authorities(), self.server_keys()
        audit: dict[str, Any] = {}
        if named := auditors or plan.auditors:
            told = self._certificates()
            signing = tuple(authorities.sign_key(party, told[party]).hex() for party in (0, 1))
            audit = {"audit": "open", "audit_keys": signing, "auditors": tuple(named)}
        plan = task.bind_plan(plan, authorities, nonce, keys, audit)
        template = coin.template_of(plan).hex()
        toss, size = calls.encode_request(template=template), coin.COIN_BYTES
        said = self.links.both(lambda link: link.call("Toss", toss, limit=size))
        requests = [calls.encode_request(template=template, peer=one.hex()) for one in said[::-1]]
        coins = self.links.both(lambda link: link.call("Reveal", requests[link.party], limit=size))
        chosen = optimizer or OptimizerSettings()
        return Task(coin.with_coins(plan, coins), nonce, chosen, source, reduce, coins)

    def server_keys(self) -> tuple[str, ...]:
        """Both servers' keys for seals, as plans name them; certified by their authorities.

        Raises:
            NotAllowed: a sealing certificate is not from its server's authority.
        """
        authorities, told = self.files.authorities(), self._certificates()
        return tuple(authorities.seal_key(party, told[party]).hex() for party in (0, 1))

    def _certificates(self) -> tuple[bytes, bytes]:
        """Of each server those of its keys, PEM."""
        request = calls.encode_request()
        return self.links.both(lambda link: link.call("Certificate", request, limit=INFO_BYTES))

    def set_up(
        self,
        new: Task,
        state: Mapping[str, Array],
        moments: Mapping[str, Array] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Give both servers a task, its initial model, and its optimizer's state if it has one.

        Args:
            new: the task.
            state: of the model.
            moments: of the optimizer.
            replace: also in place of a task to whose model rounds were applied. Both operators
                must permit that; each server keeps that model.

        Raises:
            ProtocolError: a server holds such a task. Neither has taken the new one then.
        """
        data = task.encode_task(new, state, moments)
        self._check_replaceable(new, replace)
        method = "Replace" if replace else "SetUp"
        self.links.both(lambda link: link.call(method, data, limit=INFO_BYTES))

    def _check_replaceable(self, new: Task, replace: bool) -> None:
        """Ask both servers first, so that one does not take what the other refuses."""
        for party in (0, 1):
            info = self._settled(party)
            if info["plan_digest"] == new.plan.digest.hex():
                continue
            if info["state"] in OPEN_STATES:
                raise ProtocolError(
                    f"round {info['round']} of another task is {info['state']} at server {party}: "
                    "end it with `torchfsl close` or `torchfsl abandon`",
                    code="another-task",
                )
            if not info["live"] or (new.past is not None and not info["model"]["version"]):
                continue  # no rounds would be lost; the second is a restore that comes again
            if not (replace and info["may_replace"]):
                text = task.not_replaced(party, info["model"]["version"], replace)
                if not self.links.info(1 - party)["plan_digest"]:
                    text = f"server {1 - party} has no task, and {text}"
                raise ProtocolError(text, code="another-task")

    def _settled(self, party: int) -> dict[str, Any]:
        """State of a server after the end of a round that it is closing."""
        for _ in range(_SETTLE_ATTEMPTS):
            info = self.links.info(party)
            if info["state"] not in OPEN_STATES[2:]:
                break
            time.sleep(_SETTLE_SECONDS)
        return info

    def open_round(self, number: int, *, expected: int = 0, seconds: float = 3600.0) -> None:
        """Open a round; returns when clients may send. See `RoundDriver.open`.

        Args:
            number: of the round.
            expected: complete reports at both servers after which the round closes early; 0 for
                none.
            seconds: time after which the round closes in any case.

        Raises:
            ProtocolError: they may not. The round has closed or ended, with the reason, the session
                is halted, or a server does not know of a round that this owner has opened.
            NotReady: they may not before the policy's time is over; the servers go on trying.
        """
        digest = self._check_not_rolled_back()
        fields = {"round": number, "expected": expected, "seconds": float(seconds)}
        row = self._wait("Open", {StoredState.OPENING}, fields)
        if row["state"] != StoredState.OPEN:
            raise ProtocolError(
                f"expected round {number} to be open, got {row['state']} {row['reason']}".rstrip(),
                code="no-open-round",
            )
        self._begun[digest] = max(number, self._begun.get(digest, -1))

    def close_round(self, number: int) -> dict[str, Any]:
        """Close a round and wait for its end.

        Args:
            number: of the round.

        Returns:
            The servers' record of the round.

        Raises:
            ProtocolError: if it ended unopened; the message says why.
            NotReady: if it has not ended before the policy's time is over; the servers go on
                trying.
        """
        row = self._wait("Close", OPEN_STATES, {"round": number})
        if row["state"] != StoredState.APPLIED:
            raise ProtocolError(
                f"round {number} ended without an aggregate: {row['reason']}", code="round-unopened"
            )
        return row

    def running_round(self) -> int:
        """The round that has not ended at both servers.

        Server 1 is asked only where server 0, which drives the rounds, has none.

        Raises:
            ProtocolError: there is none.
        """
        for party in (0, 1):
            info = self.links.info(party)
            if info["state"] in OPEN_STATES:
                return int(info["round"])
        raise ProtocolError(
            "no round is running at either server: `torchfsl status` shows the last one",
            code="no-open-round",
        )

    def abandon_round(self, number: int, reason: str) -> dict[str, Any]:
        """End the round `number` unopened, for a reason in words.

        Returns:
            The servers' record of the round. If it had ended unopened before, the reason of that
            end stays.
        """
        return self._lead("Abandon", round=number, reason=reason)

    def result(self) -> tuple[Opened, int]:
        """The sums opened last, and their round."""
        link = self.links.links[0]
        data = link.call("Result", calls.encode_request(), limit=MAX_MESSAGE_BYTES)
        return vault.decode_opened(data)

    def model(self, current: Task, *, party: int | None = None) -> ServerModel:
        """The model after the last round; both servers must hold this one.

        Args:
            current: the task.
            party: the model of this server, whatever the other one holds: to go on with a new task
                after the other one has lost its state, or the two differ.

        Raises:
            ProtocolError: they do not.
        """
        link = self.links.links[party or 0]
        data = link.call("State", calls.encode_request(), limit=MAX_MESSAGE_BYTES)
        model = task.decode_model(current, data)
        if party is None and model.digest().hex() != self.links.common_model()[1]:
            raise ProtocolError(
                "the servers hold different models: tell their operators", code="models-differ"
            )
        return model

    def task(self) -> Task | None:
        """The task that both servers hold; None if they hold none, or not the same one."""
        digests = [self.links.info(party)["plan_digest"] for party in (0, 1)]
        if not digests[0] or digests[0] != digests[1]:
            return None
        request = calls.encode_request()
        answers = self.links.both(lambda link: link.call("Plan", request, limit=PLAN_BYTES))
        first, second = (Task.from_settings(decode_plan(answer)) for answer in answers)
        return first if first == second else None

    def plan(self) -> Plan:
        """The plan of the task at server 0."""
        link = self.links.links[0]
        answer = link.call("Plan", calls.encode_request(), limit=PLAN_BYTES)
        return Plan.from_json(decode_plan(answer)["plan"])

    def close(self) -> None:
        """Close the channels."""
        self.links.close()

    def _check_not_rolled_back(self) -> str:
        """The plan's digest, if server 0 knows of the last round that this owner has opened.

        Each server refuses an older copy of its state. This is for operators who put back whole
        machines, rollback counters included, while the coordinator's program goes on. One alone is
        noticed by the other.

        Raises:
            ProtocolError: it does not.
        """
        info = self.links.info(0)
        digest = str(info["plan_digest"])
        begun = self._begun.get(digest, -1)
        if info["round"] < begun:
            raise ProtocolError(
                f"expected round {begun} at server 0, got round {info['round']}: the operator has "
                "restored an older state. No round is opened: start a new task",
                code="old-state",
            )
        return digest

    def _wait(
        self, method: str, states: Collection[str], fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ask until the round is in none of these states, and log what it waits for.

        It logs at once, when the round stalls, and then after growing pauses.
        """
        now = time.monotonic()
        deadline, pause, next_word = now + self.links.links[0].policy.total_seconds, 5.0, now
        is_told = False
        while True:
            row = self._lead(method, **fields)
            why, now = str(row["stalled"]), time.monotonic()
            if row["state"] not in states:
                return row
            if now >= deadline:
                why = why or "the servers are busy"
                raise calls.NotReady(
                    f"round {row['number']} is still {row['state']} ({why}): ask again"
                )
            if now >= next_word or (why and not is_told):
                level = logging.WARNING if why else logging.INFO
                told = row["number"], row["state"], why or "at work", deadline - now
                log.log(level, "round %d is %s, server 0 is %s; asking for %.0f s more", *told)
                pause, is_told = min(2 * pause, _LONGEST_SILENCE), bool(why)
                next_word = now + pause

    def _lead(self, method: str, **fields: Any) -> dict[str, Any]:
        link = self.links.links[0]
        answer = link.call(method, calls.encode_request(**fields), limit=INFO_BYTES)
        return decode_row(answer)

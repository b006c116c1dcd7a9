"""The clients' and the owner's side of the network.

A client sends one message to each server and phase: trees up and answer down are one call, a report
is one call, the model is one call. Calls to the two servers go out side by side. What failed on the
way is sent again, always the same bytes, until the policy's time is over.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from torchfsl import messages
from torchfsl.client import Client
from torchfsl.config import MAX_MESSAGE_BYTES, WIRE_VERSION
from torchfsl.errors import FslError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.messages import HEADER_BYTES, Kind
from torchfsl.opened import Opened
from torchfsl.plan import Plan
from torchfsl.server_model import ServerModel
from torchfsl.service import calls, task, vault
from torchfsl.service.arrays import Array
from torchfsl.service.channels import TlsFiles, channel
from torchfsl.service.identity import Identity, Role
from torchfsl.service.outbox import Outbox
from torchfsl.service.task import Task

_INFO_BYTES: Final = 1 << 16
_PLAN_BYTES: Final = 1 << 25


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to try.

    Attributes:
        attempt_seconds: of one call.
        total_seconds: after which a failure is final; no call lasts longer.
        first_pause: before the second attempt; doubles from there, with jitter.
        longest_pause: between attempts.
    """

    attempt_seconds: float = 90.0
    total_seconds: float = 300.0
    first_pause: float = 0.05
    longest_pause: float = 3.0


class Link:
    """One party's calls to one server. Usable from several threads.

    `counts` has the successful calls by method, `attempts` all.
    """

    def __init__(self, url: str, party: int, files: TlsFiles, policy: RetryPolicy) -> None:
        """Nothing is sent yet."""
        self.party, self.policy = party, policy
        self.counts: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self._channel = channel(url, party, files)

    def call(self, method: str, data: bytes, *, limit: int, seconds: float = 0.0) -> bytes:
        """Call until it is answered or refused, or the time is over.

        Raises:
            FslError: the refusal; `NotReady` or `Overloaded` when the time is over.
        """
        deadline = time.monotonic() + (seconds or self.policy.total_seconds)
        pause = self.policy.first_pause
        while True:
            left = deadline - time.monotonic()
            self.attempts[method] += 1
            try:
                answer = self._attempt(method, data, limit, min(left, self.policy.attempt_seconds))
            except calls.RETRIED:
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 (not a secret)
                if time.monotonic() + wait >= deadline:
                    raise
                time.sleep(wait)
                pause = min(2 * pause, self.policy.longest_pause)
                continue
            self.counts[method] += 1
            return answer

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _attempt(self, method: str, data: bytes, limit: int, seconds: float) -> bytes:
        invoke = self._channel.stream_stream(calls.path(method))
        parts: list[bytes] = []
        size = 0
        try:
            call = invoke(
                calls.chunks(data), timeout=max(seconds, 0.001), metadata=calls.metadata()
            )
            for chunk in call:
                parts.append(chunk)
                size += len(chunk)
                if size > limit:
                    call.cancel()
                    raise ProtocolError(f"server {self.party} answers with more than {limit} bytes")
        except grpc.RpcError as error:
            raise calls.error_of(error, f"server {self.party}") from None
        return b"".join(parts)


class Links:
    """Both servers."""

    def __init__(self, urls: Sequence[str], files: TlsFiles, policy: RetryPolicy) -> None:
        """Nothing is sent yet."""
        if len(urls) != 2:
            raise ParameterError("two servers are needed: URL0 and URL1")
        self.links = tuple(Link(url, party, files, policy) for party, url in enumerate(urls))
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="torchfsl-call")

    def both(self, ask: Callable[[Link], bytes]) -> tuple[bytes, bytes]:
        """The answers of both servers, asked side by side.

        Raises:
            FslError: the first failure, once both calls have ended.
        """
        futures = [self._threads.submit(ask, link) for link in self.links]
        errors = [future.exception() for future in futures]
        final = [e for e in errors if e is not None and not isinstance(e, calls.RETRIED)]
        for error in (*final, *errors):
            if error is not None:
                raise error
        return futures[0].result(), futures[1].result()

    def info(self, party: int) -> dict[str, Any]:
        """What a server says of itself.

        Raises:
            VersionMismatch: it speaks another wire version.
        """
        link = self.links[party]
        answer = link.call("Info", calls.encode_request(), limit=_INFO_BYTES)
        fields: dict[str, Any] = json.loads(answer)
        theirs = fields.get("wire_version")
        if theirs != WIRE_VERSION:
            older = "this side" if isinstance(theirs, int) and theirs > WIRE_VERSION else "it"
            raise calls.VersionMismatch(
                f"server {party} speaks wire version {theirs}, this side {WIRE_VERSION}: "
                f"upgrade {older}"
            )
        return fields

    def close(self) -> None:
        """Close both channels."""
        self._threads.shutdown(wait=False)
        for link in self.links:
            link.close()


class RemoteServers:
    """A client's transport to both servers; see `torchfsl.transport.Transport`."""

    def __init__(self, links: Links, plan: Plan, outbox: Outbox | None = None) -> None:
        """Nothing is sent yet."""
        self._links, self._plan, self._outbox = links, plan, outbox
        self._trees: dict[int, bytes] = {}
        self._report: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        self._begun = -1

    def send(self, party: int, message: bytes) -> None:
        """Send what is complete for both servers; returns when both have it on disk."""
        number = int.from_bytes(message[8:16], "little")
        if self._outbox is not None and number != self._begun:
            self._outbox.begin(number)
        self._begun = number
        if message[6] in (Kind.TREES, Kind.TREES_COMMIT):
            self._answers = {}
            self._trees[party] = message
            if len(self._trees) == 2 and not messages.retrieving(self._plan):
                self._send_trees()
            return
        self._report[party] = message
        if len(self._report) == 2:
            if self._trees:  # a client that failed before it retrieved looks like any other
                self._send_trees()
            report, self._report = self._report, {}
            self._answers = {}
            submit(self._links, report, self._outbox)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """A server's reply."""
        if kind is not Kind.ANSWER:
            request = calls.encode_request(round=round_number)
            limit = HEADER_BYTES + (messages.body_bytes(self._plan, kind) or 0)
            return self._links.links[party].call("Model", request, limit=limit)
        if self._trees:
            self._send_trees()
        elif not self._answers:
            request = calls.encode_request(round=round_number)
            self._ask("Answer", {0: request, 1: request})
        return self._answers.pop(party)

    def _send_trees(self) -> None:
        trees, self._trees = self._trees, {}
        self._ask("Retrieve" if messages.retrieving(self._plan) else "Upload", trees)

    def _ask(self, method: str, requests: Mapping[int, bytes]) -> None:
        limit = HEADER_BYTES + (messages.body_bytes(self._plan, Kind.ANSWER) or 0)
        answers = self._links.both(
            lambda link: link.call(method, requests[link.party], limit=limit)
        )
        self._answers = dict(enumerate(answers))


def submit(links: Links, report: Mapping[int, bytes], outbox: Outbox | None) -> None:
    """Send a report's two messages; they are stored before, for `Connection.resume`."""
    if outbox is not None:
        outbox.put(report)
    try:
        links.both(lambda link: link.call("Submit", report[link.party], limit=HEADER_BYTES))
    except FslError as error:
        if outbox is not None and not isinstance(error, calls.RETRIED):
            outbox.clear()  # refused for good: there is nothing to resume
        raise
    if outbox is not None:
        outbox.clear()


class Connection:
    """A client of a task on two servers.

    Attributes:
        plan: of the task, equal at both servers and bound to their authorities.
        client: takes part in rounds; see `torchfsl.Client`.
        links: the calls made and their counts.
    """

    def __init__(self, links: Links, files: TlsFiles, client_id: int, outbox: Path | None) -> None:
        """Register: compare versions and plan of both servers."""
        self.links = links
        infos = [links.info(party) for party in (0, 1)]
        if infos[0]["plan_digest"] != infos[1]["plan_digest"]:
            raise ProtocolError("the two servers have different plans: tell their operators")
        self.plan = fetch_plan(links, files)
        self._outbox = Outbox(outbox) if outbox is not None else None
        transport = RemoteServers(links, self.plan, self._outbox)
        self.client = Client(self.plan, transport, client_id=client_id)

    def wait_for_round(self, *, after: int = -1, seconds: float = 300.0) -> int:
        """The number of the open round, once there is one above `after` that was not begun before.

        Raises:
            NotReady: there was none in time.
            ProtocolError: the session is halted.
        """
        deadline = time.monotonic() + seconds
        pause = 0.05
        if self._outbox is not None:
            after = max(after, self._outbox.last_round())
        while True:
            infos = [self.links.info(party) for party in (0, 1)]
            for info in infos:
                if info["halted"]:
                    raise ProtocolError(f"server {info['party']} halted: {info['halted']}")
            number = int(infos[0]["round"])
            if number > after and all(i["open"] and i["round"] == number for i in infos):
                return number
            if time.monotonic() >= deadline:
                raise calls.NotReady(f"no round above {after} was opened in {seconds:.0f} s")
            time.sleep(pause)
            pause = min(1.5 * pause, 1.0)

    def model_version(self) -> tuple[int, str]:
        """Version and digest of the model at both servers.

        Raises:
            ProtocolError: they differ.
        """
        models = [self.links.info(party)["model"] for party in (0, 1)]
        if models[0] != models[1]:
            raise ProtocolError(f"the servers hold different models: {models[0]}, {models[1]}")
        return int(models[0]["version"]), str(models[0]["digest"])

    def resume(self) -> bool:
        """After an interruption: send a report that was begun to be sent, the same bytes.

        Returns:
            Whether one was waiting and is now at both servers. A round that has closed in the
            meantime went on without it.
        """
        report = self._outbox.get() if self._outbox is not None else None
        if report is None:
            return False
        try:
            submit(self.links, report, self._outbox)
        except (RejectedSubmission, ProtocolError):
            return False
        return True

    def close(self) -> None:
        """Close the channels."""
        self.links.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    servers: Sequence[str],
    tls: Path | TlsFiles,
    client_id: int,
    *,
    outbox: Path | None = None,
    policy: RetryPolicy | None = None,
) -> Connection:
    """Take part in the task that two servers run.

    Args:
        servers: URLs of server 0 and server 1, `https://HOST:PORT`.
        tls: this client's files, or a folder made by `torchfsl certs`.
        client_id: number in the client's certificate.
        outbox: file in which a report waits until both servers have it; None for no resuming.
        policy: of retries.

    Raises:
        ParameterError: the certificate is another client's.
        VersionMismatch: a side has to be upgraded.
        ProtocolError: the servers disagree, or the plan is not bound to them.
    """
    files = tls if isinstance(tls, TlsFiles) else TlsFiles.in_folder(tls, f"client-{client_id}")
    if files.identity() != Identity(Role.CLIENT, client_id):
        raise ParameterError(f"the certificate is that of {files.identity()}, not {client_id}")
    links = Links(servers, files, policy or RetryPolicy())
    try:
        return Connection(links, files, client_id, outbox)
    except BaseException:
        links.close()
        raise


def fetch_plan(links: Links, files: TlsFiles) -> Plan:
    """The plan, equal at both servers and bound to their authorities.

    Raises:
        ProtocolError: it is not.
    """
    answers = links.both(lambda link: link.call("Plan", calls.encode_request(), limit=_PLAN_BYTES))
    if answers[0] != answers[1]:
        raise ProtocolError("the two servers have different plans: tell their operators")
    fields = json.loads(answers[0])
    plan = Plan.from_json(fields["plan"])
    if files.authorities().session(bytes.fromhex(fields["nonce"])) != plan.session:
        raise ProtocolError(
            "the plan was made for servers of other authorities: check ca-server-0 and ca-server-1"
        )
    return plan


class Owner:
    """Who sets up tasks and opens rounds.

    Args:
        servers: URLs of server 0 and server 1.
        tls: the owner's files, or a folder made by `torchfsl certs`.
        policy: of retries.
    """

    def __init__(
        self, servers: Sequence[str], tls: Path | TlsFiles, *, policy: RetryPolicy | None = None
    ) -> None:
        """Nothing is sent yet."""
        self.files = tls if isinstance(tls, TlsFiles) else TlsFiles.in_folder(tls, "owner")
        self.links = Links(servers, self.files, policy or RetryPolicy())

    def set_up(self, new: Task, state: Mapping[str, Array]) -> None:
        """Give both servers a task and its initial model."""
        data = task.encode_task(new, state)
        self.links.both(lambda link: link.call("SetUp", data, limit=_INFO_BYTES))

    def open_round(self, number: int, *, expected: int = 0, seconds: float = 3600.0) -> None:
        """Open a round; returns when clients may send. See `Coordinator.open`."""
        self._lead("Open", round=number, expected=expected, seconds=float(seconds))

    def close_round(self, number: int) -> dict[str, Any]:
        """Close a round and wait for its end.

        Raises:
            ProtocolError: it ended unopened; the message says why.
        """
        row = self._lead("Close", round=number)
        if row["state"] != "applied":
            raise ProtocolError(f"round {number} ended unopened: {row['reason']}")
        return row

    def abandon_round(self, number: int, reason: str) -> None:
        """End a round unopened."""
        self._lead("Abandon", round=number, reason=reason)

    def result(self) -> tuple[Opened, int]:
        """The sums opened last, and their round."""
        link = self.links.links[0]
        data = link.call("Result", calls.encode_request(), limit=MAX_MESSAGE_BYTES)
        return vault.decode_opened(data)

    def model(self, current: Task) -> ServerModel:
        """The model after the last round; both servers must hold this one.

        Raises:
            ProtocolError: they do not.
        """
        link = self.links.links[0]
        data = link.call("State", calls.encode_request(), limit=MAX_MESSAGE_BYTES)
        model = task.decode_model(current, data)
        other = self.links.info(1)["model"]["digest"]
        if model.digest().hex() != other:
            raise ProtocolError("the servers hold different models: tell their operators")
        return model

    def nonce(self) -> bytes:
        """The nonce of the task at server 0."""
        link = self.links.links[0]
        answer = link.call("Plan", calls.encode_request(), limit=_PLAN_BYTES)
        return bytes.fromhex(json.loads(answer)["nonce"])

    def close(self) -> None:
        """Close the channels."""
        self.links.close()

    def _lead(self, method: str, **fields: Any) -> dict[str, Any]:
        link = self.links.links[0]
        answer = link.call(method, calls.encode_request(**fields), limit=_INFO_BYTES)
        row: dict[str, Any] = json.loads(answer)
        return row

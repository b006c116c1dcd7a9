"""A client's side of the network.

A client sends one message to each server and phase. Trees up and answer down are one call, a report
is one call, the model is one call. Calls to the two servers go out side by side. The client repeats
a call that failed on the way, always with the same bytes, until the policy's time is over. It sends
only a fetch without a round once: its keys serve one answer, and another answer needs new keys.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.fetch import Fetched
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.client.links import Closing, Links, RetryPolicy
from torchfsl.service.client.outbox import Outbox
from torchfsl.service.client.sent_reports import SentReports
from torchfsl.service.net import calls
from torchfsl.service.net.answers import PLAN_BYTES, decode_plan
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.state.steps import StoredState
from torchfsl.service.task import decode_coins
from torchfsl.submodel.plan_fields import check_number

log = logging.getLogger("torchfsl.service.remote")

_TELL_SECONDS: Final = 30.0
"""Seconds between two log lines of a client that waits."""


class RemoteTransport:
    """A client's transport to both servers; see `torchfsl.fsl.transport.Transport`."""

    def __init__(
        self,
        links: Links,
        plan: Plan,
        outbox: Outbox | None = None,
        sent: SentReports | None = None,
    ) -> None:
        self._links, self._plan, self._outbox, self._sent = links, plan, outbox, sent
        self._trees: dict[int, bytes] = {}
        self._report: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        self._fetch: dict[int, bytes] = {}
        self._fetched: dict[int, bytes] = {}
        self._begun = -1
        self.source: str | None = None
        self._kept: tuple[dict[int, bytes], dict[int, bytes]] | None = None

    def send(self, party: int, message: bytes) -> None:
        """Send what is complete for both servers; returns when both have it on disk.

        Raises:
            ProtocolError: the servers' task changed (code another-plan).
        """
        with self._same_task():
            self._send(party, message)

    def _send(self, party: int, message: bytes) -> None:
        kind, number, _ = messages.peek(message)
        if kind in (Kind.FETCH, Kind.FETCH_COMMIT):
            self._fetch[party] = message
            if len(self._fetch) == 2:
                self._send_fetch()
            return
        if self._sent is not None and number != self._begun:
            self._sent.check(number)
        if self._outbox is not None and number != self._begun:
            self._outbox.begin(number)
        self._begun = number
        if kind in (Kind.TREES, Kind.TREES_COMMIT):
            self._answers = {}
            self._trees[party] = message
            if len(self._trees) == 2 and not self._plan.retrieving:
                self._send_trees()
            return
        self._report[party] = message
        if len(self._report) == 2:
            report, self._report = self._report, {}
            if self._sent is not None:
                self._sent.add(number)
            self._kept = dict(self._trees), report
            self._send_again()

    @property
    def is_unsent(self) -> bool:
        """Whether the last report may not be at both servers, and `send_again` may help."""
        return self._kept is not None

    def send_again(self) -> None:
        """Send the last report, the same bytes; those that a server has are sent to no end.

        Raises:
            Error: it failed; what servers refuse for good is not kept.
        """
        with self._same_task():
            self._send_again()

    def _send_again(self) -> None:
        if self._kept is None:
            raise ProtocolError(
                "no report to send: both servers have the last one, or refused it: "
                "participate in the next round"
            )
        trees, report = self._kept
        try:
            if trees:  # a client that failed before it retrieved looks like any other
                self._trees = trees
                self._send_trees()
            self._answers = {}
            submit(self._links, report, self._outbox)
        except calls.RETRIED:
            raise
        except Error:
            self._kept = None
            raise
        self._kept = None

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """A server's reply."""
        if kind in (Kind.FETCH_MODEL, Kind.FETCH_ANSWER):
            return self._fetched.pop(party)
        request = calls.encode_request(round=round_number)
        with self._same_task():
            if kind is not Kind.ANSWER:
                limit = messages.max_bytes(self._plan, kind)
                answer = self._links.links[party].call("Model", request, limit=limit)
                messages.decode_header(self._plan, answer, kind)
                return answer
            if self._trees:
                self._send_trees()
            elif not self._answers:
                self._ask("Answer", {0: request, 1: request})
        return self._answers.pop(party)

    def open_number(self) -> int:
        """The number of the round that is open at both servers; see `Connection.wait_for_round`.

        Raises:
            ProtocolError: there is none, or the servers' task changed.
        """
        infos = [self._links.info(party) for party in (0, 1)]
        check_same_task(infos, self._plan)
        number = int(infos[0]["round"])
        if not all(info["open"] and info["round"] == number for info in infos):
            raise ProtocolError(
                "no round is open at both servers: call connection.wait_for_round()",
                code="no-open-round",
            )
        return number

    @contextlib.contextmanager
    def _same_task(self) -> Iterator[None]:
        """Say of what servers refuse for good if it is because their task changed."""
        try:
            yield
        except calls.RETRIED:
            raise
        except Error:
            infos: list[Mapping[str, Any]] = []
            with contextlib.suppress(Error):
                infos = [self._links.info(party) for party in (0, 1)]
            check_same_task(infos, self._plan)
            raise

    def _send_fetch(self) -> None:
        sent, self._fetch, self._fetched = self._fetch, {}, {}
        limit = messages.max_bytes(self._plan, Kind.FETCH_MODEL)
        answers = self._links.both(lambda link: link.once("Fetch", sent[link.party], limit=limit))
        self._fetched = dict(enumerate(answers))

    def _send_trees(self) -> None:
        trees, self._trees = self._trees, {}
        self._ask("Retrieve" if self._plan.retrieving else "Upload", trees)

    def _ask(self, method: str, requests: Mapping[int, bytes]) -> None:
        limit = messages.max_bytes(self._plan, Kind.ANSWER)
        answers = self._links.both(
            lambda link: link.call(method, requests[link.party], limit=limit)
        )
        self._answers = dict(enumerate(answers))


def check_same_task(infos: Sequence[Mapping[str, Any]], plan: Plan) -> None:
    """Raise ProtocolError, code another-plan, if both servers have gone on to one other task."""
    digests = {str(info["plan_digest"]) for info in infos}
    if len(digests) == 1 and digests.isdisjoint(("", plan.digest.hex())):
        raise ProtocolError(
            f"the servers' task changed from plan {plan.digest.hex()[:16]} to plan "
            f"{digests.pop()[:16]}: start this client again",
            code="another-plan",
        )


def take_back_unopened(infos: Sequence[Mapping[str, Any]], sent: SentReports) -> None:
    """Take the last report off the count where neither server can have opened its round.

    Both must report this very round: one of them alone may lie. An older server, or one at a later
    round, does not count.
    """
    number = sent.rounds[-1] if sent.rounds else -1
    ended = all(
        info["round"] == number
        and info["state"] == StoredState.UNOPENED
        and info["plan_digest"] == sent.plan_digest
        for info in infos
    )
    if number >= 0 and ended and not any(info.get("may_have_opened", True) for info in infos):
        sent.take_back(number)


def submit(links: Links, report: Mapping[int, bytes], outbox: Outbox | None) -> None:
    """Send a report's two messages; they are stored before, for `Connection.resume`."""
    if outbox is not None:
        outbox.put(report)
    try:
        links.both(lambda link: link.call("Submit", report[link.party], limit=HEADER_BYTES))
    except Error as error:
        if outbox is not None and not isinstance(error, calls.RETRIED):
            outbox.clear()  # refused for good: there is nothing to resume
        raise
    if outbox is not None:
        outbox.clear()


class Connection(Closing):
    """A client of a task on two servers.

    Attributes:
        plan: of the task, equal at both servers and bound to their authorities.
        client: participates in rounds; see `torchfsl.Client`.
        links: the calls made and their counts.
    """

    def __init__(
        self,
        links: Links,
        files: TlsFiles,
        client_id: int,
        outbox: Path | None,
        require: ClientPolicy,
    ) -> None:
        """Register: one call to each server, which refuses clients of another wire version."""
        self.links = links
        self.plan, source = fetch_plan(links, files, require)
        plan = self.plan.digest.hex()
        self._outbox = Outbox(outbox, plan) if outbox is not None else None
        count = outbox.with_name(outbox.name + ".reports") if outbox is not None else None
        self._sent = SentReports(count, self.plan, client_id)
        transport = RemoteTransport(links, self.plan, self._outbox, self._sent)
        transport.source = source
        self.client = Client(self.plan, transport, client_id=client_id)

    def wait_for_round(
        self, *, after: int = -1, seconds: float = 300.0, until: Callable[[], bool] = lambda: False
    ) -> int:
        """The number of the open round, once there is one above `after` that was not begun before.

        Args:
            after: see above.
            seconds: longest wait.
            until: asked between looks; once it is true the answer is -1.

        Raises:
            NotReady: there was none in time.
            ProtocolError: the session is halted, or the servers' task changed.
        """
        last = after if self._outbox is None else max(after, self._outbox.last_round())

        def look() -> int | str:
            infos = [self.links.info(party) for party in (0, 1)]
            for info in infos:
                if info["halted"]:
                    raise ProtocolError(
                        f"server {info['party']} halted: {info['halted']}. Ask its operator",
                        code="server-halted",
                    )
            check_same_task(infos, self.plan)
            take_back_unopened(infos, self._sent)
            number = int(infos[0]["round"])
            if number > last and all(i["open"] and i["round"] == number for i in infos):
                return number
            return -1 if until() else "no round is open" + f" after round {last}" * (last >= 0)

        return _waited(look, seconds)

    def has_finished(self) -> bool:
        """Whether this client has sent all the reports that the plan allows it.

        It asks the servers where one of its rounds may have ended before its sum could open.
        """
        if self._sent.is_spent:
            take_back_unopened([self.links.info(party) for party in (0, 1)], self._sent)
        return self._sent.is_spent

    def may_report(self, number: int) -> bool:
        """Whether this client's own count allows a report in a round."""
        try:
            self._sent.check(number)
        except RejectedSubmission:
            return False
        return True

    def model_version(self) -> tuple[int, str]:
        """Version and digest of the model at both servers.

        Raises:
            ProtocolError: they differ.
        """
        return self.links.common_model()

    def fetch(self, rows: Mapping[str, npt.ArrayLike]) -> Fetched:
        """The model as it was applied last; see `Client.fetch`. Rounds go on meanwhile.

        Raises:
            NotReady, Overloaded: not possible now; the next call is a new fetch.
        """
        return self.client.fetch(rows)

    def resume(self) -> bool:
        """After an interruption: send a report that was begun to be sent, the same bytes.

        Returns:
            Whether one was waiting and is now at both servers. A round that has closed in the
            meantime, or a task that has ended, went on without it.
        """
        report = self._outbox.get() if self._outbox is not None else None
        if report is None:
            return False
        try:
            submit(self.links, report, self._outbox)
        except (RejectedSubmission, ProtocolError, DecodeError):
            return False
        return True

    def close(self) -> None:
        """Close the channels."""
        self.links.close()


def connect(
    servers: Sequence[str],
    tls: Path | TlsFiles,
    client_id: int,
    *,
    require: ClientPolicy | Path | None = None,
    outbox: Path | None = None,
    policy: RetryPolicy | None = None,
    wait: float = 0.0,
) -> Connection:
    """Take part in the task that two servers run.

    Args:
        servers: URLs of server 0 and server 1, `https://HOST:PORT`.
        tls: this client's files, or a folder made by `torchfsl certs`.
        client_id: number in the client's certificate.
        require: what this client demands of the plan, or the policy file that says it; the default
            floors when None.
        outbox: file in which a report waits until both servers have it, with the client's count of
            its reports in `OUTBOX.reports`. None for no resuming; then the client's own count of
            `max_participations` lies in memory and ends with the process.
        policy: of retries.
        wait: seconds to go on beyond the policy while servers are not there or have no task yet.

    Returns:
        The connection of this client to both servers.

    Raises:
        NotReady: they were not there, or had no task, in time.
        ParameterError: the certificate is another client's or has expired, `client_id` is not
            a client's number, or the plan is below a floor. The client has sent nothing then.
        VersionMismatch: a side has to be upgraded.
        ProtocolError: the servers disagree, or the plan is not bound to them.
    """
    client_id = check_number("client_id", client_id)
    files = tls if isinstance(tls, TlsFiles) else TlsFiles.in_folder(tls, f"client-{client_id}")
    if files.identity() != Identity(Role.CLIENT, client_id):
        raise ParameterError(
            f"expected the certificate of client {client_id}, got that of {files.identity()}: pass "
            f"tls= with the files of client {client_id}",
            code="wrong-certificate",
        )
    files.days_left()
    floors = (
        ClientPolicy.from_toml(require) if isinstance(require, Path) else require or ClientPolicy()
    )
    links = Links(servers, files, policy or RetryPolicy())
    try:
        if wait > 0:
            _wait_for_task(links, wait)
        return Connection(links, files, client_id, outbox, floors)
    except BaseException:
        links.close()
        raise


def _wait_for_task(links: Links, seconds: float) -> None:
    """Until both servers have a task; raises NotReady after `seconds`."""

    def look() -> int | str:
        try:
            if all(links.info(party)["plan_digest"] for party in (0, 1)):
                return 0
        except calls.NotReady as error:
            return str(error)
        return "the servers have no task yet: the coordinator has to start one, `Coordinator.start`"

    _waited(look, seconds)


def _waited(look: Callable[[], int | str], seconds: float) -> int:
    """The number that `look` gives in the end; till then it says why there is none.

    Raises:
        NotReady: there is none in time.
    """
    deadline, pause, told = time.monotonic() + seconds, 0.05, -math.inf
    while isinstance(seen := look(), str):
        if time.monotonic() >= deadline:
            raise calls.NotReady(
                f"{seen}; waited for {seconds:.0f} s. Start this client again later"
            )
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            log.info("waiting for the servers, %.0f s left: %s", deadline - told, seen)
        time.sleep(pause)
        pause = min(1.5 * pause, 1.0)
    return seen


def fetch_plan(links: Links, files: TlsFiles, require: ClientPolicy) -> tuple[Plan, str | None]:
    """The plan, and what its servers take: `delta` or `gradient`.

    The plan is equal at both servers, bound to their authorities and keys, not below the floors.

    Raises:
        ProtocolError: it is not equal or not bound.
        NotAllowed: a sealing certificate is not from its server's authority.
        ParameterError: it is below a floor.
    """
    answers = links.both(lambda link: link.call("Plan", calls.encode_request(), limit=PLAN_BYTES))
    fields, other = map(decode_plan, answers)
    certificates = [told.pop("certificate").encode() for told in (fields, other)]
    if fields != other:
        raise ProtocolError(
            "the two servers have different plans: connect again after the coordinator has started "
            "the same task at both servers"
        )
    plan = Plan.from_json(fields["plan"])
    authorities = files.authorities()
    if authorities.session(bytes.fromhex(fields["nonce"])) != plan.session:
        raise ProtocolError(
            "the plan names other authorities of the servers than your files: copy ca-server-0.pem "
            "and ca-server-1.pem from the operators again",
            code="wrong-authorities",
        )
    keys = (authorities.seal_key(p, certificates[p]).hex() for p in (0, 1))
    signing = tuple(
        authorities.sign_key(p, certificates[p]).hex() for p in ((0, 1) if plan.audited else ())
    )
    if plan.server_keys != tuple(keys) or plan.audit_keys != signing:
        raise ProtocolError(
            "the plan names other keys than the servers' certificates, so this client sends "
            "nothing: tell the coordinator",
            code="wrong-server-key",
        )
    coins = decode_coins(fields["coins"])  # one honest server has seen that both were tossed
    require.check(plan, coins=coins, authorities=authorities.keys)
    return plan, fields.get("source")

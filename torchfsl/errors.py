"""The errors that torchfsl raises, their codes, and checks of arguments.

A bug of torchfsl is an `assert`, never one of these errors. Messages may change between versions.
Codes do not: programs, tests and peers compare `error.code`.
"""

from __future__ import annotations

import contextlib
import inspect
import numbers
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NoReturn

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "above-break-even": "private retrieval of a segment costs more than sending all of it",
        "address-in-use": "the server cannot listen on the address",
        "already-applied": "the sums of the round were applied before, or were never opened",
        "already-submitted": "the client has submitted its report of the round",
        "altered-message": "a sealed message was changed on its way",
        "another-plan": "the message belongs to another plan",
        "another-recipient": "the message is for another server or another round",
        "another-task": "the server runs another task",
        "answer-for-another": "the answer is for another server, client or round",
        "answer-too-long": "the server sent more bytes than the call allows",
        "audit-conditions": "the plan does not meet a condition of its audit",
        "audit-missing": "an auditor did not do its part in time",
        "bad-signature": "a signature of an audited round does not fit",
        "below-policy": "the plan or a server does not meet a minimum requirement of this party",
        "bound-too-small": "rounding alone can exceed the norm bound",
        "budget-unknown": "the spent part of the privacy budget is unknown",
        "certificate-expired": "the certificate has expired",
        "client-limits": "the numbers of clients contradict each other or exceed the plan",
        "client-rejected": "a message of the client was refused, so its report is not in the sum",
        "client-withdrew": "a server or the network failed, so the client left the round",
        "commitment-mismatch": "the message differs from what its sender committed to",
        "conflicting-message": "the sender sent two different messages of one kind",
        "contributor-limit": "`min_contributors` is out of range, or the plan has no counts",
        "data": "an experiment cannot use the data source",
        "decode": "the bytes are not a valid message or file",
        "draft-plan": "the plan is a draft without the keys of both servers",
        "encodings-differ": "the segments must share one rounding or one number of fraction bits",
        "epsilon-unreachable": "no amount of noise reaches this epsilon",
        "error": "an error without a specific code",
        "fetch-in-round": "a fetch came while the round was at work",
        "interrupted-round": "the round began before the client was interrupted",
        "invalid-address": "the text is not an address of a server",
        "invalid-plan": "the text is not a plan in canonical form",
        "invalid-policy": "a minimum requirement is unknown or has an invalid value",
        "invalid-rows": "row ids must be distinct, increasing integers in one dimension",
        "invalid-taps": "the taps of correlated noise, or the noise itself, are out of range",
        "lane-noise": "counts or weights need noise exactly when the values have noise",
        "left-out-of-sum": "the aggregator signed for an update and left it out of the sum",
        "length": "the message has the wrong number of bytes",
        "length-required": "the request does not say how long its body is",
        "liar-named": "an auditor's replay contradicts what a server signed",
        "message-too-large": "a message of the plan exceeds the size limit",
        "model-does-not-fit": "the model and the plan have different tensors",
        "model-not-finite": "the model has values that are NaN or infinite",
        "model-overflow": "the update moves the model out of the range of its dtype",
        "models-differ": "the two servers hold different models",
        "no-accepted-keys": "the server accepted no DPF keys from the client in this round",
        "no-fetch": "the client has no fetch under way",
        "no-noise": "the plan adds no noise, so there is no privacy guarantee",
        "no-open-round": "no round is open",
        "no-room": "the disk is too small for the files of a task",
        "no-sessions": "the plan does not reuse keys",
        "no-task": "the server has no task",
        "noise-index-used": "a server states a noise index again, or a lower one",
        "noise-without-bound": "noise needs a norm bound",
        "nonce-expired": "the request is signed for an old nonce or for none",
        "norm-too-large": "the update exceeds the norm bound",
        "not-a-draft": "the plan names a key, and only a draft can get one",
        "not-a-message": "the bytes are not a message of torchfsl",
        "not-a-state-folder": "the folder holds no server state",
        "not-accounted": "the privacy accounting has no proof for these settings together",
        "not-admitted": "the request needs an admission token",
        "not-allowed": "the certificate does not permit the call",
        "not-in-cohort": "the client does not participate in the round",
        "not-ready": "the server or its peer cannot answer yet",
        "not-the-leader": "only the leader takes this call",
        "not-whole": "the argument must be a whole number",
        "old-state": "the server restored an older state",
        "only-rows-grow": "a model can gain rows and nothing else",
        "optimizer-state": "the state does not fit the server optimizer",
        "origin-refused": "pages of this origin may not call the server",
        "out-of-range": "a number is outside its range",
        "overloaded": "the server is busy",
        "package-missing": "an optional package is not installed",
        "parameter": "an argument is invalid",
        "participation-limit": "the limits of participation contradict each other or the rounds",
        "participations-spent": "the client has sent all the reports that the plan allows",
        "plan-too-large": "the text of the plan exceeds the size limit",
        "plan-used": "the server has run this plan before",
        "proof-conditions": "the plan does not meet a condition of its proofs",
        "proof-refused": "the request is not signed by the key of its token",
        "proof-used": "the server has taken this signed request before",
        "protocol": "the protocol cannot go on",
        "rejected": "a valid message is refused",
        "report-changed": "the stored bytes of a report have changed on the disk",
        "report-sets-differ": "the two servers accepted different sets of reports",
        "ring-overflow": "the sum can exceed the ring or field",
        "round-full": "the round has its maximum number of clients",
        "round-number-missing": "the client needs the number of the round",
        "round-number-reserved": "the number stands for fetches and not for a round",
        "round-number-used": "the number of the round is not above the last one",
        "round-open": "a round is open, and the call needs it to be over",
        "round-unopened": "the round ended without an aggregate",
        "rounds-missing": "the privacy accounting needs the number of rounds",
        "rounds-spent": "the plan's `max_rounds` rounds were opened",
        "row-limit": "the number of rows per client is missing or out of range",
        "row-not-selected": "the update has rows that the client did not select for the round",
        "row-out-of-range": "a row id is outside the segment",
        "row-outside-union": "a row is outside the union that restricts the plan",
        "rows-missing": "the segment needs row ids",
        "seed-too-short": "the seed has too few bytes",
        "segments-differ": "the names of the segments are not those of the plan",
        "server-halted": "the server has halted its session",
        "server-order": "the function needs server 0 and server 1, in this order",
        "session-needed": "the plan reuses keys, so the client needs a session",
        "settings": "a setting of an experiment is wrong",
        "shared-model": "both servers hold one model object",
        "shared-optimizer": "both servers hold one optimizer object",
        "state-damaged": "the disk failed to write the state",
        "state-in-use": "another server runs on the state folder",
        "state-refused": "the stored state must not be used as it is",
        "store-full": "the disk has no space for another report",
        "sum-beyond-bound": "a server lied: no accepted reports add up to the aggregate",
        "tag-mismatch": "the answer of a server fails its authentication",
        "tensor-twice": "a tensor is in two segments",
        "token-refused": "the admission token is not valid for this request",
        "too-early": "the client must wait for more rounds before its next report",
        "too-few-reports": "the round has fewer reports than the plan demands",
        "too-late": "the round closed before the message was complete",
        "too-many-answers": "the server has sent the client all the answers it may get",
        "too-many-coins": "the server has drawn its daily number of seeds",
        "too-many-fetches": "the limit of fetches is reached",
        "too-many-positions": "the segment has too many positions",
        "too-many-rows": "the client selected more rows than the plan allows",
        "two-servers-needed": "the client needs a pair of servers",
        "unknown-call": "the server has no such call",
        "unknown-client": "the plan or the round has no client of this number",
        "unknown-coin": "the server drew no seed for this template",
        "unknown-option": "the value is not one of the choices",
        "unknown-round": "the server never began the round",
        "unknown-segment": "the plan has no segment of this name",
        "unknown-suite": "the plan uses an unknown cryptographic suite",
        "unsupported-module": "the protocol does not know an operation of the module",
        "unsupported-plan": "the protocol does not support a setting of the plan",
        "unused-option": "the chosen optimizer does not use the option",
        "value-not-finite": "the update has values that are NaN or infinite",
        "value-too-large": "a value of the update exceeds the encoding",
        "version": "the two sides use different wire versions",
        "weight-limit": "`max_weight` does not fit the average",
        "weights-missing": "a client is to answer and has loaded no weights",
        "wrong-authorities": "the plan is for servers of other certificate authorities",
        "wrong-certificate": "the certificate names another party",
        "wrong-hash-seed": "the hash seed is not the one that the servers drew",
        "wrong-kind": "the kind of the message is unknown or not expected here",
        "wrong-round": "the message is for another round",
        "wrong-server-key": "the key of a server is not the one in the plan",
        "wrong-shape": "an array has the wrong shape",
        "wrong-signature": "the signature is not by the server in the plan",
        "wrong-step": "the round is in a state that does not allow the call",
        "wrong-type": "an argument has the wrong type",
        "wrong-weight": "the weight is not one that the plan accepts",
    }
)
"""Every code of an error, and what it means; docs/error-codes.md is made from this table."""


class Error(Exception):
    """Root of every error that torchfsl raises on purpose.

    Args:
        args: the message.
        code: one of `CODES`; left out, the code of the class.

    Attributes:
        code: name of the condition, the same in all versions.
    """

    code: str = "error"

    def __init__(self, *args: object, code: str | None = None) -> None:
        """Build the error; pickling keeps the code."""
        super().__init__(*args)
        if code is not None:
            assert code in CODES, f"{code!r} is not a registered code"
            self.code = code


class ParameterError(Error, ValueError):
    """The caller's mistake. The message names the limit and the remedy."""

    code = "parameter"


class DecodeError(Error):
    """A peer's bytes are malformed: wrong version, length, cap or encoding."""

    code = "decode"


class RejectedSubmission(Error):
    """A peer's well-formed message is refused: commitment mismatch, replay, wrong round."""

    code = "rejected"


class ProtocolError(Error):
    """The protocol cannot go on: servers disagree, batch too small, round already opened."""

    code = "protocol"


def refuse(what: str, given: object, remedy: str, code: str = "wrong-type") -> NoReturn:
    """Say what an argument is, by its type alone as values may be private, and what to pass.

    Args:
        what: name of the argument, as the message begins.
        given: the argument; only its type appears in the message.
        remedy: what to pass instead.
        code: a key of `CODES`.

    Raises:
        ParameterError: always.
    """
    kind = (
        f"the class {given.__name__}"
        if isinstance(given, type)
        else f"of type {type(given).__name__}"
    )
    raise ParameterError(f"{what} is {'None' if given is None else kind}: {remedy}", code=code)


def expect_a(
    kind: type | tuple[type, ...], given: object, what: str, remedy: str, code: str = "wrong-type"
) -> None:
    """Refuse an argument that is not an instance of `kind`.

    Args:
        kind: the type expected, or several.
        given: the argument.
        what: name of the argument, as the message begins.
        remedy: what to pass instead.
        code: a key of `CODES`.

    Raises:
        ParameterError: if it is not an instance; see `refuse`.
    """
    if not isinstance(given, kind):
        refuse(what, given, remedy, code)


def expect_able(
    methods: tuple[str, ...], given: object, what: str, remedy: str, code: str = "wrong-type"
) -> None:
    """Refuse an argument that lacks one of these methods, or is a class that has them.

    Args:
        methods: names that the argument must have.
        given: the argument.
        what: name of the argument, as the message begins.
        remedy: what to pass instead.
        code: a key of `CODES`.

    Raises:
        ParameterError: if a method is missing, or it is a class; see `refuse`.
    """
    if isinstance(given, type) or not all(hasattr(given, name) for name in methods):
        refuse(what, given, remedy, code)


def expect_call(given: object, form: str) -> None:
    """Refuse a function that cannot be called as `form` says; None is allowed.

    Args:
        given: the function.
        form: the call, for example "rows(data)". It begins with the argument's name.

    Raises:
        ParameterError: it takes other arguments.
    """
    try:
        takes = inspect.signature(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # None, or a builtin that does not say
        return
    name, _, taken = form.rstrip(")").partition("(")
    names = taken.split(", ") if taken else []
    try:
        takes.bind(*names)
    except TypeError as error:
        raise ParameterError(
            f"torchfsl calls {form}, and the function passed as {name}= does not fit ({error}): "
            f"let it take {taken or 'no argument'}",
            code="wrong-type",
        ) from None


def is_real(given: object) -> bool:
    """Whether `given` is a real number of Python or NumPy. A bool is not."""
    return isinstance(given, numbers.Real) and not isinstance(given, bool)


def whole_numbers(**given: object) -> list[int]:
    """Arguments as plain integers, in order; those of NumPy are converted.

    Args:
        **given: arguments by name.

    Returns:
        Their values as Python integers, in order.

    Raises:
        ParameterError: if one is not an integer, or is a bool.
    """
    whole = []
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ParameterError(
                f"{name} is {value!r}, not an integer: give a whole number", code="not-whole"
            )
        whole.append(int(value))
    return whole


@contextlib.contextmanager
def noting(note: str) -> Iterator[None]:
    """Add a `note` to an error of the block."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


def as_number(what: str, given: object) -> float:
    """A number, or a tensor of one, as a float.

    Args:
        what: name of the argument, as the message begins.
        given: a number, or a tensor of one element.

    Raises:
        ParameterError: if it is something else.
    """
    try:
        if given is not None and not isinstance(given, str | bytes):
            return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        pass
    kind = "None" if given is None else type(given).__name__
    raise ParameterError(f"{what}: expected a number, such as loss.item(), got {kind}")

"""Filing one message: its fingerprint, its commitment, and where its parts belong.

The public share of a message goes to one server, which relays the share to the other. The other
server has the hash of the share from the client itself, under a tag, and accepts the share only if
it fits. Without the hash, a malicious server could alter a correction word and read the selected
position off the garbage in the aggregate. Without the tag, a party that carries both messages could
do the same.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, TypeAlias

from torchfsl.crypto import field128, kdf
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.dpf.trees import check_trees
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.reports import Arrivals, Report
from torchfsl.fsl.uploads import (
    AnyReport,
    AnyTrees,
    ReportBody,
    ReportCommit,
    ReportRelay,
    TreesBody,
    TreesCommit,
    TreesRelay,
    carries,
    slack_and_elements,
)

Own: TypeAlias = TreesBody | TreesCommit | ReportBody | ReportCommit
"""Bodies that a client sends a server itself."""


class Identity(NamedTuple):
    """Tells a message from another one of its client, kind and round.

    `fingerprint` of the message; `digests` that its tag covers. These are, in order, the digest of
    the part that went to the other server alone (under `audit`), the commitment to its public
    share, in it or computed, and the digest of masked values.
    """

    fingerprint: bytes
    digests: tuple[bytes, ...]
    commitment: bytes


def arrivals(report: Report, body: AnyTrees | AnyReport) -> Arrivals:
    """The arrivals that the body belongs to: the client's trees or its report."""
    return report.trees if isinstance(body, AnyTrees) else report


def identify(report: Report, body: AnyTrees | AnyReport) -> Identity:
    """Fingerprint and commitment. A public share is read once: the one enters the other."""
    if isinstance(body, TreesCommit | ReportCommit):
        commitment = body.commitment
    elif isinstance(body, TreesBody | TreesRelay):
        trees = TreeContext(report.plan, report.round_number, report.client, body.nonce)
        commitment = trees.commitment(*body.public)
    else:
        commitment = report.context_of(body.nonce, body.hint_nonce).commitment(*body.public)
    digests: tuple[bytes, ...] = (commitment,)
    if isinstance(body, ReportBody):
        digests += (report.context_of(body.nonce, body.hint_nonce).masked_digest(*body.masked),)
    fingerprint = hashlib.sha256(body.head + b"".join(digests)).digest()
    if isinstance(body, ReportBody | ReportCommit) and body.private:
        digests = (body.private, *digests)
    return Identity(fingerprint, digests, commitment)


def file(
    report: Report, body: AnyTrees | AnyReport, identity: Identity, key: SealKey | None
) -> None:
    """Put a message's parts where they belong, once they are held for the round.

    `key` opens this server's master seeds, where the plan has keys.

    Raises:
        RejectedSubmission: nonces or seed are not those of the trees, the tag does not fit, trees
            are badly encoded, or the public share does not fit its commitment. The client is out
            of this round.
    """
    into = arrivals(report, body)
    into.seen[body.kind] = identity.fingerprint
    if isinstance(body, TreesRelay | ReportRelay):
        into.relayed_nonces, into.relayed_commitment = body.head, identity.commitment
    else:
        _file_own(report, body, into, identity, key)
    if not isinstance(body, TreesCommit | ReportCommit):
        (into.public,) = body.public  # a view of the message, which may be a file's
        try:
            check_encoding(report.plan, body)
        except DecodeError as error:
            report.reject(str(error))
    if into.complete and not isinstance(body, TreesBody | ReportBody):
        check_relay(report, into)


def check_relay(report: Report, part: Arrivals) -> None:
    """At the second server: the relayed part must fit what the client committed to.

    Raises:
        RejectedSubmission: it does not.
    """
    assert part.commitment is not None
    assert part.relayed_commitment is not None
    fits = kdf.digests_equal(part.commitment, part.relayed_commitment)
    if not fits or part.relayed_nonces != part.nonces:
        report.reject("the relayed public share does not fit the client's commitment")


def _file_own(
    report: Report, body: Own, into: Arrivals, identity: Identity, key: SealKey | None
) -> None:
    """Take from a client's own message nonces, master seed, commitment, masked values."""
    trees = report.trees
    if trees.seed_sent not in (None, body.seed) or trees.nonce not in (b"", body.nonce):
        report.reject("nonce or master seed are not those of its trees")
    seed = trees.master_seed
    if trees.seed_sent is None or seed is None:
        seed = _opened_seed(report, body, key)
    _check_tag(report, body, identity, seed)
    trees.seed_sent, trees.master_seed = body.seed, seed
    into.nonce, into.commitment = body.nonce, identity.commitment
    if isinstance(body, ReportBody | ReportCommit):
        report.hint_nonce = body.hint_nonce
        if body.private:
            report.private = private_digests(report, body, seed, identity.digests[-1])
    if isinstance(body, ReportBody):
        report.masked = body.masked


def private_digests(
    report: Report, body: ReportBody | ReportCommit, seed: bytes, hidden: bytes
) -> tuple[bytes, ...]:
    """By party the digests of each server's private part. `hidden` is the one of masked values."""
    context, party = report.context_of(body.nonce, body.hint_nonce), _party_of(report, body)
    hidden = hidden if isinstance(body, ReportBody) else context.masked_digest()
    both = context.private_digest(seed, party, hidden), body.private
    return both if party == 0 else both[::-1]


def _opened_seed(report: Report, body: Own, key: SealKey | None) -> bytes:
    """The master seed; opened once for a set of trees."""
    if key is None:
        return body.seed
    context = report.trees.context(report.plan, report.client, body.nonce)
    try:
        return key.unseal(context.seal_info(_party_of(report, body)), body.seed)
    except ProtocolError:
        report.reject("its master seed was not sealed to this server for these trees")


def _check_tag(report: Report, body: Own, identity: Identity, seed: bytes) -> None:
    """Whoever carried the message here altered nothing in it, as far as the seed is sealed.

    Nor in the model that came down before a report: a client that was shown another one, on which
    its training might fail, must not count, dummy or not.
    """
    context: TreeContext | ReportContext
    covered = [identity.digests]
    if isinstance(body, ReportBody | ReportCommit):
        context = report.context_of(body.nonce, body.hint_nonce)
        covered.append((*identity.digests, report.model))
    else:
        context = report.trees.context(report.plan, report.client, body.nonce)
    party = _party_of(report, body)
    tags = [context.upload_tag(seed, party, *digests) for digests in covered]
    if not any(kdf.digests_equal(tag, body.tag) for tag in tags):
        report.reject("its message was altered on the way to this server: its tag is wrong")


def _party_of(report: Report, body: Own) -> int:
    """The server that such a message goes to: this one."""
    public = isinstance(body, TreesBody | ReportBody)
    return report.client % 2 if public else 1 - report.client % 2


def check_encoding(plan: Plan, body: TreesBody | TreesRelay | ReportBody | ReportRelay) -> None:
    """Refuse a public share, or a masked part, that kernels must not see.

    Trees are checked on arrival, so that a bad encoding costs its sender the round.

    Raises:
        DecodeError: it is badly encoded.
    """
    segments = plan.early if isinstance(body, AnyTrees) else plan.late
    check_trees(segments, *body.public)
    if plan.statement is not None and isinstance(body, AnyReport):
        check_trees([plan.statement.carries], carries(plan, *body.public))
        if isinstance(body, ReportBody):
            _, elements = slack_and_elements(plan.statement, body.masked[-1])
            field128.checked(elements)

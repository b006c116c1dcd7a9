"""The public plan of a task: what is aggregated, in which layout, under which parameters.

Everything two parties could derive differently stands in it literally (bins, theta, early
termination, stash). Its digest binds every message and every key. Nothing in it depends on any
client's data. `planner.build_plan` makes one; `Plan.from_json` reads one from a peer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import ParameterError
from torchfsl.fsl.cuckoo.placement import Slots, permutations
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.statement import (
    CARRIES,
    MAX_RING_BITS,
    PROOFS,
    Proofs,
    Statement,
    make_statement,
    one_ring,
    proof_private_bytes,
    proof_public_bytes,
    verdict_bytes,
)
from torchfsl.fsl.suite import (
    MAX_MESSAGE_BYTES,
    SEAL_KEY_BYTES,
    SIGN_KEY_BYTES,
    SUITE,
    WIRE_VERSION,
)
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.plan_fields import check_hex, expect_ints
from torchfsl.submodel.plan_json import read_plan
from torchfsl.submodel.segments import in_the_clear

Payload = Literal["values", "masks"]
Audit = Literal["none", "open"]

_COUNTS: Final = ("max_clients", "min_clients", "max_weight", "max_rounds", "min_contributors",
                  "max_epochs", "l2_bound", "noise_sigma", "lane_sigma", "wire_version",
                  )  # fmt: skip
_SEGMENT_COUNTS: Final = ("num_bins", "theta", "nu", "stash", "check_bytes", "tag_bytes")
_PAYLOADS: Final = ("values", "masks")
_AUDITS: Final = ("none", "open")
_OF_AUDIT: Final = ("audit", "audit_keys", "auditors")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan(SubmodelPlan):
    """The public plan of two servers.

    Equal plans have equal digests, and every message carries the digest.

    Attributes:
        segments: with the trees over each.
        hash_seed: 32 bytes in hex, fixed after the index spaces are; from the servers' joint coin.
        max_epochs: rounds that one set of trees serves (U-DPF session); 1 means fresh trees every
            round. Above 1 all tree segments are fixed submodels. Their trees go up once, later
            rounds upload hints only, and a client re-keys after max_epochs rounds.
        server_keys: X25519 public keys of server 0 and server 1 in hex, to which clients seal what
            each server alone may read; empty in one process.
        payload: `values`, or `masks` for a private set union (see `union`). There clients send
            uniform ring values, and servers use only which sums are not zero.
        proofs: what clients prove to both servers of the values that they send. `none`. `lanes`:
            counts are 0 or 1 and at most `k_max` in a segment are 1, or weights are 0 or one and
            the same number up to `max_weight`. `norm`: the norm of all values is within
            `l2_bound`, times the weight, and the lanes if there are any.
            Stands in the JSON only where it is not `none`.
        audit: `open` if an auditor of each server replays its share before anything is opened,
            else `none`. It stands in the JSON with the next two, and only where it is not `none`.
        audit_keys: Ed25519 public keys in hex by which server 0 and server 1 sign rounds.
        auditors: the same of the auditor of server 0 and of that of server 1.

    The other attributes are those of `SubmodelPlan`; `privacy` makes `l2_bound` and the sigmas.
    """

    segments: tuple[TreeSegment, ...]
    hash_seed: str
    max_epochs: int = 1
    server_keys: tuple[str, ...] = ()
    payload: Payload = "values"
    proofs: Proofs = "none"
    audit: Audit = "none"
    audit_keys: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    wire_version: int = WIRE_VERSION
    suite: str = SUITE

    limits_participation: ClassVar[bool] = True
    seed_of_bins: ClassVar[str] = "hash_seed"  # neither server chose it

    def __post_init__(self) -> None:
        if self.wire_version != WIRE_VERSION:
            raise ParameterError(
                f"the plan has wire version {self.wire_version}, expected {WIRE_VERSION}: "
                + (
                    "upgrade torchfsl here"
                    if self.wire_version > WIRE_VERSION
                    else "upgrade torchfsl at the coordinator, and make the plan again"
                ),
                code="version",
            )
        if self.suite != SUITE:
            raise ParameterError(
                f"the plan has the cryptographic suite {self.suite!r}, expected {SUITE!r}: make "
                "the plan with this version of torchfsl",
                code="unknown-suite",
            )
        check_hex("hash_seed", self.hash_seed, DIGEST_BYTES)
        expect_ints({"max_epochs": self.max_epochs}, ("max_epochs",))
        if len(self.server_keys) not in (0, 2) or len(set(self.server_keys)) == 1:
            raise ParameterError("expected two different public keys in server_keys, or none")
        for key in self.server_keys:
            check_hex("server_keys", key, SEAL_KEY_BYTES)
        if self.max_epochs < 1:
            raise ParameterError(
                f"max_epochs is {self.max_epochs}: choose 1 or more (1 makes new DPF keys in "
                "every round)",
                code="out-of-range",
            )
        SubmodelPlan.__post_init__(self)
        _check_payload(self)
        _check_trees(self)
        _check_proofs(self)
        _check_audit(self)
        _check_sizes(self)

    @functools.cached_property
    def statement(self) -> Statement | None:
        """The statement that every report proves; None without proofs."""
        if self.proofs == "none":
            return None
        what = self.proofs, self.lane, self.l2_bound, self.max_weight
        return make_statement(self.segments, one_ring(self.rings), *what)

    def _json_fields(self) -> dict[str, Any]:
        """See `SubmodelPlan`; plans without proofs or audit have the bytes that they always had."""
        fields = SubmodelPlan._json_fields(self)
        if self.proofs == "none":
            del fields["proofs"]
        for name in () if self.audited else _OF_AUDIT:
            del fields[name]
        return fields

    def segment(self, name: str) -> TreeSegment:
        """The segment called `name`.

        Raises:
            ParameterError: there is none.
        """
        segment = SubmodelPlan.segment(self, name)
        assert isinstance(segment, TreeSegment)
        return segment

    @functools.cached_property
    def with_trees(self) -> tuple[TreeSegment, ...]:
        """Segments with selected positions: they carry trees and hints."""
        return tuple(s for s in self.segments if not s.is_dense)

    @functools.cached_property
    def dense(self) -> tuple[TreeSegment, ...]:
        """Segments that travel as additive shares."""
        return tuple(s for s in self.segments if s.is_dense)

    @functools.cached_property
    def retrieving(self) -> tuple[TreeSegment, ...]:
        """Segments whose rows clients fetch privately before training."""
        return tuple(s for s in self.segments if s.retrieve)

    @functools.cached_property
    def early(self) -> tuple[TreeSegment, ...]:
        """Segments whose trees travel before training: retrieved ones, or all in a session."""
        return tuple(s for s in self.with_trees if s.retrieve or self.max_epochs > 1)

    @functools.cached_property
    def late(self) -> tuple[TreeSegment, ...]:
        """Segments whose trees travel in the report."""
        return tuple(s for s in self.with_trees if not s.retrieve and self.max_epochs == 1)

    @property
    def asked_early(self) -> tuple[TreeSegment, ...]:
        """See `SubmodelPlan`: a client's positions are fixed with the trees that it sends first."""
        return self.early

    @property
    def keeps_positions(self) -> bool:
        """See `SubmodelPlan`."""
        return self.max_epochs > 1

    @property
    def values_are_bounded(self) -> bool:
        """See `SubmodelPlan`: masks are uniform ring values."""
        return self.payload == "values"

    @property
    def verified(self) -> bool:
        """Whether trees carry check words."""
        return any(segment.check_bytes for segment in self.segments)

    @property
    def audited(self) -> bool:
        """Whether auditors replay the servers' shares before the aggregate is opened."""
        return self.audit != "none"

    def discloses(self) -> str:
        """One sentence: what servers learn in addition to the sums."""
        few = self.min_contributors
        if self.lane == "count":
            closed = (
                f" Values that fewer than min_contributors={few} clients sent stay closed."
                if few > 1
                else " A count of 1 tells both servers that the row's sum is one client's update; "
                "min_contributors=2 or more keeps such sums closed."
            )
            return "Servers also learn: how many clients sent each row." + closed
        if self.lane == "weight":
            total = " and of all reports" if self.dense else ""
            return (
                f"Servers also learn: the sum of weights of each row{total}. A sum that only one "
                "client's weight explains tells both servers that the row's sum is that client's "
                "update."
            )
        alone = ""
        if self.min_clients == 1:
            alone = " A sum of one client is its update: min_clients=2 opens no such round."
        return f"Servers learn only the sums, and which clients participate and when.{alone}"

    def describe(self) -> dict[str, str]:
        """See `SubmodelPlan`."""
        tagged = bool(self.retrieving) and all(s.tag_bytes for s in self.retrieving)
        private = "private, authenticated" if tagged else super().describe()["retrieval"]
        return {"verification": "leaf hashes" if self.verified else "none", "retrieval": private}

    def hint_bytes(self, segment: TreeSegment) -> int:
        """Bytes of one epoch's hints of a tree segment."""
        return segment.num_trees * (self.value_bytes(segment) << segment.nu)

    def dense_values(self, segment: TreeSegment) -> int:
        """Ring values of a dense segment; the weight lane adds one for the client's weight."""
        return segment.m + (1 if self.lane == "weight" else 0)

    def dense_bytes(self, segment: TreeSegment) -> int:
        """Bytes of the masked values of a dense segment."""
        return self.dense_values(segment) * self.ring_bytes(segment)

    def sum_values(self, segment: TreeSegment) -> int:
        """Ring values of a segment's sum: `m (tau + lane)` with trees, else `dense_values`."""
        if segment.is_dense:
            return self.dense_values(segment)
        return segment.m * (segment.tau + self.lane_values)

    def permutations(self, segment: TreeSegment) -> Slots:
        """The public permutations of a segment's positions: `uint32[3, m]`."""
        return permutations(bytes.fromhex(self.hash_seed), segment.name, segment.m)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a peer's plan; everything is validated.

        Returns:
            The plan.

        Raises:
            DecodeError: if `text` is not canonical JSON of a valid plan.
        """
        return read_plan(cls, text, own=_own_fields, segment=TreeSegment, counts=_SEGMENT_COUNTS)


def _check_trees(plan: Plan) -> None:
    """Refuse combinations of valid segments, or with sessions, that no planner makes."""
    if len({s.check_bytes for s in plan.with_trees}) > 1:
        raise ParameterError("expected check words in all segments with trees, or in none")
    if plan.verified and not all(s.tag_bytes for s in plan.retrieving):
        raise ParameterError("expected tags in all retrieved segments of a plan with check words")
    if plan.max_epochs > 1 and any(s.nu for s in plan.with_trees):
        raise ParameterError(
            "max_epochs above 1 needs nu = 0 in every segment, because leaf blocks make "
            "correction words larger"
        )
    if plan.max_epochs > 1 and any(s.binned for s in plan.with_trees):
        raise ParameterError(
            "max_epochs above 1 reuses DPF keys, and public bins change each round: use "
            "max_epochs=1"
        )
    if plan.max_epochs > 1 and not plan.with_trees:
        raise ParameterError(
            "max_epochs above 1 reuses DPF keys, and the plan has no segment with trees: use "
            "max_epochs=1"
        )


def _check_payload(plan: Plan) -> None:
    """Masks are uniform over 64-bit rings and add up to nothing that noise or lanes fit."""
    if plan.payload not in _PAYLOADS:
        raise ParameterError(
            f"payload is {plan.payload!r}; choose one of {_PAYLOADS}", code="unknown-option"
        )
    if plan.payload == "masks" and (
        {encoding.ring_bits for encoding in plan.encodings} != {64}
        or plan.lane != "none"
        or plan.l2_bound
        or plan.max_epochs > 1
        or plan.dense
        or plan.retrieving
        or any(segment.binned for segment in plan.segments)
    ):
        raise ParameterError(
            "payload='masks' needs a 64-bit ring, only segments with trees, max_epochs=1, and no "
            "lane, l2_bound, public bins or retrieval"
        )


def _check_proofs(plan: Plan) -> None:
    """Refuse plans about which no client can prove anything; others make a `statement`."""
    if plan.proofs not in PROOFS:
        raise ParameterError(
            f"proofs is {plan.proofs!r}; choose one of {PROOFS}", code="unknown-option"
        )
    if plan.proofs == "none":
        return
    if plan.proofs == "lanes" and plan.lane == "none":
        raise ParameterError(
            "proofs='lanes' proves counts or weights: make a plan with lane='count' or "
            "lane='weight'",
            code="proof-conditions",
        )
    if plan.proofs == "norm" and not plan.l2_bound:
        raise ParameterError(
            "proofs='norm' proves a norm within l2_bound: set l2_bound", code="proof-conditions"
        )
    for segment in plan.segments:
        if (bits := plan.encoding_of(segment).ring_bits) > MAX_RING_BITS:
            raise ParameterError(
                f"segment {segment.name!r} has ring_bits={bits}, and proofs allow at most "
                f"{MAX_RING_BITS}: choose fewer ring_bits, or proofs='none'",
                code="proof-conditions",
            )
    if not plan.verified or plan.payload != "values":
        raise ParameterError(
            f"proofs={plan.proofs!r} needs trees with check words: make a plan with "
            "malicious_security=True and a segment that is not dense (above_break_even='keep' "
            "keeps rows), or proofs='none'",
            code="proof-conditions",
        )
    if any(segment.name == CARRIES for segment in plan.segments):
        raise ParameterError(
            f"the segment name {CARRIES!r} is reserved in a plan with proofs: rename this segment"
        )
    assert plan.statement is not None


def _check_audit(plan: Plan) -> None:
    """Refuse an audit that could find no lie, or whose parties are not four."""
    if plan.audit not in _AUDITS:
        raise ParameterError(
            f"audit is {plan.audit!r}; choose one of {_AUDITS}", code="unknown-option"
        )
    keys = (*plan.audit_keys, *plan.auditors)
    if not plan.audited and not keys:
        return
    if not plan.audited or (len(plan.audit_keys), len(plan.auditors), len(set(keys))) != (2, 2, 4):
        raise ParameterError(
            "audit='open' needs two keys in audit_keys and two in auditors, all four different: "
            "pass them, or leave out both with audit='none'",
            code="audit-conditions",
        )
    for key in keys:
        check_hex("audit_keys and auditors", key, SIGN_KEY_BYTES)
    if plan.proofs != "norm":  # these need check words: without both, one client adds any offset
        raise ParameterError(
            "an audit cannot detect a server's lie if clients may send any values: make a plan "
            "with proofs='norm' and l2_bound, or with audit='none'",
            code="audit-conditions",
        )


def _check_sizes(plan: Plan) -> None:
    """Refuse a plan one of whose messages a peer would refuse for its length."""
    most = MAX_MESSAGE_BYTES - 1024  # header, seeds and digests take less than 1 KiB
    trees = plan.with_trees
    masked = sum(plan.dense_bytes(s) for s in plan.dense)
    apart = DIGEST_BYTES if plan.opens_counts_first else 0  # in SHARE, with a salt or a digest
    largest = max(
        masked
        + sum(s.tree_bytes + plan.hint_bytes(s) for s in trees)
        + proof_public_bytes(plan.statement)
        + proof_private_bytes(plan.statement),
        masked + sum(s.m * (plan.value_bytes(s) + apart) for s in trees),
        sum(s.answer_bytes for s in trees),
        sum(s.download_bytes for s in in_the_clear(plan.segments)),
    )
    if plan.max_clients * verdict_bytes(plan.statement) > most:
        raise ParameterError(
            f"max_clients is {plan.max_clients}, expected at most "
            f"{most // verdict_bytes(plan.statement)}, as one message carries the verdicts on all "
            "reports: plan for fewer clients",
            code="message-too-large",
        )
    if largest > most:
        raise ParameterError(
            f"a message of this plan would have {largest} bytes, expected {most} or less: split "
            "the model into several plans",
            code="message-too-large",
        )


def _own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    expect_ints(fields, _COUNTS)
    limits = ("max_participations", "min_separation")
    expect_ints(fields, tuple(name for name in limits if name in fields))
    if fields.get("proofs") == "none":
        raise ParameterError(
            "proofs is 'none', which the JSON of a plan leaves out: delete the entry proofs"
        )
    keys = ("server_keys", *_OF_AUDIT[1:])
    return {name: tuple(fields[name]) for name in keys if name in fields}

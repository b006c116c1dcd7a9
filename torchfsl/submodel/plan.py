"""The agreement of a task's parties, of any protocol: segments, encoding, cohort, lane, noise.

A protocol's own plan extends `SubmodelPlan` by how it lays the segments out. The digest covers
every field of the plan at hand and binds the messages. Nothing depends on a client's data.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from torchfsl.crypto.discrete_gaussian import MAX_SIGMA
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, whole_numbers
from torchfsl.submodel import taps as correlation
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.norm_bound import MAX_BOUND, check_bound
from torchfsl.submodel.plan_fields import check_hex
from torchfsl.submodel.segments import Segment, TensorSpec, in_the_clear

Lane = Literal["none", "count", "weight"]
Clip = Literal["whole", "clip", "normalise"]

LANES: Final[tuple[Lane, ...]] = ("none", "count", "weight")
"""Lanes that may be opened in addition to the sums."""
CLIPS: Final[tuple[Clip, ...]] = ("whole", "clip", "normalise")
"""How clients keep `l2_bound`."""

_COUNTS: Final = ("max_clients", "min_clients", "max_weight", "max_rounds", "min_contributors",
                  "l2_bound", "noise_sigma", "lane_sigma", "max_participations",
                  "min_separation")  # fmt: skip
_LATER: Final = ("max_participations", "min_separation", "noise_taps", "clip", "sum_bound")
"""Fields that stand in the JSON only where they are not the default."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SubmodelPlan:
    """Parts of a model to train, from how many clients, how precisely.

    Equal plans have equal digests.

    Attributes:
        session: 16 random bytes in hex, fresh for every task.
        encoding: fixed-point parameters of every segment that has none; see
            `encoding_of`. How they round is the same in all segments.
        max_clients: most reports that a round may open.
        min_clients: fewest reports that a round may open; one opened report is one client's update.
        segments: the parts of the update; names are unique.
        lane: `count` or `weight` adds one lane to each position, which opens how many clients
            (or which weight) contributed to it. Off by default: it discloses more.
        max_weight: largest weight that a client may claim, at least 1; 1 without the weight lane.
            Proofs let a client claim 0, which adds nothing; `submit` takes 1 and more.
        max_rounds: most rounds whose sums may be opened under this plan, which bounds what all of
            them tell together; 0 for no bound.
        min_contributors: fewest clients that must have sent a position for its values to be
            opened; 1 opens every position. Above 1 needs the count lane.
        l2_bound: largest L2 norm of a client's quantised values, over all segments together and
            before its weight, in ring units, up to `MAX_BOUND`; 0 means none. Clients scale their
            update down to it.
        noise_sigma: standard deviation, in ring units, of the discrete Gaussian noise that each
            server adds to every value of every sum; 0 means none.
        lane_sigma: the same for the count or weight lane.
        max_participations: most rounds whose sums hold a report of one client; servers reject
            further reports. 0: a client may be in every round, and noise is charged for all.
        min_separation: fewest rounds from one report of a client to its next.
        noise_taps: by which each server's noise is correlated over rounds, see `taps`; empty for
            independent noise.
        clip: how clients keep `l2_bound`. They scale the `whole` update down, or each group (the
            dense part, and each table) down to an equal share (`clip`), or up as well
            (`normalise`).
        sum_bound: whether servers bound the norm of the aggregate by `l2_bound` and their noise,
            see `submodel.sum_bound`.
    """

    session: str
    encoding: FixedPoint
    max_clients: int
    segments: tuple[Segment, ...]
    min_clients: int = 2
    lane: Lane = "none"
    max_weight: int = 1
    max_rounds: int = 0
    min_contributors: int = 1
    l2_bound: int = 0
    noise_sigma: int = 0
    lane_sigma: int = 0
    max_participations: int = 0
    min_separation: int = 1
    noise_taps: tuple[int, ...] = ()
    clip: Clip = "whole"
    sum_bound: bool = False

    limits_participation: ClassVar[bool] = False
    """Whether the protocol's servers keep the five fields above."""
    seed_of_bins: ClassVar[str] = "session"
    """Field from which the bins of segments that are `binned` follow."""

    def __post_init__(self) -> None:
        check_hex("session", self.session, 16)
        check_bound(self.l2_bound, self.encoding)
        counts = whole_numbers(**{name: getattr(self, name) for name in _COUNTS})
        for name, value in zip(_COUNTS, counts, strict=True):
            object.__setattr__(self, name, value)  # those of NumPy are Python's now
        object.__setattr__(self, "noise_taps", tuple(self.noise_taps))
        _check_clients(self)
        for encoding in self.encodings:
            encoding.check_headroom(self.max_clients, self.max_weight)
        _check_encodings(self)
        _check_participation(self)
        _check_noise(self)
        _check_sum_bound(self)
        names = [segment.name for segment in self.segments]
        if not names or len(set(names)) != len(names):
            raise ParameterError(
                f"the plan has the segments {names}: pass one or more segments with distinct names"
            )
        owned = [tensor.name for segment in self.segments for tensor in segment.tensors]
        if len(set(owned)) != len(owned):
            raise ParameterError(
                "a tensor is in two segments: put each tensor into one segment", code="tensor-twice"
            )

    @functools.cached_property
    def encodings(self) -> tuple[FixedPoint, ...]:
        """Those in use, of all segments."""
        return tuple(dict.fromkeys(map(self.encoding_of, self.segments)))

    @functools.cached_property
    def rings(self) -> frozenset[int]:
        """Ring widths in use, in bits."""
        return frozenset(encoding.ring_bits for encoding in self.encodings)

    def encoding_of(self, segment: Segment) -> FixedPoint:
        """The fixed-point parameters of a segment's values."""
        return self.encoding if segment.encoding is None else segment.encoding

    def ring_bytes(self, segment: Segment) -> int:
        """l/8, the bytes of one of a segment's ring values."""
        return self.encoding_of(segment).ring_bits // 8

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON: 32 bytes."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, SubmodelPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        names = ", ".join(segment.name for segment in self.segments[:4])
        more = ", ..." * (len(self.segments) > 4)
        return (
            f"{type(self).__name__}({names}{more}; at most {self.max_clients} clients, "
            f"digest {self.digest.hex()[:8]})"
        )

    def segment(self, name: str) -> Segment:
        """The segment called `name`.

        Raises:
            ParameterError: there is none.
        """
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise ParameterError(
            f"the plan has no segment {name!r}: choose from {[s.name for s in self.segments]}",
            code="unknown-segment",
        )

    @functools.cached_property
    def retrieving(self) -> tuple[Segment, ...]:
        """Segments whose rows clients fetch privately before training."""
        return tuple(s for s in self.segments if s.retrieve)

    def public_bins(self, segment: Segment, round_number: int) -> PublicBins:
        """The bins of a `segment` that is `binned`, in the round `round_number`."""
        m, k = segment.m, segment.k_max
        seed = bytes.fromhex(getattr(self, self.seed_of_bins))
        return PublicBins.of(seed, segment.name, m, k, round_number)

    @property
    def asked_early(self) -> tuple[Segment, ...]:
        """Segments whose positions a client names before training, not with its report."""
        return self.retrieving

    @property
    def keeps_positions(self) -> bool:
        """Whether a client's positions stay the same over several rounds (a fixed submodel)."""
        return False

    @property
    def values_are_bounded(self) -> bool:
        """Whether a client's values are quantised numbers of at most `encoding.q_max`."""
        return True

    @property
    def noise_growth(self) -> float:
        """Standard deviation of the noise in a sum over that of a server's draw."""
        return correlation.growth(self.noise_taps, self.max_rounds)

    @property
    def lane_values(self) -> int:
        """Extra ring values per position: 1 with a count or weight lane, else 0."""
        return 0 if self.lane == "none" else 1

    @property
    def opens_counts_first(self) -> bool:
        """Whether the counts are opened first, and values only where they suffice."""
        return self.min_contributors > 1

    def value_bytes(self, segment: Segment) -> int:
        """Ring bytes W/8 of one position of a segment with selected positions, lane included."""
        return (segment.tau + self.lane_values) * self.ring_bytes(segment)

    @property
    def clear_tensors(self) -> tuple[TensorSpec, ...]:
        """Tensors that clients download in the clear: all outside retrieving segments."""
        return tuple(t for s in in_the_clear(self.segments) for t in s.tensors)

    def explain(self, **options: Any) -> str:
        """The plan in words: what servers learn, what a client sends, what a round costs.

        For a plan of two servers, `options` are `security=True` for the advantages of attackers
        over all rounds, and `delta=` of the epsilon that is printed (default: 1e-6).
        """
        package = type(self).__module__.split(".")[1]
        module = importlib.import_module(f"torchfsl.{package}.explain")  # above plans
        return "\n".join(filter(None, [self.discloses(), module.explain(self, **options)]))

    def discloses(self) -> str:
        """Information that servers learn in addition to the sums; empty if no plan says it."""
        return ""

    def describe(self) -> dict[str, str]:
        """Protections in words, for a summary; a protocol's plan adds its own."""
        return {"retrieval": "private" if self.retrieving else "none"}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no white space, later fields only if they are in use."""
        return json.dumps(self._json_fields(), sort_keys=True, separators=(",", ":"))

    def _json_fields(self) -> dict[str, Any]:
        """Fields of the JSON: every field that old plans had, and later ones that are in use."""
        fields = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            if field.name in _LATER and fields[field.name] == field.default:
                del fields[field.name]
        for segment in fields["segments"]:
            if segment["encoding"] is None:
                del segment["encoding"]
            if segment["download"] == "full":
                del segment["download"]
            for name in ("l2_bound", "binned"):
                if not segment[name]:
                    del segment[name]
        return fields


def noise_tail(sigma: int, growth: float = 1.0) -> int:
    """Most that both servers' noise adds: nine standard deviations of sqrt(2) sigma, rounded up.

    Correlated noise has `SubmodelPlan.noise_growth` times the standard deviation of a draw.
    """
    sigma = math.ceil(sigma * growth) if growth != 1 else sigma
    return math.isqrt(162 * sigma * sigma) + (sigma > 0)


def check_suite(plan: SubmodelPlan, version: int, suite: str) -> None:
    """Refuse a protocol's plan of another version or suite than this library has.

    Raises:
        ParameterError: it is of another.
    """
    stated = vars(plan)["wire_version"], vars(plan)["suite"]
    if stated != (version, suite):
        raise ParameterError(
            f"the plan has format version {stated[0]} and cryptographic suite {stated[1]!r}, "
            f"expected {version} and {suite!r}: run the same version of torchfsl everywhere",
            code="version",
        )


def check_plain(plan: SubmodelPlan, why: str) -> None:
    """Refuse downloads and encodings that a protocol without trees does not have.

    Raises:
        ParameterError: a segment has its own.
    """
    if any(s.download != "full" or s.encoding is not None for s in plan.segments):
        raise ParameterError(
            f"{why}, so all segments have one encoding and clients download the exact model: make "
            "Federated without encodings= and download=",
            code="unsupported-plan",
        )


def values_per_client(plan: SubmodelPlan) -> int:
    """Most values that one client's update has, over all segments, lanes not counted."""
    return sum(s.k_max * s.tau for s in plan.segments)


def _check_clients(plan: SubmodelPlan) -> None:
    """Refuse numbers of clients, weights or rounds that contradict each other or the lane."""
    if not 1 <= plan.min_clients <= plan.max_clients:
        raise ParameterError(
            f"min_clients is {plan.min_clients} and max_clients is {plan.max_clients}: choose "
            "min_clients of 1 or more (1 opens a single client's update), and max_clients of at "
            "least min_clients",
            code="client-limits",
        )
    if plan.lane not in LANES:
        raise ParameterError(f"lane is {plan.lane!r}; choose one of {LANES}")
    if plan.max_weight < 1 or (plan.max_weight > 1 and plan.lane != "weight"):
        raise ParameterError(
            f"max_weight is {plan.max_weight} with lane={plan.lane!r}: choose 1 or more with "
            "lane='weight', and 1 with any other lane",
            code="weight-limit",
        )
    if plan.max_rounds < 0:
        raise ParameterError(
            f"max_rounds is {plan.max_rounds}: choose 1 or more, or 0 for no limit",
            code="out-of-range",
        )
    if not 1 <= plan.min_contributors <= plan.max_clients:
        raise ParameterError(
            f"min_contributors is {plan.min_contributors}: choose a number from 1 to max_clients = "
            f"{plan.max_clients} (1 opens every position)",
            code="contributor-limit",
        )
    if plan.min_contributors > 1 and plan.lane != "count":
        raise ParameterError(
            "min_contributors above 1 needs a count of clients per row: pass average='rows' to "
            "Federated (lane='count' in a plan), or leave out min_contributors",
            code="contributor-limit",
        )


def _check_noise(plan: SubmodelPlan) -> None:
    """Refuse a norm bound too tight to round to, noise without a meaning, or no headroom."""
    bound, sigma, lane_sigma = plan.l2_bound, plan.noise_sigma, plan.lane_sigma
    for name, value, most in (
        ("l2_bound", bound, MAX_BOUND),
        ("noise_sigma", sigma, MAX_SIGMA),
        ("lane_sigma", lane_sigma, MAX_SIGMA),
    ):
        if not 0 <= value <= most:
            raise ParameterError(f"{name} is {value}: choose a number from 0 to {most}")
    if bound and bound * bound < values_per_client(plan):
        raise ParameterError(
            f"l2_bound is {bound} units of {2.0**-plan.encoding.frac_bits:g}, and rounding "
            f"{values_per_client(plan)} values can exceed this bound: use an l2_bound of "
            f"{math.isqrt(values_per_client(plan)) + 1} or more, for example from privacy.l2_bound",
            code="bound-too-small",
        )
    _check_bounds(plan)
    if sigma and not bound:
        raise ParameterError(
            "noise_sigma guarantees nothing without l2_bound: set both", code="noise-without-bound"
        )
    if (lane_sigma > 0) != (sigma > 0 and plan.lane != "none"):
        remedy = "set lane_sigma=0"
        if plan.lane != "none":
            remedy = "choose both above 0, or both 0, as privacy.calibrate() does"
        raise ParameterError(
            f"lane_sigma is {lane_sigma} and noise_sigma is {sigma} in a plan with "
            f"lane={plan.lane!r}: {remedy}",
            code="lane-noise",
        )
    cohort = plan.max_clients * plan.max_weight
    for encoding in plan.encodings:
        for what, most, s in (("a sum", encoding.q_max, sigma), ("the lane's sum", 1, lane_sigma)):
            if cohort * most + noise_tail(s, plan.noise_growth) > encoding.capacity:
                raise ParameterError(
                    f"{what} of {plan.max_clients} clients with both servers' noise would overflow "
                    f"the ring's limit {encoding.capacity}: use more ring_bits, fewer frac_bits or "
                    "less noise",
                    code="ring-overflow",
                )


def _check_bounds(plan: SubmodelPlan) -> None:
    """Refuse bounds of segments that do not fit the plan's, or cannot be rounded to."""
    bound = plan.l2_bound
    for segment in plan.segments:
        own, least = segment.l2_bound, segment.k_max * segment.tau
        if own and not bound:
            raise ParameterError(
                f"segment {segment.name!r} has l2_bound {own}, and the plan has none: also pass "
                "l2_bound= of the plan, the bound on the norm of all segments together"
            )
        if own and not least <= own * own <= bound * bound:
            raise ParameterError(
                f"segment {segment.name!r}: l2_bound is {own}: choose at least "
                f"{math.isqrt(least - 1) + 1}, because rounding alone can give this norm, and at "
                f"most {bound}, the plan's l2_bound",
                code="bound-too-small",
            )


def _check_sum_bound(plan: SubmodelPlan) -> None:
    """Refuse a bound on sums of what has none, or that the protocol's servers do not keep."""
    if type(plan.sum_bound) is not bool:
        raise ParameterError(f"sum_bound is {plan.sum_bound!r}: choose True or False")
    if plan.sum_bound and not (plan.l2_bound and plan.limits_participation):
        raise ParameterError(
            "sum_bound needs a torchfsl.Plan with l2_bound: set l2_bound, or leave out sum_bound",
            code="unsupported-plan",
        )


def _check_participation(plan: SubmodelPlan) -> None:
    """Refuse limits that contradict each other or mean nothing."""
    most, apart, rounds = plan.max_participations, plan.min_separation, plan.max_rounds
    limits = bool(most or plan.noise_taps or apart != 1)
    if plan.clip not in CLIPS:
        raise ParameterError(f"clip is {plan.clip!r}: choose one of {CLIPS}", code="unknown-option")
    if not limits and plan.clip == "whole":
        return
    if not plan.limits_participation:
        raise ParameterError(
            f"{type(plan).__name__} does not support participation limits, noise_taps or clip: "
            "leave out these settings",
            code="unsupported-plan",
        )
    needs = ("l2_bound", "noise_sigma") if limits else ("l2_bound",)
    if missing := [name for name in needs if not getattr(plan, name)]:
        what = "participation limits need" if limits else f"clip={plan.clip!r} needs"
        raise ParameterError(
            f"{what} {' and '.join(missing)}: pass l2_bound=privacy.l2_bound(encoding, 1.0) to "
            "fed.make_plan, and let torchfsl.privacy.calibrate choose the noise",
            code="noise-without-bound",
        )
    if most < 0 or apart < 1 or (limits and not max(most, apart) <= rounds):
        raise ParameterError(
            f"max_rounds is {rounds}, max_participations {most}, min_separation {apart}: choose "
            "max_rounds of 1 or more, max_participations from 0 (no limit) and min_separation "
            "from 1, both at most max_rounds",
            code="participation-limit",
        )
    if plan.noise_taps:
        _check_taps(plan)


def _check_taps(plan: SubmodelPlan) -> None:
    """Refuse correlated noise for which there is no proof, or no room."""
    band, apart = len(plan.noise_taps), plan.min_separation
    if apart < band:
        raise ParameterError(
            f"the noise is correlated over {band} rounds, and a client may report again after "
            f"{apart} rounds: set min_separation={band} or band={apart}",
            code="participation-limit",
        )
    if plan.opens_counts_first or plan.keeps_positions:
        raise ParameterError(
            "torchfsl cannot compute the privacy of correlated noise (noise_taps) with "
            "min_contributors or max_epochs above 1: calibrate with band=1",
            code="not-accounted",
        )
    most = max(plan.noise_sigma, plan.lane_sigma)
    correlation.check_taps(plan.noise_taps, most, plan.max_rounds)


def _check_encodings(plan: SubmodelPlan) -> None:
    """Refuse encodings of segments that do not go together."""
    others = [s for s in plan.segments if s.encoding is not None]
    for segment in others:
        assert segment.encoding is not None
        where = f"segment {segment.name!r}"
        if segment.encoding.rounding != plan.encoding.rounding:
            raise ParameterError(
                f"{where} has rounding={segment.encoding.rounding!r}, and the plan has "
                f"{plan.encoding.rounding!r}: choose one rounding for all segments",
                code="encodings-differ",
            )
        check_unit(segment, plan.encoding, plan.l2_bound)


def check_unit(segment: Segment, encoding: FixedPoint, l2_bound: int) -> None:
    """Refuse a segment of other units than the plan's `encoding` under one norm bound."""
    own = segment.encoding or encoding
    if l2_bound and own.frac_bits != encoding.frac_bits:
        raise ParameterError(
            f"segment {segment.name!r} has frac_bits={own.frac_bits} and the plan "
            f"{encoding.frac_bits}, but under l2_bound all must be equal: use one frac_bits (clip "
            "may differ, ring_bits only with proofs='none'), or no l2_bound",
            code="encodings-differ",
        )

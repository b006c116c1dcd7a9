"""Settings of a federated model: which parts are sent, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.policies import BinTop, BlockTopK, Dense, RestPolicy, Rows, TopK
from torchfsl.engine.watch.table import Check, Source
from torchfsl.errors import ParameterError, expect_a
from torchfsl.submodel.plan import SubmodelPlan


@dataclass(frozen=True)
class Settings:
    """Which parts of a model are sent, and how.

    Attributes:
        rows: policy of the tables that are sent by row: every trained `nn.Embedding` and
            `nn.EmbeddingBag` weight, or those that it names. None for none.
        rest: policy of all other trained parameters, flattened in `named_parameters` order.
        encoding: fixed-point parameters; None for the finest that has room for a plan's clients.
        encodings: those of single segments by their names in `plan.explain()` (`rows18`, `rest`),
            `rows` for all tables. A pattern (`attention.*`, or the name of one parameter) makes a
            separate segment of the parameters of a dense rest that it fits; the first that fits
            counts.
        buffers: `local` neither sends nor loads buffers (BatchNorm statistics). `average` sends
            the change of floating-point buffers as a dense segment (with source `delta`).
        source: `delta` sends how the parameters changed over the round. `gradient` sends the sum
            of the gradients of the round's steps (FedSGD); the steps themselves then change
            nothing, neither parameters nor optimizer state.
        check: how untouched rows are checked at the end of a round: `checksum` (reads the tables
            twice a round), `sample` (256 rows) or `off`.
    """

    rows: Rows | None = field(default_factory=Rows)
    rest: RestPolicy = field(default_factory=Dense)
    encoding: FixedPoint | None = None
    encodings: Mapping[str, FixedPoint] = field(default_factory=dict)
    buffers: Literal["local", "average"] = "local"
    source: Source = "delta"
    check: Check = "checksum"

    def __post_init__(self) -> None:
        _check_settings(self.rows, self.rest, self.encoding, self.buffers, self.source, self.check)
        object.__setattr__(self, "encodings", _checked_encodings(self.encodings))


def _check_settings(
    rows: object, rest: object, encoding: object, buffers: str, source: str, check: str
) -> None:
    """Refuse other objects and unknown choices.

    Raises:
        ParameterError: names the first one and what there is.
    """
    if rows is not None and not isinstance(rows, Rows):
        raise ParameterError(f"rows is {rows!r}: pass 'auto', a Rows policy or None")
    if not isinstance(rest, RestPolicy):
        raise ParameterError(
            f"rest is {rest!r}: pass a policy, Dense(), TopK(0.01), BlockTopK(0.01), "
            "BinTop(0.01), BlockSample(0.01), RandomK(0.01) or Fixed(positions)"
        )
    expect_a(
        (FixedPoint, type(None)),
        encoding,
        "encoding",
        "pass FixedPoint(ring_bits=..., frac_bits=..., clip=...); encodings= takes a mapping",
    )
    if buffers not in ("local", "average"):
        raise ParameterError(f"buffers is {buffers!r}: choose 'local' or 'average'")
    if source not in ("delta", "gradient"):
        raise ParameterError(f"source is {source!r}: choose 'delta' or 'gradient'")
    if source == "gradient" and buffers == "average":
        raise ParameterError(
            "buffers='average' sends the change of buffers over a round, which needs "
            "source='delta': use source='delta', or buffers='local'"
        )
    if check not in ("checksum", "sample", "off"):
        raise ParameterError(f"check is {check!r}: choose 'checksum', 'sample' or 'off'")


def _checked_encodings(given: Mapping[str, FixedPoint] | None) -> dict[str, FixedPoint]:
    """Encodings by name.

    Raises:
        ParameterError: it is not a mapping from names to encodings.
    """
    fits = given is None or isinstance(given, Mapping)
    if not fits or not all(isinstance(name, str) for name in given or ()):
        raise ParameterError(
            f"encodings is {given!r}, expected a mapping from names to encodings: pass {{'rest': "
            "FixedPoint(...)}, or encoding= for all segments"
        )
    for name, encoding in (given or {}).items():
        if not isinstance(encoding, FixedPoint):
            raise ParameterError(f"encodings[{name!r}] is {encoding!r}: pass a FixedPoint")
    return dict(given or {})


NO_TABLE: Final = (
    "no table of this model is sent by rows (rows=None sends tables whole, and torchfsl sends no "
    "rows of embeddings that are frozen or computed, for example by weight_norm)"
)


def check_policies(settings: Settings, plan: SubmodelPlan, parts: Collection[str]) -> None:
    """Refuse a policy that chooses another kind of positions than the plan sends.

    Args:
        settings: of the model.
        plan: for this model.
        parts: names of the segments outside tables.

    Raises:
        ParameterError: with the policy that the plan asks for.
    """
    rest = settings.rest
    for segment in plan.segments:
        if segment.name not in parts or segment.is_dense:
            continue
        own = rest.policy, rest.block, isinstance(rest, BinTop)
        if own != (segment.policy, segment.tau, segment.binned):
            raise ParameterError(
                f"segment {segment.name!r}: the plan has the policy {segment.policy} with "
                f"{segment.tau} values{' in public bins' * segment.binned}, and this model has "
                f"{rest!r}: leave out rest= to use the plan's policy, torchfsl.Federated(model, "
                "optimizer, plan=plan)"
            )


def rest_policy_of(plan: SubmodelPlan, name: str) -> RestPolicy:
    """The policy that a client with this plan follows, where its owner chose by magnitude."""
    found = next((s for s in plan.segments if s.name == name and not s.is_dense), None)
    if found is None:
        return Dense()
    if found.binned:
        return BinTop(found.k_max, block=found.tau)
    if found.policy == "blocks":
        return BlockTopK(found.k_max, block=found.tau)
    return TopK(found.k_max)


def check_source(sent: str, taken: object) -> None:
    """Refuse servers that take gradients for deltas, or the reverse.

    Args:
        sent: by the engine.
        taken: by the servers' models, as far as they say.

    Raises:
        ParameterError: they would move the wrong way.
    """
    if taken in ("delta", "gradient") and taken != sent:
        raise ParameterError(
            f"this client sends source={sent!r}, and the servers expect source={taken!r}: use "
            f"source={taken!r} at both, or the model moves in the wrong direction"
        )

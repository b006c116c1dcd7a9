"""Makes the plan of one server from what is wanted of each segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.sesa.plan import SesaPlan, Width
from torchfsl.submodel.segments import SegmentSpec, plain_segments


class PlanOptions(TypedDict, total=False):
    """What `build_plan` takes beside segments, encoding and widths; each field is explained there.

    `collusion` is needed.
    """

    collusion: int
    dropouts: int
    max_isolation: float
    min_clients: int
    l2_bound: int
    session: bytes | None


def build_plan(
    specs: Sequence[SegmentSpec],
    *,
    encoding: FixedPoint,
    widths: Sequence[Width],
    collusion: int,
    dropouts: int = 0,
    max_isolation: float = 1e-4,
    min_clients: int = 2,
    l2_bound: int = 0,
    session: bytes | None = None,
) -> SesaPlan:
    """Put the plan of one server together.

    Args:
        specs: the segments wanted.
        encoding: fixed-point parameters.
        widths: classes of clients; their clients together are a full round.
        collusion: see `SesaPlan`.
        dropouts: see `SesaPlan`.
        max_isolation: see `SesaPlan`.
        min_clients: fewest survivors a round may open, if K + T is below.
        l2_bound: see `SubmodelPlan`.
        session: 16 bytes; from the operating system when None.

    Raises:
        ParameterError: a limit is exceeded; the message names it.
    """
    return SesaPlan(
        session=(random_bytes(16) if session is None else session).hex(),
        encoding=encoding,
        max_clients=sum(width.clients for width in widths),
        min_clients=min_clients,
        segments=plain_segments(specs),
        widths=tuple(widths),
        collusion=collusion,
        dropouts=dropouts,
        max_isolation=max_isolation,
        l2_bound=l2_bound,
    )

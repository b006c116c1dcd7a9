"""The segments of a model, as every protocol's planner wants them."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Mapping, Sequence

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.exchange import REST, ROWS, Exchange
from torchfsl.engine.inventory import Inventory
from torchfsl.engine.policies import BinTop, Dense, Fixed, RestPolicy, Rows
from torchfsl.engine.settings import NO_TABLE
from torchfsl.errors import ParameterError, expect_a, whole_numbers
from torchfsl.submodel.segments import BUFFERS, SegmentSpec, TensorSpec, ceil_div


def segment_specs(
    exchange: Exchange,
    rows: Rows | None,
    rest: RestPolicy,
    *,
    rows_per_client: int | Mapping[str, int] | None,
    retrieve: bool | None,
    encodings: Mapping[str, FixedPoint],
) -> list[SegmentSpec]:
    """The segments of a model with the public budgets of its policies.

    Args:
        exchange: the model's tensors.
        rows: policy of the tables.
        rest: policy of everything else.
        rows_per_client: most rows that a client fetches and sends, for every rows segment or by
            the name of a segment or of its tables.
        retrieve: see there.
        encodings: of segments with a separate one, by name.

    Raises:
        ParameterError: a budget is missing, or something is given for a segment that is not there.
    """
    expect_a(
        (bool, type(None)), retrieve, "retrieve", "choose True, False or None (torchfsl decides)"
    )
    segments = exchange.segment_tensors
    tables = {n: ts for n, ts in segments.items() if n not in (*exchange.parts, BUFFERS)}
    if not tables and retrieve:
        raise ParameterError(
            f"retrieve=True retrieves rows of tables, but {NO_TABLE}: leave out retrieve=True"
        )
    if isinstance(rows_per_client, Mapping):
        rows_per_client = _by_segment(rows_per_client, tables)
    specs = []
    for name, tensors in segments.items():
        if name == BUFFERS:
            specs.append(SegmentSpec(name, "dense", tensors))
        elif name == REST:
            m = sum(ceil_div(t.numel, rest.block) for t in tensors)
            binned, k = isinstance(rest, BinTop), rest.count(m)
            specs.append(SegmentSpec(name, rest.policy, tensors, k, rest.block, binned=binned))
        elif name in exchange.parts:
            specs.append(SegmentSpec(name, "dense", tensors))
        else:
            assert rows is not None
            k_max = _row_budget(rows, name, tensors, rows_per_client)
            fetch = _fetches(rows) if retrieve is None else retrieve
            specs.append(SegmentSpec(name, "rows", tensors, k_max, tensors[0].shape[1], fetch))
    outside = {*exchange.parts, BUFFERS}
    if ROWS in encodings and not any(spec.name not in outside for spec in specs):
        raise ParameterError(
            f"encodings has {ROWS!r}, but no table of this model is sent by rows: leave out "
            f"{ROWS!r}"
        )
    for name in encodings:
        if name != ROWS and name not in segments:
            why = _why_odd(name, specs, outside, is_dense=isinstance(rest, Dense))
            raise ParameterError(f"encodings has {name!r}, but {why}")
    return _with_encodings(specs, encodings, outside)


def _why_odd(
    name: str, specs: Sequence[SegmentSpec], outside: Collection[str], *, is_dense: bool
) -> str:
    """Why no segment has this name; `outside` are those outside tables."""
    names = [spec.name for spec in specs]
    tables = [t.name for s in specs if s.name not in outside for t in s.tensors]
    rest = [t.name for s in specs if s.name in outside and s.name != BUFFERS for t in s.tensors]
    if name == REST:
        return (
            "no parameter is left for this entry, because other entries or tables cover all "
            "parameters: leave out this entry"
        )
    if found := fnmatch.filter(rest, name):
        if not is_dense:
            return (
                f"the pattern matches {found[0]}, and only rest=Dense() can have several "
                f"encodings: use rest=Dense(), or write {REST!r} in place of the pattern"
            )
        owners = [s.name for s in specs if not {t.name for t in s.tensors}.isdisjoint(found)]
        return (
            f"the earlier entries {', '.join(map(repr, owners))} already match all its "
            "parameters, and the first match counts: leave out this entry, or put the narrower "
            "pattern first"
        )
    if found := fnmatch.filter(tables, name):
        owner = next(s.name for s in specs if found[0] in [t.name for t in s.tensors])
        return (
            f"the pattern matches the table {found[0]}, which is sent by rows: write the name of "
            f"its segment, {owner!r}, or {ROWS!r} for all tables"
        )
    hint = (
        f". For a whole module write {name + '.*'!r}" if fnmatch.filter(rest, f"{name}.*") else ""
    )
    return (
        f"no segment and no parameter outside tables matches. The segments are {names}, {ROWS!r} "
        "means all tables, and the other parameters include "
        f"{', '.join(rest[:4])}{', ...' * (len(rest) > 4)}{hint}"
    )


def _with_encodings(
    specs: Sequence[SegmentSpec], encodings: Mapping[str, FixedPoint], rest: Collection[str]
) -> list[SegmentSpec]:
    """The segments, with their encodings if named; `rest` are segments outside tables."""
    of_tables = encodings.get(ROWS)
    return [
        dataclasses.replace(
            spec, encoding=encodings.get(spec.name, None if spec.name in rest else of_tables)
        )
        for spec in specs
    ]


def _by_segment(
    given: Mapping[str, int], segments: Mapping[str, Sequence[TensorSpec]]
) -> dict[str, int]:
    """Budgets by segment, of budgets by segment or by table; those of its tables add up.

    Raises:
        ParameterError: a name that is neither, or only some of a segment's tables.
    """
    budgets, left = {}, dict(given)
    for name, tensors in segments.items():
        if name in left:
            budgets[name] = left.pop(name)
            continue
        names = [t.name if t.name in left else t.name.removesuffix(".weight") for t in tensors]
        missing = [n for n in names if n not in left]
        if len(missing) == len(names):
            continue
        if missing:
            raise ParameterError(
                f"rows_per_client has no number for {', '.join(map(repr, missing))}, and one for "
                f"other tables of segment {name!r}: add a number for each table of the segment"
            )
        budgets[name] = sum(
            whole_numbers(**{f"rows_per_client of {n}": left.pop(n) for n in names})
        )
    if left:
        tables = {name: [t.name for t in tensors] for name, tensors in segments.items()}
        raise ParameterError(
            f"rows_per_client has the unknown names {sorted(left)}: choose from the segments "
            f"{sorted(segments)} or their tables {tables}"
        )
    return budgets


def _row_budget(
    rows: Rows,
    name: str,
    tensors: Sequence[TensorSpec],
    rows_per_client: int | Mapping[str, int] | None,
) -> int:
    """k_max of the rows segment `name` with the tables `tensors`.

    Raises:
        ParameterError: neither the policy nor the caller gives one.
    """
    m = sum(t.shape[0] for t in tensors)
    given = rows_per_client.get(name) if isinstance(rows_per_client, Mapping) else rows_per_client
    if given is not None:
        return min(*whole_numbers(**{f"rows_per_client of {name}": given}), m)
    if rows.fixed is not None:
        return sum(rows.fixed.ids(t.name).numel() for t in tensors)
    if rows.choice is not None:
        return rows.choice.count(m)
    if rows.budget is not None:
        return min(rows.budget, m)
    named = ", ".join(t.name for t in tensors)
    raise ParameterError(
        f"segment {name!r} ({named}) has no limit on the rows that a client sends: pass "
        "rows_per_client=fed.suggest_rows(batches_of_clients), or Rows(budget=...). The limit is "
        "public"
    )


def _fetches(rows: Rows) -> bool:
    """Whether clients need their rows only: those that batches touch, or a fixed set."""
    return rows.find == "hooks" and (rows.choice is None or rows.fixed is not None)


def check_fixed(inventory: Inventory, rows: Rows | None, rest: RestPolicy) -> None:
    """Refuse policies whose positions change from round to round.

    Raises:
        ParameterError: with segment and remedy.
    """
    for name in inventory.tables:
        if rows is None or rows.fixed is None:
            raise ParameterError(
                f"segment {name!r}: with max_epochs above 1 a client sends the same rows in all "
                "rounds of a session: use Rows(choose=Fixed(ids)), or max_epochs=1"
            )
    if not isinstance(rest, Fixed | Dense):
        raise ParameterError(
            f"segment {REST!r}: with max_epochs above 1 a client sends the same positions in all "
            "rounds of a session: use rest=Dense() or rest=Fixed(positions), or max_epochs=1"
        )

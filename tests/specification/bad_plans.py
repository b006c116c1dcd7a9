"""Plans that break one of the numbered rules of `docs/specification/plan.md` each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tests.specification.entries import encoding, plan, segment
from tests.specification.replays import edited, edits_of
from tests.specification.scenes import Json

GONE = object()
"""In the place of a value: the field is left out."""

S = plan("bad", segment("s", "scalars", (6,), k=2))
R = plan("bad", segment("r", "rows", (6, 2), k=2, tau=2, retrieve=True))
D = plan("bad", segment("d", "dense", (3,)))
B = plan("bad", segment("b", "blocks", (6,), k=2, tau=1, binned=True),
         encoding=encoding(64, 16, 4.0))  # fmt: skip
SD = plan("bad", segment("s", "scalars", (6,), k=2), segment("t", "scalars", (5,), k=1))
KEY = "{}" + "0" * 63
AUDIT = {"audit": "open", "audit_keys": [KEY.format(1), KEY.format(2)],
         "auditors": [KEY.format(3), KEY.format(4)]}  # fmt: skip
BOUND = {"l2_bound": 100, "noise_sigma": 3}
UNION = {"payload": "masks", "encoding/ring_bits": 64}
TAPS = {**BOUND, "noise_taps": [16, -7], "min_separation": 3, "max_rounds": 9}
PROVES = {"proofs": "norm", "l2_bound": 100}
PROVEN = {**AUDIT, **PROVES}
SMALL = {"encoding/ring_bits": 16, "encoding/frac_bits": 0, "encoding/clip": 1.0}
HUGE = {"s/tensors/0/shape": [1 << 32], "s/m": 1 << 32}
WIDE = {f"segments/1/{name}": value for name, value in {
    "policy": "dense", "tensors/0/shape": [6 * 10**8], "m": 6 * 10**8, "k_max": 6 * 10**8,
    "stash": 0, "check_bytes": 0}.items()}  # fmt: skip
LONG = {"s/tensors/0/shape": [1 << 31], "s/m": 1 << 31, "s/k_max": 1 << 31}

BASES = S, R, D, B, SD
ABOUT = (
    "Texts of plans that are refused. A text is one of `bases` with bytes replaced: an offset, how "
    "many are removed, and what stands there. `blanks` spaces follow. `rule` is the number in "
    "docs/specification/plan.md, and no other rule is broken where that can be."
)

CASES: list[tuple[int, str, Json, Mapping[str, Any]]] = [
    (1, "a field is missing", S, {"lane": GONE}),
    (2, "an unknown field", S, {"extra": 1}),
    (3, "a later field at its default", S, {"clip": "whole"}),
    (4, "a negative count", S, {"max_rounds": -1}),
    (5, "a ring of 20 bits", S, {**SMALL, "encoding/ring_bits": 20}),
    (6, "a clip that is a whole number", S, {"encoding/clip": 4}),
    (7, "an unknown rounding", S, {"encoding/rounding": "up"}),
    (8, "a clip below the unit", S, {"encoding/clip": 1e-05}),
    (9, "upper-case hex", S, {"session": "AB" * 16}),
    (10, "a short server key", S, {"server_keys": ["ab", "cd"]}),
    (11, "one key for both servers", S, {"server_keys": ["ab" * 32] * 2}),
    (12, "a later wire version", S, {"wire_version": 5}),
    (12, "another suite", S, {"suite": "bgi16-aes128-xyz"}),
    (13, "an unknown lane", S, {"lane": "sum"}),
    (14, "a negative limit", S, {**BOUND, "max_rounds": 5, "max_participations": -1}),
    (15, "a separation of no rounds", S, {**BOUND, "max_rounds": 5, "min_separation": 0}),
    (16, "an unknown way of clipping", S, {"clip": "cut", "l2_bound": 100}),
    (17, "no segment", S, {"segments": []}),
    (18, "an empty name of a segment", S, {"s/name": ""}),
    (19, "an unknown policy", S, {"s/policy": "columns"}),
    (20, "a truth value that is a number", S, {"s/retrieve": 0}),
    (21, "leaves of 256 positions", S, {"s/nu": 8}),
    (22, "an unknown form of downloads", S, {"s/download": "int8"}),
    (23, "a segment without tensors", S, {"s/tensors": []}),
    (24, "a negative position", S, {"s/subset": [-1], "s/m": 1, "s/k_max": 1, "s/stash": 1}),
    (25, "an unknown dtype", S, {"s/tensors/0/dtype": "int8"}),
    (26, "negative sizes", S, {"s/tensors/0/shape": [-2, -3]}),
    (27, "no values per position", R, {"s/tau": 0, "s/tensors/0/shape": [6, 0]}),
    (28, "rows of another width", R, {"s/tau": 3}),
    (28, "rows of one dimension", R, {"s/tau": 1, "s/tensors/0/shape": [6]}),
    (29, "rows of two dtypes", R,
     {"s/tensors/1": {"name": "q", "shape": [1, 2], "dtype": "float64"}, "s/m": 7}),
    (30, "scalars of two values", S, {"s/tau": 2, "s/m": 3}),
    (31, "more rows per client than positions", S, {"s/k_max": 7, "s/stash": 7}),
    (32, "a dense segment with a subset", D, {"s/subset": [0, 1, 2]}),
    (33, "a falling subset", S, {"s/subset": [3, 1], "s/m": 2}),
    (34, "scalars that are retrieved", S, {"s/retrieve": True, "s/tag_bytes": 16}),
    (35, "rows in public bins", R,
     {"s/binned": True, "s/num_bins": 2, "s/theta": 3, "s/stash": 0}),
    (36, "16-bit tensors narrowed", S,
     {"s/download": "float16", "s/tensors/0/dtype": "float16"}),
    (37, "tags without retrieval", S, {"s/tag_bytes": 16}),
    (38, "short check words", S, {"s/check_bytes": 16}),
    (39, "tags without check words", R, {"s/check_bytes": 0}),
    (40, "a dense segment with leaves", D, {"s/nu": 1}),
    (41, "more trees over all positions than rows", S,
     {"s/stash": 3, "s/num_bins": 9, "s/theta": 2}),
    (42, "fewer trees than rows", S, {"s/stash": 1}),
    (43, "more public bins than rows", B, {"s/num_bins": 3, "s/theta": 2}),
    (44, "bins that do not fit theta", S,
     {"s/theta": 2, "s/num_bins": 6, "s/stash": 0}),
    (45, "bins of more than 2^32 places", S,
     {**HUGE, "s/theta": 1, "s/num_bins": 3 << 32, "s/stash": 0}),
    (46, "two segments of one name", SD, {"segments/1/name": "s"}),
    (47, "more clients needed than allowed", S, {"min_clients": 4}),
    (48, "a weight without weights", S, {"max_weight": 2}),
    (49, "more contributors than clients", S,
     {"min_contributors": 4, "lane": "count"}),
    (50, "closed rows without counts", S, {"min_contributors": 2}),
    (51, "check words in one of two segments", SD,
     {"segments/1/check_bytes": 0}),
    (52, "check words and no tags", R, {"s/tag_bytes": 0}),
    (53, "a session with leaves of two positions", S,
     {"max_epochs": 2, "s/nu": 1}),
    (54, "a bound beyond 2^62", S, {"l2_bound": (1 << 62) + 1}),
    (55, "a bound below what rounding adds", S, {"l2_bound": 1}),
    (56, "noise without a bound", S, {"noise_sigma": 3}),
    (57, "counts without noise", S, {**BOUND, "lane": "count"}),
    (58, "a segment's bound above the plan's", S,
     {"l2_bound": 100, "s/l2_bound": 200}),
    (59, "two roundings", S,
     {"s/encoding": {**S["encoding"], "rounding": "stochastic"}}),
    (60, "two units under a bound", S,
     {"l2_bound": 100, "s/encoding": {**S["encoding"], "frac_bits": 9}}),
    (61, "a sum exceeds the ring", S, {"max_clients": 8192}),
    (62, "a lane exceeds the ring", S,
     {**SMALL, **BOUND, "lane": "count", "lane_sigma": 3000}),
    (63, "limits without noise", S,
     {"l2_bound": 100, "max_participations": 1, "max_rounds": 5}),
    (64, "clipping without a bound", S, {"clip": "clip"}),
    (65, "more participations than rounds", S,
     {**BOUND, "max_participations": 3, "max_rounds": 2}),
    (69, "a bound on sums alone", S, {"sum_bound": True}),
    (70, "a tap that is a truth value", S, {**TAPS, "noise_taps": [16, True]}),
    (71, "a first tap that is no power of 2", S, {**TAPS, "noise_taps": [17, 3]}),
    (72, "a tap above the first one", S, {**TAPS, "noise_taps": [16, -17]}),
    (73, "more taps than rounds apart", S, {**TAPS, "noise_taps": [16, 1, 1, 1]}),
    (74, "correlated noise with closed rows", S,
     {**TAPS, "lane": "count", "lane_sigma": 2, "min_contributors": 2}),
    (75, "a fresh draw beyond 2^31", B, {**TAPS, "noise_sigma": 1 << 27}),
    (76, "noise that grows beyond 2^31", B,
     {**TAPS, "noise_taps": [16, -16], "max_rounds": 1 << 20, "noise_sigma": 1 << 18}),
    (77, "an unknown payload", S, {"payload": "bits"}),
    (78, "a set union over 32 bits", S, {"payload": "masks"}),
    (79, "a set union with counts", S, {**UNION, "lane": "count"}),
    (80, "a set union with a bound", S, {**UNION, "l2_bound": 100}),
    (81, "an unknown audit", S, {"audit": "sampled"}),
    (82, "keys without an audit", S, {"auditors": [KEY.format(1), KEY.format(2)]}),
    (83, "upper-case hex of a key", S, {**PROVEN, "auditors": ["AB" * 32, KEY.format(4)]}),
    (84, "an auditor with the key of a server", S, {**PROVEN, "auditors": AUDIT["audit_keys"]}),
    (85, "an audit without proofs", S, AUDIT),
    (86, "unknown proofs", S, {"proofs": "all", "lane": "count"}),
    (87, "proofs of lanes without lanes", S, {"proofs": "lanes"}),
    (88, "proofs of a norm without a bound", S, {"proofs": "norm"}),
    (89, "proofs without check words", S, {**PROVES, "s/check_bytes": 0}),
    (90, "a segment with the name of carry trees", S, {**PROVES, "s/name": "carries of the proof"}),
    (91, "proofs over two rings", SD,
     {**PROVES, "segments/1/encoding": encoding(24, 16, 4.0)}),
    (92, "proofs over 2^30 leaves", S,
     {**SMALL, **PROVES, "s/tensors/0/shape": [1 << 30], "s/m": 1 << 30,
      "s/download": "float16"}),
    (93, "values that wrap too often", S, {**SMALL, **PROVES, "l2_bound": 30000}),
    (94, "squares that pass the field", SD,
     {**PROVES, "encoding/ring_bits": 48, "l2_bound": 24500, **WIDE}),
    (95, "weights that pass the field", S,
     {**SMALL, "encoding/ring_bits": 48, "proofs": "lanes", "lane": "weight",
      "max_weight": 1 << 31}),
    (66, "a report above 4 GiB", D, LONG),
]  # fmt: skip


def changed(base: Json, changes: Mapping[str, Any]) -> Json:
    """The plan with values at paths; `s` is the first segment."""
    fields = copy.deepcopy(base)
    for path, value in changes.items():
        *way, last = path.replace("s/", "segments/0/", 1).split("/") if path[:2] == "s/" else (
            path.split("/"))  # fmt: skip
        place: Any = fields
        for name in way:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if value is GONE:
            del place[last]
        elif isinstance(place, list):
            place[int(last) :] = [value]
        else:
            place[last] = value
    return fields


def refused_plans(spec: ModuleType) -> Json:
    """A case for each rule; the blocks refuse it by this rule."""
    bases = [spec.canonical(base) for base in BASES]
    good, cases = bases[0], []
    for rule, comment, base, changes in CASES:
        old, text = spec.canonical(base), spec.canonical(changed(base, changes))
        case = {"rule": rule, "comment": comment, "code": "invalid-plan", "base": bases.index(old)}
        cases.append({**case, "edits": text_edits(old, text)})
    twice = {"comment": "one field twice", "edits": [[1, 0, '"lane":"none",']]}
    white = {"comment": "white space", "edits": [[good.index(',"') + 1, 0, " "]]}
    cases += [{"rule": 68, "code": "invalid-plan", "base": 0, **each} for each in (twice, white)]
    size = spec.MAX_PLAN + 1 - len(good)
    cases.append({"rule": 67, "comment": "a text above 16 MiB", "code": "plan-too-large",
                  "base": 0, "edits": [], "blanks": size})  # fmt: skip
    for case in cases:
        assert reason(spec, text_of(bases, case)) == f"plan, rule {case['rule']}", case
    return {"about": ABOUT, "bases": bases, "cases": cases}


def reason(spec: ModuleType, text: str) -> str:
    """Why the blocks refuse a text; nothing if they take it."""
    try:
        spec.read_plan(text)
    except spec.Malformed as refusal:
        return str(refusal)
    return ""


def text_of(bases: list[str], case: Json) -> str:
    """The text of a case."""
    data = edited(bases[case["base"]].encode(), [
        [at, removed, put.encode().hex()] for at, removed, put in case["edits"]])  # fmt: skip
    return data.decode() + " " * int(case.get("blanks", 0))


def text_edits(old: str, new: str) -> list[list[Any]]:
    """As `edits_of`, with text."""
    found = edits_of(old.encode(), new.encode())
    return [[at, removed, bytes.fromhex(put).decode()] for at, removed, put in found]

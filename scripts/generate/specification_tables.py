"""Writes the tables of `docs/specification/` that come from the code: plan fields and messages.

    python -m scripts.generate.specification_tables

Fields and defaults are those of the dataclasses, messages those of `torchfsl.fsl.bodies` under the
plan of `tests/vectors/round.json`. A test compares.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from scripts.generate.writing import CHECK, between, write
from scripts.program import ROOT, Options, program
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import bodies, messages
from torchfsl.fsl.bodies import Body, ModelDigest
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.uploads import FETCHES, UPLOADS
from torchfsl.submodel.segments import TensorSpec

FOLDER = ROOT / "docs" / "specification"
FIELDS = "<!-- fields: begin -->\n", "<!-- fields: end -->"
KINDS = "<!-- kinds: begin -->\n", "<!-- kinds: end -->"

MEANINGS: dict[type, dict[str, str]] = {
    Plan: {
        "session": "16 random bytes in lower-case hex, fresh for each task",
        "encoding": "of all segments without a separate one",
        "max_clients": "most reports of a round",
        "segments": "in the order of the wire, names are unique",
        "min_clients": "fewest reports that a round opens",
        "lane": "`none`, `count` or `weight`",
        "max_weight": "largest weight of a client, 1 without weights",
        "max_rounds": "most rounds that are opened, 0 for any number",
        "min_contributors": "fewest clients that sent a position whose values are opened",
        "l2_bound": "largest norm of a client's values, 0 for none",
        "noise_sigma": "deviation of each server's noise in a value",
        "lane_sigma": "the same in a lane",
        "max_participations": "most opened rounds with a report of one client, 0 for any number",
        "min_separation": "fewest opened rounds from one report of a client to its next",
        "noise_taps": "of [correlated noise](noise.md#correlated-noise), none for fresh noise",
        "clip": "`whole`, `clip` or `normalise`: how a client keeps the bound",
        "sum_bound": "whether servers bound the norm of the sums",
        "hash_seed": "32 bytes in lower-case hex, see [below](#hash-seed)",
        "max_epochs": "rounds that one set of trees serves",
        "server_keys": "none, or the X25519 keys of servers 0 and 1 in lower-case hex",
        "payload": "`values`, or `masks` in a set union",
        "proofs": "`none`, `lanes` or `norm`: what reports [prove](proving.md)",
        "audit": "`none` or `open`, see [audited rounds](audits.md)",
        "audit_keys": "none, or the Ed25519 keys of servers 0 and 1 in lower-case hex",
        "auditors": "the same of auditors 0 and 1",
        "wire_version": "4",
        "suite": "`bgi16-aes128-mmo`",
    },
    TreeSegment: {
        "name": "printable, part of every key of the segment",
        "policy": "`rows`, `blocks`, `scalars` or `dense`",
        "tensors": "in the order of the index space",
        "m": "positions, of the subset if there is one",
        "tau": "values per position",
        "k_max": "most positions of a client, all of `dense`",
        "retrieve": "whether clients fetch rows before training",
        "subset": "increasing positions of the index space, or none for all",
        "encoding": "of its values, if not that of the plan",
        "download": "`full`, `float16` or `bfloat16`: how clients get its tensors",
        "l2_bound": "as in the plan, of this segment alone",
        "binned": "whether the bins are public",
        "num_bins": "trees over bins, 0 for trees over all positions",
        "theta": "positions per bin",
        "nu": "a leaf has `2^nu` positions",
        "stash": "trees over all positions",
        "check_bytes": "32 with check words, else 0",
        "tag_bytes": "16 with tags, else 0",
    },
    FixedPoint: {
        "ring_bits": "16, 24, 32, 48, 64 or 128",
        "frac_bits": "0 to 52",
        "clip": "largest magnitude of a value, a float",
        "rounding": "`nearest` or `stochastic`",
    },
    TensorSpec: {
        "name": "printable, unique in the plan",
        "shape": "sizes",
        "dtype": "`float16`, `float32` or `float64`",
    },
}
"""Of each field; a test wants exactly the fields of the dataclasses."""

_TITLES = {Plan: "a plan", TreeSegment: "a segment", FixedPoint: "an encoding",
           TensorSpec: "a tensor"}  # fmt: skip
_TYPES = {"int": "whole number", "bool": "true or false", "float": "float", "str": "text"}


def fields_table() -> str:
    """A table for each dataclass of a plan."""
    parts = []
    for kind, meanings in MEANINGS.items():
        lines = ["", f"Of {_TITLES[kind]}:", "", "| field | JSON | left out at | meaning |",
                 "| --- | --- | --- | --- |"]  # fmt: skip
        for field in dataclasses.fields(kind):
            default = "" if not is_later(kind, field.name) else f"`{json.dumps(field.default)}`"
            meaning = meanings[field.name]
            lines.append(f"| `{field.name}` | {_json(str(field.type))} | {default} | {meaning} |")
        parts.append("\n".join(lines))
    return "\n".join(parts) + "\n\n"


def is_later(kind: type, name: str) -> bool:
    """Whether a field is absent in the JSON of a plan all of whose later fields have defaults."""
    whole = json.loads(vector_plan().to_json())
    segment = whole["segments"][0]
    there = {Plan: whole, TreeSegment: segment, FixedPoint: whole["encoding"],
             TensorSpec: segment["tensors"][0]}  # fmt: skip
    return name not in there[kind]


def vector_plan() -> Plan:
    """The plan of `tests/vectors/round.json`."""
    vector = json.loads((ROOT / "tests" / "vectors" / "round.json").read_text())
    return Plan.from_json(vector["plan"])


def _json(annotation: str) -> str:
    inner = annotation.removeprefix("tuple[").removesuffix(", ...]")
    named = {"FixedPoint": "encoding", "FixedPoint | None": "encoding", "TreeSegment": "segment",
             "TensorSpec": "tensor"}  # fmt: skip
    word = _TYPES.get(inner, named.get(inner, "text"))
    return f"list of {word}s" if inner != annotation else word


def kinds_table() -> str:
    """Every message of the vectors' plan: its parts with offsets and lengths."""
    plan = vector_plan()
    lines = ["", "| kind | name | body | bytes |", "| --- | --- | --- | --- |"]
    for kind in Kind:
        length = messages.lengths(plan)[kind]
        said = ", ".join(f"{at} {name}" for name, at, _ in parts(plan, kind))
        each = f" and {length.each} per client" if length.each else ""
        lines.append(f"| {kind.value} | {kind.name} | {said} | {length.fixed}{each} |")
    return "\n".join(lines) + "\n\n"


def parts(plan: Plan, kind: Kind) -> Iterator[tuple[str, int, int]]:
    """Name, offset and length of the parts of a message's body that are there under a plan."""
    length = messages.lengths(plan)[kind]
    body = body_of(kind).decode(plan, memoryview(bytes(length.fixed + length.each)))
    start = 0
    for name, size in _sizes(body):
        if size:
            yield name, start, size
        start += size


def _sizes(body: Body) -> Iterator[tuple[str, int]]:
    if isinstance(body, ModelDigest):
        yield "digests", sum(map(len, body.parts()))
        return
    for name in body.__match_args__:
        value: Any = getattr(body, name)
        if isinstance(value, Body):
            yield from _sizes(value)
        elif name == "entries":
            yield name, sum(8 + len(digest) for _, digest in value)
        else:
            yield name.replace("_", " "), len(value) if isinstance(value, bytes | memoryview) else (
                sum(map(len, value)))  # fmt: skip


def body_of(kind: Kind) -> type[Body]:
    """The class of a kind's bodies."""
    uploads: dict[Kind, type[Body]] = {**UPLOADS, **FETCHES}
    own = {c.kind: c for c in vars(bodies).values()
           if isinstance(c, type) and issubclass(c, Body) and hasattr(c, "kind")}  # fmt: skip
    return uploads.get(kind) or own[kind]


def pages() -> dict[str, str]:
    """The two pages with their tables, by name."""
    tables = {"plan.md": (FIELDS, fields_table()), "messages.md": (KINDS, kinds_table())}
    return {
        name: between((FOLDER / name).read_text(encoding="utf-8"), *marks, text)
        for name, (marks, text) in tables.items()
    }


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check the tables."""
    return max(write(options, FOLDER / name, text) for name, text in pages().items())

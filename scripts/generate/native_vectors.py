"""Write the vectors that concern the native kernels as plain lines, for the selftest program.

    python -m scripts.generate.native_vectors > vectors.txt

One case a line: its kind, then `name=value`, where a value is hexadecimal bytes or decimal numbers
with commas. Standard library only, so that any Python will do on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scripts.program import ROOT, Options, program

VECTORS = ROOT / "tests" / "vectors"

Json = dict[str, Any]


def cases(name: str) -> list[Json]:
    """The cases of one file of vectors."""
    found: list[Json] = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    return found


def line(kind: str, **fields: object) -> str:
    """One case."""
    return " ".join([kind, *(f"{name}={value}" for name, value in fields.items())])


def tree_fields(case: Json) -> Json:
    """Fields that all cases with a tree have in common."""
    root0, root1 = case["roots"]
    return {
        "key": case["key"],
        "root0": root0,
        "root1": root1,
        "cw": "".join(case["correction_words"]),
        "right": bytes(case["right_bits"]).hex(),
    }


def lines() -> Iterator[str]:
    """All cases."""
    for case in cases("trees"):
        states = {f"states{party}": "".join(leaves) for party, leaves in enumerate(case["leaves"])}
        place = {"num_leaves": case["num_leaves"], "alpha": case["alpha"]}
        yield line("tree", **place, **tree_fields(case), **states)
    for case in cases("hints"):
        by_party = {f"leaf{party}": leaf for party, leaf in enumerate(case["leaves"])}
        by_party |= {f"share{party}": share for party, share in enumerate(case["shares"])}
        same = {name: case[name] for name in ("key", "nu", "slot", "values", "hint")}
        yield line("hint", width=case["ring_bits"] // 8, **same, **by_party)
    for case in cases("checks"):
        by_party = {f"leaf{party}": leaf for party, leaf in enumerate(case["leaves"])}
        by_party |= {f"tag{party}": tag for party, tag in enumerate(case["tags"])}
        place = {"num_leaves": len(case["rows"]), "alpha": case["leaf"], "tree": case["tree"]}
        same = {"table": "".join(case["rows"]), "check_word": case["check_word"]}
        same |= {"row_key": case["row_key"], "digests": "".join(case["digests"])}
        yield line("check", **place, **tree_fields(case), **same, **by_party)
    for case in cases("bits"):
        by_party = {f"answer{party}": answer for party, answer in enumerate(case["answers"])}
        rows = case["rows"]
        place = {"num_leaves": -(-len(rows) // 128), "alpha": case["row"] // 128}
        same = {"num_rows": len(rows), "table": "".join(rows)}
        same |= {name: case[name] for name in ("key_bits", "word")}
        yield line("bits", **place, **tree_fields(case), **same, **by_party)
    for case in cases("matchings"):
        columns = [item[i] for i in range(3) for item in case["candidates"]]
        yield line(
            "matching",
            num_bins=case["num_bins"],
            candidates=",".join(map(str, columns)),
            bins_plus_one=",".join(str(place + 1) for place in case["bins"]),
        )
    for case in cases("field"):
        yield line("product", **case)


@program(finds=False)
def main(options: Options) -> None:
    """Print all cases."""
    print(*lines(), sep="\n")

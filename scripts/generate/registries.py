"""Writes the tables of docs/specification/registries.md from the sources.

python -m scripts.generate.registries            # writes them
python -m scripts.generate.registries --check    # fails if they are stale
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from typing import Final

from scripts.generate.labels import uses
from scripts.generate.writing import CHECK, between, write
from scripts.program import ROOT, Options, program
from torchfsl.crypto.fixed_point import Rounding
from torchfsl.fsl import messages, suite
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.plan import plan, statement
from torchfsl.kernels.ring import RING_BITS
from torchfsl.privhfl import messages as privhfl
from torchfsl.privhfl import plan as querying
from torchfsl.sefl import messages as sefl
from torchfsl.sefl import sefl_plan
from torchfsl.sesa import messages as sesa
from torchfsl.sesa import sesa_plan
from torchfsl.submodel import plan as submodel
from torchfsl.submodel import segments

PAGE: Final = ROOT / "docs" / "specification" / "registries.md"
SYSTEMS: Final = (
    ("fsl", "TFSL", suite.WIRE_VERSION, suite.SUITE, messages.Kind),
    ("audit of fsl", "TFSA", transcript.VERSION, suite.SUITE,
     transcript.TranscriptKind),
    ("sesa", "TSES", sesa_plan.WIRE_VERSION, "", sesa.Kind),
    ("sefl", "TSEF", sefl_plan.WIRE_VERSION, sefl_plan.SUITE, sefl.Kind),
    ("privhfl", "TPHF", querying.WIRE_VERSION, "", privhfl.Kind),
)  # fmt: skip
"""Name, first bytes of a message, wire version, suite, kinds."""

VALUES: Final[Mapping[str, Iterable[object]]] = {
    "lane": submodel.LANES,
    "policy": typing.get_args(segments.Policy),
    "rounding": typing.get_args(Rounding),
    "ring_bits": RING_BITS,
    "ring_bits under proofs": [bits for bits in RING_BITS if bits <= statement.MAX_RING_BITS],
    "proofs": statement.PROOFS,
    "download": segments.DOWNLOADS,
    "clip": submodel.CLIPS,
    "payload": typing.get_args(plan.Payload),
    "audit": typing.get_args(plan.Audit),
}
"""Values of fields of a plan."""


def tables() -> dict[str, str]:
    """The tables by the name in their marks."""
    systems = [
        (name, _code(magic), str(version), _code(of) if of else "")
        for name, magic, version, of, _ in SYSTEMS
    ]
    most = max(max(own) for *_, own in SYSTEMS)
    kinds = [
        (str(n), *(_code(own(n).name) if n in set(own) else "" for *_, own in SYSTEMS))
        for n in range(1, most + 1)
    ]
    values = [(_code(name), ", ".join(map(_code, all_of))) for name, all_of in VALUES.items()]
    labels = [
        (_code(use.label), use.how, use.secret, _code(", ".join(use.parts) or "empty"),
         ", ".join(map(_code, use.places)))
        for use in uses()
    ]  # fmt: skip
    return {
        "suites": _table(("system", "first bytes", "wire version", "suite"), systems),
        "kinds": _table(("number", *(name for name, *_ in SYSTEMS)), kinds),
        "values": _table(("field", "values"), values),
        "labels": _table(("label", "in", "secret", "context", "where"), labels),
    }


def page() -> str:
    """The page with its tables as the sources have them."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        text = between(text, f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->", table)
    return text


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(what: object) -> str:
    return f"`{what}`"


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check the page."""
    return write(options, PAGE, page())

"""Writes the vectors that the blocks of the specification make, or checks those on disk.

    python -m tests.specification.make_transcripts           # write
    python -m tests.specification.make_transcripts --check   # exit status 1 if a file differs

The files are `tests/vectors/transcripts/*.json` and those of `FILES`. All bytes come from the
blocks of `docs/specification/` and from `scenes.drawn`, and nothing comes from torchfsl.
`tests/vectors/README.md` has the format.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from tests.specification import pages
from tests.specification.bad_plans import refused_plans
from tests.specification.edges import edges
from tests.specification.entries import ENTRIES
from tests.specification.refusal_cases import refused_messages
from tests.specification.scenes import Json, Scene, lines

FOLDER = ROOT / "tests" / "vectors"
ABOUT = {"origin": "tests/specification/make_transcripts.py", "wire": 4,
         "suite": "bgi16-aes128-mmo"}  # fmt: skip


def transcript(name: str) -> Json:
    """A scene, played."""
    return Scene(pages.run(), name, ENTRIES[name]).play()


FILES: dict[str, Callable[[], Json]] = {
    **{f"transcripts/{name}": partial(transcript, name) for name in ENTRIES},
    "edges": lambda: edges(pages.run()),
    "refused_plans": lambda: refused_plans(pages.run()),
    "refused_messages": refused_messages,
}


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check every file; see the module's docstring."""
    (FOLDER / "transcripts").mkdir(exist_ok=True)
    stale = 0
    for name, make in FILES.items():
        stale |= write(options, FOLDER / f"{name}.json", lines({**ABOUT, **make()}))
    return stale

"""Writes the vectors that the blocks of the specification make, or checks those on disk.

    python -m tests.specification.make_transcripts           # write
    python -m tests.specification.make_transcripts --check   # exit status 1 if a file differs

The files are `tests/vectors/transcripts/*.json`. All bytes come from the blocks of
`docs/specification/` and from `scenes.drawn`, and nothing comes from torchfsl.
`tests/vectors/README.md` has the format.
"""

from __future__ import annotations

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from tests.specification import pages
from tests.specification.entries import ENTRIES
from tests.specification.scenes import Json, Scene, lines

FOLDER = ROOT / "tests" / "vectors"
ABOUT = {"origin": "tests/specification/make_transcripts.py", "wire": 4,
         "suite": "bgi16-aes128-mmo"}  # fmt: skip


def transcript(name: str) -> Json:
    """A scene, played."""
    return Scene(pages.run(), name, ENTRIES[name]).play()


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check every file; see the module's docstring."""
    (FOLDER / "transcripts").mkdir(exist_ok=True)
    stale = 0
    for name in ENTRIES:
        text = lines({**ABOUT, **transcript(name)})
        stale |= write(options, FOLDER / "transcripts" / f"{name}.json", text)
    return stale

"""Writes torchfsl/web/src/bounds.ts, the cuckoo bound for clients in pages.

    python -m scripts.generate.web_bounds

The table is that of `torchfsl.fsl.cuckoo.bounds` as differences of one letter each. It has 4,096
items without a stash, 1,024 with one and 64 with two. Above that a stash counts as one. A test
compares.
"""

from __future__ import annotations

import itertools
import string
from typing import Final

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from torchfsl.fsl.cuckoo.bounds import BINS, ITEMS

SCRIPT: Final = ROOT / "torchfsl" / "web" / "src" / "bounds.ts"
LARGEST: Final = (4096, 1024, 64)
"""Most items of the table by stash."""

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits
_SCRIPT: Final = """\
/** The cuckoo bound of torchfsl/fsl/cuckoo/bounds.py, written by scripts.generate.web_bounds. */
const LETTERS = "{letters}";
const STEPS = [
{steps}
];
const ITEMS = Array.from({{ length: 512 }}, (_, at) => at + 1);
for (let octave = 1; octave < 16; octave *= 2) {{
  for (let k = 528; k <= 1024; k += 16) ITEMS.push(k * octave);
}}

/** Whether k of m positions find bins of theta positions, but with probability 2^-40. */
export function isWithinBound(m: number, k: number, theta: number, stash: number): boolean {{
  if (k <= stash || theta <= 3) return true;
  const steps = STEPS[stash > 1 && k > 64 ? 1 : Math.min(stash, 2)]!;
  const last = ITEMS.findIndex((one) => one >= k);
  const needed = [...steps.slice(0, last + 1)].reduce((sum, one) => sum + LETTERS.indexOf(one), 0);
  return last >= 0 && last < steps.length && Math.floor(m / theta) >= needed;
}}
"""


def steps(stash: int) -> str:
    """By how much each entry is above the one before it."""
    bins = (0, *BINS[stash][: ITEMS.index(LARGEST[stash]) + 1])
    return "".join(_LETTERS[after - before] for before, after in itertools.pairwise(bins))


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write it."""
    lines = "\n".join(f'  "{steps(stash)}",' for stash in range(3))
    return write(options, SCRIPT, _SCRIPT.format(letters=_LETTERS, steps=lines))

"""Plays random plans by the blocks of `docs/specification/` and by the library, byte for byte.

    python -m scripts.checks.specification --rounds 500

Compared are all messages of clients and servers, both shares, the sums, the rows that clients read
and the models. Ends with status 1 at the first difference, which it names by its seed.
"""

from __future__ import annotations

import time

from scripts.program import Options, option, program
from tests.specification import pages, rounds


@program(
    option("--rounds", 500, "random plans, each with one round or more"),
    option("--first", 0, "seed of the first plan"),
    finds=False,
)
def main(options: Options) -> int:
    """Play and compare."""
    spec = rounds.with_given_ephemerals(pages.run())
    begun, compared = time.monotonic(), 0
    for seed in range(options.first, options.first + options.rounds):
        try:
            compared += rounds.play(spec, seed)
        except Exception as error:
            print(f"plan {seed}: {type(error).__name__}: {error}")
            return 1
    seconds = time.monotonic() - begun
    print(f"{options.rounds} plans, {compared} equal values, {seconds:.0f} s")
    return 0

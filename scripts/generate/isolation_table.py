"""How many submodels a round opens that have one honest contributor at most.

    python -m scripts.generate.isolation_table    # the table of docs/specification/sesa.md

N clients in thirds, the rest of a division among the narrowest, train all, half and a quarter of
each hidden layer, so of K = 16 submodels, where both sides of a layer are cut, a quarter and a
sixteenth. The T widest are adversaries, and N / 10 drop out at random.
"""

from __future__ import annotations

from typing import Final

from scripts.program import Options, program
from torchfsl.sesa import isolation

SHARES: Final = (1.0, 0.5, 0.25)
SIDES: Final = {4: 1, 16: 2}
"""By K: how many sides of a layer are cut."""
ROWS: Final = ((20, 2), (20, 5), (20, 10), (40, 10), (60, 20), (100, 25), (100, 33), (100, 50))
"""N and T."""


def isolated(clients: int, collusion: int, submodels: int) -> float:
    """Expected submodels a round with one honest contributor at most."""
    third = clients // 3
    counts = (third, third, clients - 2 * third)
    groups = [(n, share ** SIDES[submodels]) for n, share in zip(counts, SHARES, strict=True)]
    return submodels * isolation(groups, collusion=collusion, dropouts=clients // 10)


def table() -> str:
    """As Markdown."""
    lines = ["| N | T | K = 4 | K = 16 (both sides of a layer cut) |", "| --- | --- | --- | --- |"]
    for clients, collusion in ROWS:
        found = [f"{isolated(clients, collusion, submodels):.2g}" for submodels in SIDES]
        lines.append(" ".join(["|", " | ".join([str(clients), str(collusion), *found]), "|"]))
    return "\n".join(lines)


@program(finds=False)
def main(options: Options) -> None:
    """Print the table."""
    print(table())

"""Whether an installed torchfsl works: an exact round through both servers, one backend.

    python -P scripts/checks/installed.py native|portable

The program needs numpy and cryptography, but neither torch nor any file of the checkout. `-P` keeps
the checkout off the path.
"""

from __future__ import annotations

import sys

import numpy as np

import torchfsl
from torchfsl.fsl import Server, build_plan, run_round
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate


def main() -> None:
    """Three clients change rows of a table.

    Raises:
        SystemExit: another backend, or a sum that is not exact.
    """
    wanted = sys.argv[1]
    if torchfsl.backend() != wanted:
        raise SystemExit(f"the backend is {torchfsl.backend()}, expected {wanted}")
    rows, width, budget = 4000, 8, 16
    table = TensorSpec("items", (rows, width), "float32")
    spec = SegmentSpec("items", "rows", (table,), budget, width, retrieve=True)
    plan = build_plan([spec], encoding=torchfsl.FixedPoint(), max_clients=3)
    state = {"items": np.zeros((rows, width), np.float32)}
    servers = (
        Server(0, plan=plan, model=ServerModel(state)),
        Server(1, plan=plan, model=ServerModel(state)),
    )
    generator = np.random.default_rng(0)
    total = np.zeros((rows, width), np.int64)
    updates = {}
    for client in range(3):
        chosen = np.sort(generator.choice(rows, budget, replace=False)).astype(np.int64)
        values = generator.integers(-1000, 1000, (budget, width))
        np.add.at(total, chosen, values)
        updates[client] = {"items": SegmentUpdate(indices=chosen, values=values)}
    opened = run_round(servers, updates, round_number=0)
    if not np.array_equal(opened.sums["items"].reshape(rows, width), total):
        raise SystemExit("the aggregate differs from the plaintext sum")
    if servers[0].model.digest() != servers[1].model.digest():
        raise SystemExit("the servers' models differ")
    python = ".".join(str(part) for part in sys.version_info[:3])
    print(f"torchfsl {torchfsl.__version__}, Python {python}, {wanted}: one round, exact")


if __name__ == "__main__":
    main()

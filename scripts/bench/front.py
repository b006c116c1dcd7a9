"""What the process of a server with an engine does alone, once a round, for one table.

    python -m scripts.bench.front [--rows 1048576] [--width 8] [--k-max 256] [--clients 64]
                                  [--repeat 3] [--json FILE]

Core-seconds of hashing the share for its commitment, of adding both shares, of the update by each
optimizer, and of the model's digest, beside one client's evaluation by `LocalEvaluator`'s kernels;
and the bytes that would go between front and shards each round if shards stepped the model: the
sums there, and parameters with the optimizer's state back, as the front stores both.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.bench import measure
from scripts.bench.sharded import Work, draw_nothing
from torchfsl.fsl import messages
from torchfsl.fsl.estimates.measuring import rows_plan
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.opening import decode_shares
from torchfsl.kernels import ring
from torchfsl.submodel.server_lazy import ServerLazyAdam
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam, ServerOptimizer, ServerSGD


def seconds(call: Callable[[], Any], repeat: int) -> float:
    """Core-seconds of a call, the median after one that warms memory up."""
    call()
    found = []
    for _ in range(repeat):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return statistics.median(found)


def main() -> None:
    """Measure and print."""
    parser = measure.make_parser(__doc__)
    for name, value in (("rows", 1 << 20), ("width", 8), ("k-max", 256), ("clients", 64),
                        ("repeat", 3)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    figures = measure.begin(options)
    plan = rows_plan(options.rows, options.width, options.k_max, options.clients)
    work, repeat = Work(plan, 8), options.repeat
    one = LocalEvaluator(plan, 0, draw_nothing, lambda: None)
    work.answers(one)
    figures["a client's evaluation"] = seconds(lambda: (work.answers(one), work.sums(one)), 2) / 8
    rng, segment = np.random.default_rng(0), plan.segments[0]
    touched = rng.choice(segment.m, min(segment.m, segment.k_max * options.clients), replace=False)
    values = np.zeros((segment.m, segment.tau), dtype=np.int64)
    values[touched] = 1 << 16
    mask = rng.integers(0, 256, (segment.m, segment.tau, 8), dtype=np.uint8)
    shares = [mask.reshape(-1), ring.sub(ring.from_int64(values, 64), mask).reshape(-1)]
    assert shares[0].size == messages.share_bytes(plan)
    figures["commitment"] = seconds(lambda: hashlib.sha256(shares[0]).digest(), repeat)
    clients = tuple(range(options.clients))
    opened = decode_shares(plan, shares[0].data, shares[1].data, clients)
    assert np.array_equal(opened.sums[segment.name], values)
    figures["both shares added"] = seconds(
        lambda: decode_shares(plan, shares[0].data, shares[1].data, clients), repeat
    )
    state = {t.name: np.zeros(t.shape, t.dtype) for s in plan.segments for t in s.tensors}
    model_bytes = sum(value.nbytes for value in state.values())
    optimizers: dict[str, ServerOptimizer] = {
        "sgd": ServerSGD(), "adam": ServerAdam(), "lazy-adam": ServerLazyAdam()
    }  # fmt: skip
    for name, optimizer in optimizers.items():
        model = ServerModel(state, optimizer)
        figures[f"update, {name}"] = seconds(lambda: model.apply(plan, opened), repeat)  # noqa: B023
        kept = sum(value.nbytes for value in optimizer.state().values())
        figures[f"bytes of sums there and of model and state back, {name}"] = float(
            opened.sums[segment.name].nbytes + model_bytes + kept
        )
    figures["digest of the model"] = seconds(model.digest, repeat)
    for name in list(figures)[2:]:
        measure.print_figure(name, figures[name])
    measure.finish(options, figures)


if __name__ == "__main__":
    main()

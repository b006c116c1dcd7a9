"""A malicious aggregator has one client's update opened in the place of a sum (SEFL's limit).

    python -m scripts.attacks.single_ciphertext

The key holder of `torchfsl.sefl` sees a masked plaintext, a list of names and receipts. One
client's ciphertext under the mask looks like the sum of all of them, and it must: whoever could
tell could decrypt the rest. So nothing here is switched off and on: the aggregator of this protocol
is trusted to follow it, SECURITY.md says so, and two servers with additive shares
(`--aggregation dense`) are the answer where that is too much. Both servers' noise is still in what
is opened.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.sefl import Aggregator, Client, KeyHolder, build_plan, introduce
from torchfsl.sefl.round import InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole


def open_one_client(
    aggregator: Aggregator, key_holder: KeyHolder, victim: Update, others: Mapping[int, Update]
) -> dict[str, Whole]:
    """What an aggregator gets that lists all clients and sends the victim's ciphertext alone.

    Args:
        aggregator: idle; its class is honest, its owner is not.
        key_holder: honest.
        victim: client 1's update.
        others: of clients with other numbers.

    Returns:
        By segment what the aggregator opens.
    """
    number = aggregator.last_round + 1
    aggregator.open_round(number)
    link = InProcess(aggregator)
    Client(aggregator.plan, link, client_id=1).start_round(number).submit(victim)
    held = aggregator._round
    assert held is not None
    kept = held.total.encode()  # the mask and one ciphertext
    for client, update in others.items():
        Client(aggregator.plan, link, client_id=client).start_round(number).submit(update)
    held.total = type(held.total).decode(held.total.scheme, kept, len(held.total))
    return aggregator.open(key_holder.open(aggregator.close_round())).sums


def main() -> int:
    """Play it and say what came out."""
    draft = build_plan(
        [SegmentSpec("weights", "dense", (TensorSpec("w", (100,)),))],
        encoding=FixedPoint(), max_clients=10,
    )  # fmt: skip
    model = ServerModel({"w": np.zeros(100, dtype=np.float32)})
    aggregator, key_holder = Aggregator(draft, model=model), KeyHolder(draft)
    introduce(aggregator, key_holder, draft)
    updates = {
        n: {"weights": SegmentUpdate(None, np.arange(100)[:, None] * n)} for n in range(1, 11)
    }
    victim = updates.pop(1)
    found = open_one_client(aggregator, key_holder, victim, updates)
    right = np.array_equal(found["weights"], victim["weights"].values)
    print(
        "the key holder was given ten names and ten receipts; the aggregator opened "
        + ("client 1's update, every value of it" if right else "something else")
    )
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())

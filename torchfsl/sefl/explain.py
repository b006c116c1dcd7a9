"""A plan of aggregator and key holder in words: the parameters, and what a round costs whom."""

from __future__ import annotations

import math

from torchfsl.sefl import messages
from torchfsl.sefl.messages import HEADER_BYTES
from torchfsl.sefl.sefl_plan import SeflPlan


def cost(plan: SeflPlan, num_clients: int) -> dict[str, int]:
    """Bytes of every message of a round, headers included; tested against counted bytes."""
    return {
        kind.name.lower(): HEADER_BYTES + length.fixed + length.each * num_clients
        for kind, length in messages.lengths(plan).items()
    }


def explain(plan: SeflPlan) -> str:
    """The plan as a few lines: encryption, bytes, what it bears and what it does not hide."""
    costs = cost(plan, plan.max_clients)
    scheme, dense = plan.scheme, plan.num_values * plan.encoding.ring_bits // 8
    most = f"at most {plan.max_rounds:,}" if plan.max_rounds else "any number of"
    spare = math.floor(math.log2(scheme.room / scheme.noise) * 100) / 100
    return "\n".join(
        [
            f"{plan.num_values:,} values a client in {plan.ciphertexts:,} ciphertexts of "
            f"{plan.slots} slots of {scheme.modulus.bit_length()} bits; noise rule met by "
            f"{spare} bits",
            f"upload a client       {costs['update']:,} bytes ({costs['update'] / dense:.2f} times "
            "dense shares)",
            f"download a client     {costs['model'] + costs['receipt']:,} bytes, and once the key, "
            f"{costs['key']:,}",
            f"aggregator to key holder {costs['sum']:,} bytes, back {costs['value']:,}, however "
            "many clients beyond 40 bytes each",
            f"opens {plan.min_clients} to {plan.max_clients} clients; dropouts cost nothing",
            f"noise of deviation {plan.noise_sigma:,} units at each server on a sum of updates of "
            f"length up to {plan.l2_bound:,}"
            if plan.noise_sigma
            else "no noise: the aggregator opens exact sums; set l2_bound and noise_sigma",
            f"one key pair for all rounds until you call sefl.renew; it opens {most} rounds",
            "an aggregator that leaves the protocol can have one client's update opened: it must "
            "be semi-honest",
        ]
    )

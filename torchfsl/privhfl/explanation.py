"""A plan in words: who answers, and what one batch of queries costs with each of them."""

from __future__ import annotations

from torchfsl.privhfl.plan import QueryPlan


def explain(plan: QueryPlan) -> str:
    """Some lines about a plan, made from it alone: nothing of them is measured."""
    ring = plan.ring
    lines = [
        f"private queries, plan {plan.digest.hex()[:16]}",
        f"  batches of {plan.batch} inputs {list(plan.input_shape)}, {plan.num_classes} logits; "
        f"{plan.min_answering} to {plan.max_answering} of {len(plan.clients)} clients answer",
        f"  ring of {ring.bits} bits, {ring.frac_bits} after the point ({ring.weight_frac_bits} of "
        f"weights); sums of logits below {plan.max_answering} x {plan.logit_bound:g}",
        f"  comparison of {ring.compare_bits} bits by {plan.comparison}",
        "  client   weights  compares a query   offline MB   online MB   set-up MB   round trips",
    ]
    for client in plan.clients:
        graph, sizes = plan.graphs[client], plan.phase_bytes(client)
        compares = sum(unit.count for unit in plan.units(graph)) // plan.batch
        lines.append(
            f"  {client:6} {graph.num_weights:9} {compares:17} "
            f"{sizes['offline'] / plan.batch / 1e6:12.3f} "
            f"{sizes['online'] / plan.batch / 1e6:11.3f} "
            f"{sizes['setup'] / 1e6:11.3f} {len(plan.steps(client)) // 2 + 1:13}"
        )
    lines += [
        "  offline and online: a query, over all links; set-up: once for each querying client and",
        f"  version of the weights; the sum of logits: {64 + plan.sum_bytes()} bytes a batch.",
    ]
    if plan.min_answering < 2:
        lines.append("  min_answering is 1: whoever asks one client alone reads its logits")
    return "\n".join(lines)

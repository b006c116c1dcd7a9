"""A plan in words: what every segment costs a client, and what another policy would cost."""

from __future__ import annotations

import dataclasses
import math

from torchfsl.crypto.field128 import ELEMENT_BYTES
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, expect_a, is_real
from torchfsl.faces import public
from torchfsl.fsl import advantage, privacy
from torchfsl.fsl.costs import ServerMemory, memory, predict
from torchfsl.fsl.noise import noise_values, ring_bytes
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import plan_segment, tree_and_hint_bits
from torchfsl.fsl.plan.proof_shape import row_trees
from torchfsl.fsl.server import norms
from torchfsl.fsl.suite import CHECK_BYTES, TAG_BYTES
from torchfsl.submodel import clipping, sum_bound
from torchfsl.submodel.segments import SegmentSpec, TensorSpec, ceil_div

_BLOCK = 32
_FRACTION = 0.05
_SMALL = 1 << 16
"""Dense uploads below this many bytes are left alone."""
_WORTH_IT = 0.5
"""Another policy is named where it costs less than this share of the chosen one."""


@public
def explain(plan: Plan, *, security: bool = False, delta: float = 1e-6) -> str:
    """The plan as a table, advice below it, and the totals of a client last.

    Args:
        plan: of two servers.
        security: whether the advantages of attackers follow.
        delta: of the epsilon that is printed for noise, in (0, 1): the one that `calibrate` got.

    Raises:
        ParameterError: no plan, or `delta` is out of range.
    """
    expect_a(Plan, plan, "plan", "pass fed.plan, of torchfsl.Federated(...)")
    if not is_real(delta) or not 0 < delta < 1:
        raise ParameterError(f"delta is {delta!r}: choose a number in (0, 1), such as 1e-6")
    head = ("segment", "policy", "mechanism", "m", "tau", "k_max", "bins", "theta", "nu", "stash",
            "upload B", "dense B", "download B", "tensors")  # fmt: skip
    rows = [head] + [_row(plan, segment) for segment in plan.segments]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines += [f"{s.name}: {text}" for s in plan.segments for text in _advice(plan, s)]
    lines += [
        *_full_domain(plan),
        *_numbers(plan),
        *_costs(plan),
        *_bounded(plan),
        *_private(plan, delta),
    ]
    return "\n".join([*lines, *(advantage.lines(plan) if security else ())])


def _full_domain(plan: Plan) -> list[str]:
    """A line for each segment without bins."""
    return [
        f"{s.name}: full-domain means one tree over all {s.m:,} positions for each of the "
        f"{s.k_max:,} that a client sends"
        for s in plan.segments
        if s.mechanism == "full-domain"
    ]


def _numbers(plan: Plan) -> list[str]:
    """A line for segments whose values travel alike."""
    alike: dict[tuple[FixedPoint, str], list[str]] = {}
    for segment in plan.segments:
        alike.setdefault((plan.encoding_of(segment), segment.download), []).append(segment.name)
    return [
        f"{', '.join(names)}: values in {encoding.ring_bits} bits, {encoding.frac_bits} of them "
        f"behind the point, cut beyond {encoding.clip:g}, rounded {encoding.rounding}; downloads "
        f"{download}"
        for (encoding, download), names in alike.items()
    ]


def _costs(plan: Plan) -> list[str]:
    """Lines about the costs of a round for each party."""
    cost = predict(plan)
    later = ""
    if plan.max_epochs > 1:
        later = f" ({cost.later_upload_bytes:,} bytes in later rounds of a session)"
    few = ""
    if plan.opens_counts_first:
        few = (
            f"; values that fewer than {plan.min_contributors} clients have sent stay closed. For "
            f"this each server sends {cost.opening_bytes:,} bytes to open a round"
        )
    needs = memory(plan)
    model = sum(t.numel * t.item_bytes for s in plan.segments for t in s.tensors)
    return [
        f"each client, per round: uploads {cost.upload_bytes:,} bytes to both servers together"
        f"{later}, downloads {cost.download_bytes:,} bytes and computes "
        f"{cost.client_aes_blocks:,} AES blocks, whatever its data",
        f"each server, per round: computes {cost.server_aes_blocks:,} AES blocks per client{few}",
        *_proven(plan),
        *_grouped(plan),
        f"memory of each server, in addition to its model of {model:,} bytes and its optimizer's "
        f"state: at most {cost.server_memory_bytes:,} bytes at once for {plan.max_clients:,} "
        f"clients. Of its parts, answers take {needs.tables:,} bytes, sums "
        f"{needs.accumulators:,}, permutations {needs.permutations:,} and messages "
        f"{needs.messages:,}{_for_proofs(needs)}. One process with both servers and a client, as "
        f"in simulate(), takes {3 * model + needs.most_of_both:,} bytes besides Python and torch",
    ]


def _bounded(plan: Plan) -> list[str]:
    """The bound on the aggregate."""
    if not plan.l2_bound:
        return []
    if not plan.sum_bound:
        return ["the aggregate has no bound: a malicious server can move the model by any amount"]
    reach = (plan.max_clients * plan.max_weight * plan.l2_bound) ** 2
    honest, halts = sum_bound.most_squared(plan, plan.segments, reach), ""
    if plan.proofs == "norm":
        most = math.sqrt(norms.most_squared(plan, plan.segments, plan.l2_bound, plan.max_clients))
        halts = f", and beyond {most / plan.l2_bound:.4g} times it the task halts"
    return [
        f"the aggregate of {plan.max_clients} reports has a norm of at most "
        f"{math.sqrt(honest) / plan.l2_bound:.4g} times l2_bound: a larger one is scaled down"
        f"{halts}. The bound slows down a malicious server that steers the model, except with an "
        "adaptive server optimizer"
    ]


def _private(plan: Plan, delta: float) -> list[str]:
    """The guarantee of the noise, and its limits."""
    if not plan.noise_sigma:
        return []
    if not plan.max_rounds:
        return ["noise without max_rounds: no epsilon holds for all rounds together"]
    try:
        found = privacy.guarantee(plan, delta=delta)
    except ParameterError as error:
        return [f"noise of {plan.noise_sigma} units at each server: {error}"]
    limits = f"A client may be in all {found.rounds} rounds."
    if plan.max_participations or found.min_separation > 1:
        apart = f", {found.min_separation} rounds apart" * (found.min_separation > 1)
        limits = (
            f"At most {found.participations} reports each{apart}; both servers refuse more. Full "
            f"rounds need {_clients_of_full_rounds(found, plan.max_clients):,} clients."
        )
    if plan.lane_values:
        limits += " Without a count or weight (average='clients') the noise would be 5 % less."
    return [
        f"Protects one client number over the whole task: epsilon {found.epsilon_server:.2f} at "
        f"delta {delta:g} against either server if the other adds its noise, and "
        f"{found.epsilon_public:.2f} against everybody else. Both compare the run with one in "
        "which the client sends zeros. Compared with one in which it sends other data, epsilon "
        f"against either server is {found.epsilon_replaced:.2f}. For "
        f"the delta that you gave calibrate, call explain(delta=...). {limits}",
        "Servers still see which clients participate, and when. Noise does not protect one person "
        "with several numbers. It protects no one if both servers work together or leave it out.",
        _noise_in_mean(plan, found),
        f"Each server draws {noise_values(plan):,} values per round and keeps {ring_bytes(plan):,} "
        "bytes of past noise on disk; noise costs a client nothing.",
    ]


def _clients_of_full_rounds(found: privacy.Guarantee, max_clients: int) -> int:
    """How many clients fill all rounds within the participation limits."""
    reports = -(-found.rounds * max_clients // found.participations)
    return max(reports, found.min_separation * max_clients)


def _noise_in_mean(plan: Plan, found: privacy.Guarantee) -> str:
    """The noise of a mean over the largest mean, and what lowers it."""
    spread = math.sqrt(2) * plan.noise_sigma * plan.noise_growth / plan.max_clients / plan.l2_bound
    values = noise_values(plan)
    norm = spread * math.sqrt(values)
    # Means add up over rounds, noise by the root, and correlated noise to about a third of that.
    most = math.sqrt(found.rounds) * (3 if plan.noise_taps else 1)
    ways = (
        f"Up to {most:.3g} times, the task can learn. More clients per round, fewer "
        "participations, fewer values or a larger epsilon lower it"
    )
    if norm > most:
        enough = math.ceil(plan.max_clients * norm / most)
        fewer = math.floor(values * (most / norm) ** 2)
        freeze = (
            f" or train at most {fewer:,} of the {values:,} values: freeze tables, or name them in "
            "local="
        )
        ways = (
            f"Above {most:.3g} times, expect the task to learn little. max_clients={enough} gives "
            f"{most:.3g} times, and its full rounds need "
            f"{_clients_of_full_rounds(found, enough):,} clients. If you have fewer clients, "
            f"choose a larger epsilon{freeze * (fewer > 0)}"
        )
    return (
        f"Noise in a mean of {plan.max_clients} reports: {spread:.2g} times l2_bound on each "
        f"value. The norm of the noise is {norm:.3g} times that of the largest mean. {ways}."
    )


def _for_proofs(needs: ServerMemory) -> str:
    """A text about the memory for proofs; empty without proofs."""
    if not needs.proofs:
        return ""
    return (
        f"; proofs take {needs.lifted:,} for sums over leaves, and {needs.proofs:,} while "
        f"the server checks up to {needs.together} at once"
    )


def _proven(plan: Plan) -> list[str]:
    """Lines about the clients' proofs, and their share of the bytes."""
    statement = plan.statement
    if statement is None:
        return []
    what, over = [], ""
    proven = statement.proven
    if statement.norm:
        copies = max((row_trees(s) for s in plan.with_trees), default=1)
        times = " times its weight" if proven.weighted else ""
        what.append(f"that the norm of all it sends is at most {statement.norm}{times}")
        if copies > 1:
            over = (
                f". If a client cheats and sends one row in several trees, the norm after the "
                f"servers add these trees is at most sqrt({copies}) times larger"
            )
        what += [f"of {s.name} at most {s.l2_bound}{times}" for s in proven.bounded]
    if proven.weighted:
        what.append(
            "that each position has weight 0 or the client's weight, a whole number up to "
            f"{proven.max_weight}, and at most k_max positions of a segment are not 0"
        )
    elif statement.has_lanes:
        what.append("that every count is 0 or 1 and at most k_max of a segment are 1")
    size = statement.public_bytes + statement.private_bytes
    return [
        f"a client proves to both servers together {' and '.join(what)}, in {size:,} bytes of its "
        f"upload; each server sends the other {ELEMENT_BYTES * statement.said_elements} bytes per "
        f"client for it{over}"
    ]


def _grouped(plan: Plan) -> list[str]:
    """The shares of clipping by group, and what the proofs leave open of them."""
    if plan.clip == "whole":
        return []
    whole, count = plan.l2_bound, clipping.num_groups(plan.segments)
    share, reach = math.isqrt(whole**2 // count), []
    for s in plan.with_trees:
        own, one = s.l2_bound or whole, clipping.share_of(s, whole, count)
        several = s.policy == "rows" and len(s.tensors) > 1
        reach.append((f"one table of {s.name}", own, share) if several else (s.name, own, one))
    if plan.dense:
        together = min(math.isqrt(sum((s.l2_bound or whole) ** 2 for s in plan.dense)), whole)
        one = max(clipping.share_of(s, whole, count) for s in plan.dense)
        reach.append(("the dense part", together, one))
    wider = [f"{name} can reach {most}" for name, most, one in reach if most > one]
    proven = "Reports prove all shares, with room for rounding"
    if not plan.with_trees:
        proven = "Reports prove no share, because all segments are dense"
    elif plan.proofs != "norm":
        proven = "Reports prove no share: choose proofs='norm' to prove them"
    elif wider:
        proven = f"Reports prove these shares, except that {', '.join(wider)}"
    return [
        f"clip={plan.clip!r}: each of {count} groups (the dense part, every table) has a share of "
        f"{share} in l2_bound. {proven}. Epsilon depends on the whole norm alone"
    ]


def upload(plan: Plan, segment: TreeSegment) -> int:
    """Bytes of a segment in a client's report, check words included."""
    if segment.is_dense:
        return plan.dense_bytes(segment)
    return segment.tree_bytes + plan.hint_bytes(segment)


def dense_upload(plan: Plan, segment: TreeSegment) -> int:
    """Bytes of a segment's tensors as additive shares."""
    return sum(t.numel for t in segment.tensors) * plan.ring_bytes(segment)


def download(segment: TreeSegment) -> int:
    """Bytes of a segment that a client fetches: both servers' answers, or the tensors."""
    if segment.retrieve:
        return 2 * segment.answer_bytes
    return segment.download_bytes


def _row(plan: Plan, s: TreeSegment) -> tuple[str, ...]:
    numbers = (s.m, s.tau, s.k_max, s.num_bins, s.theta, s.nu, s.stash,
               upload(plan, s), dense_upload(plan, s), download(s))  # fmt: skip
    return (s.name, s.policy, s.mechanism, *map(str, numbers), _shapes(s.tensors))


def _shapes(tensors: tuple[TensorSpec, ...]) -> str:
    shown = [f"{t.name}[{','.join(map(str, t.shape))}]" for t in tensors[:2]]
    more = f"+{len(tensors) - 2}" if len(tensors) > 2 else ""
    return "|".join([*shown, *([more] if more else [])])


def _advice(plan: Plan, segment: TreeSegment) -> list[str]:
    """What another policy would cost, where that is less."""
    cost, dense = upload(plan, segment), dense_upload(plan, segment)
    texts = []
    if not segment.is_dense and cost > dense:
        way = "make_plan(above_break_even='dense')" if segment.policy == "rows" else "Dense()"
        texts.append(f"{way} would upload {dense} bytes instead of {cost}")
    if segment.policy == "scalars" and plan.max_epochs == 1:
        blocks = ceil_div(segment.k_max, _BLOCK)
        other = _blocks_upload(plan, segment, blocks)
        if other < _WORTH_IT * min(cost, dense):
            policy = "BinTop" if segment.binned else "BlockTopK"
            texts.append(
                f"{policy}({blocks}, block={_BLOCK}) would send as many values in {other} bytes "
                f"instead of {cost}"
            )
    if segment.is_dense and cost >= _SMALL and plan.max_epochs == 1:
        size = sum(ceil_div(t.numel, _BLOCK) for t in segment.tensors)
        other = _blocks_upload(plan, segment, ceil_div(size * int(100 * _FRACTION), 100))
        if other < _WORTH_IT * cost:
            texts.append(
                f"BlockTopK({_FRACTION}, block={_BLOCK}) would upload {other} bytes instead of "
                f"{cost} (error feedback sends the rest in later rounds)"
            )
    if segment.policy == "rows" and not segment.retrieve:
        tag_bytes = TAG_BYTES if segment.check_bytes else 0
        private = dataclasses.replace(segment, retrieve=True, tag_bytes=tag_bytes)
        if download(private) < _WORTH_IT * download(segment):
            texts.append(
                f"retrieve=True would download {download(private)} bytes instead of "
                f"{download(segment)}, if a client needs no other rows"
            )
    return texts


def _blocks_upload(plan: Plan, segment: TreeSegment, k_max: int) -> int:
    """Upload of the segment's tensors as blocks of `_BLOCK` values."""
    binned = segment.binned
    spec = SegmentSpec(segment.name, "blocks", segment.tensors, k_max, _BLOCK, binned=binned)
    width = (_BLOCK + plan.lane_values) * 8 * plan.ring_bytes(segment)
    trees = [s.check_bytes for s in plan.with_trees]
    checks = (max(trees, default=CHECK_BYTES), 0)
    other = plan_segment(spec, width, plan.max_epochs, checks)
    return ceil_div(tree_and_hint_bits(other, width), 8)

"""A plan of one server in words: its submodels, and what a full round costs each width."""

from __future__ import annotations

from dataclasses import dataclass

from torchfsl.sesa import messages
from torchfsl.sesa.cohort import KEY_BYTES, MEMBER, Cohort, Member
from torchfsl.sesa.messages import HEADER_BYTES, Kind
from torchfsl.sesa.sesa_plan import SesaPlan


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of one client in a round, headers included, by kind of message.

    Attributes:
        sent: to the server.
        received: from it.
    """

    sent: dict[Kind, int]
    received: dict[Kind, int]

    @property
    def phases(self) -> dict[str, int]:
        """All of them, as `Receipt.phases` names them."""
        return {k.name.lower(): size for k, size in {**self.sent, **self.received}.items()}


def full_cohort(plan: SesaPlan) -> Cohort:
    """A full round, width after width; the keys are zero, which changes no length."""
    widths = [number for number, width in enumerate(plan.widths) for _ in range(width.clients)]
    return Cohort(plan, tuple(Member(c, w, bytes(KEY_BYTES)) for c, w in enumerate(widths)))


def cost(cohort: Cohort, place: int, survivors: tuple[int, ...] | None = None) -> Cost:
    """The exact cost of a round for the survivor at `place`, tested against counted bytes.

    Args:
        cohort: the round's members.
        place: a place in it.
        survivors: places, `place` among them; all when None.
    """
    plan, lengths = cohort.plan, messages.lengths(cohort.plan)
    left = tuple(range(len(cohort))) if survivors is None else survivors
    sent = {
        Kind.HELLO: lengths[Kind.HELLO].fixed,
        Kind.SHARES: messages.shares_bytes(cohort, place),
        Kind.MASKED: messages.masked_bytes(plan, cohort.width(place)),
        Kind.ANSWER: lengths[Kind.ANSWER].fixed,
    }
    received = {
        Kind.COHORT: MEMBER.size * len(cohort),
        Kind.MODEL: lengths[Kind.MODEL].fixed,
        Kind.SURVIVORS: messages.survivors_bytes(cohort, left),
        Kind.RELAY: messages.relay_bytes(cohort, left, place),
    }
    return Cost(
        {kind: HEADER_BYTES + size for kind, size in sent.items()},
        {kind: HEADER_BYTES + size for kind, size in received.items()},
    )


def explain(plan: SesaPlan) -> str:
    """The plan as a table of segments, the costs of each width, what it bears and what it hides."""
    head = ("segment", "policy", "submodels", "values each", "owned by width")
    rows = [head] + [
        (part.segment.name, part.segment.policy, str(part.num_submodels), str(part.size),
         " / ".join(str(width.owned[number]) for width in plan.widths))
        for number, part in enumerate(plan.parts)
    ]  # fmt: skip
    columns = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.rjust(n) for cell, n in zip(row, columns, strict=True)) for row in rows]
    cohort, place = full_cohort(plan), 0
    for number, width in enumerate(plan.widths):
        costs = cost(cohort, place)
        lines.append(
            f"width {number}: each of {width.clients} clients uploads {sum(costs.sent.values())} "
            f"bytes a round, {costs.sent[Kind.SHARES]} of them before training, and downloads "
            f"{sum(costs.received.values())}, {costs.received[Kind.SURVIVORS]} of them the others' "
            "masked updates"
        )
        place += width.clients
    expected = plan.isolation([width.clients for width in plan.widths], plan.dropouts)
    lines.append(
        f"one server and any {plan.collusion} of {plan.max_clients} clients see sums over "
        f"{plan.threshold} to {plan.max_clients} clients; with {plan.dropouts} dropouts "
        f"{expected:.2g} submodels of a round have at most one honest contributor, and "
        f"{100 * plan.refusal(plan.dropouts):.2g} % of rounds are refused for who is left"
    )
    lines.append(
        "for this count each client changes all submodels of its width, or drops out"
        if plan.counts_on_owners
        else "max_isolation allows every submodel: clients may change fewer than their width owns, "
        "and any sum may be one client's alone"
    )
    return "\n".join(lines)

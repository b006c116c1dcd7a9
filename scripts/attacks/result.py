"""What playing an attack showed: with its defence off, and on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack.

    Attributes:
        name: what is attacked, in a few words.
        off: what the attacker read or did with the defence switched off.
        on: what happened with it on.
        worked_off: whether the attack succeeded with the defence off, as it must.
        worked_on: whether it succeeded with the defence on, as it must not.
        extra_bytes: upload that the defence costs a client and round.
        time_ratio: processor time of an honest round with the defence over the same without, in one
            run.
        cost: in words, where the defence is a rule and there is no such round to measure.
    """

    name: str
    off: str
    on: str
    worked_off: bool
    worked_on: bool
    extra_bytes: int = 0
    time_ratio: float = 0.0
    cost: str = ""

    def __post_init__(self) -> None:
        """Every defence says what it costs, in one way."""
        if bool(self.time_ratio) == bool(self.cost):
            raise ValueError(f"{self.name}: give the ratio of times, or the cost in words")

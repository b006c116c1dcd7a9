"""What playing an attack showed: with its defence off, and on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack.

    Attributes:
        name: as in SECURITY.md.
        off: what the attacker read or did with the defence switched off.
        on: what happened with it on.
        worked_off: whether the attack succeeded with the defence off, as it must.
        worked_on: whether it succeeded with the defence on, as it must not.
        extra_bytes: upload that the defence costs a client and round.
        time_ratio: honest round with the defence over the same without, in one run; 0 if not
            measured.
    """

    name: str
    off: str
    on: str
    worked_off: bool
    worked_on: bool
    extra_bytes: int = 0
    time_ratio: float = 0.0

"""The owner and server 0 choose the hash seed after server 1 has shown its coin.

Off: the seed is a digest of both coins, and nobody commits to one. Who speaks last tries coins
until the seed suits, here until it begins with twelve zero bits; a seed under which a guessed set
of rows does not fit would be looked for in the same way. On: both commit first.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import Final

from scripts.attacks.forged_reports import make_plan
from scripts.attacks.result import AttackResult
from torchfsl.errors import ParameterError
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.state.coins import CoinBook
from torchfsl.service.state.ledger import Ledger

_WANTED: Final = "000"
_FLOORS: Final = ClientPolicy(sealed=False, min_clients=1)


def run() -> AttackResult:
    """Both ways, with server 1's real record of coins."""
    plan = make_plan(8, 8, 0, 0)
    template = coin.template_of(plan)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "state.sqlite")
        honest = CoinBook(ledger, 1)
        honest.toss(template)
        said = coin.commitment(template, 0, bytes(coin.COIN_BYTES))
        shown = honest.reveal(template, said)
        chosen, tries = _chosen(plan, shown)
        _FLOORS.check(coin.with_coins(plan, chosen), coins=chosen)  # two coins make this seed
        try:
            honest.check(coin.with_coins(plan, chosen), chosen)
            seen = "server 1 accepts the seed"
        except ParameterError as error:
            seen = f"refused by server 1: {error}"
        again = (bytes(coin.COIN_BYTES), shown)
        honest.check(coin.with_coins(plan, again), again)
        ledger.close()
    return AttackResult(
        "a hash seed chosen by who speaks last",
        off=f"a seed of the owner's choice after {tries} tries",
        on=seen,
        worked_off=coin.with_coins(plan, chosen).hash_seed.startswith(_WANTED),
        worked_on=not seen.startswith("refused"),
        cost="three messages more, once a task",
    )


def _chosen(plan: Plan, shown: bytes) -> tuple[coin.Coins, int]:
    """A coin of server 0 that makes a wanted seed, and after how many tries."""
    for tries in count(1):
        coins = tries.to_bytes(coin.COIN_BYTES, "little"), shown
        if coin.with_coins(plan, coins).hash_seed.startswith(_WANTED):
            return coins, tries
    raise AssertionError("count() ends")

"""One server's coins on disk: what it committed to, what the peer did, and how often it was asked.

See `torchfsl.fsl.plan.coin`. A coin is stored before its commitment is sent, and the peer's
commitment before the coin is, so that neither changes, also not after a crash. A party with many
coins could pick among the seeds they make: a server tosses at most `COINS_A_DAY`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.coin import COIN_BYTES, Coins
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.state.ledger import Ledger

COINS_A_DAY: Final = 256
"""As many seeds can be chosen among: a bias of eight bits a day."""

COIN_SECONDS: Final = 86400.0
"""After which a coin is forgotten, and its template can be tossed for once more."""


@dataclass(frozen=True, slots=True)
class _Toss:
    """A coin; `peer` is the other server's commitment once it is known."""

    tossed_at: float
    coin: str
    peer: str = ""


class CoinBook:
    """The coins of server `party`, in its ledger. Not for concurrent use."""

    def __init__(self, ledger: Ledger, party: int) -> None:
        self._ledger, self._party = ledger, party

    def toss(self, template: bytes) -> bytes:
        """This server's commitment to its coin for a template, the same whenever asked for.

        Raises:
            ProtocolError: too many coins were tossed within a day.
        """
        tosses = self._tosses()
        if template.hex() not in tosses:
            if len(tosses) >= COINS_A_DAY:
                raise ProtocolError(
                    f"this server has started {COINS_A_DAY} tasks within a day, the most that it "
                    "allows: try again tomorrow",
                    code="too-many-coins",
                )
            tosses[template.hex()] = _Toss(time.time(), random_bytes(COIN_BYTES).hex())
            self._store(tosses)
        own = bytes.fromhex(tosses[template.hex()].coin)
        return coin.commitment(template, self._party, own)

    def reveal(self, template: bytes, peer: bytes) -> bytes:
        """This server's coin, once the peer's commitment is known; it never changes after.

        Raises:
            ProtocolError: no coin was tossed, or the peer has committed to another one.
        """
        tosses = self._tosses()
        toss = tosses.get(template.hex())
        if toss is None:
            raise ProtocolError(
                "this server has no randomness for this plan, or deleted it after a day: call "
                "task.start(fed) again",
                code="unknown-coin",
            )
        if toss.peer not in ("", peer.hex()):
            raise ProtocolError(
                "the other server has already committed to other randomness for this plan: call "
                "task.start(fed) again",
                code="wrong-hash-seed",
            )
        tosses[template.hex()] = _Toss(toss.tossed_at, toss.coin, peer.hex())
        self._store(tosses)
        return bytes.fromhex(toss.coin)

    def check(self, plan: Plan, coins: Coins) -> None:
        """Refuse coins that are not the two that were committed to for this plan.

        Raises:
            ParameterError: they are not, or they make another hash seed.
        """
        coin.check_coins(plan, coins)
        template = coin.template_of(plan)
        toss = self._tosses().get(template.hex())
        theirs = coin.commitment(template, 1 - self._party, coins[1 - self._party])
        if toss is None or not kdf.digests_equal(bytes.fromhex(toss.coin), coins[self._party]):
            raise ParameterError(
                "hash_seed was not made with this server's randomness for this plan, or is older "
                "than a day: call task.start(fed) again",
                code="wrong-hash-seed",
            )
        if not kdf.digests_equal(bytes.fromhex(toss.peer), theirs):
            raise ParameterError(
                "hash_seed was not made with the other server's randomness for this plan: call "
                "task.start(fed) again",
                code="wrong-hash-seed",
            )

    def _tosses(self) -> dict[str, _Toss]:
        """By template in hex, those of the last day."""
        stored = json.loads(self._ledger.setting("coins") or b"{}")
        tosses = {template: _Toss(*fields) for template, fields in stored.items()}
        oldest = time.time() - COIN_SECONDS
        return {template: toss for template, toss in tosses.items() if toss.tossed_at > oldest}

    def _store(self, tosses: dict[str, _Toss]) -> None:
        fields = {name: (toss.tossed_at, toss.coin, toss.peer) for name, toss in tosses.items()}
        self._ledger.put_setting("coins", json.dumps(fields).encode())

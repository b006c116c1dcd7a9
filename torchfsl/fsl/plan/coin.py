"""The joint coin: a hash seed that neither a server nor the coordinator chooses.

Both servers commit to 32 random bytes for one template, a plan whose hash seed is zero, before
either reveals its bytes. The hash seed is a digest of both values, so one honest server makes the
seed uniform. The server that reveals last can only refuse to reveal. Otherwise a party that knows a
client's likely rows could pick a seed under which these rows do not fit the bins.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan

COIN_BYTES: Final = 32
"""One server's part."""

_NO_SEED: Final = bytes(DIGEST_BYTES).hex()

Coins = tuple[bytes, bytes]
"""Of server 0 and of server 1."""


def template_of(plan: Plan) -> bytes:
    """32 bytes that name all of the plan except the hash seed, for which coins are tossed."""
    return dataclasses.replace(plan, hash_seed=_NO_SEED).digest


def commitment(template: bytes, party: int, coin: bytes) -> bytes:
    """What server `party` says before it reveals its coin: 32 bytes.

    Args:
        template: from `template_of`.
        party: so that a server cannot repeat what the other one said.
        coin: 32 random bytes, which hide themselves.
    """
    return kdf.digest(kdf.LABEL_COIN, b"commitment", template, bytes([party]), coin)


def with_coins(plan: Plan, coins: Coins) -> Plan:
    """The plan with the hash seed that both coins make."""
    seed = kdf.digest(kdf.LABEL_COIN, b"seed", template_of(plan), *coins)
    return dataclasses.replace(plan, hash_seed=seed.hex())


def check_coins(plan: Plan, coins: Coins) -> None:
    """Refuse a hash seed that these coins do not make.

    Raises:
        ParameterError: it is another one, or the coins are none.
    """
    if len(coins) != 2 or any(len(coin) != COIN_BYTES for coin in coins):
        raise ParameterError(
            f"expected the randomness of two servers, each {COIN_BYTES} bytes, for a hash seed"
        )
    if with_coins(plan, coins).hash_seed != plan.hash_seed:
        raise ParameterError(
            "hash_seed was not made with the randomness of these two servers: start the task again "
            "with Coordinator.start or Owner.bind",
            code="wrong-hash-seed",
        )

"""Who may call by the HTTPS door: a token of a known issuer, and a signature on each request.

A proof is good once. Its nonce is a MAC over the server's own time, so that no clock of a client
counts. Of each client the server keeps the last proofs and how old the oldest one was: older
nonces are refused, and a client that signs the fresh one goes on.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import RejectedSubmission
from torchfsl.service.net import tokens
from torchfsl.service.net.identity import Identity, NotAdmitted
from torchfsl.service.net.issuers import Issuers
from torchfsl.service.net.trust import Trust
from torchfsl.service.server.http import Request
from torchfsl.service.server.station import Station

_NONCE_MS: Final = 300_000
_KEPT: Final = 32
NONCE: Final = "torchfsl-nonce"
_KEY, _DIGEST, _PROOF = "torchfsl-key", "torchfsl-digest", "torchfsl-proof"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose token and proof are good.

    Attributes:
        caller: the client.
        body: SHA-256 that the body must have.
        rounds: that the token is for.
        issuer: name of who issued it.
    """

    caller: Identity
    body: bytes
    rounds: range
    issuer: str


@dataclass(slots=True)
class _Window:
    """The last proofs of a client, by what they sign, with their nonces' times."""

    used: dict[bytes, int] = field(default_factory=dict)
    floor: int = -1
    last: int = 0


class Tokens:
    """The tokens and proofs that a server takes.

    Args:
        issuers: whose tokens count.
        trust: with the deny list.
        served: the server.
    """

    headers: Final = ("authorization", _KEY, _DIGEST, NONCE, _PROOF)

    def __init__(self, issuers: Issuers, trust: Trust, served: Station) -> None:
        self._issuers, self._trust, self._station = issuers, trust, served
        self._secret = random_bytes(32)
        self._windows: OrderedDict[int, _Window] = OrderedDict()
        self._round: tuple[bytes, int] = b"", -1
        self._entered: dict[str, set[int]] = {}

    def nonce(self) -> str:
        """A fresh one, which one proof may use."""
        text = _now().to_bytes(8, "big") + random_bytes(8)
        return tokens.encode(text + self._mac(text))

    def admit(self, name: str, request: Request) -> Admitted:
        """Check token and proof of a request to call `name`.

        Raises:
            NotAdmitted: either is missing or not valid.
            NotAllowed: the deny list names the client, its key or the token.
        """
        scheme, _, token = request.one("authorization").partition(" ")
        if scheme.lower() != "torchfsl" or not token.isascii():
            raise NotAdmitted(
                f"{name} needs a header `Authorization: Torchfsl TOKEN`: ask the issuer for a token"
            )
        when = self._time_of(request.one(NONCE))
        claims = tokens.read(token, self._key_of)
        claims.check(self._station.node.party, self._station.node.plan.session)
        issuer, number = self._issuers.of(claims.issuer), claims.client.number
        if not (issuer and issuer.share and any(number in r for r in issuer.numbers)):
            raise NotAdmitted(
                f"{claims.issuer} may not issue tokens to {claims.client}: ask both operators to "
                "list this issuer and number, with a share above 0, in the admission files",
                code="token-refused",
            )
        self._trust.check(claims.client.uri, f"jkt:{claims.thumbprint}", f"jti:{claims.name}")
        try:
            point = tokens.decode(request.one(_KEY), 65)
            body = tokens.decode(request.one(_DIGEST), 32)
            signature = tokens.decode(request.one(_PROOF), 64)
        except NotAdmitted:
            raise NotAdmitted(
                _again("lacks a key, digest or signature in canonical base64url"),
                code="proof-refused",
            ) from None
        if tokens.thumbprint(point) != claims.thumbprint:
            raise NotAdmitted(
                _again("is signed by another key than the token's"), code="proof-refused"
            )
        length, party = request.length or 0, self._station.node.party
        text = tokens.signed_text(party, name, token, body, length, request.one(NONCE))
        if not tokens.is_signed(point, signature, text):
            raise NotAdmitted(_again("does not fit its signature"), code="proof-refused")
        self._use(number, text, when)
        return Admitted(claims.client, body, claims.rounds, claims.issuer)

    async def enter(self, admitted: Admitted, number: int) -> None:
        """A message of a round, before it is read.

        Raises:
            RejectedSubmission: the issuer of the caller has its share of the round's clients, or
                in a plan with `min_contributors` as many as count.
        """
        await self._station.wait_for_begin()
        node, issuer = self._station.node, self._issuers.of(admitted.issuer)
        if not self._station.is_open or node.server.reports.round_number != number:
            return  # it is refused as the message of another round
        this = node.plan.digest, number
        if self._round != this:
            known = await self._station.run(node.server.reports.clients)  # also of before a crash
            if self._round != this:
                self._round, self._entered = this, {}
                for client in known:
                    if (owner := self._issuers.whose(client)) is not None:
                        self._entered.setdefault(owner.name, set()).add(client)
        entered = self._entered.setdefault(admitted.issuer, set())
        most = int(node.plan.max_clients * (issuer.share if issuer is not None else 0))
        if node.plan.min_contributors > 1 and issuer is not None:  # which all reports count to
            most = min(most, issuer.most)
        if admitted.caller.number not in entered and len(entered) >= most:
            raise RejectedSubmission(
                f"round {number} already has {most} clients of the issuer {admitted.issuer}, the "
                "most that it may have: participate in the next round",
                code="round-full",
            )
        entered.add(admitted.caller.number)

    def _key_of(self, name: str) -> bytes | None:
        issuer = self._issuers.of(name)
        return None if issuer is None else issuer.key

    def _mac(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, text, "sha256")[:16]

    def _time_of(self, nonce: str) -> int:
        """When this server made a nonce; raises NotAdmitted for others and old ones."""
        try:
            given = tokens.decode(nonce, 32)
        except NotAdmitted:
            given = bytes(32)
        when = int.from_bytes(given[:8], "big")
        if not hmac.compare_digest(self._mac(given[:16]), given[16:]) or _now() - when > _NONCE_MS:
            raise NotAdmitted(_again("needs a nonce of the last 300 seconds"), code="nonce-expired")
        return when

    def _use(self, number: int, text: bytes, when: int) -> None:
        """Let a proof count, once."""
        now = _now()
        while self._windows and next(iter(self._windows.values())).last < now - _NONCE_MS:
            self._windows.popitem(last=False)  # all its nonces have expired
        window = self._windows.setdefault(number, _Window())
        self._windows.move_to_end(number)
        window.last, mark = now, hashlib.sha256(text).digest()
        if mark in window.used:
            raise NotAdmitted(_again("was accepted before"), code="proof-used")
        if when <= window.floor:
            raise NotAdmitted(
                _again("has an older nonce than this client's other requests"),
                code="nonce-expired",
            )
        window.used[mark] = when
        if len(window.used) > _KEPT:
            oldest = min(window.used, key=lambda one: window.used[one])
            window.floor = max(window.floor, window.used.pop(oldest))


def _now() -> int:
    return time.monotonic_ns() // 1_000_000


def _again(why: str) -> str:
    return f"the request {why}: sign it again, with the nonce of this answer"

"""Who may call by the HTTPS door. No issuer is known yet, so no client may."""

from __future__ import annotations

import secrets

from torchfsl.service.net.identity import NotAdmitted
from torchfsl.service.server.http import Request
from torchfsl.service.server.web import Admitted


class Tokens:
    """The `Admission` of a server."""

    headers: tuple[str, ...] = ("authorization",)

    def nonce(self) -> str:
        """A fresh one, for a proof."""
        return secrets.token_urlsafe(24)

    def admit(self, name: str, request: Request) -> Admitted:
        """Raise NotAdmitted: no token is known."""
        raise NotAdmitted(f"{name} needs a token")

    async def enter(self, admitted: Admitted, number: int) -> None:
        """See `Admission`."""

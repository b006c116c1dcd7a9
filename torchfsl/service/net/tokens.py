"""Admission tokens and signed requests: who calls the HTTPS door, and that it holds its key.

An issuer, such as a company's login, signs a token for a client's P-256 key. The token is a compact
JWS (RFC 7515) with one constant header and these claims, no more and no fewer:

    iss   the issuer's name            aud   torchfsl:server:P: the other server refuses it
    sub   torchfsl:client:N            task  the plan's session
    jti   its own name                 rounds  [first, last], at most 100
    nbf, exp  seconds of the epoch     cnf   {"jkt": thumbprint of the client's key, RFC 7638}

With each request the client signs the call, the token, the body and a nonce of the server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.kdf import frame
from torchfsl.errors import Error, ParameterError
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.net.identity import Identity, NotAdmitted, Role

MAX_ROUNDS: Final = 100
MAX_SECONDS: Final = 3600
_SKEW_SECONDS: Final = 60
_MAX_BYTES: Final = 2048
_LABEL: Final = b"torchfsl request"
_ENCODED: Final = re.compile(r"[A-Za-z0-9_-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9._:/@-]{1,64}")
_SESSION: Final = re.compile(r"[0-9a-f]{32}")
_CLAIMS: Final = {"iss": str, "aud": str, "sub": str, "task": str, "rounds": list, "nbf": int,
                  "exp": int, "cnf": dict, "jti": str}  # fmt: skip


def encode(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str, size: int | None = None) -> bytes:
    """Inverse of `encode`, for its output alone.

    Raises:
        NotAdmitted: other text, or not `size` bytes.
    """
    if _ENCODED.fullmatch(text) and len(text) % 4 != 1:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if encode(data) == text and size in (None, len(data)):
            return data
    raise NotAdmitted("expected canonical base64url of the right length", code="token-refused")


_HEADER: Final = encode(b'{"alg":"EdDSA","typ":"torchfsl-admission+jwt"}')


@dataclass(frozen=True, slots=True)
class Claims:
    """A token of a known issuer. `name` is its jti, `thumbprint` that of the client's key."""

    issuer: str
    audience: str
    client: Identity
    task: str
    rounds: range
    begins: int
    ends: int
    thumbprint: str
    name: str

    def check(self, party: int, task: str) -> None:
        """Raise NotAdmitted unless it is for this server and task, now."""
        now = time.time()
        if self.audience != Identity(Role.SERVER, party).uri:
            _refuse(f"is for {self.audience}")
        if self.task != task:
            _refuse("is for another task")
        if now < self.begins - _SKEW_SECONDS:
            _refuse("is not valid yet")
        if now >= self.ends:
            _refuse("has expired")


def read(token: str, key_of: Callable[[str], bytes | None]) -> Claims:
    """The claims of a token that its issuer signed.

    Args:
        token: as it came.
        key_of: an issuer's Ed25519 public key by its name; None for an unknown issuer.

    Raises:
        NotAdmitted: the text is anything else.
    """
    parts = token.split(".")
    if len(token) > _MAX_BYTES or len(parts) != 3 or parts[0] != _HEADER:
        _refuse("is not a torchfsl-admission+jwt of at most 2048 bytes, signed by EdDSA")
    fields = _object(decode(parts[1]))
    if fields.keys() != _CLAIMS.keys() or any(type(fields[n]) is not k for n, k in _CLAIMS.items()):
        _refuse(f"does not have exactly the claims {', '.join(_CLAIMS)}")
    key = key_of(fields["iss"])
    if key is None:
        _refuse("comes from an issuer that this server does not know")
    try:
        signed = f"{parts[0]}.{parts[1]}".encode()
        Ed25519PublicKey.from_public_bytes(key).verify(decode(parts[2], 64), signed)
    except (InvalidSignature, ValueError):
        _refuse("is not signed by its issuer")
    return _claims(fields)


def _claims(fields: dict[str, Any]) -> Claims:
    try:
        client = Identity.parse(fields["sub"])
    except Error:
        client = Identity(Role.OWNER)
    if client.role is not Role.CLIENT:
        _refuse("does not name a client in sub")
    rounds, cnf = fields["rounds"], fields["cnf"]
    if [type(one) for one in rounds] != [int, int] or not 0 <= rounds[0] <= rounds[1] < 1 << 64:
        _refuse("does not have rounds of the form [first, last]")
    if rounds[1] - rounds[0] >= MAX_ROUNDS:
        _refuse(f"is for more than {MAX_ROUNDS} rounds")
    if not 0 < fields["exp"] - fields["nbf"] <= MAX_SECONDS:
        _refuse(f"does not have a validity of 1 to {MAX_SECONDS} seconds")
    if cnf.keys() != {"jkt"} or type(cnf["jkt"]) is not str or not _NAME.fullmatch(fields["jti"]):
        _refuse("has a cnf or jti that is not valid")
    decode(cnf["jkt"], 32)
    return Claims(
        fields["iss"], fields["aud"], client, fields["task"], range(rounds[0], rounds[1] + 1),
        fields["nbf"], fields["exp"], cnf["jkt"], fields["jti"],
    )  # fmt: skip


def _object(data: bytes) -> dict[str, Any]:
    """The JSON object in a token: no member twice, whole numbers only."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError
        return found

    try:
        fields = json.loads(data.decode(), object_pairs_hook=once, parse_float=_no_number,
                            parse_constant=_no_number)  # fmt: skip
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        _refuse("does not hold a JSON object without repeated members or fractions")
    return fields


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _refuse(why: str) -> NoReturn:
    raise NotAdmitted(
        f"the token {why}: ask its issuer for a token for this call", code="token-refused"
    )


# --- a client's key ---------------------------------------------------------------------------


def thumbprint(point: bytes) -> str:
    """RFC 7638's of a P-256 public key.

    Args:
        point: the key, 65 bytes, as WebCrypto exports it in the format "raw".
    """
    x, y = encode(point[1:33]), encode(point[33:])
    text = f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'
    return encode(hashlib.sha256(text.encode()).digest())


def signed_text(
    party: int, name: str, token: str, body: bytes, length: int, nonce: str
) -> bytes:  # fmt: skip
    """The text that a client signs for a request.

    Args:
        party: of the server.
        name: of the call, as `Submit`.
        token: whole.
        body: SHA-256 of the body.
        length: of the body in bytes.
        nonce: of the server, as it came.
    """
    token_digest = hashlib.sha256(token.encode()).digest()
    audience = Identity(Role.SERVER, party).uri.encode()
    return frame(_LABEL, b"%d" % WIRE_VERSION, audience, name.encode(), token_digest, body,
                 length.to_bytes(8, "little"), nonce.encode())  # fmt: skip


def is_signed(point: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the holder of a P-256 key made this signature, r and s of 32 bytes each."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        r, s = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
        key.verify(encode_dss_signature(r, s), text, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


# --- the issuer -------------------------------------------------------------------------------


class Issuer:
    """Issues tokens to clients that have logged in. Its key must sign nothing else.

    Args:
        name: as both operators' admission files have it.
        key: PEM of its Ed25519 private key, without a password.

    Raises:
        ParameterError: the name or the key is not valid.
    """

    def __init__(self, name: str, key: bytes) -> None:
        try:
            private = load_pem_private_key(key, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise ParameterError(
                "expected an Ed25519 key in PEM, got other bytes: `torchfsl admit --new 1000-1999 "
                "--key FILE --issuer NAME` makes one, for clients 1000 to 1999"
            )
        self.name, self._key = check_name(name), private

    def admit(
        self, client: int, jkt: str, *, task: str, rounds: tuple[int, int], seconds: int = 600
    ) -> tuple[str, str]:
        """Tokens of a client for server 0 and for server 1.

        Args:
            client: number that is this person's alone, in the issuer's range, in [0, 2**64).
            jkt: thumbprint of the client's key.
            task: `plan.session`, 32 hex digits.
            rounds: first and last, at most 100.
            seconds: of validity from now on, at most 3600.

        Raises:
            ParameterError: an argument is out of range.
        """
        if not _SESSION.fullmatch(task):
            raise ParameterError(f"task is {task!r}: give plan.session, the session of the plan")
        now, jti = int(time.time()), random_bytes(8).hex()
        fields = {
            "iss": self.name, "sub": Identity(Role.CLIENT, client).uri, "task": task,
            "rounds": list(rounds), "nbf": now, "exp": now + seconds, "cnf": {"jkt": jkt},
            "jti": jti,
        }  # fmt: skip
        made = [self.sign(fields | {"aud": Identity(Role.SERVER, party).uri}) for party in (0, 1)]
        try:
            for token in made:
                read(token, lambda _: self._key.public_key().public_bytes_raw())
        except NotAdmitted as error:
            why = str(error).partition(": ask")[0]
            raise ParameterError(
                f"servers would refuse this token: {why}", code="out-of-range"
            ) from None
        return made[0], made[1]

    def sign(self, claims: dict[str, Any]) -> str:
        """A token of any claims, which servers may refuse."""
        text = f"{_HEADER}.{encode(json.dumps(claims).encode())}"
        return f"{text}.{encode(self._key.sign(text.encode()))}"


def check_name(name: Any) -> str:
    """The name of an issuer; raises ParameterError for what cannot be one."""
    if type(name) is not str or not _NAME.fullmatch(name):
        raise ParameterError(
            f"an issuer's name is {name!r}: write 1 to 64 letters, digits or ._:/@-"
        )
    return name

"""Private keys of servers, as their files hold them."""

from __future__ import annotations

from typing import ClassVar, Self, TypeAlias

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from torchfsl.errors import ParameterError

_Key: TypeAlias = Ed25519PrivateKey | X25519PrivateKey


class PrivateKey:
    """A private key for one use. Secret."""

    kind: ClassVar[type[_Key]]
    use: ClassVar[str]

    def __init__(self, private: _Key) -> None:
        """See `generate`."""
        self._private = private

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.public.hex()})"

    @classmethod
    def generate(cls) -> Self:
        """A fresh key."""
        return cls(cls.kind.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """A key from a file.

        Raises:
            ParameterError: it is not a key of this kind in PEM, without a password.
        """
        try:
            private = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError):
            raise ParameterError(
                "expected a private key in PEM without a password, got other bytes: give a file "
                "that `torchfsl certs` or openssl made"
            ) from None
        if not isinstance(private, cls.kind):
            raise ParameterError(
                f"expected a private key for {cls.use}, got another type: pass the key file for "
                "this use"
            )
        return cls(private)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes; in hex it stands in plans."""
        return self._private.public_key().public_bytes_raw()

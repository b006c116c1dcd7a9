"""Encryption under which ciphertexts add up: exact BFV by TenSEAL's binding of SEAL.

A ciphertext holds `degree` numbers modulo a prime t; `bfv_parameters.Scheme` says which are safe.
This is the only file that imports the library, and it does so when the first key or ciphertext is
made: `pip install 'torchfsl[homomorphic]'`.

SEAL draws its keys and noise from the operating system. Its files are written to memory that has no
name, never to a disk.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from torchfsl.crypto.bfv_parameters import Scheme
from torchfsl.errors import DecodeError, ParameterError, RejectedSubmission

Slots = npt.NDArray[np.uint64]
"""Numbers in [0, t)."""


_LENGTH_BYTES: Final = 4
_SEAL_HEADER: Final = 16
_ZSTD: Final = 2


class Ciphertexts:
    """Ciphertexts in order, as one vector of `degree` slots each; adds up in place."""

    def __init__(self, scheme: Scheme, parts: list[Any]) -> None:
        """Made by `PublicKey.encrypt` and `decode`."""
        self.scheme, self._parts = scheme, parts

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def num_bytes(self) -> int:
        """Length of what `encode` gives."""
        return len(self) * self.scheme.ring.ciphertext_bytes

    def add(self, other: Ciphertexts) -> None:
        """Add the other ones slot by slot."""
        assert (self.scheme, len(self)) == (other.scheme, len(other))
        evaluator = _machine(self.scheme).evaluator
        for mine, added in zip(self._parts, other._parts, strict=True):
            evaluator.add_inplace(mine, added)

    def encode(self) -> bytes:
        """All of them, `ring.ciphertext_bytes` each."""
        size = self.scheme.ring.ciphertext_bytes
        with _memory() as memory:
            return b"".join(_framed(memory.saved(part), size) for part in self._parts)

    @classmethod
    def decode(cls, scheme: Scheme, data: bytes | memoryview, count: int) -> Ciphertexts:
        """Read a peer's ciphertexts: fresh ones or sums, of this scheme.

        Raises:
            DecodeError: another length, or bytes that are no such ciphertext.
        """
        size = scheme.ring.ciphertext_bytes
        if len(data) != count * size:
            raise DecodeError(
                f"got {len(data)} bytes, expected {count * size} bytes of {count} ciphertexts"
            )
        machine = _machine(scheme)
        parts = []
        with _memory() as memory:
            for start in range(0, len(data), size):
                part = machine.seal.Ciphertext(machine.context)
                saved = _unframed(memoryview(data)[start : start + size])
                memory.load(functools.partial(part.load, machine.context), saved)
                if (
                    (part.size(), part.is_ntt_form(), part.is_transparent()) != (2, False, False)
                    or part.coeff_modulus_size() != max(1, len(scheme.ring.bits) - 1)
                    or part.poly_modulus_degree() != scheme.degree
                ):
                    raise DecodeError("a ciphertext does not have the form of a fresh encryption")
                parts.append(part)
        return cls(scheme, parts)


class PublicKey:
    """Encrypts; made from what `KeyPair.public` gives.

    Args:
        scheme: its parameters.
        data: `scheme.ring.key_bytes` bytes.

    Raises:
        DecodeError: no public key of this scheme.
    """

    def __init__(self, scheme: Scheme, data: bytes | memoryview) -> None:
        """Read it."""
        if len(data) != scheme.ring.key_bytes:
            raise DecodeError(
                f"the public key has {len(data)} bytes, expected {scheme.ring.key_bytes} bytes"
            )
        machine = _machine(scheme)
        key = machine.seal.PublicKey()
        with _memory() as memory:
            saved = _unframed(memoryview(data))
            memory.load(functools.partial(key.load, machine.context), saved)
        if key.data().is_transparent():
            raise DecodeError("the public key is all zeros, so everybody could decrypt")
        self.scheme = scheme
        self._encryptor = machine.seal.Encryptor(machine.context, key)

    def encrypt(self, values: Slots) -> Ciphertexts:
        """Encrypt numbers in [0, t), as many as whole ciphertexts have slots.

        Raises:
            ParameterError: a number is not below t, or they do not fill the slots.
        """
        degree, machine = self.scheme.degree, _machine(self.scheme)
        if values.ndim != 1 or values.size % degree or not values.size:
            raise ParameterError(
                f"{values.shape} values do not fill ciphertexts of {degree} slots: pad the values "
                "with zeros"
            )
        if int(values.max()) >= self.scheme.modulus:
            raise ParameterError(
                f"a value is not below the modulus {self.scheme.modulus}: reduce values modulo "
                "this number"
            )
        parts = []
        for slots in values.reshape(-1, degree):
            plain = machine.seal.Plaintext()
            machine.encoder.encode(slots.tolist(), plain)
            cipher = machine.seal.Ciphertext(machine.context)
            self._encryptor.encrypt(plain, cipher)
            parts.append(cipher)
        return Ciphertexts(self.scheme, parts)


class KeyPair:
    """Decrypts. Fresh from the operating system; the secret part never leaves this object."""

    def __init__(self, scheme: Scheme) -> None:
        """Make the keys."""
        machine = _machine(scheme)
        generator, key = machine.seal.KeyGenerator(machine.context), machine.seal.PublicKey()
        generator.create_public_key(key)
        self.scheme = scheme
        self._decryptor = machine.seal.Decryptor(machine.context, generator.secret_key())
        with _memory() as memory:
            self.public = _framed(memory.saved(key), scheme.ring.key_bytes)

    def __repr__(self) -> str:
        return f"KeyPair({self.scheme})"

    def noise_budget(self, given: Ciphertexts) -> int:
        """Bits of noise that the worst ciphertext could still take; 0 where it may be spoilt."""
        return min(int(self._decryptor.invariant_noise_budget(part)) for part in given._parts)

    def decrypt(self, given: Ciphertexts) -> Slots:
        """All slots, in order.

        Raises:
            RejectedSubmission: under another key, or too many were added up.
        """
        if self.noise_budget(given) < 1:
            raise RejectedSubmission(
                "a ciphertext cannot be decrypted, because it has another key or is not a sum of "
                "honest updates: repeat the round"
            )
        machine = _machine(self.scheme)
        out = np.empty((len(given), self.scheme.degree), dtype=np.uint64)
        for row, part in zip(out, given._parts, strict=True):
            plain = machine.seal.Plaintext()
            self._decryptor.decrypt(part, plain)
            row[:] = machine.encoder.decode_uint64(plain)
        return out.reshape(-1)


class _Machine(NamedTuple):
    """SEAL's objects for one scheme, which hold no key."""

    seal: Any
    context: Any
    encoder: Any
    evaluator: Any


@functools.lru_cache(maxsize=8)
def _machine(scheme: Scheme) -> _Machine:
    seal = _library()
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(scheme.degree)
    primes = seal.CoeffModulus.Create(scheme.degree, list(scheme.ring.bits))
    used = [prime.value() for prime in primes][: max(1, len(primes) - 1)]
    assert math.prod(used) == scheme.ring.modulus, "the noise rule is for other primes"
    parameters.set_coeff_modulus(primes)
    parameters.set_plain_modulus(scheme.modulus)
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    assert context.parameters_set(), context.parameters_error_message()
    return _Machine(seal, context, seal.BatchEncoder(context), seal.Evaluator(context))


def _library() -> Any:
    """The extra that does the work."""
    if not hasattr(os, "memfd_create"):
        raise ParameterError(
            "homomorphic encryption needs Linux, for anonymous files in memory: use the protocol "
            "fsl on this system"
        )
    try:
        import tenseal.sealapi
    except ImportError as error:
        raise ParameterError(
            "homomorphic encryption needs TenSEAL: pip install 'torchfsl[homomorphic]'"
        ) from error
    return tenseal.sealapi


class _Memory:
    """A file without a name, through which SEAL reads and writes."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._path = f"/proc/self/fd/{number}"

    def saved(self, thing: Any) -> bytes:
        os.ftruncate(self._number, 0)
        thing.save(self._path)
        return os.pread(self._number, os.fstat(self._number).st_size, 0)

    def load(self, load: Callable[[str], None], data: bytes) -> None:
        os.ftruncate(self._number, 0)
        os.pwrite(self._number, data, 0)
        try:
            load(self._path)
        except (RuntimeError, ValueError, MemoryError) as error:  # whatever SEAL's C++ throws
            raise DecodeError(
                "the bytes are not a key or ciphertext of these parameters"
            ) from error


@contextlib.contextmanager
def _memory() -> Iterator[_Memory]:
    number = os.memfd_create("torchfsl")
    try:
        yield _Memory(number)
    finally:
        os.close(number)


def _framed(saved: bytes, size: int) -> bytes:
    """What SEAL wrote behind its length, filled up to `size`."""
    assert _LENGTH_BYTES + len(saved) <= size, "SEAL wrote more than it ever does: nine deviations"
    return (len(saved).to_bytes(_LENGTH_BYTES, "little") + saved).ljust(size, b"\0")


def _unframed(frame: memoryview) -> bytes:
    """The bytes for SEAL, whose own header must agree.

    Raises:
        DecodeError: a length that does not fit, something behind it, or no compressed object.
    """
    stop = _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "little")
    if not _LENGTH_BYTES + _SEAL_HEADER <= stop <= len(frame) or any(frame[stop:]):
        raise DecodeError("the frame of a ciphertext has a wrong length, or extra bytes at its end")
    saved = bytes(frame[_LENGTH_BYTES:stop])
    if saved[5] != _ZSTD or int.from_bytes(saved[8:_SEAL_HEADER], "little") != len(saved):
        raise DecodeError("the header of a ciphertext does not match its frame")
    return saved

"""Parameters of exact BFV for sums, and the rule that keeps them exact; needs no library.

Nothing is ever multiplied, so the only thing that can go wrong is noise: `Scheme` refuses
parameters under which it could reach half a step, with a tail of twelve deviations. An approximate
or failing decryption whose result is shared would leak the key (Li and Micciancio 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from torchfsl.errors import ParameterError


class Ring(NamedTuple):
    """A degree's ciphertext modulus, from the 128-bit table of the standard for such schemes.

    Attributes:
        bits: sizes of its primes; where there are several the last one serves keys alone.
        modulus: product of the primes that ciphertexts use.
        ciphertext_bytes: length of every ciphertext here. SEAL compresses what it writes, and how
            far varies by some ten bytes with the random contents; the rest is filled with zeros.
        key_bytes: the same of a public key.
    """

    bits: tuple[int, ...]
    modulus: int
    ciphertext_bytes: int
    key_bytes: int


RINGS: Final = {
    2048: Ring((54,), 18_014_398_509_404_161, 31_000, 31_000),
    4096: Ring((36, 36, 37), 68_719_230_977 * 68_719_403_009, 89_088, 134_656),
}
"""By degree, which is the number of slots, what is allowed."""

_TAIL: Final = 12
_MOST_BITS: Final = 58
"""Far more than any ring here has room for; primality is decided below 2**64."""
_DEVIATION: Final = math.sqrt(10.5)
"""Of SEAL's errors: centred binomial of 42 coins."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Parameters of a key.

    Args:
        degree: slots a ciphertext, 2048 or 4096.
        modulus: t, a prime that is 1 modulo `2 * degree`.
        ciphertexts: most of them that are ever added up.

    Raises:
        ParameterError: another degree, no such prime, or noise that could spoil a sum.
    """

    degree: int
    modulus: int
    ciphertexts: int

    def __post_init__(self) -> None:
        if self.degree not in RINGS:
            raise ParameterError(
                f"the ring has {self.degree} slots per ciphertext: choose one of {list(RINGS)}"
            )
        if self.modulus % (2 * self.degree) != 1 or not is_prime(self.modulus):
            raise ParameterError(
                f"the modulus is {self.modulus}, expected a prime that is 1 modulo "
                f"{2 * self.degree}"
            )
        if self.ciphertexts < 1:
            raise ParameterError(
                f"the number of ciphertexts in a sum is {self.ciphertexts}: choose 1 or more"
            )
        if self.noise > self.room:
            remedy = (
                "fewer frac_bits, a smaller clip, less noise or fewer clients"
                if self.degree == max(RINGS)
                else f"fewer frac_bits, a smaller clip, fewer clients, or {max(RINGS)} slots"
            )
            raise ParameterError(
                f"the sum of {self.ciphertexts} ciphertexts of {self.modulus.bit_length()} bits "
                f"per slot could decrypt to a wrong value at {self.degree} slots: use {remedy}"
            )

    @property
    def noise(self) -> float:
        """Most noise of a sum, with a tail of twelve deviations.

        A fresh ciphertext's noise is e + e' u + e'' s: one error, and 2 N products of an error and
        a ternary number of variance 2/3. Each one's rounding of q m / t adds less than 1.
        """
        fresh = _DEVIATION * math.sqrt(4 * self.degree / 3 + 1)
        return _TAIL * fresh * math.sqrt(self.ciphertexts) + self.ciphertexts

    @property
    def room(self) -> float:
        """Noise from which on a slot may come out wrong: q / (2 t)."""
        return RINGS[self.degree].modulus / (2 * self.modulus)

    @property
    def ring(self) -> Ring:
        """The parameters that the degree fixes."""
        return RINGS[self.degree]

    @property
    def slot_bytes(self) -> int:
        """Whole bytes of a number below t."""
        return -(-self.modulus.bit_length() // 8)


def least_modulus(degree: int, bound: int) -> int:
    """The least prime that is 1 modulo `2 * degree` and above `2 * bound`.

    Numbers in [-bound, bound] are then told apart modulo it.

    Raises:
        ParameterError: no scheme here has room for such numbers.
    """
    if bound >= 1 << _MOST_BITS:
        raise ParameterError(
            f"sums of up to {bound} exceed all available parameters of the encryption: use fewer "
            "frac_bits, a smaller clip or fewer clients"
        )
    step = 2 * degree
    candidate = (2 * bound // step) * step + 1
    while candidate <= 2 * bound or not is_prime(candidate):
        candidate += step
    return candidate


def is_prime(number: int) -> bool:
    """Whether a number below 2**64 is prime: Miller and Rabin with the bases that decide it."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if number < 2 or number >= 1 << 64:
        return False
    if any(number % base == 0 for base in bases):
        return number in bases
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True

"""Constants of the wire format and of the protocol suite. Nothing here is mutable."""

from __future__ import annotations

from typing import Final

WIRE_VERSION: Final = 1
"""Version of every message; a peer with another version is refused."""

SUITE: Final = "bgi16-aes128-mmo"
"""Tree: BGI16 with fixed-key AES-128 MMO, keyed by report and segment."""

SEED_BYTES: Final = 16
"""Seeds, master seeds and nonces are 128-bit."""

DIGEST_BYTES: Final = 32
"""SHA-256."""

RING_BITS: Final = (16, 24, 32, 48, 64, 128)
"""Supported ring widths l; the ring is the integers modulo 2**l."""

CHECK_BYTES: Final = 32
"""A check word: 256 bits, against generalised-birthday searches by a client."""

TAG_BYTES: Final = 16
"""The tag of one tree's answer: one element of GF(2**128)."""

NUM_HASHES: Final = 3
"""Cuckoo hash functions (eta), one public permutation each."""

FAILURE_BITS: Final = 40
"""Cuckoo matching fails with probability at most 2**-FAILURE_BITS."""

MAX_POSITIONS: Final = 1 << 32
"""Largest index space m of one segment."""

MAX_MESSAGE_BYTES: Final = 1 << 32
"""Upper limit of one message, checked before any allocation."""

MAX_SIGMA: Final = (1 << 31) - 1
"""Largest standard deviation of noise, in ring units: the sampler's products fit 64 bits."""

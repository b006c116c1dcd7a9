"""Constants of the two-server protocol and of its wire format."""

from __future__ import annotations

from typing import Final

from torchfsl.submodel.framing import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES

WIRE_VERSION: Final = 4
"""Version of every message; a peer with another version is refused."""

SUITE: Final = "bgi16-aes128-mmo"
"""Tree: BGI16 with fixed-key AES-128 MMO, keyed by report and segment."""

CHECK_BYTES: Final = 32
"""A check word: 256 bits, against generalised-birthday searches by a client."""

FOLD_BYTES: Final = 16
"""The fold of the check over a report's trees."""

SEAL_KEY_BYTES: Final = 32
"""A server's public key for sealed seeds: X25519."""

SIGN_KEY_BYTES: Final = 32
"""A public key for signatures of an audit: Ed25519."""

TAG_BYTES: Final = 16
"""The tag of one tree's answer: one element of GF(2**128)."""

BIT_LEVELS: Final = 7
"""Levels by which trees that fetch by bits end early: a leaf gives the bits of 2**7 rows."""

BIT_WORD_BYTES: Final = 16
"""What each of them ends in: one bit for every row of a leaf."""

NUM_HASHES: Final = 3
"""Cuckoo hash functions (eta), one public permutation each."""

FAILURE_BITS: Final = 40
"""Cuckoo matching fails with probability at most 2**-FAILURE_BITS."""

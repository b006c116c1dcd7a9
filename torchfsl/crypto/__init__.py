"""Primitives that know no model: randomness, key derivation, seals, encodings, noise, codes.

Read `entropy` (the only place that asks the system for randomness), `secret_holder` (what is never
pickled), `kdf`, `aead` (seals under a key that both have), `hpke` (seals to a public key),
`fixed_point`, `discrete_gaussian`, `field` (a prime field) and `lagrange` (codes over it),
`field128` (a larger one), `flp` (proofs about shared values over it: sums of squares; values
that are 0 or equal), `bfv_parameters` and `homomorphic` (ciphertexts that add up).

Invariant: nothing here draws from a generator of torch, NumPy or `random`.

`signing`: Ed25519 signatures of audited rounds. `private_key`: what their keys and
those of `hpke` share.
"""

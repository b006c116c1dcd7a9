"""Primitives without a model: randomness, key derivation, seals, encodings, noise, codes.

Read first `entropy` (the only module that asks the system for randomness), `secret_holder` (objects
that are never pickled) and `kdf`. Then read `aead` (seals under a key that both have), `hpke`
(seals to a public key), `fixed_point` and `discrete_gaussian`. `field` is a prime field, `lagrange`
has codes over it, and `field128` is a larger field. `flp` has proofs over this larger field about
shared values: sums of squares, and values that are 0 or equal. `bfv_parameters` and `homomorphic`
have ciphertexts that add up.

Invariant: no module here draws from a generator of torch, NumPy or `random`.

`signing` has Ed25519 signatures of audited rounds. `private_key` has the code that their keys and
the keys of `hpke` share.
"""

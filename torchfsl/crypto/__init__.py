"""Primitives that know no model: randomness, key derivation, encodings, noise.

Read `entropy` (the only place that asks the system for randomness), `kdf`, `fixed_point`,
`discrete_gaussian`.

Invariant: nothing here draws from a generator of torch, NumPy or `random`.
"""

"""Primitives that know no model: randomness, key derivation, encodings, noise, codes.

Read `entropy` (the only place that asks the system for randomness), `kdf`, `fixed_point`,
`discrete_gaussian`, `field` (a prime field) and `lagrange` (codes over it).

Invariant: nothing here draws from a generator of torch, NumPy or `random`.
"""

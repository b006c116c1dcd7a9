"""One tree and what is done on it.

`trees` (shape and bytes), `keys` (what is derived for it), `psr` (rows out), `bits` (rows out by
one bit each), `ssa` (values in), `checks` (one leaf a tree, verified), and for
proofs `lifts` (shares as signed integers) and `carries` (where their sums wrap).

Invariant: both servers' evaluations of a tree add up to its value at alpha and to 0 elsewhere.
"""

"""One tree and what is done on it.

`trees` (shape and bytes), `keys` (what is derived for it), `psr` (rows out), `bits` (rows out by
one bit each), `ssa` (values in), `checks` (one leaf a tree, verified).

Invariant: both servers' evaluations of a tree add up to its value at alpha and to 0 elsewhere.
"""

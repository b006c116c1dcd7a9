"""One row a bin.

`placement` (hashing and matching), `bounds` (how many bins, and why it does not fail),
`bounds_table.json` (computed once by a script).

Invariant: a client's selection fits its bins but with probability at most 2**-40.
"""

"""The hot loops, twice: C++ and NumPy, with the same bytes.

Read `backends` (which of both is used), `ring` (numbers modulo 2**l as bytes), `portable` (the
readable twin of every kernel), then `csrc`, the native ones. A kernel knows no plan and no model.

Invariant: for equal arguments every backend and every CPU path returns equal bytes.
"""

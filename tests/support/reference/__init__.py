"""Slow and obvious second implementations, against which the library is compared."""

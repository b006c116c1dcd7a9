"""Checks that are longer than tests: constant time, crashes, lint, native builds."""

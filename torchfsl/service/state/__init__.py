"""Bytes on disk that survive a crash.

`arrays`, `records` (the report log), `steps` (of a round), `ledger` (SQLite), `vault` (files).

Invariant: what a call has returned for is on disk.
"""

"""Bytes on disk that survive a crash.

`folder` (looked at first), `arrays`, `records` (the report log), `steps` (of a round), `ledger`
(SQLite) and its `witness` (which older copies do not match), `vault` (files), `noise_ring`
(correlated noise) and `coins` (tossed for hash seeds).

Invariant: what a call has returned for is on disk.

`audits`: sealed transcripts until they were judged.
"""

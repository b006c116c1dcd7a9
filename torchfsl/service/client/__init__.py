"""The way to both servers.

`conversation` (many calls on one stream), `links`, `outbox`, `remote` (`connect`), `owner` (whose
task it is).

Invariant: a report that was begun reaches both servers as the same bytes, or neither counts it.
"""

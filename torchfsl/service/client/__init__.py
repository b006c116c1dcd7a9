"""The way to both servers.

`conversation` (many calls on one stream), `links`, `outbox`, `sent_reports` (a client's own
count), `remote` (`connect`), `owner` (whose task it is).

Invariant: a report that was begun reaches both servers as the same bytes, or neither counts it.
"""

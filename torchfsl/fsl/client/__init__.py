"""A client of a task.

`client` (rounds and sessions), `round` (one round), `trees` (its secrets), `fetch` (no round).

Invariant: messages have the same lengths and order whatever happens to private rows and values.
"""

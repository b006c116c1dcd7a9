"""A client of a task.

`client` (rounds and sessions), `round` (one round), `report` (what it sends up) and
`proof` (and proves of it), `trees` (its secrets), `fetch` (no round).

Invariant: messages have the same lengths and order whatever happens to private rows and values.
"""

"""Who calls, and how bytes travel.

`identity`, `certificates` (a development authority), `calls` (messages as streams), `channels`,
`addresses`, `trust` (files read again, the deny list).

Invariant: who a caller is comes from its certificate alone.
"""

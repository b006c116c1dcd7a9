"""Who calls, and how bytes travel.

`identity`, `certificates` (a development authority), `calls` (messages as streams), `channels`,
`addresses`.

Invariant: who a caller is comes from its certificate alone.
"""

"""Who calls, and how bytes travel.

`identity`, `certificates` (a development authority), `calls` (messages as streams), `channels`,
`addresses`, `trust` (files read again, the deny list), `validity` (what has run out).

Invariant: who a caller is comes from its certificate alone.
"""

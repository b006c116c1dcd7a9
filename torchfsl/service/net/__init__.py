"""Who calls, and how bytes travel.

`identity`, `certificates` (a development authority), `calls` (messages as streams), `answers`
(what servers say of themselves), `channels`, `addresses`, `pinning` (a server's certificate,
before it is spoken to), `text` (of others, as it is shown), `trust` (files read again, the deny
list), `validity` (what has run out), `tokens` and `issuers` (clients of the HTTPS door).

Invariant: who a caller is comes from its certificate, at the HTTPS door from token and proof.
"""

"""Identities of callers, and how bytes travel.

`identity`, `certificates` (a development authority), `calls` (messages as streams) and `answers`
(of servers about themselves). `channels` (also a server's certificate before the first call),
`addresses` and `text` (of others, as it is shown). `trust` (files read again, the deny list,
certificates that expire), `tokens` and `issuers` (clients of the HTTPS door).

Invariant: a caller's identity comes from its certificate, at the HTTPS door from token and proof.
"""

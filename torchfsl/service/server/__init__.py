"""One server as a process.

`node` (a server whose every step survives a crash), `storage`, `station` (the node inside an event
loop), `intake` and `streams` (limits), `handlers`, `peers`, `coordinator`, `observe`, `process`.

Invariant: a step is on disk before anybody hears of it.
"""

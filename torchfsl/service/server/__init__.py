"""One server as a process.

`node` (a server whose every step survives a crash) with `storage`, `transcript` (what was said in
the steps), `fresh_state`, `recovery` and `succession` (one task after another); `station` (the node
inside an event loop) and `worker` (its thread); `round_driver` and `follower` (server 0's side of a
round and server 1's), `peers`, `fetching` (rows without a report); `door`, `passages`, `guests` and
`descriptors` (connections), `listener` (gRPC, and the next one when it ends), `intake` and
`streams` (limits), `conversations` (many calls on one stream), `handlers` and `router`, `engines`
(what else than this process may compute), `failures` (what ends a process), `observe`,
`observation` (pages over HTTP), `refusals` (in the log), `logs`, `gauges`, `health`, `probes` and
`overview` (the status `page`, with `problems`; for operators), `supervision` (what systemd hears),
`process`.

Invariant: a step is on disk before anybody hears of it.

`auditing`: passes and findings of the auditors. `web`, `web_settings`, `http`, `admission`: the
HTTPS door.
"""

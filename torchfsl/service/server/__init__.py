"""One server as a process.

`node` is a server whose every step survives a crash. It uses `storage` (also for one task after
another), `transcript` (messages of the steps) and `recovery`; `fresh_state` cleans up a failed
start. `station` has the node inside an event loop, `worker` its thread. `round_driver` has server
0's side of a round and server 1's. `peers` has the messages between the servers, `fetching` rows
without a report. `door`, `passages` and `guests` have the connections, `listener` has gRPC and the
next gRPC server when one ends. `intake` and `streams` have limits, and `streams` also many calls on
one stream. `handlers` and `router` answer calls. `engines` chooses what else than this process may
compute. `failures` has the errors that end a process. For operators there are `observe` (metrics),
`observation` (pages over HTTP), `logs` (also refusals and problems), `health` (also probes) and
`page` (the status page). `supervision` sends messages to systemd, `process` starts and stops.

Invariant: a step is on disk before any other party receives a message about it.

`auditing` has passes and findings of the auditors. `web`, `web_settings`, `http` and `admission`
are the HTTPS door.
"""

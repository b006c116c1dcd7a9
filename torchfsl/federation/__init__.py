"""The objects of users: a federated model, its servers, a simulation. Alone in naming protocols.

Read `federated` (model, optimizer, plan and rounds in one object), `planning` (from settings to a
plan, and a plan in words), `local_servers` (both servers in this process) with `privacy_state`,
`results`, `simulation` with `checkpoints`, `remote_servers` (a client of two running servers) and
`coordinator` (the coordinator of a task on them).
Names load on first use: `torchfsl.Federated`, `torchfsl.simulate`, `torchfsl.connect`.
"""

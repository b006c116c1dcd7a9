"""What a training step changed, and that nothing else did.

`table` (rows of one table), `rest` (everything else), `touched` and `untouched` rows, `hooks`,
`guards` (nothing moves unseen), `optimizers` (which are understood), `snapshot` (the way back).

Invariant: a change is either sent, kept in the residual, or refused by name.
"""

"""The changes of a training step, and checks that nothing else changed.

`recorder` (a model in a round), `table` (rows of one table), `saved` (what they held), `touched`
and `untouched` rows, `absent` ones, `rest` (everything else), `hooks`, `guards` (nothing moves
unseen), `optimizers` (which are understood), `probe` (which step row by row), `snapshot` (the way
back), `saving` (state_dict and its loading).

Invariant: a change is either sent, kept in the residual, or refused by name.
"""

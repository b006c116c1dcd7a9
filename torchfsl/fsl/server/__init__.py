"""One server of two.

`server` and `states` have the steps of a round, `fetching` works outside rounds. `book`, `filing`,
`reports` and `spool` hold the messages that have arrived. `evaluation`, `loaded`, `running_sums`,
`row_tables` and `proofs` compute from these messages, in memory that `sizes` bounds. `opening` has
one set, one pair of shares and one opening. It uses `commitments` (rows that open only if enough
clients sent them) and `ranges` (values that no honest sum reaches).

Invariant: a sum opens once, over reports that both servers accepted, or not at all.

`audited` has what an audit adds to a round. `norms` checks whether reports can add up to a sum.
"""

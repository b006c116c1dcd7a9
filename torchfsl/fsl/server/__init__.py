"""One server of two.

`server` and `states` (the steps of a round), `fetching` (outside any); `book`, `filing`,
`reports`, `spool` (what has arrived); `evaluation`, `loaded`, `running_sums`,
`row_tables`, `proofs` (what is computed from it, in memory that `sizes` bounds);
`opening` (one set, one pair of shares, one opening), with `commitments` (rows that open only if
enough clients sent them) and `ranges` (what no honest sum reaches).

Invariant: a sum opens once, over reports that both servers accepted, or not at all.

`audited`: what an audit adds to a round. `norms`: whether reports can add up to a sum.
"""

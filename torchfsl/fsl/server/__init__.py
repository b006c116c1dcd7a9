"""One server of two.

`server` (the states of a round), `reports` (what has arrived), `report_parts`, `evaluation` and
`running_sums` (what is computed from it), `opening` (sums out of shares), `spool` (memory).

Invariant: a sum opens once, over reports that both servers accepted, or not at all.
"""

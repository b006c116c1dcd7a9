"""What all parties agree on.

`plan` (the agreement), `layout` (trees over a segment), `planner` (the cheapest layout),
`coin` (a hash seed that no party chooses), `statement`, `proof_groups` and `proof_shape` (what
reports prove), `headroom` (that no sum of them leaves its ring).

Invariant: a plan that exists is valid, and nothing in it depends on a client's data.
"""

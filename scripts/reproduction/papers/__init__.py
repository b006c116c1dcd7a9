"""The rows of docs/papers.md: every numbered claim, table row and figure of the four papers.

`row` says what a row is, `fsl`, `sesa`, `sefl` and `privhfl` list the rows of one paper each, and
`figures` has what they take from results/. `scripts.reproduction.papers_tables` makes the page.
"""

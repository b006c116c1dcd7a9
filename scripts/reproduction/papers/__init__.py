"""The rows of docs/papers.md: every numbered claim, table row and figure of the four papers.

`fsl.toml`, `sesa.toml`, `sefl.toml` and `privhfl.toml` list the rows of one paper each, a row a
line. `row` says what a row is and reads them, and `figures` has what they take from results/.
`scripts.reproduction.papers_tables` makes the page.
"""

"""The tables and figures of the FSL paper's section 7, one module a subject."""

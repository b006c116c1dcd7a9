"""The specification, run: the blocks of its pages as one program, and tests of it."""

"""Attacks on the library and what was found: forged reports, distinguishers, fuzzing."""

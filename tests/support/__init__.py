"""Shared by tests: plans, models, oracles, a wire that listens and alters."""

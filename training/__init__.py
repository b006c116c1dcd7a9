"""Federated experiments in one process; run `python -m training --help` from the checkout."""

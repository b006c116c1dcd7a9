"""Estimates of a round: `estimate` (counts over rates), `measuring` (rates, from small rounds).

Invariant: bytes and memory are counted, never measured; nothing is allocated for the plan asked of.
"""

"""Clients with unlike models that learn from each other's answers to private queries (PrivHFL).

Read `settings` (what can be chosen), then `trainer` (an iteration: expand, select, query, retrain).
"""

"""Differential privacy of aggregates: noise from both servers, and what it guarantees.

`multiplier`, `calibrate` and `guarantee` take a plan of `fsl`.
`docs/specification/privacy-proofs.md` has proofs.
"""

from torchfsl.fsl.privacy import Guarantee, calibrate, guarantee, l2_bound, multiplier

__all__ = ["Guarantee", "calibrate", "guarantee", "l2_bound", "multiplier"]

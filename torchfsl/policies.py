"""Rare policies for `Federated(rows=, rest=)`; the usual ones are `torchfsl.Rows`, `Dense`, `TopK`.

Also `Residual`, what a client has not sent yet.
"""

from torchfsl.engine.policies import BinTop, BlockSample, Fixed, RandomK
from torchfsl.engine.residual import Residual

__all__ = ["BinTop", "BlockSample", "Fixed", "RandomK", "Residual"]

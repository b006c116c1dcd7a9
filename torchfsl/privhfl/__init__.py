"""Clients with unlike models learn from each other's predictions: private queries, one server.

After PrivHFL. A client asks others for their logits on its own images and gets the sum over the
clients that answer. The server and the answering clients see uniform values only, and no party sees
another's weights. Read `querying` (the way in), `plan`, `graph` and `network` (what a model may
be), `ring_tensors`, `linear_maps` and `quantise`. Then read `gates` (what each party holds, and the
protocol of one layer), `comparison_tables` and `comparison_trees`, `draws`, `dealer`, `messages`
(the wire). The parties are in `querying_party`, `answering_party` and `query_server`. The rest are
`online` and `lane`, `relay`, `integer_twin`. The paper's own protocol leaks, and is not here.

Invariant: the logits of `secure` and of the integer twin are bit-identical.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.privhfl.plan import QueryPlan as QueryPlan
    from torchfsl.privhfl.plan import explain as explain
    from torchfsl.privhfl.querying import Answer as Answer
    from torchfsl.privhfl.querying import Querying as Querying
    from torchfsl.privhfl.querying import make_plan as make_plan
    from torchfsl.privhfl.relay import Cost as Cost
    from torchfsl.privhfl.ring_tensors import Ring as Ring

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()

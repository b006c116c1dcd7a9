"""Everything that a client sends and a server applies, whatever the protocol; no torch.

Read `segments` (tensors and their parts), `plan`, `update` and its `norm_bound`, `opened` (a
round's sums), `server_model` with `server_optimizers`, `optimizer_settings` and `growing` (new
rows). `aggregation` is the interface that every protocol offers and that the engine and the
trainer know. `plain` sums in the clear behind it. `taps`, `correlated_noise`, `participation` and
`clipping` serve differential privacy. `halves` rounds what clients get to 16 bits.

Several protocols need `budgets`, `bins` and `stretches` (of positions), `plan_json` (their plans as
text), `framing` (headers), `whole_model` (its bytes), `accounting` (of noise) and `rounds` (what
servers check). So do they `in_process`: servers whose time is counted, and clients whose sessions
are remembered.

Invariant: equal aggregates make model and optimizer bit-identical, on any machine.

`plan_fields`: whole numbers, hex and random bytes in plans. `sum_bound`: the bound on the
aggregate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfsl.faces import lazily

if TYPE_CHECKING:
    from torchfsl.submodel.aggregation import Aggregation as Aggregation
    from torchfsl.submodel.aggregation import Participant as Participant
    from torchfsl.submodel.aggregation import Receipt as Receipt
    from torchfsl.submodel.aggregation import RoundSession as RoundSession
    from torchfsl.submodel.opened import Opened as Opened
    from torchfsl.submodel.plan import SubmodelPlan as SubmodelPlan
    from torchfsl.submodel.segments import Segment as Segment
    from torchfsl.submodel.segments import SegmentSpec as SegmentSpec
    from torchfsl.submodel.segments import TensorSpec as TensorSpec
    from torchfsl.submodel.server_model import ServerModel as ServerModel
    from torchfsl.submodel.server_optimizers import ServerAdam as ServerAdam
    from torchfsl.submodel.server_optimizers import ServerSGD as ServerSGD
    from torchfsl.submodel.update import RawSegment as RawSegment
    from torchfsl.submodel.update import SegmentUpdate as SegmentUpdate
    from torchfsl.submodel.update import Update as Update
    from torchfsl.submodel.update import quantise as quantise

__getattr__, __dir__ = lazily(__name__)
__all__ = __dir__()

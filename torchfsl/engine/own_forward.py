"""Whether embedding classes with their own `forward` look up the ids that they are given.

Hooks see what a module is called with. A scaled embedding passes its ids on, so what hooks see is
what is read. Learned positions (BART, OPT, fairseq) read other rows than they are given.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Lookup = nn.Embedding | nn.EmbeddingBag

_PLAIN: Final = (nn.Embedding.forward, nn.EmbeddingBag.forward)
_READS: Final = ("embedding", "embedding_bag")


class _Reads(TorchFunctionMode):
    """Notes the ids that lookups in one weight read."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._weight, self.ids = weight, list[torch.Tensor]()
        self.others = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(value is self._weight for value in (*args, *kwargs.values())):
            name = getattr(func, "__name__", "")
            ids = [value for value in args[:2] if value is not self._weight]
            if name in _READS and len(args) > 1 and ids:  # torch has weight first, functional last
                self.ids.append(ids[0].detach().flatten())
            elif name != "__get__":
                self.others = True
        return func(*args, **kwargs)


def passes_ids_on(module: Lookup) -> bool:
    """Whether a call of the module reads exactly the rows that it is given.

    A class with torch's own `forward` does. Another one is called a few times with three ids,
    without gradients; what it returns is dropped.
    """
    if type(module).forward in _PLAIN:
        return True
    if module.max_norm is not None:  # a lookup would change the weight
        return False
    last = module.num_embeddings - 1
    inside = ([last, 0, last // 2], [last // 3, last, last])
    if not all(_read(module, ids) == ids for ids in inside):
        return False
    # A class that maps ids (a hash, a clamp) takes those outside, too. An accelerator would stop.
    outside = ([last + 1, 0, 0], [-1, 0, 0]) if module.weight.device.type == "cpu" else ()
    return all(_read(module, ids) is None for ids in outside)


def _read(module: Lookup, ids: list[int]) -> list[int] | None:
    """The rows that a call with these ids reads; None where it fails or reads in other ways."""
    given = torch.tensor([ids], device=module.weight.device)
    was = module.training
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([]), _Reads(module.weight) as reads:
            nn.Module.__call__(module, given)
    except Exception:
        return None
    finally:
        module.training = was
    found: list[int] = torch.cat(reads.ids).tolist() if reads.ids else []
    return None if reads.others else found

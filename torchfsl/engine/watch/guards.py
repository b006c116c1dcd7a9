"""What must not happen behind the engine's back between attach and the end of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Inventory
from torchfsl.errors import ParameterError


class Guards:
    """Remembers what was attached; complains about what came, went or moved since."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        inventory: Inventory,
        take_inventory: Callable[[], Inventory],
    ) -> None:
        """Remember the parameters as they are now; `take_inventory` says what they are later."""
        self._model, self._optimizers, self._inventory = model, optimizers, inventory
        self._take_inventory = take_inventory
        self._attached = self._identities()
        self._some_table = inventory.all_tables[:1]
        self.begin()

    def begin(self) -> None:
        """A round begins: note the versions of parameters that nothing attached trains."""
        self._versions = {n: p._version for n, p in self._inventory.bystanders.items()}
        self._forms = self._current_forms()

    def check_unchanged(self) -> None:
        """Refuse another set of parameters than at attach.

        Raises:
            ParameterError: one was added, replaced, frozen or unfrozen.
        """
        if self._identities() != self._attached:
            self._refuse()

    def check_nothing_new(self) -> None:
        """At the end of a round: refuse parameters that came during it, and other dtypes.

        Raises:
            ParameterError: one was added, replaced, converted or moved.
        """
        known = {identity for identity, _ in self._attached}
        if any(identity not in known for identity, _ in self._identities()):
            self._refuse()
        for name, form in self._current_forms().items():
            if form != self._forms[name]:
                was, now = (f"{dtype} on {device}" for dtype, device in (self._forms[name], form))
                raise ParameterError(
                    f"{name} was {was} when the round began and is {now} now: convert or move the "
                    "model between rounds. After a new dtype, call fed.detach() and make a new "
                    "torchfsl.Federated"
                )

    def _refuse(self) -> None:
        now, before = self._take_inventory().fingerprint, self._inventory.fingerprint
        differences = sorted(set(now.items()) ^ set(before.items()))
        odd = differences[0][0] if differences else next(iter(now), "a parameter")
        raise ParameterError(
            f"{odd} differs from the parameter at the time of torchfsl.Federated (a parameter was "
            "added, replaced, frozen or unfrozen): call fed.detach() and make a new "
            "torchfsl.Federated"
        )

    def check_bystanders(self) -> None:
        """Refuse changes of parameters that are not part of the update.

        Raises:
            ParameterError: one changed since `begin`.
        """
        for name, parameter in self._inventory.bystanders.items():
            if parameter._version != self._versions[name]:
                raise ParameterError(
                    f"{name} changed during the round, but no optimizer of Federated trains this "
                    "parameter, so the change would be lost: pass all optimizers, "
                    "Federated(model, [a, b], ...), or set requires_grad=False"
                )

    def check_not_noised(self) -> None:
        """Refuse per-sample gradients of Opacus on an optimizer attached without it.

        Raises:
            ParameterError: a table has them.
        """
        for table in self._some_table:
            if getattr(table.weight, "grad_sample", None) is not None:
                raise ParameterError(
                    f"{table.name}: make_private of Opacus was called after torchfsl.Federated, "
                    "and its noise changes every row: call make_private first, and pass "
                    "Federated the optimizer that make_private returned"
                )

    def _current_forms(self) -> dict[str, tuple[torch.dtype, torch.device]]:
        tables = {table.name: table.weight for table in self._inventory.all_tables}
        trained = {**tables, **self._inventory.rest}
        return {name: (p.dtype, p.device) for name, p in trained.items()}

    def _identities(self) -> list[tuple[int, bool]]:
        """Which parameters there are, in the model and in the optimizers."""
        trained = [p for o in self._optimizers for g in o.param_groups for p in g["params"]]
        return [(id(p), p.requires_grad) for p in [*self._model.parameters(), *trained]]


def still_message(name: str) -> str:
    """What to say of a parameter that moved although steps move nothing."""
    return (
        f"{name} changed during a round with source='gradient', in which the optimizers of "
        "Federated do not step: pass Federated the optimizer that trains this parameter, or use "
        "source='delta'"
    )

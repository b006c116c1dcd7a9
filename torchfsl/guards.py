"""What must not happen behind the engine's back between attach and the end of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import Optimizer

from torchfsl.errors import ParameterError
from torchfsl.inventory import Inventory


class Guards:
    """Remembers what was attached; complains about what came, went or moved since."""

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], inventory: Inventory
    ) -> None:
        """Remember the parameters as they are now."""
        self._model, self._optimizers, self._inventory = model, optimizers, inventory
        self._attached = self._identities()
        self._some_table = inventory.all_tables[:1]
        self.begin()

    def begin(self) -> None:
        """A round begins: note the versions of parameters that nothing attached trains."""
        self._versions = {n: p._version for n, p in self._inventory.bystanders.items()}

    def check_unchanged(self, take_inventory: Callable[[], Inventory]) -> None:
        """Refuse another set of parameters than at attach.

        Raises:
            ParameterError: one was added, replaced, frozen or unfrozen.
        """
        if self._identities() == self._attached:
            return
        now, before = take_inventory().fingerprint, self._inventory.fingerprint
        differences = sorted(set(now.items()) ^ set(before.items()))
        odd = differences[0][0] if differences else next(iter(now), "a parameter")
        raise ParameterError(
            f"{odd} is not what it was when the model was attached (a parameter was added, "
            "replaced, frozen or unfrozen): call handle.remove(), attach again and make a new plan"
        )

    def check_bystanders(self) -> None:
        """Refuse changes of parameters that are not part of the update.

        Raises:
            ParameterError: one changed since `begin`.
        """
        for name, parameter in self._inventory.bystanders.items():
            if parameter._version != self._versions[name]:
                raise ParameterError(
                    f"{name} changed during the round, but no attached optimizer trains it, so the "
                    "change would be lost: attach all optimizers, engine.attach(model, [a, b]), or "
                    "set requires_grad=False if it is to stay local"
                )

    def check_not_noised(self) -> None:
        """Refuse per-sample gradients of Opacus on an optimizer attached without it.

        Raises:
            ParameterError: a table has them.
        """
        for table in self._some_table:
            if getattr(table.weight, "grad_sample", None) is not None:
                raise ParameterError(
                    f"{table.name}: Opacus took over after attach, and its noise lands on every "
                    "row: attach the optimizer that make_private returned"
                )

    def _identities(self) -> list[tuple[int, bool]]:
        """Which parameters there are, in the model and in the optimizers."""
        trained = [p for o in self._optimizers for g in o.param_groups for p in g["params"]]
        return [(id(p), p.requires_grad) for p in [*self._model.parameters(), *trained]]


def still_message(name: str) -> str:
    """What to say of a parameter that moved although steps move nothing."""
    return (
        f"{name} changed during a round of source='gradient', in which the attached optimizers "
        "move nothing: attach the optimizer that trains it, or use source='delta'"
    )

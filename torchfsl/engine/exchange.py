"""The tensors of a model that travel: by name, by segment, to the servers and back."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.engine.inventory import Inventory, spec
from torchfsl.engine.policies import Fixed, RestPolicy, Rows
from torchfsl.errors import ParameterError, refuse
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import BUFFERS, TensorSpec

REST: Final = "rest"
"""Segment of everything trained that is not sent by rows."""

ROWS: Final = "rows"
"""Stands for the segments of all tables, where encodings are given by name."""


class Exchange:
    """The names in plans of one model. The tensors are the model's own, not copies."""

    def __init__(
        self, inventory: Inventory, average_buffers: bool, parts: Sequence[str] = ()
    ) -> None:
        """`average_buffers` adds the floating-point buffers; `parts` are patterns of names.

        The parameters outside tables that the first fitting pattern fits are a segment of its name.
        """
        self._inventory = inventory
        self._buffers = inventory.buffers if average_buffers else {}
        self._parts: dict[str, list[str]] = {}
        parts = [part for part in parts if part not in (ROWS, REST)]
        for name in inventory.rest:
            fitting = (part for part in parts if fnmatch.fnmatchcase(name, part))
            self._parts.setdefault(next(fitting, REST), []).append(name)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything a plan may name: parameters and averaged buffers."""
        tables = {t.name: t.weight.detach() for t in self._inventory.all_tables}
        rest = {name: p.detach() for name, p in self._inventory.rest.items()}
        return tables | rest | self._buffers

    @property
    def parts(self) -> list[str]:
        """Names of the segments of parameters outside tables."""
        return list(self._parts)

    @property
    def left_buffers(self) -> list[str]:
        """Names of floating-point buffers, BatchNorm's say, that no plan names."""
        return [name for name in self._inventory.buffers if name not in self._buffers]

    @property
    def segment_tensors(self) -> dict[str, tuple[TensorSpec, ...]]:
        """Segments and their tensors as a plan describes them."""
        segments = {
            name: tuple(spec(t.name, t.weight) for t in group)
            for name, group in self._inventory.tables.items()
        }
        rest = self._inventory.rest
        for part, names in self._parts.items():
            segments[part] = tuple(spec(n, rest[n]) for n in names)
        if self._buffers:
            segments[BUFFERS] = tuple(spec(n, b) for n, b in self._buffers.items())
        return segments

    @property
    def layout(self) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
        """By segment the names and shapes of its tensors: what positions in it mean."""
        return {
            name: [(t.name, tuple(t.shape)) for t in tensors]
            for name, tensors in self.segment_tensors.items()
        }

    def check_state(self, state: object) -> None:
        """Refuse what is not a `Hooks.state_dict`, and residuals whose places mean other rows here.

        Raises:
            ParameterError: if it is another object, or if a segment with a residual has other
                tensors than `layout` names. Earlier states have no layout and are accepted.
        """
        parts = {"residuals", "personal", "states", "rounds"}
        if (
            not isinstance(state, Mapping)
            or {*state} - {"layout"} != parts
            or not isinstance(state["residuals"], Mapping)
        ):
            raise ParameterError(
                "expected a state from fed.state_dict(), got another object: pass the object that "
                "fed.state_dict() returned"
            )
        mine, saved = self.layout, state.get("layout")
        for name in {name for one in state["residuals"].values() for name in one.get("parts", ())}:
            theirs = mine.get(name, ()) if saved is None else saved.get(name, ())
            theirs = [(tensor, tuple(shape)) for tensor, shape in theirs]
            if not theirs or theirs != mine.get(name):
                raise ParameterError(
                    f"segment {name!r}: the saved residuals belong to {theirs}, and this model "
                    f"has {mine.get(name)}: send the residuals under the old plan, or discard "
                    "them with state['residuals'] = {}"
                )

    def server_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the tensors, as NumPy arrays with the plan's dtypes.

        Raises:
            ParameterError: a tensor holds NaN, as tables do after a private retrieval, or is
                infinite.
        """
        described = {t.name: t for group in self.segment_tensors.values() for t in group}
        for name, tensor in self.tensors.items():
            if not bool(tensor.isfinite().all()):
                what = "NaN" if bool(tensor.isnan().any()) else "infinite values"
                raise ParameterError(
                    f"{name} holds {what}, so servers cannot start from this model. A client that "
                    "fetches rows holds NaN in the other rows. Call fed.load(servers), or create "
                    "the model again"
                )
        return {
            name: tensor.to(getattr(torch, described[name].dtype)).cpu().numpy().copy()
            for name, tensor in self.tensors.items()
        }

    def check_whole(self, state: object) -> None:
        """Refuse anything but the state of a whole model, as `server_state` gives it.

        Raises:
            ParameterError: no mapping, a tensor is missing or of another shape or kind, or one
                holds NaN or infinite values.
        """
        given = _as_state(state, "load")
        if not given:
            raise ParameterError(
                "expected the tensors of the model, got an empty mapping: pass ServerModel.state "
                "or fed.server_state()"
            )
        mine = self.tensors
        for name, value in given.items():
            _check_shape(mine, name, value)
            _check_values(name, value)
        if missing := [name for name in mine if name not in given]:
            some = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
            raise ParameterError(
                f"the state lacks {some} ({len(missing)} of {len(mine)} tensors of the model): "
                "load all tensors with fed.load(servers). To change one tensor, call "
                "model.weight.copy_(values) under torch.no_grad()"
            )

    @torch.no_grad()
    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Overwrite tensors by name, in place; those that are not named stay.

        Raises:
            ParameterError: an unknown name or another shape; nothing is changed then.
        """
        mine = self.tensors
        for name, value in state.items():
            _check_shape(mine, name, value)
        for name, value in state.items():
            mine[name].copy_(torch.from_numpy(np.array(_as_array(value))))

    @torch.no_grad()
    def complete(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Overwrite rows of tables that hold NaN, in place.

        Raises:
            ParameterError: no mapping, a table is missing or has another shape or kind, or holds
                NaN or infinite values; nothing is changed then.
        """
        state = _as_state(state, "complete")
        tables = self._inventory.all_tables
        for table in tables:
            if table.name not in state or np.shape(state[table.name]) != tuple(table.weight.shape):
                raise ParameterError(
                    f"complete() expects {table.name} of shape {tuple(table.weight.shape)}: pass "
                    "the state of the model at the servers, ServerModel.state"
                )
            _check_values(table.name, state[table.name])
        for table in tables:
            weight = table.weight.detach()
            absent = torch.nonzero(weight.isnan().any(dim=1)).flatten()
            rows = torch.from_numpy(_as_array(state[table.name])[absent.cpu().numpy()])
            weight.index_copy_(0, absent, rows.to(weight))

    def check_plan(self, plan: SubmodelPlan) -> None:
        """Refuse a plan that was made for another model.

        Raises:
            ParameterError: a segment differs.
        """
        mine = self.segment_tensors
        theirs = {segment.name: segment.tensors for segment in plan.segments}
        if mine != theirs:
            odd = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
            raise ParameterError(
                f"segment {odd[0]!r} of the plan does not fit this "
                f"model{_difference(mine.get(odd[0], ()), theirs.get(odd[0], ()))}: use the plan "
                "of this model. After a new dtype or shape, call fed.detach() and make a new "
                "torchfsl.Federated"
            )

    def fixed_positions(
        self, rows: Rows | None, rest: RestPolicy
    ) -> dict[str, npt.NDArray[np.int64]] | None:
        """By segment, the positions that `Fixed` policies name; None where rows are not fixed."""
        tables = self._inventory.tables
        fixed = {}
        if tables:
            if rows is None or rows.fixed is None:
                return None
            for name, group in tables.items():
                ids = [rows.fixed.ids(t.name) + t.offset for t in group]
                fixed[name] = torch.cat(ids).numpy()
        if isinstance(rest, Fixed):
            fixed[REST] = rest.ids().numpy()
        return fixed or None


def _as_state(given: object, method: str) -> Mapping[str, Any]:
    """A state as `Hooks.load` and `complete` take it.

    Raises:
        ParameterError: no mapping, with what to pass instead.
    """
    if isinstance(given, Mapping):
        return given
    has_state = isinstance(getattr(given, "state", None), Mapping)
    remedy = "its .state" if has_state else "ServerModel.state or fed.server_state()"
    refuse(f"the argument of {method}()", given, f"pass {remedy}, a mapping from names to arrays")


def _as_array(value: Any) -> npt.NDArray[Any]:
    """An array, or a tensor's values, wherever it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype is torch.bfloat16 else value
    return np.asarray(value)


def _check_shape(mine: Mapping[str, torch.Tensor], name: str, value: Any) -> None:
    """Refuse a tensor that the model does not have in this shape.

    Raises:
        ParameterError: it has none, or another.
    """
    shape = tuple(np.shape(value))
    if name not in mine or tuple(mine[name].shape) != shape:
        held = f"shape {tuple(mine[name].shape)}" if name in mine else "no tensor of this name"
        raise ParameterError(
            f"the state has {name} of shape {shape}, and the model has {held}: load the state of "
            "servers that run this model's plan"
        )


def _check_values(name: str, value: Any) -> None:
    """Refuse values that no model has.

    Raises:
        ParameterError: no floating-point numbers, or some are NaN or infinite.
    """
    array = _as_array(value)
    if array.dtype.kind != "f":
        raise ParameterError(
            f"{name} has dtype {array.dtype}, expected a floating-point dtype: load the state of "
            "the servers, ServerModel.state"
        )
    if num_odd := array.size - np.count_nonzero(np.isfinite(array)):
        raise ParameterError(
            f"{name} holds {num_odd} values that are NaN or infinite: load an earlier model. If "
            "rows are NaN after a private retrieval, call fed.load(servers, only_missing=True) "
            "to load these rows"
        )


def _difference(mine: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> str:
    """The first tensor that only one of both has, or that both have in two forms, in words."""
    planned = {tensor.name: tensor for tensor in theirs}
    here = {tensor.name for tensor in mine}
    for names, where in ((planned.keys() - here, "plan"), (here - planned.keys(), "model")):
        if names:
            return f" ({min(names)} is in the {where} alone: local= must be equal everywhere)"
    for tensor in mine:
        other = planned.get(tensor.name, tensor)
        if other != tensor:
            return (
                f" ({tensor.name} is {tensor.dtype}{tensor.shape} here and "
                f"{other.dtype}{other.shape} in the plan)"
            )
    return ""

"""Error feedback: what a client did not send, kept and added to its next change.

The law: over any number of rounds, what was sent (as the servers decode it) plus the residual is
the sum of the changes. It holds for positions not chosen, rounding and clipping errors, and rows
that found no place in the cuckoo table. Sums are kept in float64, in which float32 changes add up
exactly unless they lie more than 29 binary digits apart.

A `Residual` belongs to one client, and must never leave in another's report; the hooks keep one for
each (`Hooks.residuals`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.errors import ParameterError
from torchfsl.submodel.update import RawSegment

_FORMAT = 1


@dataclass(slots=True)
class SparseRows:
    """Some rows of an index space.

    Attributes:
        ids: int64 [r], strictly increasing.
        values: float64 [r, tau].
        pending: bool [r]; the row waits to be sent, its value is more than a rounding error.
    """

    ids: torch.Tensor
    values: torch.Tensor
    pending: torch.Tensor

    @classmethod
    def empty(cls, tau: int, device: torch.device) -> SparseRows:
        """No rows."""
        return cls(
            torch.empty(0, dtype=torch.int64, device=device),
            torch.empty(0, tau, dtype=torch.float64, device=device),
            torch.empty(0, dtype=torch.bool, device=device),
        )

    @classmethod
    def gather(cls, parts: list[SparseRows]) -> SparseRows:
        """The sum of several row sets; a row is pending if it is pending in one of them."""
        ids, where = torch.unique(torch.cat([p.ids for p in parts]), return_inverse=True)
        stacked = torch.cat([p.values for p in parts])
        values = torch.zeros(ids.numel(), stacked.shape[1], dtype=torch.float64, device=ids.device)
        values.index_add_(0, where, stacked)
        waits = torch.zeros(ids.numel(), dtype=torch.int64, device=ids.device)
        waits.index_add_(0, where, torch.cat([p.pending for p in parts]).to(torch.int64))
        return cls(ids, values, waits > 0)

    def take(self, keep: torch.Tensor) -> SparseRows:
        """The rows marked by `keep`, bool [r]."""
        return SparseRows(self.ids[keep], self.values[keep], self.pending[keep])


class Residual:
    """One client's unsent update, by segment. Fill it by `Hooks.update`, close by `settle`."""

    def __init__(self) -> None:
        self._loaded: dict[str, torch.Tensor | SparseRows] = {}
        self._file: Path | None = None  # holds the parts while they are not in memory
        self._staged: dict[str, torch.Tensor | SparseRows] = {}

    def __repr__(self) -> str:
        return f"Residual({', '.join(sorted(self._parts)) or 'empty'}, {self.num_bytes} bytes)"

    @property
    def _parts(self) -> dict[str, torch.Tensor | SparseRows]:
        if self._file is not None:
            file, self._file = self._file, None
            self.load_state_dict(torch.load(file, weights_only=True), keep_staged=True)
            file.unlink()
        return self._loaded

    def spill(self, folder: Path) -> None:
        """Wait in a file of `folder`, which is private to this user, until it is needed again."""
        if not self._loaded:
            return
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            torch.save(self.state_dict(), file)
        self._loaded, self._file = {}, Path(file.name)

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        tensors = [t for part in self._loaded.values() for t in _tensors(part).values()]
        return sum(t.numel() * t.element_size() for t in tensors)

    def pending(self, name: str) -> torch.Tensor:
        """Ids of the rows of segment `name` that wait to be sent: int64, increasing."""
        part = self._parts.get(name)
        if not isinstance(part, SparseRows):
            return torch.empty(0, dtype=torch.int64)
        return part.ids[part.pending]

    def dense(self, name: str, shape: tuple[int, int], device: torch.device) -> torch.Tensor | None:
        """The residual of a fully stored segment: float64 [m, tau] on `device`, or None.

        Args:
            name: of the segment.
            shape: (m, tau) of the segment.
            device: of the result.

        Raises:
            ParameterError: if the stored segment has another shape.
        """
        part = self._parts.get(name)
        if part is None:
            return None
        if not isinstance(part, torch.Tensor) or tuple(part.shape) != shape:
            raise _mismatch(name)
        return part.to(device)

    def rows(self, name: str, tau: int, device: torch.device) -> SparseRows:
        """The residual of a segment of rows, on `device`.

        Args:
            name: of the segment.
            tau: values per row.
            device: of the result.

        Raises:
            ParameterError: if the stored segment has another width.
        """
        part = self._parts.get(name)
        if part is None:
            return SparseRows.empty(tau, device)
        if not isinstance(part, SparseRows) or part.values.shape[1] != tau:
            raise _mismatch(name)
        return SparseRows(part.ids.to(device), part.values.to(device), part.pending.to(device))

    def stage(self, name: str, remaining: torch.Tensor | SparseRows) -> None:
        """Note the residual of segment `name` after the update now being made is sent.

        Args:
            name: of the segment.
            remaining: change and old residual without what is sent, dense or by rows.
        """
        self._staged[name] = remaining

    def settle(
        self,
        raw: Mapping[str, RawSegment],
        errors: Mapping[str, npt.NDArray[np.float64]],
        unmatched: Mapping[str, npt.NDArray[np.int64]] | None = None,
    ) -> None:
        """Commit the staged state, with what quantisation and matching left behind.

        Args:
            raw: what `Hooks.update` returned.
            errors: by segment, float64 [k, tau]: value minus what its quantised form decodes to.
            unmatched: by segment, indices that were not sent after all.
        """
        for name, remaining in self._staged.items():
            indices, sent = raw[name].positions, raw[name].values
            missed = np.isin(indices, (unmatched or {}).get(name, np.empty(0, np.int64)))
            left = np.asarray(errors[name], dtype=np.float64).reshape(sent.shape)
            left = np.where(missed[:, None], np.asarray(sent, dtype=np.float64), left)
            self._parts[name] = _add(remaining, indices, left, missed)
        self._staged = {}

    def discard(self) -> None:
        """Forget the staged state: the update was not sent, nothing changes."""
        self._staged = {}

    def state_dict(self) -> dict[str, Any]:
        """The whole state, to continue bit-identically; copies of tensors for `torch.save`."""
        parts = {
            name: {key: tensor.clone() for key, tensor in _tensors(part).items()}
            for name, part in self._parts.items()
        }
        return {"format": _FORMAT, "parts": parts}

    def load_state_dict(self, state: Mapping[str, Any], *, keep_staged: bool = False) -> None:
        """Take over a `state_dict`.

        Args:
            state: what `state_dict` returned.
            keep_staged: keep the staged state; by default it is forgotten.

        Raises:
            ParameterError: if `state` is not one of this class.
        """
        if state.get("format") != _FORMAT or not isinstance(state.get("parts"), Mapping):
            raise ParameterError(
                f"expected a Residual state of format {_FORMAT}, got another object: pass the "
                "object that state_dict() returned"
            )
        parts: dict[str, torch.Tensor | SparseRows] = {}
        for name, tensors in state["parts"].items():
            if set(tensors) == {"values"}:
                parts[name] = tensors["values"].clone()
            elif set(tensors) == {"ids", "values", "pending"}:
                parts[name] = SparseRows(**{key: t.clone() for key, t in tensors.items()})
            else:
                raise ParameterError(
                    f"the Residual state of segment {name!r} has unknown fields: pass the object "
                    "that state_dict() returned"
                )
        self._loaded, self._file = parts, None
        if not keep_staged:
            self._staged = {}


def _tensors(part: torch.Tensor | SparseRows) -> dict[str, torch.Tensor]:
    if isinstance(part, torch.Tensor):
        return {"values": part}
    return {"ids": part.ids, "values": part.values, "pending": part.pending}


def _mismatch(name: str) -> ParameterError:
    return ParameterError(
        f"the residual of segment {name!r} belongs to a plan with other shapes: make a new "
        "Residual, or load the state that was saved under this plan"
    )


def _add(
    remaining: torch.Tensor | SparseRows,
    indices: npt.NDArray[np.int64],
    left: npt.NDArray[np.float64],
    missed: npt.NDArray[np.bool_],
) -> torch.Tensor | SparseRows:
    if isinstance(remaining, torch.Tensor):
        device = remaining.device
        where = torch.from_numpy(indices).to(device)
        return remaining.index_add_(0, where, torch.from_numpy(left).to(device))
    device = remaining.ids.device
    keep = np.any(left != 0, axis=1)
    new = SparseRows(
        torch.from_numpy(indices[keep]).to(device),
        torch.from_numpy(left[keep]).to(device),
        torch.from_numpy(missed[keep]).to(device),
    )
    return SparseRows.gather([remaining, new])


_LIMIT: Final = 1 << 30


class Residuals:
    """By client, its residual.

    Args:
        limit_bytes: beyond this the residuals that were not asked for longest wait in files of a
            private temporary folder, which goes when this object does. They are private data.
    """

    def __init__(self, limit_bytes: int = _LIMIT) -> None:
        if limit_bytes < 0:
            raise ParameterError(f"limit_bytes is {limit_bytes}: choose 0 bytes or more")
        self._limit = limit_bytes
        self._by_client: dict[int | None, Residual] = {}  # asked for longest ago first
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __repr__(self) -> str:
        return f"Residuals({len(self)} clients, {self.num_bytes} bytes in memory)"

    def __len__(self) -> int:
        return len(self._by_client)

    @property
    def num_bytes(self) -> int:
        """Memory they hold."""
        return sum(r.num_bytes for r in self._by_client.values())

    @property
    def only(self) -> Residual:
        """The one of the only client; before any was named, that of the client to come.

        Raises:
            ParameterError: there are several.
        """
        if len(self._by_client) > 1:
            raise ParameterError(
                f"{len(self._by_client)} clients trained this model, and each has its own "
                "residual: choose a client with fed.hooks.residuals.of(client_id)"
            )
        return next(iter(self._by_client.values()), None) or self.of(None)

    def of(self, client_id: int | None) -> Residual:
        """The residual of a client; None for one without a number."""
        mine = self._by_client.pop(client_id, None)
        if mine is None and list(self._by_client) == [None]:
            mine = self._by_client.pop(None)
        mine = Residual() if mine is None else mine
        self._make_room(mine)
        self._by_client[client_id] = mine
        return mine

    def state_dict(self) -> dict[int | None, dict[str, Any]]:
        """By client its state, fit for `torch.save`; without clients that have no residual."""
        states = {client: r.state_dict() for client, r in self._by_client.items()}
        return {client: state for client, state in states.items() if state["parts"]}

    def load_state_dict(self, state: Mapping[int | None, Mapping[str, Any]]) -> None:
        """Take over a `state_dict`.

        Raises:
            ParameterError: not a state of this class.
        """
        loaded: dict[int | None, Residual] = {}
        for client, one in state.items():
            loaded[client] = Residual()
            loaded[client].load_state_dict(one)
        self._by_client = loaded

    def _make_room(self, used: Residual) -> None:
        total = self.num_bytes + used.num_bytes
        for residual in self._by_client.values():
            if total <= self._limit:
                return
            total -= residual.num_bytes
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="torchfsl-residuals-")
            residual.spill(Path(self._folder.name))

"""Click-through rates over fields of categories: a client fetches only the rows of its values.

The lines are in time order: the last tenth is the test, for validation the tenth before it. A
client is whom a column names, or lines are spread over clients at random. A value that the
training lines hold fewer than `least` times is its field's rare one, which is one row; the
vocabulary is taken to be public.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import nn

from training.data.click_tables import Clicks
from training.data.prf import Stream
from training.section_checks import ConfigError
from training.sections import Ctr
from training.tasks import metrics
from training.tasks.recommendation import Split
from training.tasks.task import Batch, Budget, Ids, LocalPlan, Task, Work, evaluating, seeded

log = logging.getLogger(__name__)

TABLE: Final = "field_embedding.weight"
_HELD_OUT: Final[dict[Split, tuple[float, float]]] = {"test": (0.9, 1.0), "validation": (0.8, 0.9)}
"""Shares of the lines between which the held-out ones lie; training ends where they begin."""
_TOGETHER: Final = 8192


class ClicksTask(Task):
    """Clicks, a client a user or a share of the lines.

    Args:
        data: lines.
        settings: of samples.
        network: makes the model from `rows` and `fields`; its table is `field_embedding`.
        local: length of local training.
        seed: of model, batches and partition.
        evaluate: which lines are held out.

    Raises:
        ConfigError: too few lines, or a budget that holds none.
    """

    metric = "auc"
    retrieves = True

    def __init__(
        self,
        data: Clicks,
        settings: Ctr,
        *,
        network: Callable[..., nn.Module],
        local: LocalPlan,
        seed: int,
        evaluate: Split = "test",
    ) -> None:
        """Number values and spread lines."""
        fields, lines = len(data.values), len(data.labels)
        if settings.rows_per_client < fields:
            raise ConfigError(
                f"ctr.rows_per_client is {settings.rows_per_client}, fewer than the {fields} "
                f"fields of a line: set ctr.rows_per_client to {fields} or more"
            )
        start, stop = (int(share * lines) for share in _HELD_OUT[evaluate])
        if not 0 < start < stop:
            raise ConfigError(f"the data has {lines} lines, expected 10 or more: pass more data")
        self.settings, self.local, self.seed, self._network = settings, local, seed, network
        self.rows_per_client: Budget = settings.rows_per_client
        self._ids, self.num_rows = _numbered(data, start, settings.least)
        self._labels, self._held_out = data.labels, np.arange(start, stop)
        if len(set(data.labels[start:stop].tolist())) < 2:
            log.warning(
                "all %d lines of the evaluation have the label %d, so the AUC is not defined "
                "(null in files)",
                stop - start,
                data.labels[start],
            )
        if data.clients is None:
            owners = Stream(seed, "lines of clients").integers(settings.clients, start)
        else:
            owners = data.clients[:start]
        order = np.argsort(owners, kind="stable")
        ends = np.flatnonzero(np.diff(owners[order])) + 1
        self._lines = np.split(order, ends)
        self.num_clients = len(self._lines)

    def build_model(self) -> nn.Module:
        """The model with seeded initial weights."""
        make = functools.partial(self._network, rows=self.num_rows, fields=self._ids.shape[1])
        return seeded(make, self.seed)

    def work(self, round_number: int, client: int) -> Work:
        """As many random lines of the client as its budget of rows holds, in batches."""
        stream = Stream(self.seed, "work", round_number, client)
        own = self._lines[client]
        taken, rows = [], set[int]()
        for line in own[stream.permutation(len(own))][: self.settings.lines].tolist():
            needed = rows | set(self._ids[line].tolist())
            if len(needed) <= self.settings.rows_per_client:
                taken.append(line)
                rows = needed
        lines = np.array(taken, dtype=np.int64)
        batches = []
        for chosen in self.local.batches(lambda: lines[stream.permutation(len(lines))]):
            labels = torch.from_numpy(self._labels[chosen])
            batches.append(Batch((torch.from_numpy(self._ids[chosen]),), labels))
        return Work({TABLE: np.array(sorted(rows), dtype=np.int64)}, tuple(batches))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """AUC and logloss of the held-out lines."""
        logits = []
        with evaluating(model) as device:
            for start in range(0, len(self._held_out), _TOGETHER):
                lines = self._held_out[start : start + _TOGETHER]
                output = model(torch.from_numpy(self._ids[lines]).to(device))
                logits.append((output[:, 1] - output[:, 0]).double().cpu().numpy())
        logit, labels = np.concatenate(logits), self._labels[self._held_out]
        probability = 1 / (1 + np.exp(-np.clip(logit, -50, 50)))
        return {"auc": metrics.auc(labels, logit), "logloss": metrics.logloss(labels, probability)}

    def baselines(self) -> dict[str, float]:
        """Logloss of the training lines' share of clicks, and AUC of the untrained model."""
        share = self._labels[: self._held_out[0]].mean()
        labels = self._labels[self._held_out]
        return {
            "share_of_clicks_logloss": metrics.logloss(labels, np.full(len(labels), share)),
            "untrained_auc": self.evaluate(self.build_model())["auc"],
        }


def _numbered(data: Clicks, train: int, least: int) -> tuple[Ids, int]:
    """Rows of one table by line and field, int64 `[n, F]`, and how many rows there are."""
    columns, total = [], 0
    for values in data.values.values():
        codes: dict[str, int] = {}
        of_line = np.fromiter((codes.setdefault(one, len(codes)) for one in values), np.int64)
        counts = np.bincount(of_line[:train], minlength=len(codes))
        known = sorted(value for value, code in codes.items() if counts[code] >= max(1, least))
        places = np.full(len(codes), total)  # the rare one first
        places[[codes[value] for value in known]] = total + 1 + np.arange(len(known))
        columns.append(places[of_line])
        total += 1 + len(known)
    return np.stack(columns, axis=1).astype(np.int64), total

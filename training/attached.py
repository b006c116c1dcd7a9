"""Model, optimizer and hooks of an experiment; the trainer and each worker have one set."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl import BlockTopK, Dense, Federated, FixedPoint, Rows, TopK
from torchfsl.engine.exchange import REST
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.inventory import take_inventory
from torchfsl.engine.policies import RestPolicy
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError
from torchfsl.policies import BinTop, BlockSample
from training.config import Config
from training.local import make_optimizer
from training.section_checks import ConfigError
from training.sections import Encoding
from training.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Attached:
    """A federated model; every client in turn trains it.

    Attributes:
        model: the torch model, with its wrappers.
        optimizer: of the clients.
        fed: both, federated; it has no plan yet.
    """

    model: nn.Module
    optimizer: Optimizer
    fed: Federated

    @property
    def hooks(self) -> Hooks:
        """On model and optimizer."""
        return self.fed.hooks


def attach(config: Config, task: Task) -> Attached:
    """Make it from the settings; nothing else is needed for it.

    Raises:
        ConfigError: this machine or this build of torch lacks the device, or a clip is for nothing.
    """
    try:
        model = task.build_model().to(torch.device(config.device))
    except (RuntimeError, AssertionError) as error:  # torch raises both
        raise ConfigError(f"device {config.device!r} cannot be used: {error}") from error
    optimizer = make_optimizer(model, config.local)
    tables: list[str] = []
    if config.aggregation == "dense":
        rows = _selection(config, task)[0]
        tables = [t.name for t in take_inventory(model, [optimizer], rows).all_tables]
    chosen = make_settings(config, task, tables)
    fed = Federated(
        model, optimizer, rows=chosen.rows, rest=chosen.rest, encoding=chosen.encoding,
        encodings=chosen.encodings, source=chosen.source,
    )  # fmt: skip
    fed.hooks.states.mode = "fresh"
    _check_parts(config.encoding, fed.hooks)
    return Attached(model, optimizer, fed)


def make_settings(config: Config, task: Task, tables: Collection[str] = ()) -> Settings:
    """What of the model is sent, and how.

    `dense` is the baseline without submodels: it sends every parameter and selects nothing. `sefl`
    does the same, because it cannot hide a choice. `central` sends nothing: its plan names tensors
    only.

    Args:
        config: the settings.
        task: task, which says what clients retrieve.
        tables: names of the tables that go by rows if rows are selected. Under `dense` they keep
            the encoding of rows, so that the same settings give the same model.
    """
    rows, rest = _selection(config, task)
    encodings = _encodings(config, has_rows=rows is not None, is_whole=isinstance(rest, Dense))
    if config.aggregation in ("dense", "sefl", "central"):
        rows, rest = None, Dense()
        if encodings:
            of_rows = encodings.pop("rows", _encoding(config.encoding))
            encodings = dict.fromkeys(tables, of_rows) | encodings
    return Settings(
        rows=rows,
        rest=rest,
        encoding=_encoding(config.encoding),
        encodings=encodings,
        source="gradient" if config.local.optimizer == "gradient" else "delta",
    )


def _selection(config: Config, task: Task) -> tuple[Rows | None, RestPolicy]:
    """Which rows and which of the rest are sent where an aggregation selects."""
    rows: Rows | None = None
    if task.retrieves:
        rows = Rows(error_feedback=False)
    elif config.preset == "textcnn" and config.sentences.table == "rows":
        sentences = config.sentences
        rows = Rows(top=sentences.rows, error_feedback=sentences.error_feedback)
    elif config.is_language and config.language.decoder != "tied":
        rows = Rows(top=config.language.rows, tables=("embedding.table",))
    feedback, rest = config.rest.error_feedback, config.rest
    if rest.policy == "topk":
        return rows, TopK(rest.amount, error_feedback=feedback)
    if rest.policy == "blocks":
        return rows, BlockTopK(rest.amount, rest.block, error_feedback=feedback)
    if rest.policy == "bins":
        return rows, BinTop(rest.amount, rest.block, error_feedback=feedback)
    if rest.policy == "sample":
        return rows, BlockSample(rest.amount, rest.block)
    return rows, Dense()


def _encoding(settings: Encoding) -> FixedPoint:
    try:
        return FixedPoint(settings.ring_bits, settings.frac_bits, settings.clip, settings.rounding)
    except ParameterError as error:
        raise ConfigError(f"encoding.ring_bits, frac_bits and clip: {error}") from error


def _check_parts(settings: Encoding, hooks: Hooks) -> None:
    """Refuse patterns of `rest_clips` that leave nothing for `rest_clip`, or fit nothing.

    Raises:
        ConfigError: names the first one.
    """
    segments, encodings = hooks.exchange.segment_tensors, hooks.settings.encodings
    if REST in encodings and REST not in segments:
        if not settings.rest_clips:
            raise ConfigError(
                "encoding.rest_ring_bits is for parameters outside tables, and this model has no "
                "such parameters: leave out encoding.rest_ring_bits"
            )
        last = settings.rest_clips[-1]
        raise ConfigError(
            "encoding.rest_clips matches all parameters, so encoding.rest_clip has no effect: "
            f"leave out the last pattern, {last!r}, and set rest_clip to its clip"
        )
    for part, _ in settings.parts:
        if part in encodings and part not in segments:
            raise ConfigError(
                f"encoding.rest_clips has {part!r}, which adds no parameter to those of earlier "
                "patterns. No pattern matches "
                f"{', '.join(t.name for t in segments.get(REST, ())[:4])}, ... Correct the "
                "pattern, or put it before wider ones"
            )


def _encodings(config: Config, *, has_rows: bool, is_whole: bool) -> dict[str, FixedPoint]:
    """Those of segments, where two servers, or none, add them up."""
    given = config.encoding
    if config.aggregation not in ("plain", "fsl", "dense"):
        return {}
    wanted = {}
    if given.rest_ring_bits:
        wanted["rest"] = (given.rest_ring_bits, given.rest_clip)
        if is_whole:
            wanted |= {part: (given.rest_ring_bits, clip) for part, clip in given.parts}
    if has_rows and given.rows_ring_bits:
        wanted["rows"] = (given.rows_ring_bits, given.rows_clip)
    encodings = {}
    for name, (bits, clip) in wanted.items():
        try:
            encodings[name] = FixedPoint.finest(
                bits, clip, max_clients=config.clients_per_round, rounding=given.rounding
            )
        except ParameterError as error:
            which = name if name in ("rest", "rows") else "rest"
            own = f"{which}_clip" if name == which else f"rest_clips for {name}"
            raise ConfigError(f"encoding.{which}_ring_bits and {own}: {error}") from error
    return encodings

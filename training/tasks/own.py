"""A custom task for `python -m training own --task MODULE:NAME`.

NAME is a class or function that takes the run's `training.config.Config` and returns a
`training.tasks.task.Task`. A subclass of `Task` inherits the members that it leaves out. Python
finds the module as `python -m` does: in the working folder, or installed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import nn

from training.config import Config, imported
from training.section_checks import ConfigError
from training.tasks.task import Task

log = logging.getLogger(__name__)

_FLOATS: Final = (torch.float16, torch.float32, torch.float64)

_MEMBERS = (
    "num_clients metric retrieves rows_per_client widths build_model work evaluate final_test "
    "baselines"
)


def own_task(config: Config) -> Task:
    """Import the module and make the task.

    Raises:
        ConfigError: the name leads to no task; the message says what is missing.
    """
    task: Task = imported(config.task, "--task")(config)
    missing = [name for name in _MEMBERS.split() if not hasattr(task, name)]
    if missing:
        raise ConfigError(
            f"--task {config.task} is a {type(task).__name__}, which lacks {', '.join(missing)}: "
            "let the class inherit from training.tasks.task.Task"
        )
    if not isinstance(model := task.build_model(), nn.Module):
        raise ConfigError(
            f"--task {config.task}: build_model returned a {type(model).__name__}, expected a "
            "torch.nn.Module: return the model"
        )
    if not isinstance(task.num_clients, int | np.integer):
        raise ConfigError(
            f"--task {config.task}: num_clients is {task.num_clients!r}: set num_clients to a "
            "whole number"
        )
    for name, value in model.state_dict().items():
        if value.is_floating_point() and value.dtype not in _FLOATS:
            raise ConfigError(
                f"--task {config.task}: {name} has dtype {value.dtype}, which servers cannot add: "
                "call model.float() in build_model. To train in bfloat16, set local.precision = "
                '"bfloat16"'
            )
    if task.retrieves and not _is_budget(task.rows_per_client):
        raise ConfigError(
            f"--task {config.task}: rows_per_client is {task.rows_per_client!r}, but retrieves is "
            "true: set rows_per_client to the most rows that a client retrieves, as one whole "
            "number or one per table"
        )
    _warn_of_norms(model)
    return task


def _is_budget(given: object) -> bool:
    budgets = list(given.values()) if isinstance(given, Mapping) else [given]
    return bool(budgets) and all(type(budget) is int and budget >= 1 for budget in budgets)


def _warn_of_norms(model: nn.Module) -> None:
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    ]
    if norms:
        log.warning(
            "BatchNorm (%s) keeps the statistics from build_model in all rounds, because clients "
            "do not update these statistics. Use GroupNorm or LayerNorm instead",
            ", ".join(norms),
        )

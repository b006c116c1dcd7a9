"""A client's training: the model and optimizer it uses, and the loop over its batches."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from training.config import imported
from training.section_checks import ConfigError
from training.sections import Local
from training.tasks.task import Batch, Work


def make_optimizer(model: nn.Module, local: Local) -> Optimizer:
    """The client's optimizer; under `gradient` the engine keeps it from changing the model.

    Raises:
        ConfigError: torch has no such optimizer, or it cannot be made with these settings.
    """
    if ":" in local.optimizer:
        optimizer = imported(local.optimizer, "local.optimizer")(model, local)
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"local.optimizer {local.optimizer} returned a {type(optimizer).__name__}, "
                "expected a torch.optim.Optimizer: return one optimizer for the parameters of "
                "the model"
            )
    else:
        optimizer = _named_optimizer(model, local)
    for group in optimizer.param_groups:
        if "lr" in group:  # under the name that torch's schedules give it
            group.setdefault("initial_lr", group["lr"])
    return optimizer


def _named_optimizer(model: nn.Module, local: Local) -> Optimizer:
    """Torch's, with the rate, and the weight decay where it has one, of the settings."""
    name = {"gradient": "SGD", "sgd": "SGD", "adam": "Adam"}.get(local.optimizer, local.optimizer)
    kinds = {
        kind.__name__: kind
        for kind in vars(torch.optim).values()
        if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    if name not in kinds:
        near = difflib.get_close_matches(name.lower(), map(str.lower, kinds), n=3)
        shown = [kind for kind in kinds if kind.lower() in near] or sorted(kinds)
        raise ConfigError(
            f"local.optimizer is {local.optimizer!r}: choose 'gradient', 'sgd', 'adam', a name in "
            f"torch.optim ({', '.join(shown)}), or MODULE:NAME of a function that returns an "
            "optimizer"
        )
    options: dict[str, Any] = {"lr": local.lr}
    if local.weight_decay or "weight_decay" in inspect.signature(kinds[name]).parameters:
        options["weight_decay"] = local.weight_decay
    if local.optimizer == "adam":
        options["eps"] = local.adam_eps
    try:
        return kinds[name](model.parameters(), **options)
    except TypeError as error:
        raise ConfigError(f"local.optimizer {name} does not accept {options}: {error}") from error


def begin_local_training(
    model: nn.Module, optimizer: Optimizer, local: Local, round_number: int
) -> None:
    """Bring model and optimizer into the state in which every client starts a round.

    The optimizer takes the round's rate. The engine gives every client an optimizer without state
    of earlier rounds. BatchNorm normalises by its running statistics, which no client changes. The
    few and similar samples of one client do not estimate the population's statistics. For example,
    they would always normalise the client's user embedding to zero. Statistics are also more than
    the servers need to see.
    """
    for group in optimizer.param_groups:
        if "initial_lr" in group:
            group["lr"] = group["initial_lr"] * _fall(local, round_number)
    model.train()
    freeze_statistics(model)


def rate_of(local: Local, round_number: int) -> float:
    """Rate of the client's optimizer in a round."""
    return local.lr * _fall(local, round_number)


def _fall(local: Local, round_number: int) -> float:
    return local.lr_decay ** ((round_number - 1) // local.lr_decay_rounds)


def freeze_statistics(model: nn.Module) -> None:
    """Let BatchNorm normalise by its running statistics, and leave them as they are."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def train(model: nn.Module, optimizer: Optimizer, work: Work, local: Local) -> None:
    """One optimizer step for every batch."""
    start = [p.detach().clone() for p in model.parameters()] if local.proximal else []
    for batch in work.batches:
        optimizer.zero_grad()
        loss(model, batch, local).backward()  # type: ignore[no-untyped-call]
        if local.proximal:
            pull_back(model, start, local.proximal)
        if local.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), local.clip_norm)
        optimizer.step()
    optimizer.zero_grad()


def pull_back(model: nn.Module, start: list[torch.Tensor], strength: float) -> None:
    """Add the gradient of `strength / 2` times the squared distance from the round's start.

    That is FedProx's term (Li et al., MLSys 2020, equation 2). Rows that the client did not fetch
    are NaN, and stay where they are; so do parameters without a gradient.

    Args:
        model: after `backward`.
        start: its parameters when the round began, in order.
        strength: the paper's mu.
    """
    for parameter, before in zip(model.parameters(), start, strict=True):
        if parameter.grad is not None:
            moved = torch.nan_to_num(parameter.detach() - before)
            parameter.grad.add_(moved, alpha=strength)


def loss(model: nn.Module, batch: Batch, local: Local) -> torch.Tensor:
    """Cross-entropy of a batch, or the losses that the model returns, scaled as `local` says."""
    device = next(model.parameters()).device
    low = local.precision == "bfloat16"
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        output: torch.Tensor = model(*(tensor.to(device) for tensor in batch.inputs))
    if batch.labels is None:
        total = output.mean() if local.loss == "mean" else output.sum()
    else:
        _check_labels(batch.labels, output)
        labels = batch.labels.to(device)
        total = functional.cross_entropy(output.float(), labels, reduction=local.loss)
    return total / local.loss_divisor


def _check_labels(labels: torch.Tensor, output: torch.Tensor) -> None:
    """Refuse labels outside the model's classes; -100 marks an ignored label in PyTorch.

    Raises:
        ConfigError: naming the first.
    """
    classes = output.shape[1] if output.ndim > 1 else 0
    wrong = labels[(labels != -100) & ((labels < 0) | (labels >= classes))]
    if classes and len(wrong):
        raise ConfigError(
            f"a Batch has the label {int(wrong[0])}, expected 0 to {classes - 1}, because the "
            f"model has {classes} outputs: number the classes from 0, and give the model one "
            "output per class"
        )

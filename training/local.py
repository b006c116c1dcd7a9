"""A client's training: the model and optimizer it uses, and the loop over its batches."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from training.sections import Local
from training.tasks.task import Batch, Work


def make_optimizer(model: nn.Module, local: Local) -> Optimizer:
    """The client's optimizer; under `gradient` the engine keeps it from changing the model."""
    if local.optimizer == "adam":
        return torch.optim.Adam(
            model.parameters(), lr=local.lr, eps=local.adam_eps, weight_decay=local.weight_decay
        )
    return torch.optim.SGD(model.parameters(), lr=local.lr, weight_decay=local.weight_decay)


def begin_local_training(
    model: nn.Module, optimizer: Optimizer, local: Local, round_number: int
) -> None:
    """Bring model and optimizer into the state in which every client starts a round.

    The optimizer forgets what it knows, so a client needs no state between rounds, and takes the
    round's rate. BatchNorm normalises by its running statistics, which nobody changes: the few and
    similar samples of one client are no estimate of the population's (its own user embedding, for
    one, would always be normalised to zero), and statistics are more than the servers need to see.
    """
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["lr"] = rate_of(local, round_number)
    model.train()
    freeze_statistics(model)


def rate_of(local: Local, round_number: int) -> float:
    """Rate of the client's optimizer in a round."""
    return local.lr * local.lr_decay ** ((round_number - 1) // local.lr_decay_rounds)


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
        labels = batch.labels.to(device)
        total = functional.cross_entropy(output.float(), labels, reduction=local.loss)
    return total / local.loss_divisor

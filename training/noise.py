"""Noise of both servers under `--aggregation sefl`: what it guarantees, in words."""

from __future__ import annotations

from torchfsl.sefl import SeflPlan
from torchfsl.sefl.privacy import Guarantee, guarantee
from training.config import Config
from training.federation import Federation


def guaranteed(config: Config, plan: SeflPlan) -> Guarantee:
    """What the noise guarantees a client that is in every round of the run.

    Raises:
        ParameterError: the plan has no noise, or the extra `privacy` is missing.
    """
    return guarantee(plan, delta=config.sefl.delta, rounds=config.rounds)


def explained(config: Config, federation: Federation) -> str:
    """The plan in words, and what its noise guarantees where it has any.

    Raises:
        ParameterError: it has noise, and the extra `privacy` is missing.
    """
    text, plan = federation.attached.fed.explain(), federation.plan
    if not isinstance(plan, SeflPlan) or not plan.noise_sigma:
        return text
    found = guaranteed(config, plan)
    return (
        f"{text}\nnoise of {config.sefl.noise:g} times l2_norm at each server: over "
        f"{found.rounds} rounds a client's updates have epsilon {found.epsilon_aggregator:.3g} "
        f"against the aggregator and against the key holder, {found.epsilon_public:.3g} against "
        f"everybody else, at delta {found.delta:g}"
    )

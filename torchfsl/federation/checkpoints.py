"""Checkpoints of simulations: made, written, read, and what may go on from them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchfsl.errors import ParameterError
from torchfsl.federation.federated import Federated
from torchfsl.federation.local_servers import LocalServers
from torchfsl.federation.planning import LANES, Planner
from torchfsl.federation.results import SimulationResult
from torchfsl.fsl.plan.plan import Plan


def checkpoint_of(resume: object, save: str | Path | None) -> Mapping[str, Any] | None:
    """The checkpoint of what `resume` names.

    Raises:
        ParameterError: it is not a checkpoint of `simulate`, or `save` names no existing folder.
    """
    if save is not None and not Path(save).absolute().parent.is_dir():
        raise ParameterError(f"save= names {save}, whose folder does not exist: make it first")
    found = resume.checkpoint if isinstance(resume, SimulationResult) else resume
    if isinstance(found, str | Path):
        if not Path(found).is_file():
            raise ParameterError(
                f"resume= names {found}, which is not a file: pass what save= wrote"
            )
        found = torch.load(found, weights_only=True)
    if found is None:
        return None
    if not isinstance(found, Mapping) or {"servers", "federated", "rounds"} - {*found}:
        raise ParameterError(
            "resume= takes a SimulationResult, its checkpoint, or the file that save= wrote"
        )
    return found


def keep(
    result: SimulationResult, fed: Federated, servers: LocalServers, save: str | Path | None
) -> None:
    """Make the checkpoint, in which an interrupted round is to come; write it whole or not."""
    result.checkpoint = {
        "servers": servers.state_dict() | {"number": servers.closed},
        "federated": fed.state_dict(),
        "rounds": [dataclasses.asdict(one) for one in result.rounds],
    }
    if save is not None:
        part = Path(save).with_name(Path(save).name + ".part")
        try:
            torch.save(result.checkpoint, part)
            part.replace(save)
        except (OSError, RuntimeError) as error:  # torch raises both; the rounds are not lost
            part.unlink(missing_ok=True)
            warnings.warn(
                f"the checkpoint could not be written to {save} ({error}): the result's "
                "checkpoint holds it",
                stacklevel=5,
            )


def take_plan(fed: Federated, checkpoint: Mapping[str, Any] | None) -> None:
    """Use the plan of the rounds so far, if there are any.

    Raises:
        ParameterError: they have another plan, or a privacy budget would begin a second time.
    """
    if checkpoint is None:
        if fed.hooks.rounds and getattr(fed.planner.plan, "noise_sigma", 0):
            raise ParameterError(
                "clients have reported under this plan before, and a new simulation would count "
                "their reports from 0: pass resume=, the earlier result, or use another Federated "
                "and plan",
                code="budget-unknown",
            )
        return
    text = checkpoint["federated"].get("plan")
    if isinstance(text, str) and not fed.hooks.rounds and isinstance(fed.planner.plan, Plan | None):
        plan, own = Plan.from_json(text), fed.planner.plan
        if own is not None and own != dataclasses.replace(
            plan, session=own.session, hash_seed=own.hash_seed, server_keys=own.server_keys
        ):
            raise ParameterError(
                "resume= was made under another plan than fed.plan: resume with the settings of "
                "that plan, or start without resume=, which is another task with its own budget",
                code="another-task",
            )
        if own is None and (other := _first_difference(fed.planner, plan)):
            raise ParameterError(
                f"resume= was made with {other}: give Federated the same, or start without resume=",
                code="another-task",
            )
        fed.plan = plan


def _first_difference(planner: Planner, plan: Plan) -> str:
    """The first option of a Federated without a plan that a plan has otherwise; "" if none."""
    options = planner.options
    if planner.lane != plan.lane:
        average = next(name for name, lane in LANES.items() if lane == plan.lane)
        return f"average={average!r}, and this Federated has average={options['average']!r}"
    for name, value in options.items():
        had = getattr(plan, name, None)
        if name != "min_clients" and value is not None and had is not None and value != had:
            return f"{name}={had!r}, and this Federated has {name}={value!r}"
    return ""


def go_on(
    fed: Federated, servers: LocalServers, checkpoint: Mapping[str, Any], rounds: int
) -> None:
    """Take over clients' and servers' state."""
    mode = fed.hooks.states.mode
    fed.load_state_dict(checkpoint["federated"])
    fed.hooks.states.mode = mode
    servers.load_state_dict(checkpoint["servers"])
    if servers.number + 1 >= rounds:
        raise ParameterError(
            f"resume= has {servers.number + 1} rounds and rounds is {rounds}: ask for more in all"
        )

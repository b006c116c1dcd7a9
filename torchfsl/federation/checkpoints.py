"""Checkpoints of simulations: made, written, read, and what may go on from them."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchfsl.errors import ParameterError
from torchfsl.faces import outside
from torchfsl.federation.federated import Federated
from torchfsl.federation.local_servers import LocalServers
from torchfsl.federation.planning import LANES
from torchfsl.federation.results import SimulationResult
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.plan import SubmodelPlan

_DRAWN = {"session", "hash_seed", "server_keys"}
"""Fields that differ between tasks of equal settings."""
_ASKED = ("max_clients", "min_clients", "max_weight", "l2_bound", "clip", "proofs")
"""Options of `Federated` that a plan holds as they were given."""


def checkpoint_of(resume: object, save: str | Path | None) -> Mapping[str, Any] | None:
    """The checkpoint of what `resume` names.

    Raises:
        ParameterError: it is not a checkpoint of `simulate`, or `save` names no existing folder.
    """
    if save is not None and not Path(save).absolute().parent.is_dir():
        raise ParameterError(f"the folder of save={save} does not exist: create this folder first")
    found = resume.checkpoint if isinstance(resume, SimulationResult) else resume
    if isinstance(found, str | Path):
        if not Path(found).is_file():
            raise ParameterError(
                f"resume= names {found}, which is not a file: pass the path of the file that save= "
                "wrote"
            )
        found = torch.load(found, weights_only=True)
    if found is None:
        return None
    if not isinstance(found, Mapping) or {"servers", "federated", "rounds"} - {*found}:
        raise ParameterError(
            "resume= expects a SimulationResult, the checkpoint of one, or the path that save= "
            f"wrote to, got {type(resume).__name__}"
        )
    return found


def keep(
    result: SimulationResult,
    fed: Federated,
    servers: LocalServers,
    seed: int,
    save: str | Path | None,
) -> None:
    """Make the checkpoint, in which an interrupted round is to come; write it whole or not."""
    result.checkpoint = {
        "servers": servers.state_dict() | {"number": servers.closed},
        "federated": fed.state_dict(),
        "seed": seed,
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
                f"torchfsl could not write the checkpoint to {save} ({error}): result.checkpoint "
                "has the same state",
                stacklevel=outside(),
            )


def take_plan(
    fed: Federated, checkpoint: Mapping[str, Any] | None, *, by_weight: bool = False
) -> None:
    """Use the plan of the rounds so far, if there are any.

    Args:
        fed: with a plan, or with options for one.
        checkpoint: of the rounds so far.
        by_weight: whether a missing plan would be made for weights.

    Raises:
        ParameterError: they have another plan, or a privacy budget would begin a second time.
    """
    if checkpoint is None:
        if fed.hooks.rounds and getattr(fed.planner.plan, "noise_sigma", 0):
            raise ParameterError(
                "clients have reported under this plan before, and a new simulation would count "
                "their reports from 0: pass resume= with the earlier result, or make a new "
                "Federated",
                code="budget-unknown",
            )
        return
    text = checkpoint["federated"].get("plan")
    if not isinstance(text, str):
        return
    own = fed.planner.plan
    differing = _other_options(fed, text, by_weight) if own is None else _other_fields(own, text)
    if differing:
        raise ParameterError(
            f"the plan of resume= differs ({'; '.join(differing)[:90]}): pass Federated the "
            "settings of the earlier run, or leave out resume= for a new task with its own "
            "privacy budget",
            code="another-task",
        )
    if not fed.hooks.rounds and isinstance(own, Plan | None):
        fed.plan = Plan.from_json(text)


def check_seed(checkpoint: Mapping[str, Any], seed: int) -> None:
    """Refuse another seed, with which the next rounds would not be those of one run."""
    kept = checkpoint.get("seed", seed)
    if kept != seed:
        raise ParameterError(
            f"the rounds of resume= used seed={kept}, and seed is {seed}: pass seed={kept}, so "
            "that the result equals that of one run"
        )


def _other_fields(own: SubmodelPlan, text: str) -> list[str]:
    """In words the fields in which two plans differ, without what is drawn for each task."""
    mine, kept = json.loads(own.to_json()), json.loads(text)
    names = sorted({*mine, *kept} - _DRAWN, key=lambda name: (name == "segments", name))
    return [_told(n, mine.get(n), kept.get(n)) for n in names if mine.get(n) != kept.get(n)]


def _other_options(fed: Federated, text: str, by_weight: bool) -> list[str]:
    """In words the options in which a plan differs from the one that would be made."""
    options, plan = fed.planner.options, Plan.from_json(text)
    lane = "weight" if by_weight else LANES[options["average"]]
    found = [] if lane == plan.lane else [_told("lane", lane, plan.lane)]
    options = options | {"min_clients": min(options["min_clients"], plan.max_clients)}
    asked = {name: options[name] for name in _ASKED if options.get(name) is not None}
    kept = {name: getattr(plan, name) for name in asked}
    return found + [_told(n, asked[n], kept[n]) for n in asked if asked[n] != kept[n]]


def _told(name: str, own: object, kept: object) -> str:
    """A difference in words; `lane` by the average that it stands for."""
    if name == "lane":
        averages = {lane: average for average, lane in LANES.items()}
        name, own, kept = "average", averages.get(own, own), averages.get(kept, kept)  # type: ignore[call-overload]
    if isinstance(own, list | dict) or isinstance(kept, list | dict):
        return f"{name} differ"
    return f"{name} is {own!r} here and {kept!r} there"


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
            f"rounds is {rounds}, the number of all rounds, and resume= has had "
            f"{servers.number + 1} of them: pass rounds={servers.number + 2} or more"
        )

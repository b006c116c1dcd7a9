"""When one task makes way for another: who has to agree, and what is kept of the old one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchfsl.errors import ProtocolError
from torchfsl.service.state import vault
from torchfsl.service.task import Task

log = logging.getLogger("torchfsl.service.succession")


def is_live(model: Mapping[str, Any], halted: str) -> bool:
    """Whether a task has come to something and can go on: its model's version, why it halted."""
    return bool(model.get("version")) and not halted


def check(party: int, model: Mapping[str, Any], halted: str, *, consents: bool) -> None:
    """Refuse a task in place of a live one, where owner or operator does not agree to it.

    Args:
        party: of the server.
        model: version and digest of the one it has.
        halted: why its task stands still, or empty.
        consents: whether the owner does, so that it is the operator who does not.

    Raises:
        ProtocolError: there is a live task.
    """
    if not is_live(model, halted):
        return
    remedy = (
        'its operator lets nobody replace it: replace = "owner" in the settings would'
        if consents
        else "set_up(..., replace=True), start(fed, replace=True) or --replace puts it aside"
    )
    rounds = model["version"]
    raise ProtocolError(
        f"server {party} holds another task, whose model has seen {rounds} rounds: {remedy}"
    )


def put_aside(folder: Path, task: bytes | None, model: Mapping[str, Any]) -> None:
    """Keep the task and the model that make way, if any round was applied: under `replaced/`."""
    if task is None or not model.get("version"):
        return
    kept = folder / "replaced" / Task.from_settings(json.loads(task)).plan.digest.hex()[:16]
    current = folder / "models" / f"version-{model['version']}.fsl"
    vault.write_whole(kept / "task.json", task)
    vault.write_whole(kept / "model.fsl", current.read_bytes())
    log.info("the model of the task before is kept", extra={"path": str(kept)})

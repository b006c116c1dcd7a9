"""A task to whose model rounds were applied makes way only if owner and both operators agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.federation import make_state
from tests.support.network import Pair
from torchfsl.errors import ProtocolError
from torchfsl.service.task import Task, decode_model


def start(pair: Pair, zero: str, one: str) -> None:
    """Both servers, each with what its operator permits."""
    text = pair.config.read_text()
    for party, who in enumerate((zero, one)):
        pair.config.write_text(text.replace('replace = "owner"', f'replace = "{who}"'))
        pair.start(party)


def digests(pair: Pair) -> list[str]:
    return [pair.owner.links.info(party)["plan_digest"] for party in (0, 1)]


@pytest.mark.parametrize("zero", ["owner", "nobody"])
def test_without_consent_of_all_a_live_task_stays_at_both_servers(
    zero: str, tmp_path: Path
) -> None:
    with Pair(tmp_path) as pair:
        start(pair, zero, "nobody")
        pair.set_up()
        pair.set_up()  # nothing was applied to its model: nothing is lost
        pair.open()
        pair.assert_serves()
        before = digests(pair), pair.owner.links.common_model()
        new = pair.owner.bind(pair._plan)
        state = make_state(new.plan)
        said = r"model version 1. To replace it, both operators set .* replace=True"
        with pytest.raises(ProtocolError, match=said):
            pair.owner.set_up(new, state)
        with pytest.raises(ProtocolError, match="To replace it, its operator sets replace"):
            pair.owner.set_up(new, state, replace=True)
        assert (digests(pair), pair.owner.links.common_model()) == before
        pair.owner._check_replaceable = lambda *_: None  # type: ignore[method-assign]
        for replace in (False, True):  # the servers hold to it by themselves
            with pytest.raises(ProtocolError, match=r"server . holds another task"):
                pair.owner.set_up(new, state, replace=replace)
        assert digests(pair)[1] == before[0][1]


def test_with_it_the_new_task_is_taken_and_the_old_model_is_kept(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        pair.assert_serves()
        old, model = pair.task, pair.owner.model(pair.task)
        pair.set_up(replace=True)
        assert pair.owner.links.common_model()[0] == 0
        pair.open()
        pair.assert_serves()
        for party in (0, 1):
            kept = pair.state(party) / "replaced" / old.plan.digest.hex()[:16]
            task = Task.from_settings(json.loads((kept / "task.json").read_text()))
            assert task == old
            found = decode_model(task, (kept / "model.fsl").read_bytes())
            assert found.digest() == model.digest()

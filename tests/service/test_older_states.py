"""Servers go on from the state folders that an earlier commit left, with equal sums and models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.service.test_node import Duo, some_updates
from tests.support import older_states
from torchfsl.fsl.messages import Kind
from torchfsl.service.state import vault
from torchfsl.service.state.steps import STEPS

ARCHIVES = sorted((Path(__file__).parent / "older_states").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("state", ["open", "committed"])
def test_servers_finish_a_round_that_an_earlier_commit_began(
    state: str, archive: Path, tmp_path: Path
) -> None:
    authorities = older_states.unpack(archive, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    duo = older_states.restarted(tmp_path / state, authorities)
    assert duo.digests() == [expected["digest_before"]] * 2
    if state == "open":
        for party, message in older_states.waiting_messages(tmp_path):
            duo.send(party, message)
        steps = STEPS[1:]
    else:
        steps = STEPS[STEPS.index(Kind.SHARE_COMMIT) :]
    for kind in steps:
        duo.step(2, kind)
    for node in duo.nodes:
        opened, number = vault.decode_opened(node.storage.result_bytes())
        assert number == 2
        assert expected["sums"].keys() == opened.sums.keys()
        assert all(np.array_equal(opened.sums[n], v) for n, v in expected["sums"].items())
    assert duo.digests() == [expected["digest_after"]] * 2
    assert_serves_another_round(duo)


def assert_serves_another_round(duo: Duo) -> None:
    duo.play(3, some_updates(duo.plan, 3))
    assert len(set(duo.digests())) == 1
    assert [node.storage.model_version["version"] for node in duo.nodes] == [3, 3]

"""One client's view of two running servers, over a connection that is made up."""

from __future__ import annotations

import types
from typing import Any

import pytest

from torchfsl.federation.remote_servers import RemoteServers


@pytest.mark.parametrize(("finished", "said"), [(True, True), (False, False)])
def test_a_client_without_a_round_left_is_told_so(
    finished: bool, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    connection: Any = types.SimpleNamespace(
        resume=lambda: None,
        has_finished=lambda: finished,
        plan=types.SimpleNamespace(max_rounds=0),
        wait_for_round=lambda **_: -1,
    )
    assert list(RemoteServers(connection, 3).rounds()) == []
    assert ("no round is left for client 3" in caplog.text) == said

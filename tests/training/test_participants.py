"""Whoever stands in a client's place for the trainer has the client's number."""

from __future__ import annotations

from typing import Any

import pytest

from training.aggregations.audit import Audit
from training.aggregations.dropout import Dropout


class Aggregation:
    plan: Any = None

    def participant(self, client: int) -> Any:
        named = type("Participant", (), {"plan": None, "client_id": client})
        return named()


@pytest.mark.parametrize("client", [0, 7])
def test_the_audit_and_dropouts_keep_the_number(client: int) -> None:
    audited = Audit(Aggregation()).participant(client)  # type: ignore[arg-type]
    assert audited.client_id == Dropout(audited).client_id == client

"""What the planner says of a union beforehand is what it costs and saves when measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.federation import Wire, make_servers, submit
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl import union as psu
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate


def embedding_plan(max_epochs: int = 1) -> Plan:
    spec = SegmentSpec(
        "items", "rows", (TensorSpec("e", (20_000, 4)),), k_max=64, tau=4, retrieve=True
    )
    return build_plan(
        [spec], encoding=FixedPoint(), max_clients=4, min_clients=1, max_epochs=max_epochs
    )


def test_advice_agrees_with_measured_bytes() -> None:
    plan = embedding_plan()
    rng = np.random.default_rng(0)
    rows = {c: np.sort(rng.choice(500, 64, replace=False)) + 19_500 for c in range(2)}
    union = np.unique(np.concatenate(list(rows.values())))
    advice = psu.advise_union(plan, "items", num_clients=2, rounds=3, union_bound=len(union))
    sent: dict[int, int] = dict.fromkeys(rows, 0)
    union_plan = psu.plan_union(plan, ["items"])
    servers = (
        Server(0, plan=union_plan, model=psu.union_model(union_plan)),
        Server(1, plan=union_plan, model=psu.union_model(union_plan)),
    )
    begin_round(servers, 0)
    for c, chosen in rows.items():
        update = psu.mask_update(union_plan, {"items": chosen})
        sent[c] = submit(Wire(servers), c, 0, update).upload_bytes
    found = psu.union_of(finish_round(servers))["items"]
    assert np.array_equal(found, union)
    assert set(sent.values()) == {advice.union_upload_bytes}
    smaller = psu.restrict(plan, {"items": found})
    assert len(smaller.to_json()) == advice.union_download_bytes
    for one_plan, upload, download in (
        (plan, advice.upload_bytes, advice.download_bytes),
        (smaller, advice.restricted_upload_bytes, advice.restricted_download_bytes),
    ):
        servers = make_servers(one_plan)
        receipts = []
        for number in range(3):
            begin_round(servers, number)
            client = Client(one_plan, Wire(servers), client_id=0)
            one = client.start_round(number, indices={"items": rows[0]})
            one.download()
            one.retrieve()
            values = np.ones((64, 4), dtype=np.int64)
            receipts.append(one.submit({"items": SegmentUpdate(rows[0], values)}))
            finish_round(servers)
        assert sum(r.upload_bytes for r in receipts) == upload
        assert sum(r.download_bytes for r in receipts) == download
    spent = advice.union_upload_bytes + advice.union_download_bytes
    saved = advice.upload_bytes - advice.restricted_upload_bytes
    saved += advice.download_bytes - advice.restricted_download_bytes
    assert advice.pays_in_bytes == (saved > spent)


def test_a_union_never_pays_in_one_round_and_pays_when_it_stays() -> None:
    plan = embedding_plan()
    options: dict[str, Any] = {"num_clients": 4, "union_bound": 250}
    once = psu.advise_union(plan, "items", rounds=1, **options)
    assert not once.pays_in_bytes
    assert once.break_even_rounds is not None
    assert once.break_even_rounds > 1
    just = psu.advise_union(plan, "items", rounds=once.break_even_rounds, **options)
    before = psu.advise_union(plan, "items", rounds=once.break_even_rounds - 1, **options)
    assert just.pays_in_bytes
    assert not before.pays_in_bytes
    assert psu.advise_union(plan, "items", rounds=3, **options).pays_in_blocks


def test_a_union_saves_work_but_no_bytes_where_sessions_send_trees_once_anyway() -> None:
    plan = embedding_plan(max_epochs=50)
    advice = psu.advise_union(plan, "items", num_clients=4, rounds=50, union_bound=250)
    assert not advice.pays_in_bytes
    assert advice.break_even_rounds is None
    assert advice.pays_in_blocks


def test_a_union_as_large_as_the_index_space_never_pays() -> None:
    advice = psu.advise_union(
        embedding_plan(), "items", num_clients=4, rounds=1000, union_bound=20_000
    )
    assert not advice.pays_in_bytes
    assert advice.break_even_rounds is None


def test_advice_refuses_numbers_out_of_range() -> None:
    plan = embedding_plan()
    for options in (
        {"num_clients": 5, "rounds": 1},
        {"num_clients": 1, "rounds": 0},
        {"num_clients": 1, "rounds": 1, "union_bound": -1},
    ):
        with pytest.raises(ParameterError):
            psu.advise_union(plan, "items", **options)  # type: ignore[arg-type]

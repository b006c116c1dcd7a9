"""The model in 16 bits on its way to clients: half the bytes, the same for all of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.federation import (
    Event,
    Wire,
    assert_exact,
    is_exact,
    make_plan,
    make_segment,
    make_servers,
    make_state,
    mixed_plan,
    mixed_rings,
    play_round,
    random_update,
    start,
    wanted_rows,
)
from tests.support.reference.plaintext import Contribution
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError, ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import download_bytes, predict
from torchfsl.fsl.explain import download
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.submodel.halves import as_heard, narrow, widen
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.segments import Download, SegmentSpec, TensorSpec, tensor_spans
from torchfsl.submodel.server_model import ServerModel

HALVES: list[Download] = ["float16", "bfloat16"]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def rounded(plan: Plan, kind: Download) -> Plan:
    """The plan with every segment's tensors downloaded so."""
    segments = tuple(dataclasses.replace(s, download=kind) for s in plan.segments)
    return dataclasses.replace(plan, segments=segments)


# --- the rounding -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HALVES)
def test_values_are_rounded_as_torch_rounds_them(kind: Download) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(0x8000)
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    wanted = torch.from_numpy(values).to(DTYPES[kind]).to(torch.float32).numpy()
    found = as_heard(values, kind)
    number = ~np.isnan(values)
    assert np.array_equal(found[number], wanted[number])
    assert np.array_equal(np.signbit(found[number]), np.signbit(wanted[number]))
    assert np.isnan(found[~number]).all()
    assert found.dtype == np.float32


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_16_bit_number_survives(kind: Download, dtype: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    values = widen(halves, kind, dtype)
    number = ~np.isnan(values)
    assert values.dtype == dtype
    assert np.array_equal(narrow(values, kind)[number], halves[number])


# --- what clients hear --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "portable"])
@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("kind", HALVES)
def test_clients_get_the_rounded_model_in_half_the_bytes(
    kind: Download, secure: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", backend)
    whole = mixed_rings(mixed_plan(secure=secure))
    plan = rounded(whole, kind)
    servers, rng = make_servers(plan), np.random.default_rng(0)
    before = {name: value.copy() for name, value in servers[0].model.state.items()}
    begin_round(servers, 1)
    wire, update = Wire(servers), random_update(plan, rng, rows=3)
    session = start(wire, 4, update)
    clear, rows = session.download(), session.retrieve()
    for name, value in clear.items():
        assert value.tobytes() == as_heard(before[name], kind).tobytes()
        assert value.dtype == before[name].dtype
    table = np.concatenate([before["table.0"], before["table.1"]])
    indices, values = rows["table"]
    assert indices.tolist() == wanted_rows(plan, update)["table"].tolist()
    assert values.tobytes() == as_heard(table[indices], kind).tobytes()
    assert not np.array_equal(values, table[indices])
    receipt = session.submit(update)
    assert receipt.download_bytes == download_bytes(plan) == predict(plan).download_bytes
    numbers = sum(t.numel for t in plan.clear_tensors) + 2 * 3 * plan.segments[0].num_trees
    assert download_bytes(whole) - download_bytes(plan) == 2 * numbers
    assert sum(map(download, plan.segments)) < sum(map(download, whole.segments))
    for name, value in before.items():
        assert np.array_equal(servers[0].model.state[name], value), "the servers' own stays"


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("kind", HALVES)
def test_a_fetch_outside_rounds_gives_the_same(kind: Download, secure: bool) -> None:
    plan = rounded(mixed_plan(secure=secure), kind)
    servers = make_servers(plan)
    state = servers[0].model.state
    clear, rows = Client(plan, servers, client_id=7).fetch({"table": [0, 5, 20]})
    assert all(clear[n].tobytes() == as_heard(state[n], kind).tobytes() for n in clear)
    table = np.concatenate([state["table.0"], state["table.1"]])
    assert rows["table"][1].tobytes() == as_heard(table[[0, 5, 20]], kind).tobytes()


def test_sums_stay_exact_and_plain_hears_the_same() -> None:
    plan = rounded(mixed_rings(mixed_plan()), "bfloat16")
    servers, rng = make_servers(plan), np.random.default_rng(3)
    plain = Plain(plan, ServerModel(make_state(plan)))
    for number in range(2):
        plain.open_round(number, range(3))
        updates = {client: random_update(plan, rng, rows=3) for client in range(3)}
        for client, update in updates.items():
            session = plain.participant(client).start_round(
                number, indices=wanted_rows(plan, update)
            )
            clear, rows = session.download(), session.retrieve()
            heard = {n: as_heard(plain.model.state[n], "bfloat16") for n in clear}
            assert all(clear[name].tobytes() == heard[name].tobytes() for name in clear)
            assert rows["table"][1].tobytes() == as_heard(rows["table"][1], "bfloat16").tobytes()
            session.submit(update)
        opened, contributions = play_round(servers, number, updates)
        assert_exact(plan, opened, contributions)
        plain.close_round()
    assert servers[0].model.digest() == servers[1].model.digest() == plain.model.digest()


# --- what is noticed ----------------------------------------------------------------------------


def test_an_altered_answer_is_noticed_by_its_tag_and_an_altered_tensor_by_its_digest() -> None:
    plan = rounded(mixed_plan(), "float16")
    for kind in (Kind.ANSWER, Kind.MODEL):

        def alter(event: Event, kind: Kind = kind) -> bytes:
            data = bytearray(event.data)
            if event.is_reply and event.kind is kind:
                data[-40] ^= 1
            return bytes(data)

        servers = make_servers(plan)
        begin_round(servers, 1)
        update = random_update(plan, np.random.default_rng(0), rows=2)
        session = start(Wire(servers, alter), 4, update)
        call = session.download if kind is Kind.MODEL else session.retrieve
        with pytest.raises(ProtocolError):
            call()


@pytest.mark.parametrize("name", ["table.0", "bias.0"])
def test_servers_whose_models_differ_where_no_client_sees_it_open_no_round(name: str) -> None:
    plan = rounded(mixed_plan(), "bfloat16")
    servers = make_servers(plan)
    value = servers[1].model.state[name].reshape(-1)
    heard = as_heard(value, "bfloat16")
    value[0] = heard[0]
    servers[0].model.state[name].reshape(-1)[0] = np.nextafter(heard[0], np.float32(1))
    assert np.array_equal(as_heard(servers[0].model.state[name].reshape(-1), "bfloat16"), heard)
    with pytest.raises(ProtocolError, match="the servers hold different models"):
        begin_round(servers, 1)


def test_a_model_beyond_float16_is_refused_by_clients_and_not_as_bfloat16() -> None:
    for kind in HALVES:
        plan = rounded(mixed_plan(), kind)
        servers = make_servers(plan)
        for server in servers:
            server.model.state["bias.0"][0] = 1e6
        begin_round(servers, 1)
        update = random_update(plan, np.random.default_rng(0), rows=2)
        session = start(Wire(servers), 4, update)
        if kind == "bfloat16":
            assert session.download()["bias.0"][0] == as_heard(np.float32([1e6]), kind)[0]
            continue
        with pytest.raises(ProtocolError, match=r"NaN or infinite.*float16.*65504.*'bfloat16'"):
            session.download()


def test_a_row_beyond_float16_is_refused_and_the_servers_do_not_see_by_whom() -> None:
    plan = rounded(mixed_plan(), "float16")
    servers = make_servers(plan)
    update = random_update(plan, np.random.default_rng(0), rows=2)
    segment = plan.retrieving[0]
    row = int(update[segment.name].positions[0])
    tensor, span = next(part for part in tensor_spans(segment) if row < part[1].stop)
    for server in servers:
        server.model.state[tensor.name][row - span.start] = 1e6
    begin_round(servers, 1)
    shapes = []
    for client, own in ((4, update), (6, random_update(plan, np.random.default_rng(1), rows=2))):
        assert (row in own[segment.name].positions) == (client == 4)
        wire = Wire(servers)
        session = start(wire, client, own)
        session.download()
        if client == 4:
            with pytest.raises(ProtocolError, match=rf"rows of '{segment.name}'.*65504.*bfloat16"):
                session.retrieve()
            session.abort()
        else:
            session.retrieve()
            session.submit(own)
        shapes.append([(e.party, e.is_reply, len(e.data)) for e in wire.events])
    assert shapes[0] == shapes[1]
    opened = finish_round(servers)
    assert opened.num_clients == 2
    assert is_exact(plan, opened, [Contribution(own)])


# --- the plan -----------------------------------------------------------------------------------


def test_the_planner_halves_all_downloads_and_the_json_names_it_only_then() -> None:
    specs = [
        SegmentSpec("rows4", "rows", (TensorSpec("e", (500, 4)),), 5, 4, True),
        SegmentSpec("rest", "dense", (TensorSpec("w", (40,), "float64"),)),
    ]
    options: dict[str, Any] = {"encoding": FixedPoint(), "max_clients": 3, "session": bytes(16)}
    whole = build_plan(specs, hash_seed=bytes(32), **options)
    plan = build_plan(specs, hash_seed=bytes(32), download="bfloat16", **options)
    assert {segment.download for segment in plan.segments} == {"bfloat16"}
    assert plan.digest != whole.digest
    assert Plan.from_json(plan.to_json()) == plan
    fields = json.loads(whole.to_json())
    assert not any("download" in segment for segment in fields["segments"])
    for odd in ("full", "float8", None):
        fields["segments"][0]["download"] = odd
        with pytest.raises(DecodeError):
            Plan.from_json(json.dumps(fields, sort_keys=True, separators=(",", ":")))


def test_tensors_of_16_bits_and_other_protocols_refuse_it() -> None:
    with pytest.raises(ParameterError, match="float16 already"):
        rounded(make_plan(make_segment("d", "dense", (4,), dtype="float16")), "float16")
    with pytest.raises(ParameterError, match="download 'int8': choose one of"):
        rounded(mixed_plan(), "int8")  # type: ignore[arg-type]

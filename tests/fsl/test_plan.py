"""The public plan: canonical JSON, its digest, and what a hostile plan may not do."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment, mixed_plan, mixed_rings
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, Error, ParameterError
from torchfsl.fsl.explain import explain
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.submodel.segments import TensorSpec, default_encoding

HUGE = 10**30
JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**63, 2**64, HUGE, -HUGE, 1.5, 1e308, "", "x", "1", [], {},
    [1], ["x"], {"a": 1}, "\ud800", "00" * 16, "zz" * 16,
]  # fmt: skip


def dump(fields: Any) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def plans() -> list[Plan]:
    return [
        mixed_plan(),
        mixed_plan(secure=False, lane="weight"),
        make_plan(make_segment("bias", "dense", (5,)), lane="count"),
        make_plan(make_segment("table", "rows", (9, 2), k_max=2, tau=2, theta=3), max_epochs=4),
        mixed_rings(mixed_plan(lane="count")),
    ]


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, containers included."""
    if prefix:
        yield prefix
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(child, (*prefix, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


FIELDS = json.loads(mixed_plan(lane="weight").to_json())
PATHS = list(paths(FIELDS))


@pytest.mark.parametrize("number", range(5))
def test_a_plan_survives_its_json_and_its_digest_with_it(number: int) -> None:
    plan = plans()[number]
    for text in (plan.to_json(), plan.to_json().encode()):
        again = Plan.from_json(text)
        assert again == plan
        assert again.digest == plan.digest
        assert again.to_json() == plan.to_json()
        assert hash(again) == hash(plan)
    assert len(plan.digest) == 32
    fields = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert fields.pop("proofs") == "none"  # later than the others: not in the JSON of these plans
    later = {"max_participations": 0, "min_separation": 1, "noise_taps": [], "clip": "whole"}
    later |= {"sum_bound": False, "audit": "none", "audit_keys": [], "auditors": []}
    assert {name: fields.pop(name) for name in later} == later
    for segment in fields["segments"]:
        if segment["encoding"] is None:
            del segment["encoding"]
        assert segment.pop("download") == "full"
        assert segment.pop("l2_bound") == 0
        assert segment.pop("binned") is False
    assert json.loads(plan.to_json()) == fields
    assert plan.to_json() == dump(json.loads(plan.to_json()))


def test_every_field_of_a_plan_is_under_its_digest() -> None:
    base = mixed_plan(lane="weight")
    changes: list[dict[str, Any]] = [
        {"session": "ff" * 16},
        {"hash_seed": "ff" * 32},
        {"encoding": FixedPoint(32, 16, 3.0)},
        {"encoding": FixedPoint(48, 16, 4.0)},
        {"encoding": FixedPoint(32, 15, 4.0)},
        {"encoding": FixedPoint(32, 16, 4.0, "stochastic")},
        {"max_clients": 3},
        {"min_clients": 2},
        {"segments": base.segments[::-1]},
        {"segments": base.segments[:-1]},
        {"lane": "none", "max_weight": 1},
        {"max_weight": 4},
        {"max_rounds": 9},
        {"lane": "count", "max_weight": 1},
        {"lane": "count", "max_weight": 1, "min_contributors": 2},
        {"server_keys": ("11" * 32, "22" * 32)},
        {"max_epochs": 2, "segments": (base.segments[0], *base.segments[3:])},
    ]
    digests = {dataclasses.replace(base, **change).digest for change in changes}
    assert len(digests | {base.digest}) == len(changes) + 1


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "/".join(map(str, path)))
def test_a_field_of_another_type_or_size_is_a_decode_error_or_another_valid_plan(
    path: tuple[Any, ...],
) -> None:
    """Nothing but DecodeError comes out of a peer's plan; what is accepted is canonical."""
    for junk in JUNK:
        fields = copy.deepcopy(FIELDS)
        if type(at(fields, path)) is type(junk) and at(fields, path) == junk:
            continue
        at(fields, path[:-1])[path[-1]] = junk
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        try:
            plan = Plan.from_json(text)
        except DecodeError:
            continue
        assert plan.to_json() == text
        assert type(junk) is type(at(FIELDS, path)), f"{junk!r} accepted at {path}"
        assert explain(plan)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "/".join(map(str, path)))
def test_a_missing_or_doubled_field_is_a_decode_error(path: tuple[Any, ...]) -> None:
    fields = copy.deepcopy(FIELDS)
    parent = at(fields, path[:-1])
    value = parent.pop(path[-1])
    if path[:-1] != ("segments",):  # a plan may do without a segment
        with pytest.raises(DecodeError):
            Plan.from_json(dump(fields))
    if isinstance(parent, list) and isinstance(value, dict):
        parent.extend([value, value])
        with pytest.raises(DecodeError):
            Plan.from_json(dump(fields))


@pytest.mark.parametrize(
    "path", [(), ("encoding",), ("segments", 0), ("segments", 0, "tensors", 0)]
)
def test_an_unknown_field_is_a_decode_error(path: tuple[Any, ...]) -> None:
    for name in ("extra", "", "__class__", "digest"):
        fields = copy.deepcopy(FIELDS)
        at(fields, path)[name] = 1
        with pytest.raises(DecodeError):
            Plan.from_json(dump(fields))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + " ",
        lambda text: " " + text,
        lambda text: text.replace(":", ": ", 1),
        lambda text: text.replace('"encoding"', '"encod\\u0069ng"'),
        lambda text: text.replace('"clip":4.0', '"clip":4'),
        lambda text: text.replace('"clip":4.0', '"clip":4.00'),
        lambda text: text.replace('"clip":4.0', '"clip":NaN'),
        lambda text: text.replace('"clip":4.0', '"clip":Infinity'),
        lambda text: text.replace('"tau":3', '"tau":3.0'),
        lambda text: text.replace('"tau":3', '"tau":1e9'),
        lambda text: text.replace('"tau":3', '"tau":3,"tau":3'),
        lambda text: text.replace('"nu":2', '"nu":8'),
        lambda text: text.replace('"stash":1', '"stash":1000000000'),
        lambda text: text.replace('"session":"00', '"session":" 00'),
        lambda text: text.replace("0a0b", "0A0B"),
        lambda text: text.replace('"tau":3', '"tau":' + "9" * 5000),
        lambda text: text[:-1],
        lambda text: "[" * 100_000,
        lambda text: "",
        lambda text: "null",
        lambda text: "[]",
        lambda text: text.encode("utf-16"),
        lambda text: b"\xff\xfe" + text.encode(),
        lambda text: b"\x80" + text.encode(),
        lambda text: " " * (1 << 24) + text,
    ],
)
def test_anything_but_the_canonical_text_is_a_decode_error(spoil: Any) -> None:
    text = mixed_plan().to_json()
    spoiled = spoil(text)
    assert spoiled not in (text, text.encode())
    with pytest.raises(DecodeError):
        Plan.from_json(spoiled)


@given(st.binary(max_size=60))
def test_noise_is_a_decode_error(noise: bytes) -> None:
    with pytest.raises(DecodeError):
        Plan.from_json(noise)


@given(st.data())
def test_a_plan_with_one_byte_changed_never_reads_as_the_same_plan(data: st.DataObject) -> None:
    plan = mixed_plan()
    text = bytearray(plan.to_json().encode())
    where = data.draw(st.integers(0, len(text) - 1))
    text[where] ^= data.draw(st.integers(1, 255))
    try:
        other = Plan.from_json(bytes(text))
    except DecodeError:
        return
    assert other.digest != plan.digest
    assert other != plan


@pytest.mark.parametrize(
    ("version", "side"), [(WIRE_VERSION + 1, "torchfsl here"), (0, "torchfsl at the coordinator")]
)
def test_a_plan_of_another_version_names_the_side_to_upgrade(version: int, side: str) -> None:
    fields = copy.deepcopy(FIELDS)
    fields["wire_version"] = version
    with pytest.raises(DecodeError, match=f"upgrade {side}"):
        Plan.from_json(dump(fields))


def segment(**changes: Any) -> TreeSegment:
    base: dict[str, Any] = {
        "name": "s", "policy": "rows", "tensors": (TensorSpec("t", (20, 3)),), "m": 20, "tau": 3,
        "k_max": 4, "num_bins": 12, "theta": 5, "nu": 0, "stash": 1,
    }  # fmt: skip
    return TreeSegment(**{**base, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"policy": "columns"},
        {"tensors": ()},
        {"m": 0},
        {"m": 19},
        {"m": 2**32 + 1},
        {"tau": 0},
        {"tau": 2},
        {"k_max": 0},
        {"k_max": 21},
        {"num_bins": 11},
        {"num_bins": 15},
        {"num_bins": 0},
        {"num_bins": -3, "theta": -5},
        {"theta": 0},
        {"theta": 7},
        {"nu": -1},
        {"nu": 8},
        {"stash": -1},
        {"stash": 5},
        {"check_bytes": 16},
        {"tag_bytes": 16},
        {"tag_bytes": 16, "check_bytes": 32},
        {"policy": "scalars", "tau": 1, "m": 60, "num_bins": 36, "retrieve": True},
        {"policy": "scalars", "k_max": 3},
        {"policy": "dense", "tau": 1, "m": 60, "k_max": 60},
        {"policy": "dense", "tau": 1, "m": 60, "k_max": 59, "num_bins": 0, "theta": 0, "stash": 0},
        {"retrieve": True, "tag_bytes": 16},
        {"tensors": (TensorSpec("t", (10, 3)), TensorSpec("u", (10, 3), "float64"))},
        {"tensors": (TensorSpec("t", (20, 3, 2)),)},
        {"tensors": (TensorSpec("t", (60,)),)},
        {"num_bins": 0, "theta": 0, "stash": 3},
        {"num_bins": 0, "theta": 0, "stash": 5},
    ],
)
def test_a_segment_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    segment()
    with pytest.raises(ParameterError):
        segment(**changes)


@pytest.mark.parametrize(
    "arguments",
    [("", (2,)), ("t", (-1,)), ("t", (True,)), ("t", (1.0,)), ("t", (2,), "int64"), (5, (2,))],
)
def test_a_tensor_spec_that_is_none_is_refused(arguments: Any) -> None:
    with pytest.raises(ParameterError):
        TensorSpec(*arguments)


def test_a_plan_that_contradicts_itself_is_refused() -> None:
    one, two = make_segment("a", "dense", (3,)), make_segment("b", "dense", (3,))
    with pytest.raises(ParameterError, match="with distinct names"):
        make_plan(one, one)
    with raises(ParameterError, "tensor-twice"):
        make_plan(one, dataclasses.replace(two, tensors=one.tensors))
    with pytest.raises(ParameterError, match="segments"):
        make_plan()
    with raises(ParameterError, "client-limits"):
        make_plan(one, min_clients=5)
    with raises(ParameterError, "client-limits"):
        make_plan(one, min_clients=0)
    with raises(ParameterError, "weight-limit"):
        make_plan(one, max_weight=2)
    with pytest.raises(ParameterError, match="lane"):
        make_plan(one, lane="sum")  # type: ignore[arg-type]
    with raises(ParameterError, "out-of-range"):
        make_plan(one, max_epochs=0)
    with pytest.raises(ParameterError, match="no segment with trees"):
        make_plan(one, max_epochs=2)
    with pytest.raises(ParameterError, match="needs nu = 0"):
        make_plan(make_segment("e", "scalars", (9,), k_max=2, nu=1), max_epochs=2)
    fetched = make_segment("f", "rows", (9, 2), k_max=2, tau=2, retrieve=True)
    with pytest.raises(ParameterError, match="expected tags"):
        make_plan(dataclasses.replace(fetched, tag_bytes=0))
    with pytest.raises(ParameterError, match="payload='masks' needs"):
        dataclasses.replace(make_plan(fetched, encoding=FixedPoint(64, 0, 1.0)), payload="masks")
    secure = make_segment("c", "scalars", (9,), k_max=2)
    with pytest.raises(ParameterError, match="check words"):
        make_plan(secure, make_segment("d", "scalars", (9,), k_max=2, secure=False))


def test_a_plan_whose_messages_no_peer_would_take_is_refused() -> None:
    with raises(ParameterError, "message-too-large"):
        make_plan(make_segment("a", "dense", (2**30,)))
    with raises(ParameterError, "message-too-large"):
        make_plan(make_segment("a", "rows", (2**20, 2**20), k_max=1, tau=2**20))


def test_the_limit_of_max_clients_is_named_where_it_is_passed() -> None:
    segment = make_segment("a", "rows", (9, 2), k_max=1, tau=2)
    small = FixedPoint(64, 0, 1.0)
    with pytest.raises(ParameterError) as caught:
        make_plan(segment, max_clients=3 * 10**9, encoding=small)
    found = re.fullmatch(
        r"max_clients is 3000000000, expected at most (\d+), .*", str(caught.value)
    )
    assert found
    most = int(found[1])
    assert make_plan(segment, max_clients=most, encoding=small).max_clients == most
    with raises(ParameterError, "message-too-large"):
        make_plan(segment, max_clients=most + 1, encoding=small)


@pytest.mark.parametrize("max_weight", [1, 1000])
def test_the_default_encoding_names_its_limit_of_max_clients(max_weight: int) -> None:
    with pytest.raises(ParameterError) as caught:
        default_encoding(3 * 10**9, max_weight)
    found = re.match(r"max_clients is 3000000000, expected at most (\d+) with", str(caught.value))
    assert found
    most = int(found[1])
    assert default_encoding(most, max_weight).frac_bits == 1
    with pytest.raises(ParameterError, match="expected at most"):
        default_encoding(most + 1, max_weight)


def test_a_bin_layout_beyond_32_bits_is_refused() -> None:
    """Slots of the layout are counted in 32 bits: three sub-tables, bins padded to whole leaves."""
    shape = {"policy": "scalars", "tau": 1, "k_max": 1, "stash": 0}
    for m, theta, nu, fits in (
        (2**30, 2**20, 0, True),
        (2**30, 3, 2, False),
        (3 * 2**29, 2**20, 0, False),
    ):
        fields = {
            **shape, "tensors": (TensorSpec("t", (m,)),), "m": m, "theta": theta, "nu": nu,
            "num_bins": 3 * -(-m // theta),
        }  # fmt: skip
        if fits:
            segment(**fields)
        else:
            with raises(ParameterError, "too-many-positions"):
                segment(**fields)


def test_the_lane_of_a_full_cohort_must_fit_the_ring() -> None:
    tiny = FixedPoint(16, 0, 1.0)
    one = make_segment("a", "dense", (3,))
    make_plan(one, encoding=tiny, lane="count", max_clients=32767)
    with pytest.raises(ParameterError):
        make_plan(one, encoding=tiny, lane="count", max_clients=32768)


def test_an_unknown_segment_is_named_with_those_that_exist() -> None:
    with raises(ParameterError, "unknown-segment"):
        mixed_plan().segment("nope")
    assert mixed_plan().segment("table").policy == "rows"


def test_the_clear_part_of_the_model_is_all_that_is_not_retrieved() -> None:
    names = [tensor.name for tensor in mixed_plan().clear_tensors]
    assert names == ["blocks.0", "blocks.1", "few.0", "bias.0", "bias.1"]


def test_mechanisms_are_named() -> None:
    names = [segment.mechanism for segment in mixed_plan().segments]
    assert names == ["dpf", "full-domain", "dpf", "dense"]


def test_errors_of_plans_are_our_own() -> None:
    assert issubclass(ParameterError, (Error, ValueError))
    assert issubclass(DecodeError, Error)

"""The core takes exactly the plans that Python takes, but for fields that it names."""

from __future__ import annotations

import ctypes
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.client_core.plans import plans
from tests.client_core.test_tape import cases
from tests.support.client_core import DECODE, UNSUPPORTED, Core
from tests.support.federation import make_plan, make_segment, mixed_plan
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.segments import in_the_clear

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
LANES, PROOFS = ("none", "count", "weight"), ("none", "lanes", "norm")
POLICIES, DTYPES = ("rows", "blocks", "scalars", "dense"), ("float16", "float32", "float64")


def status_of(core: Core, text: str | bytes) -> tuple[int, str]:
    """0, or the core's status, and what it says."""
    try:
        core.open(text)
    except DecodeError as error:
        return error.status, str(error)  # type: ignore[attr-defined]
    return 0, ""


def python_takes(text: str) -> bool:
    try:
        Plan.from_json(text)
    except DecodeError:
        return False
    return True


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans())
def test_fields_and_sizes_are_pythons(core: Core, plan: Plan) -> None:
    opened = core.open(plan.to_json())
    info = opened.info()
    assert bytes(info.digest) == plan.digest
    assert bytes(info.session).hex() == plan.session
    assert bytes(info.server_keys).hex() == "".join(plan.server_keys or ("00" * 64,))
    for name in ("max_clients", "min_clients", "max_weight", "max_rounds", "min_contributors",
                 "max_participations", "min_separation", "l2_bound", "noise_sigma",
                 "lane_sigma", "sum_bound"):  # fmt: skip
        assert getattr(info, name) == getattr(plan, name)
    assert (LANES[info.lane], PROOFS[info.proofs]) == (plan.lane, plan.proofs)
    assert (info.checked, info.num_segments) == (plan.verified, len(plan.segments))
    early = bool(plan.retrieving)
    up = [Kind.REPORT, Kind.REPORT_COMMIT] + [Kind.TREES, Kind.TREES_COMMIT] * early
    down = [Kind.MODEL, Kind.MODEL_DIGEST] + [Kind.ANSWER] * 2 * early
    assert info.upload_bytes == sum(messages.max_bytes(plan, kind) for kind in up)
    assert info.download_bytes == sum(messages.max_bytes(plan, kind) for kind in down)
    assert info.num_clear == sum(len(s.tensors) for s in in_the_clear(plan.segments))
    for index, segment in enumerate(plan.segments):
        own, encoding = opened.segment(index), plan.encoding_of(segment)
        assert (own.positions, own.width, own.most_rows) == (segment.m, segment.tau, segment.k_max)
        assert (own.clip, own.frac_bits) == (encoding.clip, encoding.frac_bits)
        assert (POLICIES[own.policy], own.retrieved) == (segment.policy, segment.retrieve)
        assert own.name.bytes().decode() == segment.name
        for place, tensor in enumerate(segment.tensors):
            found = opened.tensor(index, place)
            assert tuple(found.shape[: found.num_dims]) == tensor.shape
            assert DTYPES[found.dtype] == tensor.dtype
            assert found.name.bytes().decode() == tensor.name


def test_bad_plans_of_the_vectors_are_refused(core: Core) -> None:
    for case in json.loads((VECTORS / "plans_bad_fields.json").read_text())["cases"]:
        status, message = status_of(core, case["text"])
        wanted = UNSUPPORTED if case["defect"] == "an unknown field" else DECODE
        assert status == wanted, (case["defect"], message)


def test_sessions_and_subsets_are_unsupported_by_name(core: Core) -> None:
    fixed = make_plan(make_segment("s", "scalars", (9,), k_max=2), max_epochs=2)
    assert status_of(core, fixed.to_json()) == (
        UNSUPPORTED,
        "this client does not support the plan's max_epochs: use a client that does",
    )
    part = make_plan(make_segment("s", "scalars", (9,), k_max=2, subset=(1, 2, 5)))
    assert "plan's segments.subset:" in status_of(core, part.to_json())[1]
    masks = mixed_plan().to_json().replace('"payload":"values"', '"payload":"masks"')
    assert "plan's payload:" in status_of(core, masks)[1]


def with_field(text: str, path: str, value: Any) -> str:
    """The text with a field of the plan, of its first segment or its first tensor."""
    fields = json.loads(text)
    place, *names = fields, *path.split(".")
    for name in names[:-1]:
        place = place[int(name)] if name.isdigit() else place[name]
    if value is None:
        place.pop(names[-1], None)
    else:
        place[names[-1]] = value
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    "path",
    ["noise_taps", "audit", "segments.0.binned", "segments.0.bins", "segments.0.tensors.0.top",
     "encoding.more"],
)  # fmt: skip
def test_fields_that_the_core_does_not_know_are_never_ignored(core: Core, path: str) -> None:
    status, message = status_of(core, with_field(mixed_plan().to_json(), path, [16, 1]))
    assert status == UNSUPPORTED
    assert path.replace(".0", "") in message


NUMBERS = st.one_of(
    st.integers(-2, 40), st.integers(0, 70).map(lambda n: 2**n - 1), st.sampled_from([2**62])
)
FIELDS = ["max_clients", "min_clients", "max_weight", "max_rounds", "min_contributors", "l2_bound",
          "noise_sigma", "lane_sigma", "max_participations", "min_separation", "max_epochs",
          "wire_version", "segments.0.m", "segments.0.tau", "segments.0.k_max", "segments.0.nu",
          "segments.0.num_bins", "segments.0.theta", "segments.0.stash", "segments.0.check_bytes",
          "segments.0.tag_bytes", "segments.0.l2_bound", "encoding.ring_bits",
          "encoding.frac_bits"]  # fmt: skip
VALUES = st.one_of(
    st.tuples(st.sampled_from(FIELDS), NUMBERS),
    st.tuples(st.just("encoding.clip"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("segments.0.retrieve"), st.booleans()),
    st.tuples(st.just("sum_bound"), st.sampled_from([True, False, None])),
    st.tuples(st.just("lane"), st.sampled_from([*LANES, "other"])),
    st.tuples(st.just("clip"), st.sampled_from(["whole", "clip", "normalise", None])),
    st.tuples(st.just("proofs"), st.sampled_from([*PROOFS, None])),
    st.tuples(st.just("segments.0.policy"), st.sampled_from(POLICIES)),
    st.tuples(st.just("segments.0.download"), st.sampled_from(["full", "float16", "bfloat16"])),
    st.tuples(st.just("segments.0.tensors.0.dtype"), st.sampled_from([*DTYPES, "int8"])),
    st.tuples(st.just("segments.0.tensors.0.shape"), st.lists(st.integers(0, 21), max_size=3)),
    st.tuples(st.just("segments.0.name"), st.sampled_from(["", "bias", "a b", 'q"\\', "x\t"])),
    st.tuples(st.just("session"), st.sampled_from(["00" * 16, "0G" * 16, "00" * 15])),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    text=st.sampled_from(cases()) | plans().map(Plan.to_json), changes=st.lists(VALUES, max_size=2)
)
@example(text=mixed_plan().to_json(), changes=[("encoding.clip", 2**-44)])
def test_changed_plans_are_refused_where_python_refuses_them(
    core: Core, text: str, changes: list[tuple[str, Any]]
) -> None:
    for path, value in changes:
        text = with_field(text, path, value)
    status, message = status_of(core, text)
    if status != UNSUPPORTED:
        assert (status == 0) == python_takes(text), (message, text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_text_with_another_character_is_another_plan_or_none(
    core: Core, data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from(cases()))
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([*'0123456789.,:-+eE[]{}"\\ax u\n', ""]))
    text = text[:place] + other + text[place + 1 :]
    status, message = status_of(core, text)
    if status != UNSUPPORTED:
        assert (status == 0) == python_takes(text), (message, text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(clip=st.floats(2**-50, 2**62) | st.integers(-50, 62).map(lambda e: math.ldexp(1, e)))
def test_clips_are_written_as_python_writes_them(core: Core, clip: float) -> None:
    try:
        encoding = FixedPoint(64, 52 if clip < 1 else 0, clip)
        plan = make_plan(make_segment("s", "dense", (3,)), encoding=encoding, max_clients=1)
    except ParameterError:
        return
    assert core.open(plan.to_json()).segment(0).clip == clip


def test_a_longer_struct_of_a_later_version_is_filled_as_far_as_this_one_goes(core: Core) -> None:
    plan = core.open(mixed_plan().to_json())
    short = (ctypes.c_uint64 * 2)(16, 99)
    assert core.lib.tfsl_plan_info(plan.handle, short) == 0
    assert list(short) == [16, mixed_plan().max_clients]
    nothing = (ctypes.c_uint64 * 2)(0, 99)
    assert core.lib.tfsl_plan_info(plan.handle, nothing) == 1

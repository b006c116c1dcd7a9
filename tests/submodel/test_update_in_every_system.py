"""An update reaches the sum as it is, or is refused: every system, dtype, shape and weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torchfsl import FixedPoint, Plan
from torchfsl.errors import ParameterError
from torchfsl.fsl import build_plan as plan_fsl
from torchfsl.fsl.in_process import TwoServers
from torchfsl.sefl import AggregatorAndKeyHolder
from torchfsl.sefl import build_plan as plan_sefl
from torchfsl.sesa import OneServer, Width
from torchfsl.sesa import build_plan as plan_sesa
from torchfsl.submodel import (
    Aggregation,
    RawSegment,
    SegmentSpec,
    SegmentUpdate,
    ServerModel,
    TensorSpec,
    Update,
    quantise,
)
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.types import Array, Whole

SPECS = [SegmentSpec("w", "dense", (TensorSpec("w", (3,)),))]
ENCODING = FixedPoint(ring_bits=32, frac_bits=8, clip=4.0)
NUMBERS = [0.5, -0.9, 1.7]
CLIENTS = range(4)
Sum = tuple[SubmodelPlan, Callable[[Update, int], Whole]]


def model() -> ServerModel:
    return ServerModel({"w": np.zeros(3, np.float32)})


def through(home: Aggregation) -> Sum:
    """A round of all clients with one update and weight."""

    def add(update: Update, weight: int) -> Whole:
        home.open_round(1, CLIENTS)
        for client in CLIENTS:
            session = home.participant(client).start_round(1, indices={})
            session.submit(update, weight=weight)
        return home.close_round().opened.sums["w"]

    return home.plan, add


def two_servers_plan() -> Plan:
    return plan_fsl(SPECS, encoding=ENCODING, max_clients=4, lane="weight", max_weight=7)


def fsl() -> Sum:
    return through(TwoServers(two_servers_plan(), (model(), model())))


def plain() -> Sum:
    return through(Plain(two_servers_plan(), model()))


def sefl() -> Sum:
    pytest.importorskip("tenseal", reason="needs the extra homomorphic")
    draft = plan_sefl(SPECS, encoding=ENCODING, max_clients=4, lane="weight", max_weight=7)
    return through(AggregatorAndKeyHolder(draft, model()))


def sesa() -> Sum:
    plan = plan_sesa(SPECS, encoding=ENCODING, widths=[Width((1,), 4)], collusion=1)
    return through(OneServer(plan, model(), dict.fromkeys(CLIENTS, 0)))


SYSTEMS = {"fsl": fsl, "plain": plain, "sefl": sefl, "sesa": sesa}


def column(dtype: str) -> Array:
    return np.array([[100], [-127], [5]]).astype(dtype)


GIVEN: dict[str, Any] = {
    **{dtype: column(dtype) for dtype in (
        "int8", "int16", "int32", "int64", ">i8", "uint8", "uint64", "float16", "float32",
        "float64", "bool", "object", "complex64",
    )},
    "fractions": np.array(NUMBERS)[:, None],
    "not a number": np.array([[np.nan], [1.0], [np.inf]]),
    "flat": column("int64")[:, 0],
    "a row": column("int64").T,
    "too few": column("int64")[:2],
    "masked": np.ma.masked_equal(column("int64"), 5),
    "read backwards": column("int64")[::-1],
    "every other": np.repeat(column("int64"), 2, axis=0)[::2],
    "beyond the clip": column("int64") * 1000,
    "the least int64": np.full((3, 1), np.iinfo(np.int64).min),
    "a list": [[100], [-127], [5]],
    "nothing": None,
}  # fmt: skip
TAKEN = {"int64", "read backwards", "every other"}


@pytest.mark.parametrize("weight", [1, 5])
@pytest.mark.parametrize("what", GIVEN)
@pytest.mark.parametrize("system", SYSTEMS)
def test_an_update_is_summed_as_it_is_or_refused(system: str, what: str, weight: int) -> None:
    _, add = SYSTEMS[system]()
    values = GIVEN[what]
    if what in TAKEN and not (system == "sesa" and weight > 1):
        found = add({"w": SegmentUpdate(None, values)}, weight)
        assert np.array_equal(found, len(CLIENTS) * weight * values)
    else:
        with pytest.raises(ParameterError):
            add({"w": SegmentUpdate(None, values)}, weight)


@pytest.mark.parametrize("system", SYSTEMS)
def test_real_values_are_refused_with_what_makes_numbers_of_them(system: str) -> None:
    plan, add = SYSTEMS[system]()
    reals = np.array(NUMBERS)[:, None]
    with pytest.raises(ParameterError, match=r"float64 ndarray\. Use torchfsl\.submodel\.quantise"):
        add({"w": SegmentUpdate(None, reals)}, 1)
    _, add = SYSTEMS[system]()
    update, errors, _ = quantise(plan, {"w": RawSegment(None, reals)})
    assert np.array_equal(add(update, 1), len(CLIENTS) * np.rint(reals * 2**8))
    assert np.abs(errors["w"]).max() <= 2**-9


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    "update",
    [{}, {"v": SegmentUpdate(None, column("int64"))}, {"w": column("int64")},
     {"w": RawSegment(None, np.ones((3, 1)))},
     {"w": SegmentUpdate(np.arange(3), column("int64"))}],
    ids=["no segment", "another segment", "an array", "real values", "positions"],
)  # fmt: skip
def test_an_update_of_another_form_is_refused(system: str, update: Any) -> None:
    with pytest.raises(ParameterError):
        SYSTEMS[system]()[1](update, 1)


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"sesa"}))
@pytest.mark.parametrize("weight", [0, -1, 8, 2.0, True, "3", np.float64(1), None])
def test_a_weight_that_the_plan_does_not_take_is_refused(system: str, weight: Any) -> None:
    with pytest.raises(ParameterError, match="weight is"):
        SYSTEMS[system]()[1]({"w": SegmentUpdate(None, column("int64"))}, weight)

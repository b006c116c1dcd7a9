"""A task's bytes: what a server takes as the state of an optimizer that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.federation import make_plan, make_segment, make_state
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.service.task import Task, decode_model, decode_task, encode_model, encode_task
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import state_digest

PLAN = make_plan(make_segment("b", "dense", (5,), dtype="float64"))
NAME = PLAN.segments[0].tensors[0].name
OPTIMIZERS = {
    "sgd": OptimizerSettings(),
    "momentum": OptimizerSettings(momentum=0.9),
    "falling": OptimizerSettings(lr_decay=0.5),
    "falling momentum": OptimizerSettings(lr_decay=0.5, momentum=0.9),
    "adam": OptimizerSettings("adam", lr=0.01),
    "lazy-adam": OptimizerSettings("lazy-adam", lr=0.1, rates={NAME: 0.3}),
    "ftrl": OptimizerSettings("ftrl", lr=0.1, beta=0.5, l1=0.1, l2=0.2),
    "row-adagrad": OptimizerSettings("row-adagrad", lr=0.1),
}


def moments_of(settings: OptimizerSettings) -> dict[str, Any]:
    """After three rounds."""
    optimizer, parameter = settings.build(), np.zeros(5)
    for _ in range(3):
        optimizer.advance()
        if optimizer.lazy:
            rows, part = np.arange(4), parameter[:4, None]
            optimizer.step_rows(NAME, rows, 5, part, np.arange(4.0)[:, None])
        else:
            optimizer.step(NAME, 0, 5, parameter, np.arange(5.0))
    return optimizer.state()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_goes_on_from_its_own_state(name: str) -> None:
    task = Task(PLAN, bytes(16), OPTIMIZERS[name])
    moments = moments_of(task.optimizer)
    decoded, model = decode_task(encode_task(task, make_state(PLAN), moments))
    assert decoded == task
    assert state_digest(model.optimizer.state()) == state_digest(moments)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda moments: moments.pop(name)


def with_value(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda moments: moments.update({name: value})


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("momentum", with_value("round", np.array(3))),
        ("momentum", with_value("velocity/other", np.zeros(5))),
        ("momentum", with_value(f"velocity/{NAME}", np.zeros(4))),
        ("momentum", with_value(f"velocity/{NAME}", np.zeros(5, dtype=np.float32))),
        ("momentum", with_value(f"velocity/{NAME}", np.full(5, np.nan))),
        ("falling momentum", without("round")),
        ("falling momentum", with_value("round", np.array(-1))),
        ("falling momentum", with_value("round", np.array([3]))),
        ("falling momentum", with_value("round", np.array(1 << 32))),
        ("falling", with_value(f"first/{NAME}", np.zeros(5))),
        ("adam", without("round")),
        ("lazy-adam", without(f"first/{NAME}")),
        ("adam", without(f"second/{NAME}")),
    ],
)
def test_the_state_of_another_optimizer_or_a_damaged_one_is_refused(
    name: str, spoil: Callable[[dict[str, Any]], None]
) -> None:
    task = Task(PLAN, bytes(16), OPTIMIZERS[name])
    moments = moments_of(task.optimizer)
    spoil(moments)
    with pytest.raises(
        DecodeError, match=r"does not fit the server optimizer|does not fit this model"
    ):
        decode_task(encode_task(task, make_state(PLAN), moments))


def test_a_stored_model_with_a_damaged_state_is_refused() -> None:
    task = Task(PLAN, bytes(16), OPTIMIZERS["falling momentum"])
    data = encode_model(task.new_model(make_state(PLAN), moments_of(task.optimizer)), 3)
    assert decode_model(task, data).optimizer.state()["round"] == 3
    with pytest.raises(DecodeError, match="does not fit the server optimizer sgd"):
        decode_model(Task(PLAN, bytes(16), OPTIMIZERS["momentum"]), data)


def test_what_an_optimizer_does_not_take_is_refused() -> None:
    with pytest.raises(ParameterError, match="optimizer is adam: leave out both"):
        OptimizerSettings("adam", momentum=0.9)
    with pytest.raises(ParameterError, match="optimizer is adam: leave out both"):
        OptimizerSettings("adam", lr_decay=0.9)
    with pytest.raises(ParameterError, match=r"l2 are settings of ftrl, and .* is sgd: leave out"):
        OptimizerSettings(l1=0.9)
    with pytest.raises(
        ParameterError, match="'lion' is unknown: choose one of sgd, adam, lazy-adam"
    ):
        OptimizerSettings("lion")  # type: ignore[arg-type]


def test_settings_out_of_range_are_refused_with_their_name() -> None:
    with pytest.raises(ParameterError, match=r"lr_decay is 1\.5"):
        OptimizerSettings(lr_decay=1.5)
    settings = Task(PLAN, bytes(16)).settings()
    settings["optimizer"]["lr_decay"] = 1.5
    with pytest.raises(DecodeError, match=r"lr_decay is 1\.5"):
        Task.from_settings(settings)

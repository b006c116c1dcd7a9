"""The mean of the servers' models."""

from __future__ import annotations

import numpy as np
import pytest

from training.trainer import MeanModel


def test_the_mean_is_plain_at_first_and_forgets_exponentially_then() -> None:
    models = np.random.default_rng(0).normal(size=(7, 5))
    mean = MeanModel(0.75)
    for number, model in enumerate(models, start=1):
        mean.add(number, {"w": model})
        if number <= 4:
            np.testing.assert_allclose(mean.state["w"], models[:number].mean(axis=0), rtol=1e-12)
    expected = models[:4].mean(axis=0)
    for model in models[4:]:
        expected = 0.75 * expected + 0.25 * model
    np.testing.assert_allclose(mean.state["w"], expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_mean_has_its_models_types_and_its_own_memory(dtype: type) -> None:
    model = {"w": np.array([1, 3], dtype=dtype), "count": np.array(4)}
    mean = MeanModel(0.5)
    mean.add(1, model)
    model["w"] += 2
    model["count"] += 1
    assert mean.state["w"].tolist() == [1, 3]
    mean.add(2, model)
    assert mean.state["w"].dtype == dtype
    assert mean.state["w"].tolist() == [2, 4]
    assert mean.state["count"] == 5
    model["count"] += 1
    assert mean.state["count"] == 5


def test_a_mean_goes_on_from_its_state() -> None:
    models = [{"w": np.full(3, value)} for value in (1.0, 5.0, 2.0)]
    whole, first = MeanModel(0.9), MeanModel(0.9)
    for number, model in enumerate(models, start=1):
        whole.add(number, model)
    for number in (1, 2):
        first.add(number, models[number - 1])
    second = MeanModel(0.9, first.state)
    second.add(3, models[2])
    assert second.state["w"].tobytes() == whole.state["w"].tobytes()

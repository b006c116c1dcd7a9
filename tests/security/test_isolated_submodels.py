"""A submodel that one client alone trained gives its sample; plans that leave one are refused."""

from __future__ import annotations

import pytest

from scripts.attacks import isolated_submodels as attack
from scripts.attacks.isolated_submodels import NO_LIMIT, Network
from torchfsl.errors import ParameterError
from torchfsl.sesa import SesaPlan
from training.data.synthetic import synthetic_images


@pytest.fixture(scope="module")
def network() -> Network:
    images = synthetic_images(0, train=400, test=1, shape=(1, 8, 8), classes=10)
    return Network.around(images.train, hidden=80)


@pytest.mark.parametrize("positions_known", [True, False])
def test_sums_of_two_clients_give_both_samples_whether_positions_are_known_or_not(
    network: Network, positions_known: bool
) -> None:
    wide, narrow = attack.pairs(network, 20, positions_known=positions_known)
    assert wide >= 19
    assert narrow >= 19


def test_sums_of_a_few_clients_give_samples_and_of_those_that_a_plan_accepts_do_not() -> None:
    result = attack.run()
    assert result.worked_off
    assert not result.worked_on


def test_plans_of_too_few_clients_are_refused(network: Network) -> None:
    for clients in (6, 20):
        with pytest.raises(ParameterError, match="max_isolation"):
            network.plan(clients, SesaPlan.max_isolation)
    with pytest.raises(ParameterError, match="answers"):
        network.plan(2, NO_LIMIT)


def test_a_shard_of_two_clients_is_not_taken_for_one(network: Network) -> None:
    draw = attack.np.random.default_rng(0)
    for _ in range(20):
        samples = [network.sample(draw) for _ in range(2)]
        alone = [network.gradient(sample, (1,)) for sample in samples]
        for sample, update in zip(samples, alone, strict=True):
            found = network.lone_sample(attack.plain_sum([update])[1])
            assert found is not None
            assert attack.same(found, sample.image)
        assert network.lone_sample(attack.plain_sum(alone)[1]) is None

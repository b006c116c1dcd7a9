"""The paper's own protocol: right results, refused by default, and what it gives away."""

from __future__ import annotations

import pytest
import torch

from scripts.attacks.published import PublishedQuerying
from scripts.attacks.published_relu import CHANNELS, attack_published, attack_secure
from tests.privhfl.small import RINGS, SHAPE, images, networks
from torchfsl.errors import ParameterError
from torchfsl.privhfl import Querying, make_plan


@pytest.mark.parametrize("signed", [False, True])
def test_its_logits_are_the_modules(signed: bool) -> None:
    modules, asked = networks(), images(5)
    plan = make_plan(modules, SHAPE, batch=4, ring=RINGS[64], min_answering=1)
    querying = PublishedQuerying(plan, leaky_on_purpose=True, signed_r=signed)
    for client, module in modules.items():
        querying.load(client, module, images(16, seed=client))
    answer = querying.ask(0, [1, 2], asked)
    with torch.no_grad():
        plain = sum(modules[c].double()(asked.double()) for c in (1, 2))
    assert float((answer.logits - plain).abs().max()) < 1e-5
    assert answer.cost.phase_bytes("online") > answer.cost.phase_bytes("offline") > 0
    ours = Querying(plan)
    for client, module in modules.items():
        ours.load(client, module, images(16, seed=client))
    secure = ours.ask(0, [1, 2], asked).cost
    assert answer.cost.phase_bytes("online") > secure.phase_bytes("online") > 0


def test_it_is_refused_unless_on_purpose_and_with_its_ring() -> None:
    modules = networks()
    plan = make_plan(modules, SHAPE, ring=RINGS[64])
    with pytest.raises(ParameterError, match="leaky_on_purpose"):
        PublishedQuerying(plan)
    with pytest.raises(ParameterError, match="Ring"):
        PublishedQuerying(make_plan(modules, SHAPE), leaky_on_purpose=True)
    with pytest.raises(ParameterError, match=r"1\.\.20"):
        PublishedQuerying(plan, leaky_on_purpose=True, magnitude_bits=23)


def test_three_questions_give_the_first_layer_away() -> None:
    found = attack_published()
    # Shares of 4,096 values under masks drawn anew: 0.05 is six of their deviations.
    assert found.channels >= 14 <= CHANNELS
    assert found.gcds[2] == pytest.approx(0.606, abs=0.05)
    assert found.gcds[3] == pytest.approx(0.830, abs=0.05)
    assert found.signs == 1


def test_a_random_sign_hides_signs_alone() -> None:
    found = attack_published(signed_r=True)
    assert found.signs == pytest.approx(0.5, abs=0.05)
    assert found.gcds[2] == pytest.approx(0.61, abs=0.05)


def test_in_secure_the_asking_party_gets_nothing_to_divide() -> None:
    assert attack_secure().messages == {"SUM"}

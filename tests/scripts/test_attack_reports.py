"""Small runs of `scripts/attacks/attack_reports.py`, and proof that it notices a broken check."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from scripts.attacks import attack_reports, forged_reports
from torchfsl.kernels.backends import kernels
from torchfsl.kernels.portable import checks as portable_checks

Bytes = npt.NDArray[np.uint8]
CLASSES = tuple(forged_reports.CLASSES)
ORIGINAL_HASH = portable_checks.leaf_hash


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken checks are put into the portable kernels."""
    monkeypatch.setenv("TORCHFSL_BACKEND", "portable")


def test_every_forged_report_gets_the_verdict_of_its_two_expanded_keys(tmp_path: Path) -> None:
    table = tmp_path / "attack.json"
    code = attack_reports.main(
        ["--count", "480", "--honest", "240", "--relays", "60", "--json", str(table)]
    )
    assert code == 0
    classes = json.loads(table.read_text())["classes"]
    assert set(classes) == {*CLASSES, "honest", "after_commitment"}
    assert all(classes[name]["reports"] == 60 for name in CLASSES)
    for name in ("seeds", "equal_roots", "check_words"):
        assert classes[name]["refused"] == 60
    mixed = [classes[n] for n in ("control_bits", "correction_words", "merged_keys", "two_points")]
    assert all(tally["more_than_one_block"] > 0 for tally in mixed)
    # About one in ten leaves honest trees behind; none of 240 has a chance of 1e-11.
    assert sum(tally["refused"] for tally in mixed) < 240
    assert classes["hints"] == {
        "reports": 60, "refused": 0, "more_than_one_block": 0, "refused_at_most_one_block": 0,
        "changed_sum": 60, "wrong": 0,
    }  # fmt: skip
    assert classes["check_words"]["changed_sum"] == 0
    assert classes["honest"]["refused"] == 0
    assert classes["after_commitment"]["refused"] == 60


def constant_fold(*arguments: object) -> bytes:
    return bytes(16)


def hash_without_control_bit(key: bytes, states: Bytes, *where: npt.NDArray[np.int64]) -> Bytes:
    seeds = states.copy()
    seeds[:, 0] &= 0xFE
    return ORIGINAL_HASH(key, seeds, *where)


@pytest.mark.usefixtures("portable")
def test_the_script_fails_when_the_check_is_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels(), "verify", constant_fold)
    tallies = attack_reports.run(160, 40, 0)
    assert tallies["honest"].wrong == 0
    for name in ("seeds", "control_bits", "two_points", "equal_roots", "check_words"):
        assert tallies[name].wrong > 10, name
    assert attack_reports.main(["--count", "80", "--honest", "0", "--relays", "0"]) == 1


@pytest.mark.usefixtures("portable")
def test_the_script_fails_when_the_control_bit_is_not_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portable_checks, "leaf_hash", hash_without_control_bit)
    tallies = attack_reports.run(320, 0, 0)
    # Equal seeds with unequal bits pass: the value lands on every leaf.
    assert tallies["equal_roots"].wrong > 20
    assert tallies["seeds"].wrong == 0
    assert attack_reports.main(["--count", "80", "--honest", "0", "--relays", "0"]) == 1


@pytest.mark.usefixtures("portable")
def test_the_script_fails_when_relayed_parts_are_not_compared_with_the_commitment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchfsl.crypto.kdf.digests_equal", lambda a, b: True)
    assert attack_reports.run(0, 0, 40)["after_commitment"].wrong > 20


def test_processes_share_the_work_and_count_the_same() -> None:
    one = attack_reports.run(16, 8, 4, seed=3)
    two = attack_reports.run(16, 8, 4, seed=3, processes=2)
    assert one.keys() == two.keys()
    assert {n: t.reports for n, t in one.items()} == {n: t.reports for n, t in two.items()}
    assert not any(tally.wrong for tally in [*one.values(), *two.values()])

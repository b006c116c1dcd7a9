from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from scripts.reproduction import recommendation, recommendation_tables
from scripts.reproduction.page_table import TABLES
from scripts.reproduction.results import read_results, write_result


@pytest.fixture(autouse=True)
def few_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rankings of a few users, and results in a folder of the test's."""
    monkeypatch.setattr(recommendation, "RANKED", 8)
    monkeypatch.setattr(recommendation, "IN_CATALOGUE", 2)
    monkeypatch.chdir(tmp_path)


def _beauty(root: Path) -> Path:
    """1,200 users who buy around a place of their own among 3,000 items of 6 categories."""
    folder = root / "amazon-beauty"
    folder.mkdir()
    lines = [
        f"{user + 1} " + " ".join(str((7 * user + 3 * step) % 3000 + 1) for step in range(8))
        for user in range(1200)
    ]
    with gzip.open(folder / "sequences.txt.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    with gzip.open(folder / "item2attributes.json.gz", "wt") as file:
        json.dump({str(item): [item % 6] for item in range(1, 3001)}, file)
    return root


def _run(names: list[str], data: Path, *, seeds: list[int], fsl_rounds: int) -> None:
    recommendation.run_recommenders(
        names,
        seeds,
        data=data,
        runs=data / "runs",
        rounds=2,
        fsl_rounds=fsl_rounds,
        command="scripts/reproduce recommendation",
    )


def test_runs_of_a_cell_whole_and_in_part_through_the_servers_end_with_one_model(
    tmp_path: Path,
) -> None:
    data = _beauty(tmp_path)
    _run(["din-small-beauty"], data, seeds=[0, 1], fsl_rounds=1)
    name = "din-small-beauty-2-seed0"
    in_part = read_results("recommendation")[name]
    assert (in_part["aggregation"], in_part["exact_rounds"]) == ("plain", 2)
    assert (in_part["fsl"]["rounds"], in_part["fsl"]["exact_rounds"]) == (1, 1)
    row = _row_of("`din-small`")
    assert row[3] == "0, 1"
    assert row[-1] == "4 of 4; 2 of 2"
    others, catalogue = _rankings("`din-small`")
    assert others[2:4] == ["99 others", "8"]
    assert catalogue[2:4] == ["catalogue", "2"]
    (tmp_path / "results" / "recommendation.jsonl").unlink()
    _run(["din-small-beauty"], data, seeds=[0], fsl_rounds=2)
    whole = read_results("recommendation")[name]
    assert (whole["aggregation"], whole["fsl"]["exact_rounds"]) == ("fsl", 2)
    assert whole["model_sha256"] == in_part["model_sha256"]
    assert whole["fsl"]["upload_bytes"] == in_part["fsl"]["upload_bytes"]
    assert _row_of("`din-small`")[-1] == "2 of 2; 2 of 2"
    assert "| `din-small` | Amazon Beauty | 2 | 0 | 0 |" in TABLES["recommenders-time"].render()


def test_central_training_and_trials_have_rows_of_their_own(tmp_path: Path) -> None:
    _run(["central-mf-beauty", "trial-dropout-0"], _beauty(tmp_path), seeds=[0], fsl_rounds=0)
    assert _row_of("`mf`, central")[-3:] == ["-", "-", "-"]
    assert _row_of("no dropout")[1] == "2"
    runs = {run["cell"]: run for run in read_results("recommendation").values()}
    assert runs["trial-dropout-0"]["evaluate"] == "validation"
    assert runs["central-mf-beauty"]["evaluate"] == "test"


def test_two_bytes_a_value_stand_beside_four(tmp_path: Path) -> None:
    _run(
        ["din-small-beauty", "narrow-din-small-beauty"],
        _beauty(tmp_path),
        seeds=[0, 1],
        fsl_rounds=1,
    )
    wide, narrow = _row_of("`din-small`"), _row_of("`din-small`, two bytes a value")
    assert narrow[-1] == wide[-1] == "4 of 4; 2 of 2"
    runs = recommendation_tables.tests()
    sent = {r["cell"]: (r["fsl"]["upload_bytes"], r["fsl"]["download_bytes"]) for r in runs}
    two, four = sent["narrow-din-small-beauty"], sent["din-small-beauty"]
    assert two[0] < 0.75 * four[0]
    assert two[1] < 0.6 * four[1]
    aucs = {(r["cell"], r["seed"]): r["metrics"]["mean_auc"] for r in runs}
    off = [
        aucs["narrow-din-small-beauty", seed] - aucs["din-small-beauty", seed] for seed in (0, 1)
    ]
    row = f"| `din-small` | 2 | {off[0]:+.4f}, {off[1]:+.4f} | {sum(off) / 2:+.4f} |"
    assert row in TABLES["recommenders-narrow"].render()


@pytest.mark.parametrize(
    "name", ["din", "narrow-din", "narrow-mf-beauty", "din-books", "trial-none", "central-din"]
)
def test_a_cell_that_is_none_is_refused_with_the_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"PRESET-DATASET.*trial-user-table"):
        recommendation.config_of(name, tmp_path, 0, None)


def test_every_trial_has_words_and_changes_what_it_says() -> None:
    assert set(recommendation.TRIALS) == set(recommendation_tables.TRIAL_WORDS)
    configs = [
        recommendation.config_of(f"trial-{name}", Path("data"), 0, None)[1]
        for name in recommendation.TRIALS
    ]
    assert len({repr(config) for config in configs}) == len(configs)


def test_a_result_is_ranked_again_by_its_own_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _beauty(tmp_path)
    _run(["mf-beauty"], data, seeds=[0], fsl_rounds=0)
    ((name, first),) = read_results("recommendation").items()
    old = {key: own for key, own in first.items() if key != "ranking"} | {"catalogue_users": 2}
    write_result("recommendation", name, old)
    monkeypatch.setattr(recommendation, "IN_CATALOGUE", 5)
    (data / "runs" / "recommendation" / name / "plain" / "summary.json").unlink()
    _run(["mf-beauty"], data, seeds=[0], fsl_rounds=0)
    again = read_results("recommendation")[name]
    assert again["ranking"]["catalogue_users"] == 5
    assert "catalogue_users" not in again
    assert again["model_sha256"] == first["model_sha256"]
    assert again["test"] != first["test"]
    write_result("recommendation", name, old | {"model_sha256": "0"})
    with pytest.raises(RuntimeError, match="differs from the model of its stored result"):
        _run(["mf-beauty"], data, seeds=[0], fsl_rounds=0)


def test_central_training_stands_beside_the_model_of_its_rounds() -> None:
    for cell, aggregation, hr10 in (
        ("mf-beauty", "plain", 0.303),
        ("central-mf-beauty", "central", 0.3),
    ):
        figures = {
            f"{prefix}{name}": hr10
            for prefix in ("", "catalogue_")
            for name in ("hr10", "ndcg10", "hr20", "ndcg20", "mrr")
        }
        run = {
            "cell": cell, "preset": "mf", "dataset": "beauty", "evaluate": "test", "rounds": 2,
            "aggregation": aggregation, "seed": 0, "metrics": {"auc": 0.5}, "test": figures,
            "ranking": {"ranked_users": 9, "catalogue_users": 9}, "baselines": {},
        }  # fmt: skip
        write_result("recommendation", cell, run)
    rows = _rankings("`mf`")
    assert [row[9:12] for row in rows] == [["0.3000", "0.3000", "+1.0 %, +1.0 %"]] * 2


def _rankings(model: str) -> list[list[str]]:
    """Both rows of a model."""
    lines = TABLES["recommenders-ranking"].render().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if model in row]


def _row_of(model: str) -> list[str]:
    """Cells of the only row that has this one."""
    shown = (TABLES[name].render() for name in ("recommenders", "recommenders-trials"))
    lines = [line for text in shown for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (row,) = [row for row in rows if model in row]
    return row


def test_runs_of_fewer_rounds_do_not_count_against_popularity() -> None:
    for cell, auc, rounds in (("din-beauty", 0.75, 600), ("din-beauty", 0.6, 100)):
        run = {
            "cell": cell, "preset": "din", "dataset": "beauty", "evaluate": "test",
            "metrics": {"auc": 0.1, "mean_auc": auc}, "baselines": {"popularity_auc": 0.5},
            "rounds": rounds,
        }  # fmt: skip
        write_result("recommendation", f"{cell}-{rounds}", run)
    assert "| `din` | 600 | +0.250 |" in TABLES["recommenders-popularity"].render()


def test_a_preset_without_a_mean_of_models_is_judged_by_the_latest(tmp_path: Path) -> None:
    _run(["din-published-beauty"], _beauty(tmp_path), seeds=[0], fsl_rounds=1)
    (run,) = recommendation_tables.tests()
    row = _row_of("`din-published`")
    assert (row[4], row[5]) == ("-", f"{run['metrics']['auc']:.4f}")
    above = run["metrics"]["auc"] - run["baselines"]["popularity_auc"]
    row_of = f"| `din-published` | 2 | {above:+.3f} |"
    assert row_of in TABLES["recommenders-popularity"].render()

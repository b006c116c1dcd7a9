"""PrivHFL's page of results, and what the paper's own figures come to."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from scripts.reproduction import privhfl_cells, privhfl_paper
from scripts.reproduction.results import read_results
from training.privhfl.settings import Settings

PAGE = Path("docs") / "results" / "privhfl.md"


def test_every_row_of_the_papers_tables_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for figures in privhfl_paper.ACCURACY.values():
        for row in figures.values():
            assert all(f"| {value:.2f} " in text for value in row)
    for value in (*privhfl_paper.BASELINE.values(), *privhfl_paper.LAMBDA.values()):
        assert f"| {value:.2f} |" in text
    for values in privhfl_paper.PREDICTION.values():
        assert all(f"{s:g} s, {mb:,.2f} MB" in text for s, mb in values)
    for row in privhfl_paper.BATCHES.values():
        assert all(f"| {value:g} |" in text for value in row if value is not None)
    for rows in privhfl_paper.MNIST.values():
        assert all(f"{own:g}; {other:g}; " in text for own, other in rows)


def test_ten_points_name_checks_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    points = re.findall(r"^\| (\d+) \| .*? \| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in points] == list(range(1, 11))
    for _, check in points:
        for name in (part for part in check.split("`") if "/" in part and part.endswith(".py")):
            assert Path(name).exists(), name


def test_the_papers_text_does_not_follow_from_its_tables() -> None:
    """Point 8 and point 9."""
    old, own = (
        privhfl_paper.PREDICTION["CryptFlow2, OT"],
        privhfl_paper.PREDICTION["the paper, GPU"],
    )
    less = [before[1] / after[1] for before, after in zip(old, own, strict=True)]
    assert [round(ratio, 1) for ratio in less] == [233.6, 287.9, 269.3]
    accuracy, base = privhfl_paper.ACCURACY, privhfl_paper.BASELINE
    tiny, svhn = accuracy["Tiny ImageNet"], accuracy["SVHN"]
    assert tiny["10000"][2] - tiny["2500"][2] == pytest.approx(2.23)
    assert svhn["10000"][1] - svhn["2500"][1] == pytest.approx(4.65)
    assert svhn["10000"][2] - svhn["2500"][2] == pytest.approx(3.93)
    gains = {data: round(rows["10000"][2] - base[data], 1) for data, rows in accuracy.items()}
    assert gains == {"SVHN": 10.2, "CIFAR-10": 7.9, "Tiny ImageNet": 6.2}
    gpu, cpu = privhfl_paper.PREDICTION["CryptGPU"], privhfl_paper.PREDICTION["the paper, CPU"]
    times = [theirs[0] / ours[0] for theirs, ours in zip(gpu, cpu, strict=True)]
    assert min(times) == pytest.approx(1.24, abs=0.01)
    assert max(times) == pytest.approx(1.56, abs=0.01)
    predictions = 50 * 49 * 10_000
    rate = privhfl_paper.BATCHES["CIFAR-10", "VGG-7"][0]
    assert rate is not None
    assert predictions == 24_500_000
    assert round(predictions * rate / 1000 / 86_400) == 16
    assert round(66.61e6 * 8 * 1000 / rate / 1e9, 1) == 9.5


def test_every_cell_has_settings_and_a_name_of_its_own() -> None:
    kinds = (privhfl_cells.accuracy_cells, privhfl_cells.heterogeneity_cells,
             privhfl_cells.study_cells, privhfl_cells.secure_cells)  # fmt: skip
    cells = [cell for task in privhfl_cells.BASE for make in kinds for cell in make(task)]  # type: ignore[arg-type]
    assert len({cell.name for cell in cells}) == len(cells)
    settings = [cell.settings(0, Path("data")) for cell in cells]
    assert len({repr(one) for one in settings}) == len(cells)
    assert settings[0].data == "data/mnist"


def test_cells_run_once_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Settings(task="mnist", data="synthetic", clients=3, private=10, queries=10, test=50)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        privhfl_cells.Cell, "settings", lambda self, seed, data: Settings(
            **{**{f: getattr(small, f) for f in small.__slots__}, **self.changes, "seed": seed}
        ),
    )  # fmt: skip
    cells = [privhfl_cells.Cell("mnist", "local", {"control": "local"}),
             privhfl_cells.Cell("mnist", "all")]  # fmt: skip
    for seeds in ([0], [1, 0]):
        privhfl_cells.run_cells(cells, seeds=seeds, data=None, runs=tmp_path, command="here")
    assert capsys.readouterr().out.count(": is here") == 2
    found = read_results("privhfl")["mnist-all"]
    assert list(found["seeds"]) == ["0", "1"]
    assert found["seeds"]["0"]["predictions"] == 3 * 10 * 2
    assert found["seeds"]["0"]["command"] == "here"
    assert found["seeds"]["0"]["model_sha256"] != found["seeds"]["1"]["model_sha256"]


def test_the_shares_of_equation_5_do_not_add_up_to_the_product() -> None:
    """Point 8: shares of x_0 y_1 from a triple c_0 + c_1 = a b, as printed and mended."""
    draw = random.Random(5)
    x, y, a, b, c_0 = (draw.getrandbits(64) for _ in range(5))
    first, c_1 = x * (y - b) - c_0, a * b - c_0
    assert (first + (x + a) * y - c_1 - x * y) % 2**64
    assert (first + (x + a) * b - c_1 - x * y) % 2**64 == 0


def test_equation_6_gives_a_product_of_64_bits_by_ten_of_floats() -> None:
    draw = random.Random(6)
    one, other = (draw.getrandbits(64) for _ in range(2))
    parts = [[float(value >> 16 * part & 0xFFFF) for part in range(4)] for value in (one, other)]
    pairs = [(i, j) for i in range(4) for j in range(4) if i + j < 4]
    assert len(pairs) == 10
    total = sum(int(parts[0][i] * parts[1][j]) << 16 * (i + j) for i, j in pairs)
    assert total % 2**64 == one * other % 2**64

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchfsl.submodel.segments import default_encoding
from training.cli import config_from, main, make_parser
from training.config import Config, merge
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Encoding

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
rounds = 2
clients_per_round = 3
[recommendation]
dim = 4
history = 5
negatives = 1
rows_per_client = 32
"""


def parse(*arguments: str) -> Config:
    return config_from(make_parser().parse_args(arguments))


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_the_command_runs_a_preset_and_refuses_its_folder_the_second_time(tmp_path: Path) -> None:
    settings, out = tmp_path / "small.toml", tmp_path / "run"
    settings.write_text(SMALL)
    command = [sys.executable, "-m", "training", "din", "--config", str(settings), "--out",
               str(out), "--threads", "1", "--aggregation", "plain"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 rounds exact" in done.stdout
    assert json.loads((out / "summary.json").read_text())["rounds"] == 2
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    quiet = [*command, "--resume", "--quiet"]
    resumed = subprocess.run(quiet, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (resumed.returncode, resumed.stdout, resumed.stderr) == (0, "", "")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    for word in (*PRESETS, "--data", "synthetic", "--aggregation", "plain", "dense", "fsl",
                 "sequences.txt.gz", "summary.json", "--resume", "exact", "[local]"):  # fmt: skip
        assert word in text


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("1,a", "expected whole numbers with commas between them, such as 0,1,2, got '1,a'"),
        ("1,1", "'1,1' has a seed twice: remove the second one"),
    ],
)
def test_wrong_seeds_are_named(
    seeds: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(capsys, "din", "--seeds", seeds)


def test_options_override_the_file_and_the_file_the_preset(tmp_path: Path) -> None:
    settings = tmp_path / "own.toml"
    settings.write_text("rounds = 7\nseed = 9\n[local]\nlr = 1\n[rest]\npolicy = 'blocks'\n")
    config = parse("cnn-mnist", "--config", str(settings), "--rounds", "8")
    assert (config.rounds, config.seed, config.local.lr, config.rest.policy) == (
        8,
        9,
        1.0,
        "blocks",
    )
    assert config.local.weight_decay == PRESETS["cnn-mnist"].local.weight_decay


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense = 1", "unknown setting nonsense"),
        ("[local]\nspeed = 1", "unknown setting local.speed"),
        ("local = 3", "is a section"),
        ("rounds = 'many'", "expected a whole number, without quotes"),
        ("rounds = true", "expected a whole number"),
        ("rounds = 0", "choose 1 or more"),
        (
            '[encoding]\nring_bits = "32"',
            "encoding.ring_bits is '32', expected a whole number, w",
        ),
        (
            "[encoding]\nrest_clips = {a = 1}",
            'expected a list: write it in brackets, such as ["one", "two"]',
        ),
        ("workers = 500", "workers is 500, more than clients_per_round"),
        (
            "[encoding]\nrest_ring_bits = 16\n[fsl]\nl2_norm = 1.0",
            "fsl.l2_norm needs the same frac_bits in all segments, but encoding.rest_ring_bits",
        ),
        (
            "[encoding]\nrows_ring_bits = 16\n[fsl]\nl2_norm = 1.0",
            "encoding.rows_ring_bits gives some",
        ),
        (
            '[server]\noptimizer = "sgd"\nmomentum = 1',
            "server: the servers' momentum is 1.0: choose one in [0, 1)",
        ),
        (
            '[server]\noptimizer = "sgd"\nlr_decay = 1.5',
            "server: the servers' lr_decay is 1.5",
        ),
        (
            '[server]\noptimizer = "sgd"\nlr_decay_rounds = 0',
            "lr_decay_rounds is 0: choose a whole number of 1 or more",
        ),
        ('[server]\noptimizer = "adam"\nmomentum = 0.5', "settings of sgd"),
        ('[server]\noptimizer = "adam"\nlr_decay = 0.5', "settings of sgd"),
        ("[rest]\npolicy = 'half'", "choose one of dense, topk, blocks"),
        ("preset = 'textcnn'", "is for the preset textcnn, and the command names din"),
        ("rounds =", "cannot read the settings"),
    ],
)
def test_wrong_settings_are_named(text: str, message: str, tmp_path: Path) -> None:
    settings = tmp_path / "wrong.toml"
    settings.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse("din", "--config", str(settings))


@pytest.mark.parametrize(
    ("preset", "text", "message"),
    [
        ("din", 'rest_ring_bits = 16\nrest_clips = ["*=0.1"]',
         "encoding.rest_clip has no effect: leave out the last pattern, '*=0.1'"),
        ("din", 'rest_ring_bits = 16\nrest_clips = ["attn.*=0.1"]',
         "encoding.rest_clips has 'attn.*', which adds no parameter to those of earlier"),
        ("din", 'rest_ring_bits = 16\nrest_clips = ["item_embedding.*=0.1"]',
         "encoding.rest_clips has 'item_embedding.*', which adds no parameter"),
        ("din", 'rest_ring_bits = 16\nrest_clips = ["attention.*=0.1", "attention.4.*=0.01"]',
         "encoding.rest_clips has 'attention.4.*'"),
        ("din", "rest_ring_bits = 17", "encoding.rest_ring_bits and rest_clip: ring_bits is 17"),
        ("din", "rest_ring_bits = 16\nrest_clip = 0",
         "encoding.rest_ring_bits and rest_clip: clip is 0.0"),
        ("din", "rows_ring_bits = 16\nrows_clip = 1e9", "encoding.rows_ring_bits and rows_clip: "),
        ("din", "ring_bits = 17", "encoding.ring_bits, frac_bits and clip: ring_bits is 17"),
        ("mf", "rest_ring_bits = 16", "encoding.rest_ring_bits is for parameters outside tables"),
    ],
)  # fmt: skip
def test_an_encoding_that_does_not_fit_names_the_setting(
    preset: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(f"[encoding]\n{text}")
    said = complaint(capsys, preset, "--data", "synthetic", "--config", str(tmp_path / "own.toml"),
                     "--out", str(tmp_path / "out"))  # fmt: skip
    assert message in said


def test_mistakes_are_answered_in_one_line_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert "--data" in complaint(capsys, "din", "--data", str(tmp_path), "--out", out)
    many = ("din", "--clients-per-round", "100000", "--out", out)
    assert "the data has only 1000 clients" in complaint(capsys, *many)
    servers = ("din", "--servers", "a:1,b:1", "--out", out)
    assert "--tls" in complaint(capsys, *servers)
    assert "--out" in complaint(capsys, "din", "--resume")
    assert not Path(out).exists()


def test_a_ring_too_small_for_the_cohort_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    for _ in range(2):  # no folder is left, about which the second start would complain
        text = complaint(capsys, "din", "--clients-per-round", "600", "--out", out)
        assert "ring_bits" in text
    assert not Path(out).exists()


def test_the_default_encoding_is_the_librarys() -> None:
    own, theirs = Encoding(), default_encoding(100)
    assert (own.ring_bits, own.frac_bits, own.clip, own.rounding) == (
        theirs.ring_bits, theirs.frac_bits, theirs.clip, theirs.rounding,
    )  # fmt: skip


def test_every_preset_names_itself_and_fits_its_ring() -> None:
    for name, preset in PRESETS.items():
        assert preset.preset == name
        largest = preset.clients_per_round * preset.encoding.clip * 2**preset.encoding.frac_bits
        assert largest < 2 ** (preset.encoding.ring_bits - 1)
        assert merge(preset, {}) == preset

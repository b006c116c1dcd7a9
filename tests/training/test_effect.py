"""No setting is ignored in silence: what a run has no use for is refused or named."""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import pytest

from training.cli import config_from, main, make_parser
from training.config import Config
from training.effect import idle_under_aggregation, refuse_idle
from training.experiment import run_experiment
from training.listeners import Console
from training.presets import PRESETS
from training.section_checks import ConfigError

SMALL = {"data": "synthetic", "rounds": 1}
RUNS = [
    ("ctr-deepfm", "plain"),
    ("din", "fsl"), ("din-published", "dense"), ("din", "plain"), ("din", "central"),
    ("textcnn", "plain"),
    ("mf", "plain"), ("ncf", "plain"), ("deepfm", "plain"), ("sasrec", "plain"),
    ("cnn-mnist", "plain"), ("mlp-mnist-widths", "sesa"), ("mlp-mnist-widths", "plain"),
    ("din-small", "sefl"), ("lstm-wikitext2", "plain"), ("transformer-wikitext2", "fsl"),
]  # fmt: skip
ELSEWHERE = {
    "preset",
    "eval_every",
    "checkpoint_every",
    "device",
    "threads",
    "torch_threads",
    "tls",
    "replace",
}
"""Read by the command, when a file is written, or in longer runs."""


def leaves(config: Any, prefix: str = "") -> list[str]:
    """Paths of all settings."""
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        path = prefix + field.name
        found += leaves(value, path + ".") if dataclasses.is_dataclass(value) else [path]
    return found


def changed(config: Any, path: str) -> Any:
    """A copy with another value for one setting; raises if that is refused."""
    name, _, inner = path.partition(".")
    value = getattr(config, name)
    if inner:
        return dataclasses.replace(config, **{name: changed(value, inner)})
    kind = typing.get_type_hints(type(config))[name]
    other: Any
    if typing.get_origin(kind) is Literal:
        other = next(choice for choice in typing.get_args(kind) if choice != value)
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, str):
        other = value + "x"
    elif isinstance(value, tuple):
        other = (*value, value[-1] if value else "name=1")
    else:
        other = value + 1 if isinstance(value, int) else value / 2 + 0.13
    return dataclasses.replace(config, **{name: other})


def is_answered(config: Config, preset: Config, path: str) -> bool:
    """Whether a run with another value for a setting is refused, or says that it is not used."""
    try:
        other = changed(config, path)
        refuse_idle(other, preset, ())
    except ConfigError:
        return True
    named = idle_under_aggregation(other, preset)
    return path in named or path.split(".")[0] in named


def _is_written_down() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("run_folder.py"):
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize(("name", "aggregation"), RUNS)
def test_what_a_run_never_reads_is_refused_or_named(
    name: str, aggregation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = PRESETS[name]
    cohort = min(preset.clients_per_round, 12 if aggregation == "sesa" else 3)
    settings = {**SMALL, "aggregation": aggregation, "clients_per_round": cohort}
    if name.endswith("-widths"):
        settings["sesa"] = dataclasses.replace(preset.sesa, collusion=1 / 12)
    if preset.is_recommender:
        settings["recommendation"] = dataclasses.replace(preset.recommendation, ranked_users=5)
    config = dataclasses.replace(preset, **settings)
    read: set[str] = set()
    sections = {type(getattr(config, f.name)): f.name + "." for f in dataclasses.fields(config)
                if dataclasses.is_dataclass(getattr(config, f.name))}  # fmt: skip
    for kind, prefix in {**sections, Config: ""}.items():
        known = {prefix + field.name for field in dataclasses.fields(kind)}

        def noting(one: Any, field: str, prefix: str = prefix, known: set[str] = known) -> Any:
            if prefix + field in known and not _is_written_down():
                read.add(prefix + field)
            return object.__getattribute__(one, field)

        monkeypatch.setattr(kind, "__getattribute__", noting)
    run_experiment(config, tmp_path / "run", resume=False, console=Console(quiet=True))
    monkeypatch.undo()
    unread = [path for path in leaves(config) if path not in read and path not in ELSEWHERE]
    assert unread
    assert [path for path in unread if not is_answered(config, config, path)] == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["din", "--tls", "certs"], "tls has no effect in this run, because it is for --servers"),
        (["din", "--aggregation", "plain", "--servers", "a,b", "--tls", "c"], "servers has no"),
        (["mlp-mnist-widths", "--aggregation", "sesa", "--above-break-even", "dense"],
         "--above-break-even has no effect under sesa, because it is for fsl and plain"),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(arguments: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_from(make_parser().parse_args(arguments))


@pytest.mark.parametrize(
    ("name", "toml", "why"),
    [
        ("din", "[local]\nepochs = 2", "local.epochs has no effect in this run, .* a user is one"),
        ("din", "[local]\nproximal = 0.1", "local.proximal has no effect .*several steps"),
        ("din", '[local]\noptimizer = "sgd"\nproximal = 0.1', "local.proximal .*several steps"),
        ("cnn-mnist", "[local]\nsteps = 1\nproximal = 0.1", "local.proximal .*several steps"),
        ("din", "[local]\nlr = 0.5", "local.lr has no effect .*optimizer"),
        (
            "din",
            "[images]\ncrop = 2",
            "images has no effect in this run, because it is for presets of",
        ),
        ("textcnn", "[rest]\nblock = 8", "rest.block has no effect .*policy"),
        ("cnn-mnist", "[partition]\nalpha = 0.1", "partition.alpha has no effect .*dirichlet"),
    ],
)
def test_a_setting_of_a_file_without_effect_is_refused(
    name: str, toml: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(toml)
    options = make_parser().parse_args([name, "--config", str(tmp_path / "own.toml")])
    with pytest.raises(ConfigError, match=why):
        config_from(options)


@pytest.mark.parametrize("aggregation", ["sefl", "central", "sesa"])
@pytest.mark.parametrize(
    "line",
    [
        'download = "float16"',
        "rest_ring_bits = 16",
        "rows_ring_bits = 16",
        'rest_ring_bits = 16\nrest_clips = ["attention.*=0.1"]',
    ],
)
def test_fewer_bytes_that_an_aggregation_cannot_give_are_refused_wherever_they_stand(
    aggregation: str, line: str, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(f"[encoding]\n{line}")
    name = "mlp-mnist-widths" if aggregation == "sesa" else "din"
    options = [name, "--config", str(tmp_path / "own.toml"), "--aggregation"]
    setting = line.split(" = ")[0]
    why = f"encoding.{setting} has no effect under {aggregation}, because it is for --agg"
    with pytest.raises(ConfigError, match=why):
        config_from(make_parser().parse_args([*options, aggregation]))
    if name == "din":
        for other in ("plain", "dense", "fsl"):
            config = config_from(make_parser().parse_args([*options, other]))
            assert idle_under_aggregation(config, PRESETS[name]) == []


def test_the_remedy_above_break_even_works_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text('[rest]\npolicy = "topk"\namount = 0.2')
    options = ["din", "--data", "synthetic", "--rounds", "1", "--clients-per-round", "2",
               "--config", str(tmp_path / "own.toml"), "--quiet"]  # fmt: skip
    for aggregation in ("plain", "fsl"):
        arguments = [*options, "--aggregation", aggregation, "--out", str(tmp_path / aggregation)]
        with pytest.raises(SystemExit):
            main(arguments)
        assert "add --above-break-even dense" in capsys.readouterr().err
        assert main([*arguments, "--above-break-even", "dense"]) == 0
    sums = [(tmp_path / kind / "summary.json").read_text() for kind in ("plain", "fsl")]
    assert len({json.loads(text)["model_sha256"] for text in sums}) == 1
    assert main([*options, "--aggregation", "central", "--out", str(tmp_path / "central")]) == 0
    assert capsys.readouterr().err == "settings without effect under central: rest\n"
    told = [json.loads(text)["not_used"] for text in
            (*sums, (tmp_path / "central" / "summary.json").read_text())]  # fmt: skip
    assert told == [[], [], ["rest"]]


def test_blocks_drawn_in_secret_have_a_size(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[rest]\npolicy = "sample"\nblock = 16')
    options = make_parser().parse_args(["din", "--config", str(tmp_path / "own.toml")])
    assert config_from(options).rest.block == 16
    (tmp_path / "own.toml").write_text('[rest]\npolicy = "sample"\nerror_feedback = false')
    with pytest.raises(ConfigError, match=r'rest.error_feedback .*"topk", "blocks" or "bins"'):
        config_from(options)


def test_one_file_serves_all_aggregations_and_what_one_does_not_use_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.toml").write_text("malicious_security = false\n[encoding]\nring_bits = 31")
    options = ["mlp-mnist-widths", "--config", str(tmp_path / "own.toml"), "--aggregation"]
    preset = PRESETS["mlp-mnist-widths"]
    for aggregation, idle in (
        ("fsl", []),
        ("plain", ["malicious_security"]),
        ("sesa", ["malicious_security", "encoding.ring_bits"]),
    ):
        config = config_from(make_parser().parse_args([*options, aggregation]))
        assert config.encoding.ring_bits == 31
        assert idle_under_aggregation(config, preset) == idle

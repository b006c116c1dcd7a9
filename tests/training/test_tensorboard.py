from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.cli import main

SMALL = """
rounds = 2
clients_per_round = 2
checkpoint_every = 1
[din]
dim = 4
history = 5
negatives = 1
rows_per_client = 32
"""


def test_event_files_hold_the_figures_of_the_metrics_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the tensorboard extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings, out = tmp_path / "small.toml", tmp_path / "run"
    settings.write_text(SMALL)
    command = ["din", "--config", str(settings), "--out", str(out), "--threads", "1",
               "--aggregation", "plain", "--quiet", "--tensorboard"]  # fmt: skip
    assert main(command) == 0
    assert main([*command, "--resume", "--rounds", "3"]) == 0
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for tag, name in (("metrics/auc", "auc"), ("round/upload_bytes", "upload_bytes")):
        points = [(e.step, e.value) for e in events.Scalars(tag)]
        wanted = [(line["round"], line[name]) for line in lines if name in line]
        assert [step for step, _ in points] == [number for number, _ in wanted]
        assert [value for _, value in points] == pytest.approx([value for _, value in wanted])

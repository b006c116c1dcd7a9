"""Table 9: words and samples of TREC, as our tokeniser and partition see them."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.reproduction import paper
from training.config import Config
from training.data.partition import iid
from training.data.prf import Stream
from training.data.tables import load_sentences, tokenise
from training.presets import PRESETS
from training.sections import Partition


def table9(data: str | None) -> dict[str, Any]:
    """Distinct words and samples of both splits and of one of four clients."""
    preset: Config = PRESETS["textcnn"]
    loaded = load_sentences(data or preset.data)
    parts = iid(len(loaded.train.inputs), Partition(clients=4).clients, Stream(0, "partition"))
    counts = [len(_words([loaded.train.inputs[i] for i in part])) for part in parts]
    return {
        "paper": paper.TREC,
        "ours": {
            "test": (len(_words(loaded.test.inputs)), len(loaded.test.inputs)),
            "train": (len(_words(loaded.train.inputs)), len(loaded.train.inputs)),
            "train per client": (float(np.mean(counts)), float(np.mean([len(p) for p in parts]))),
        },
    }


def _words(sentences: list[str]) -> set[str]:
    return {word for sentence in sentences for word in tokenise(sentence)}

"""A taste of scripts/attacks/fuzz_messages.py; the corpus in the repository stays small."""

from __future__ import annotations

from collections import Counter

from scripts.attacks import fuzz_messages


def test_no_decoder_raises_anything_but_its_documented_errors() -> None:
    targets = fuzz_messages.make_targets()
    fuzz_messages.load_corpus(targets)
    done: Counter[str] = Counter()
    failures: list[str] = []
    fuzz_messages.fuzz(targets, 30_000, 60.0, 1, done, failures)
    assert not failures
    assert set(done) == {target.name for target in targets}


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in fuzz_messages.CORPUS.iterdir()]
    assert 50 < len(sizes) < 600
    assert sum(sizes) < 400_000

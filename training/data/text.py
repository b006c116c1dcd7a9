"""Running text as numbers of words: the data of the language models.

A folder holds `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`, or the same with
`.gz`: words with blanks between, a line a paragraph. Anything else goes to `datasets`, as a Hub
name or a folder that it reads, with the splits `train`, `validation` and `test`.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError
from training.data.hub_splits import load_splits
from training.data.prf import Stream

Words = npt.NDArray[np.int32]
END, UNKNOWN = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
_HUB_SUBSET = "wikitext-2-v1"
_MADE_UP = 300


@dataclass(frozen=True, eq=False)
class Text:
    """Three texts over one public list of words.

    Attributes:
        train: int32 `[n]`, numbers of words in order.
        valid: the same, for evaluations while training.
        test: the same, for the end.
        words: of the list, by falling frequency in the training text; equal ones by name.
    """

    train: Words
    valid: Words
    test: Words
    words: Sequence[str]

    @classmethod
    def build(cls, splits: Sequence[Sequence[str]], most: int = 0) -> Text:
        """Number the words of training, validation and test text.

        Args:
            splits: the words of the three texts, in order.
            most: longest list; the rarest words become `<unk>`. 0 keeps all.

        Raises:
            DataError: a text is empty.
        """
        if not all(len(split) > 1 for split in splits):
            raise DataError(
                "expected two words or more in each of the texts train, valid and test, got "
                f"{', '.join(str(len(split)) for split in splits)} words: add words to the text"
            )
        counts = Counter(splits[0])
        counts[UNKNOWN] += 0  # other texts may have words that the training text lacks
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if most and len(words) > most:
            words = [word for word in words if word != UNKNOWN][: most - 1]
            known = sum(counts[word] for word in words)
            counts[UNKNOWN] = len(splits[0]) - known
            words = sorted([*words, UNKNOWN], key=lambda word: (-counts[word], word))
        ids = {word: number for number, word in enumerate(words)}
        unknown = ids[UNKNOWN]
        train, valid, test = (
            np.array([ids.get(word, unknown) for word in split], dtype=np.int32) for split in splits
        )
        return cls(train, valid, test, words)

    @property
    def unknown_share(self) -> float:
        """Share of the training text that stands as `<unk>`."""
        return float(np.mean(self.train == self.words.index(UNKNOWN)))


def load_text(source: str, most: int = 0) -> Text:
    """Read a folder, or a data set of the Hugging Face Hub.

    Args:
        source: see the module.
        most: see `Text.build`.

    Raises:
        DataError: it cannot be read, or a text is missing or empty.
    """
    files = [_file(Path(source), split) for split in SPLITS]
    if any(file is not None for file in files):
        missing = [s for s, file in zip(SPLITS, files, strict=True) if file is None]
        if missing:
            raise DataError(
                f"{source} lacks {', '.join(f'wiki.{split}.tokens[.gz]' for split in missing)}, "
                "expected the files of train, valid and test: add the missing files"
            )
        lines = [_lines(file) for file in files if file is not None]
    else:
        lines = _open(source)
    return Text.build([_split(of_split) for of_split in lines], most)


def synthetic_text(seed: int, *, train: int, valid: int, test: int, most: int = 0) -> Text:
    """A made-up language in which each word is followed by one of four, mostly the first two."""
    words, choices = _MADE_UP, 4
    stream = Stream(seed, "synthetic text")
    following = stream.integers(words, words * choices).reshape(words, choices)
    splits = []
    for size in (train, valid, test):
        # Each next choice is half as likely as the one before, and the last two are alike.
        chosen = np.searchsorted(np.array([4, 6, 7]), stream.integers(8, size), side="right")
        word, text = 0, []
        for place in chosen.tolist():
            text.append(f"word{word}")
            word = int(following[word, place])
        splits.append(text)
    return Text.build(splits, most)


def _file(folder: Path, split: str) -> Path | None:
    for name in (f"wiki.{split}.tokens", f"wiki.{split}.tokens.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def _lines(file: Path) -> list[str]:
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return raw.decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: expected UTF-8 text{_gz(file)}, but {error}: convert the text with "
            f"iconv -t UTF-8{', then gzip' if file.suffix == '.gz' else ''}"
        ) from error


def _gz(file: Path) -> str:
    return " in gzip" if file.suffix == ".gz" else ""


def _split(lines: Iterable[str]) -> list[str]:
    return [word for line in lines for word in (*line.split(), END)]


def _open(source: str) -> list[list[str]]:
    """The lines of the three texts from a Hub name, or a folder that `datasets` reads."""
    from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]

    folder = Path(source).is_dir()
    try:
        loaded = load_splits(source, *(() if folder else (_HUB_SUBSET,)))
        lines = [list(loaded[name]["text"]) for name in ("train", "validation", "test")]
    except (OSError, ValueError, KeyError, DatasetsError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        where = "folder" if folder else "Hub name (no folder has this name)"
        raise DataError(
            f"cannot load the {where} {source!r}: {first}. Pass --data with a folder of "
            "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (or .gz), a Hugging Face "
            f"data set with a subset {_HUB_SUBSET}, or 'synthetic'"
        ) from error
    for name, texts in zip(("train", "validation", "test"), lines, strict=True):
        odd = next((n for n, text in enumerate(texts) if not isinstance(text, str)), None)
        if odd is not None:
            raise DataError(
                f"{source!r}, split {name}, row {odd}: expected text, found {texts[odd]!r}: leave "
                "such rows out"
            )
    return lines

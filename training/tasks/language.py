"""Language models: running text, of which every client has a separate block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from training.data.prf import Stream
from training.data.text import Text, Words
from training.tasks.task import Batch, Ids, LocalPlan, Task, Work, evaluating, seeded

_EVALUATION_BATCH = 64
MOST_LOG = 20.0
"""Perplexities above e**20 stand as that."""


class LanguageTask(Task):
    """Predict the next word; clients download the whole model.

    The training text is cut into as many blocks as there are clients, in order, so that a client
    holds a few articles. A sample is a window of so many words and the word that follows each of
    them; the model sees nothing before the window, in evaluation neither.

    Args:
        text: the three texts.
        clients: number of clients.
        tokens: words of a window.
        valid_tokens: evaluations read so many words from the start of the validation text; 0 for
            all of it.
        model: builds the model, which maps a window and the words that follow to their negative
            log-likelihoods; torch's generator is seeded before.
        local: length of local training.
        seed: of model and batches.

    Raises:
        ValueError: a client's block, or the validation or test text, holds no window.
    """

    metric = "log_likelihood"

    def __init__(
        self,
        text: Text,
        *,
        clients: int,
        tokens: int,
        valid_tokens: int,
        model: Callable[[], nn.Module],
        local: LocalPlan,
        seed: int,
    ) -> None:
        self.text, self.tokens, self.local, self.seed = text, tokens, local, seed
        self.num_clients, self._model = clients, model
        self.valid = text.valid[: valid_tokens + 1] if valid_tokens else text.valid
        self.blocks = np.array_split(text.train, clients)
        shortest = min(len(part) for part in (self.blocks[-1], self.valid, text.test))
        if shortest <= 2 * tokens:
            raise ValueError(
                "the shortest text (a client's block, or the validation or test text) has "
                f"{shortest} words, but windows of {tokens} words need more than {2 * tokens}: "
                "lower language.clients or language.tokens"
            )

    def build_model(self) -> nn.Module:
        """The model with seeded initial weights."""
        return seeded(self._model, self.seed)

    def work(self, round_number: int, client: int) -> Work:
        """Windows of the client's block in random order, cut at another place in every epoch."""
        stream = Stream(self.seed, "work", round_number, client)

        def shuffled() -> Ids:
            first = int(stream.integers(self.tokens, 1)[0])
            windows = cut(self.blocks[client][first:], self.tokens).astype(np.int64)
            return windows[stream.permutation(len(windows))]

        return Work({}, tuple(map(_batch, self.local.batches(shuffled))))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Mean log-likelihood of a word of the validation text, in nats, and perplexity."""
        return self._measure(model, self.valid)

    def final_test(self, model: nn.Module) -> dict[str, float]:
        """The same of the whole test text."""
        return self._measure(model, self.text.test)

    def baselines(self) -> dict[str, float]:
        """The same of words drawn by their frequency in the training text, and before training.

        Each frequency counts one more than was seen, since other texts may have other words.
        """
        counts = np.bincount(self.text.train, minlength=len(self.text.words)) + 1
        likelihood = np.log(counts / counts.sum())
        unigram = _figures(float(likelihood[self.valid].mean()))
        untrained = self.evaluate(self.build_model())
        return {f"unigram_{name}": value for name, value in unigram.items()} | {
            f"untrained_{name}": value for name, value in untrained.items()
        }

    def _measure(self, model: nn.Module, words: Words) -> dict[str, float]:
        """Over the windows of a text; a rest shorter than a window is left out."""
        windows, losses = cut(words, self.tokens), []
        with evaluating(model) as device:
            for start in range(0, len(windows), _EVALUATION_BATCH):
                batch = _batch(windows[start : start + _EVALUATION_BATCH])
                losses.append(model(*(x.to(device) for x in batch.inputs)).double().cpu())
        return _figures(-float(torch.cat(losses).mean()))


def cut(words: Words, tokens: int) -> Words:
    """Neighbouring windows that overlap by one word: `[windows, tokens + 1]`, a view."""
    starts = np.lib.stride_tricks.sliding_window_view(words, tokens + 1)
    return starts[::tokens]


def _batch(windows: Words | Ids) -> Batch:
    whole = torch.from_numpy(windows.astype(np.int64))
    return Batch((whole[:, :-1], whole[:, 1:]), None)


def _figures(log_likelihood: float) -> dict[str, float]:
    return {
        "log_likelihood": log_likelihood,
        "perplexity": float(np.exp(min(-log_likelihood, MOST_LOG))),
    }

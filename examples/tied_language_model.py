"""A transformer language model whose input and output embeddings are one table.

    python examples/tied_language_model.py [--rounds 5]

The softmax over the vocabulary moves every row in every step, so the rows that were touched would
be the whole table. `rows="auto"` refuses that. The remedy is to send the rows that changed most.
The other changes stay in the client's residual.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from torchfsl import BlockTopK, Federated, Rows, simulate
from torchfsl.errors import ParameterError

WORDS, WIDTH, CLIENTS, SENTENCES, LENGTH = 400, 32, 4, 16, 12


class LanguageModel(nn.Module):
    """One encoder layer with a causal mask; the decoder is the embedding table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.decoder = nn.Linear(WIDTH, WORDS, bias=False)
        self.decoder.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits of the next word, float [B, L, WORDS]."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.decoder(self.encoder(self.words(text), mask=mask, is_causal=True))


def clients_data(seed: int = 0) -> list[torch.Tensor]:
    """Sentences in which every word is followed by its successor, or now and then by any."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for _ in range(CLIENTS):
        start = torch.randint(0, WORDS, (SENTENCES, 1), generator=g)
        text = (start + torch.arange(LENGTH + 1)) % WORDS
        noise = torch.randint(0, WORDS, text.shape, generator=g)
        data.append(torch.where(torch.rand(text.shape, generator=g) < 0.1, noise, text))
    return data


def train(model: nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    """The user's own loop: four steps; returns the last loss."""
    for _ in range(4):
        optimizer.zero_grad()
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def main() -> None:
    """Train, and print a line a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model, data = LanguageModel(), clients_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    try:
        Federated(model, optimizer)
    except ParameterError as error:
        print(f"rows='auto': {error}\n")
    # torchfsl:
    rows, rest = Rows(top=64, find="scan"), BlockTopK(0.2, block=32)
    fed = Federated(model, optimizer, max_clients=CLIENTS, rows=rows, rest=rest)
    learn = lambda text: train(model, optimizer, text)  # noqa: E731
    simulate(fed, data, learn, rounds=rounds, progress=print)


if __name__ == "__main__":
    main()

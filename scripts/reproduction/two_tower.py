"""A two-tower recommender on made-up data, trained on softmax losses over the items of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data.prf import Stream
from training.tasks.task import Batch, Ids, Task, Work


class TwoTower(nn.Module):
    """Users and items as unit vectors; logits of all pairs of a batch.

    Args:
        users: Rows of the user table.
        category_of: int64 `[items]`.
        counts: float `[items]`, how often an item is in the training data, by which logits of a
            batch's items are corrected.
        width: Values per embedding row.
    """

    category_of: Tensor
    counts: Tensor

    def __init__(self, users: int, category_of: Tensor, counts: Tensor, width: int = 16) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(len(category_of), width)
        self.category = nn.Embedding(int(category_of.max()) + 1, width)
        for table, deviation in ((self.user, 0.1), (self.item, 0.1), (self.category, 0.5)):
            nn.init.normal_(table.weight, std=deviation)
        self.user_tower = _tower(width, width)
        self.item_tower = _tower(2 * width, width)
        self.register_buffer("category_of", category_of)
        self.register_buffer("counts", counts)

    def users(self, ids: Tensor) -> Tensor:
        """Unit vectors `[B, width]`."""
        return functional.normalize(self.user_tower(self.user(ids)), dim=1)

    def items(self, ids: Tensor) -> Tensor:
        """Unit vectors `[B, width]`."""
        parts = [self.item(ids), self.category(self.category_of[ids])]
        return functional.normalize(self.item_tower(torch.cat(parts, dim=1)), dim=1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Logits `[B, B]`; a user's own item is on the diagonal."""
        return self.users(users) @ self.items(items).T / 0.1 - self.counts[items].log()


def _tower(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


class TwoTowerTask(Task):
    """500 users with two tastes each take 40 of 3,000 items; the last is asked for.

    Args:
        seed: Of data, model and batches.
        clients: Number of clients, which share the users equally.
        spread: Whether a client has interactions of all users, instead of all interactions of
            some users.
        steps: Batches per round; None for all.
    """

    metric = "hr10"
    retrieves = True
    users, items, categories, taken, batch = 500, 3000, 30, 40, 64

    def __init__(
        self, seed: int, clients: int = 20, *, spread: bool = False, steps: int | None = None
    ) -> None:
        """Draw the data."""
        self.num_clients, self.seed, self.steps = clients, seed, steps
        draw = torch.Generator().manual_seed(seed)
        self.category_of = torch.randint(0, self.categories, (self.items,), generator=draw)
        tastes = [torch.randperm(self.categories, generator=draw)[:2] for _ in range(self.users)]
        popularity = torch.rand(self.items, generator=draw) ** 6
        taken = torch.stack(
            [
                torch.multinomial(
                    popularity * (0.004 + torch.isin(self.category_of, taste).float()),
                    self.taken,
                    generator=draw,
                )
                for taste in tastes
            ]
        )
        self.known, self.asked = taken[:, :-1], taken[:, -1]
        self.counts = torch.bincount(self.known.reshape(-1), minlength=self.items) + 1.0
        pairs = torch.arange(self.known.numel())
        if spread:
            pairs = torch.randperm(len(pairs), generator=draw)
        self.parts = pairs.chunk(clients)
        rows = [self._rows(part) for part in self.parts]
        self.rows_per_client = {t: max(len(r[t]) for r in rows) for t in rows[0]}

    def build_model(self) -> nn.Module:
        """The model with seeded initial weights."""
        torch.manual_seed(self.seed)
        return TwoTower(self.users, self.category_of, self.counts)

    def work(self, round_number: int, client: int) -> Work:
        """All interactions of the client once, in a new order."""
        part = self.parts[client]
        order = torch.from_numpy(
            Stream(self.seed, "work", round_number, client).permutation(len(part))
        )
        chosen = [c for c in part[order].split(self.batch) if len(c) > 1][: self.steps]
        batches = tuple(Batch((*self._ids(pairs),), torch.arange(len(pairs))) for pairs in chosen)
        return Work(self._rows(part), batches)

    def _ids(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Users and items of pairs that are numbered user by user."""
        return pairs // self.known.shape[1], self.known.reshape(-1)[pairs]

    def _rows(self, pairs: Tensor) -> dict[str, Ids]:
        users, items = self._ids(pairs)
        ids = {"user": users, "item": items, "category": self.category_of[items]}
        return {f"{table}.weight": found.unique().numpy() for table, found in ids.items()}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Share of users whose item is among the ten best of all that they have not taken."""
        assert isinstance(model, TwoTower)
        scores = model.users(torch.arange(self.users)) @ model.items(torch.arange(self.items)).T
        scores.scatter_(1, self.known, -torch.inf)
        target = scores.gather(1, self.asked[:, None])
        return {"hr10": float(((scores > target).sum(dim=1) < 10).float().mean())}

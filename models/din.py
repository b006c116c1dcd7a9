"""Deep Interest Network (Zhou et al., KDD 2018) with item, category and user embeddings.

Shape legend
    B = samples, L = longest history of the batch, D = embedding width, P = 2 D (item and category)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch
from torch import Tensor, nn

from models.histories import PAIRS

_TOGETHER: Final = 512
"""Shared candidates that are scored together: their layers stay in the cache."""


class DIN(nn.Module):
    """Predict whether a user takes an item, from the user's past items.

    Every history item is weighted by an attention network that sees the candidate. The features
    are `[user D, target P, history sum P, target * history sum P, attention sum P]`, 9 D in all,
    and 8 D without a user table. With the defaults, the published shape, the dense part has 64,327
    parameters; the embedding tables have `(items + categories + users) * 18`.

    Args:
        items: rows of the item table.
        categories: rows of the category table.
        users: rows of the user table; 0 for a model without one, to which users are their items.
        dim: width D of every embedding.
        attention: widths of the attention network's hidden layers.
        head: widths of the head's hidden layers.
        activation: of the head: `prelu`, or `dice`, the paper's own.
        dropout: share of the head's input, in [0, 1), that is zero in training.
    """

    def __init__(
        self,
        *,
        items: int,
        categories: int,
        users: int,
        dim: int = 18,
        attention: Sequence[int] = (80, 40),
        head: Sequence[int] = (200, 80),
        activation: Literal["prelu", "dice"] = "prelu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(items, dim)
        self.category_embedding = nn.Embedding(categories, dim)
        self.user_embedding = nn.Embedding(users, dim) if users else None
        for table in (self.item_embedding, self.category_embedding, self.user_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=0.1)
        width = (9 if users else 8) * dim
        self.attention = layers([8 * dim, *attention, 1], lambda _: nn.Sigmoid())
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.head = layers([width, *head, 2], Dice if activation == "dice" else nn.PReLU)

    def forward(
        self,
        user: Tensor,
        target: Tensor,
        target_category: Tensor,
        history: Tensor,
        history_category: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the logits `[B, 2]` of (not taken, taken).

        Args:
            user: int64 `[B]`; ignored without a user table.
            target: int64 `[B]`, the candidate items.
            target_category: int64 `[B]`.
            history: int64 `[B, L]`; what stands at masked positions is ignored.
            history_category: int64 `[B, L]`.
            mask: bool `[B, L]`, true at real history items; a row may be all false.
        """
        # A masked position reads the target's rows, which the batch needs anyway: no table row is
        # spent on padding, and a model that holds only the rows it retrieved reads no other.
        history = torch.where(mask, history, target[:, None])
        history_category = torch.where(mask, history_category, target_category[:, None])
        target_BP = torch.cat(
            [self.item_embedding(target), self.category_embedding(target_category)], dim=-1
        )
        history_BLP = torch.cat(
            [self.item_embedding(history), self.category_embedding(history_category)], dim=-1
        )
        history_BLP = torch.where(mask[..., None], history_BLP, 0.0)
        sum_BP = history_BLP.sum(dim=1)
        attention_BP = self.attend(target_BP, history_BLP, mask)
        parts = [target_BP, sum_BP, target_BP * sum_BP, attention_BP]
        if self.user_embedding is not None:
            parts.insert(0, self.user_embedding(user))
        logits: Tensor = self.head(self.dropout(self.norm(torch.cat(parts, dim=-1))))
        return logits

    def score_items(
        self,
        user: Tensor,
        target: Tensor,
        target_category: Tensor,
        history: Tensor,
        history_category: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the scores `[U, C]` of C candidates a user: differences of the two logits.

        As `forward` in evaluation mode, up to the order of float32 sums. Products with a user's
        rows go into the weights of a layer once, instead of into its inputs for each candidate,
        and the attention of candidates that all users share is computed once for each past item.

        Args:
            user: int64 `[U]`; ignored without a user table.
            target: int64 `[C]`, candidates that all users share, or `[U, C]`.
            target_category: int64, as `target`.
            history: int64 `[U, L]`; masked positions hold any row of the table.
            history_category: int64 `[U, L]`.
            mask: bool `[U, L]`, true at real history items.
        """
        if target.dim() == 1 and len(target) > _TOGETHER:
            parts = [slice(at, at + _TOGETHER) for at in range(0, len(target), _TOGETHER)]
            given = history, history_category, mask
            each = (self.score_items(user, target[p], target_category[p], *given) for p in parts)
            return torch.cat(list(each), dim=1)
        if not history.shape[1]:
            history = history_category = history.new_zeros(len(user), 1)
            mask = mask.new_zeros(len(user), 1)
        items = self._rows(target, target_category)
        past_ULP = torch.where(mask[..., None], self._rows(history, history_category), 0.0)
        relevance = (
            self._relevance_once(items, history, history_category) if items.dim() == 2 else None
        )
        found = items.new_empty(len(user), target.shape[-1])
        step = max(1, PAIRS // target.shape[-1])
        for start in range(0, len(user), step):
            own = slice(start, start + step)
            longest = max(1, int(mask[own].sum(dim=1).max()))
            past = past_ULP[own, :longest]
            if relevance is None:
                items_UCP = items[own]
                score_ULC = self._relevance(items_UCP, past).transpose(1, 2)
            else:
                items_UCP = items.expand(len(past), *items.shape)
                score_ULC = relevance[0][relevance[1][own, :longest]]
            lowest = torch.finfo(score_ULC.dtype).min
            weight_ULC = torch.where(mask[own, :longest, None], score_ULC, lowest).softmax(dim=1)
            users = None if self.user_embedding is None else self.user_embedding(user[own])
            found[own] = self._head_of_items(users, items_UCP, past, weight_ULC)
        return found

    def _rows(self, item: Tensor, category: Tensor) -> Tensor:
        return torch.cat([self.item_embedding(item), self.category_embedding(category)], dim=-1)

    def _relevance_once(
        self, items_CP: Tensor, history: Tensor, history_category: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores `[F, C]` of the F items in histories, and where in them each stands `[U, L]`."""
        past, place = torch.unique(history, return_inverse=True)
        category = history_category.new_zeros(len(past))
        category[place] = history_category
        past_FP = self._rows(past, category)
        found = past_FP.new_empty(len(past), len(items_CP))
        for start in range(0, len(past), 16):
            part = slice(start, start + 16)
            found[part] = self._relevance(items_CP[None], past_FP[None, part])[0].T
        return found, place

    def _relevance(self, items_UCP: Tensor, past_ULP: Tensor) -> Tensor:
        """Scores `[U, C, L]` that the attention gives each pair.

        Of a candidate t and a past item h it reads (t, h, t - h, t * h). Except for h alone these
        are products of t with weights that h makes once for all candidates.
        """
        first, rest = _first_of(self.attention)
        of_item, of_past, of_gap, of_product = first.weight.chunk(4, dim=1)
        weight = past_ULP[..., None, :] * of_product + (of_item + of_gap)
        offset = past_ULP @ (of_past - of_gap).T + first.bias
        weight_UPW = weight.flatten(1, 2).transpose(1, 2)
        values = torch.baddbmm(offset.flatten(1)[:, None], items_UCP, weight_UPW)
        found: Tensor = rest(values.view(-1, first.out_features))
        return found.view(*items_UCP.shape[:2], -1)

    def _head_of_items(
        self, users: Tensor | None, items_UCP: Tensor, past_ULP: Tensor, weight_ULC: Tensor
    ) -> Tensor:
        """Scores `[U, C]`, of what `forward` concatenates."""
        (first, rest), norm = _first_of(self.head), self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias - norm.running_mean * scale
        width = items_UCP.shape[-1]
        dim = 0 if users is None else users.shape[1]
        parts = torch.split(first.weight * scale, [dim, width, width, width, width], dim=1)
        of_user, of_item, of_sum, of_product, of_attention = parts
        sum_UP = past_ULP.sum(dim=1)
        offset = first.weight @ shift + first.bias + sum_UP @ of_sum.T
        if users is not None:
            offset = offset + users @ of_user.T
        weight = sum_UP[:, None, :] * of_product + of_item  # [U, W, P], W the layer's width
        values = torch.baddbmm(offset[:, None], items_UCP, weight.transpose(1, 2))
        values.baddbmm_(weight_ULC.transpose(1, 2), past_ULP @ of_attention.T)
        logits: Tensor = rest(values.view(-1, values.shape[-1]))
        return (logits[:, 1] - logits[:, 0]).view(len(weight), -1)

    def attend(self, target_BP: Tensor, history_BLP: Tensor, mask: Tensor) -> Tensor:
        """Sum the history by its relevance to the target, a softmax over the real positions.

        Args:
            target_BP: float `[B, P]`.
            history_BLP: float `[B, L, P]`, zero at masked positions.
            mask: bool `[B, L]`.

        Returns:
            float `[B, P]`; zero for an empty history.
        """
        target_BLP = target_BP[:, None, :].expand_as(history_BLP)
        pairs = [target_BLP, history_BLP, target_BLP - history_BLP, target_BLP * history_BLP]
        score_BL = self.attention(torch.cat(pairs, dim=-1)).squeeze(-1)
        score_BL = torch.where(mask, score_BL, torch.finfo(score_BL.dtype).min)
        weight_BL = torch.softmax(score_BL, dim=1)
        return (weight_BL[..., None] * history_BLP).sum(dim=1)


class Dice(nn.Module):
    """f(s) = p(s) s + (1 - p(s)) alpha s, with p the sigmoid of the normalised s (eq. 3).

    Batch statistics normalise s. If they are off, as in federated training, the running ones do.

    Args:
        width: number of units, each with a separate alpha, which begins at 0.25 as PReLU's.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.alpha = nn.Parameter(torch.full((width,), 0.25))

    def forward(self, values_BW: Tensor) -> Tensor:
        """Of float `[B, W]`, the same shape."""
        gate_BW = torch.sigmoid(self.norm(values_BW))
        return gate_BW * values_BW + (1.0 - gate_BW) * self.alpha * values_BW


def layers(widths: Sequence[int], activation: Callable[[int], nn.Module]) -> nn.Sequential:
    """Linear layers, each but the last followed by an activation of its width."""
    made: list[nn.Module] = []
    for size, width in itertools.pairwise(widths):
        made += [nn.Linear(size, width), activation(width)]
    return nn.Sequential(*made[:-1])


def _first_of(made: nn.Sequential) -> tuple[nn.Linear, nn.Sequential]:
    """The first of `layers`, and what follows."""
    first = made[0]
    assert isinstance(first, nn.Linear)
    return first, nn.Sequential(*list(made)[1:])

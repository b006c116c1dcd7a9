"""Models and loops of other libraries, three clients for three rounds, exact against plaintext.

Each is wrapped by the lines of `wrapped`, without a change to the model. What a client trained is
compared, bit for bit, with a plain copy of the model that was trained alone from the servers'
state, the opened sums with the sums of the updates. Libraries that are not installed are skipped
by name; deepctr-torch has a file of its own.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.engine_rounds import plain_sum
from tests.support.engine_setup import plan_of
from torchfsl import Rows
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.lookups import advise
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.fsl import Client, Server, begin_round, finish_round
from torchfsl.submodel.server_model import ServerModel

CLIENTS, ROUNDS, ITEMS = 3, 3, 600
pytestmark = pytest.mark.filterwarnings("ignore")


def draw(client: int, *shape: int, low: int = 1, high: int = ITEMS) -> torch.Tensor:
    """Ids of a client, the same in every round."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(client))


class SASRec(nn.Module):
    """Self-attention over a user's items; scores of the next item and of a sampled one."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, 16, padding_idx=0)
        self.place = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, past: Any, right: Any, wrong: Any) -> torch.Tensor:
        length = past.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.encoder(self.item(past) + self.place(torch.arange(length)), mask=mask)
        gap = (hidden * (self.item(right) - self.item(wrong))).sum(-1)
        return functional.softplus(-gap).mean()


class GRU4Rec(nn.Module):
    """A GRU over a session; the next item against the others of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.out = nn.Embedding(ITEMS, 16), nn.Embedding(ITEMS, 16)
        self.bias = nn.Embedding(ITEMS, 1)
        self.gru = nn.GRU(16, 16, batch_first=True)

    def forward(self, past: Any, following: Any) -> torch.Tensor:
        _, hidden = self.gru(self.item(past))
        scores = hidden[-1] @ self.out(following).T + self.bias(following).squeeze(1)
        return functional.cross_entropy(scores, torch.arange(len(past)))


class Factorisation(nn.Module):
    """A factorisation machine: tables of width 1 beside those of width 8, users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleList([nn.Embedding(ITEMS, 1), nn.Embedding(ITEMS, 1)])
        self.factors = nn.ModuleList([nn.Embedding(ITEMS, 8), nn.Embedding(ITEMS, 8)])

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        first = sum(table(ids[:, i]).squeeze(1) for i, table in enumerate(self.linear))
        vectors = torch.stack([table(ids[:, i]) for i, table in enumerate(self.factors)])
        second = 0.5 * (vectors.sum(0).square() - vectors.square().sum(0)).sum(1)
        return functional.binary_cross_entropy_with_logits(first + second, label)


class WideAndDeep(nn.Module):
    """A wide table of width 1 and a deep part over another."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.EmbeddingBag(ITEMS, 1, mode="sum"), nn.Embedding(ITEMS, 8)
        self.layers = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        score = self.wide(ids) + self.layers(self.deep(ids).flatten(1))
        return functional.binary_cross_entropy_with_logits(score.squeeze(1), label)


class TwoTowers(nn.Module):
    """Users and items in one space, each with a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(ITEMS, 12), nn.Embedding(ITEMS, 12)
        self.left, self.right = nn.Linear(12, 6), nn.Linear(12, 6)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        scores = self.left(self.users(user)) @ self.right(self.items(item)).T
        return functional.cross_entropy(scores, torch.arange(len(user)))


class DLRM(nn.Module):
    """Bags of several tables, dense features, and their products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(ITEMS, 8, mode="sum") for _ in range(3)])
        self.bottom, self.top = nn.Linear(4, 8), nn.Linear(8 + 6, 1)

    def forward(self, ids: Any, dense: Any, label: Any) -> torch.Tensor:
        vectors = [self.bottom(dense), *(bag(ids[:, i]) for i, bag in enumerate(self.bags))]
        stacked = torch.stack(vectors, 1)
        row, column = torch.triu_indices(4, 4, 1)
        products = (stacked @ stacked.transpose(1, 2))[:, row, column]
        score = self.top(torch.cat([vectors[0], products], 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(score, label)


class SkipGram(nn.Module):
    """word2vec with negative samples: two tables and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.context = nn.Embedding(ITEMS, 10), nn.Embedding(ITEMS, 10)

    def forward(self, word: Any, near: Any, far: Any) -> torch.Tensor:
        vector = self.word(word)
        good = (vector * self.context(near)).sum(-1)
        bad = (vector * self.context(far)).sum(-1)
        return -(functional.logsigmoid(good) + functional.logsigmoid(-bad)).mean()


class TransE(nn.Module):
    """A knowledge graph: entities, relations, a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.entity, self.relation = nn.Embedding(ITEMS, 8), nn.Embedding(ITEMS, 8)

    def forward(self, head: Any, relation: Any, tail: Any, wrong: Any) -> torch.Tensor:
        start = self.entity(head) + self.relation(relation)
        near = (start - self.entity(tail)).abs().sum(-1)
        far = (start - self.entity(wrong)).abs().sum(-1)
        return functional.relu(1 + near - far).mean()


class Sentences(nn.Module):
    """An LSTM over packed sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(ITEMS, 12), nn.LSTM(12, 12, batch_first=True)
        self.out = nn.Linear(12, 2)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.rnn(self.words(ids))
        return functional.cross_entropy(self.out(hidden[-1]), label)


class Bag(nn.Module):
    """A classifier over a bag of words, with or without sparse gradients."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words, self.out = nn.EmbeddingBag(ITEMS, 12, sparse=sparse), nn.Linear(12, 2)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.out(self.words(ids)), label)


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="Hugging Face is not installed")
    config = transformers.BertConfig(
        vocab_size=ITEMS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="Hugging Face is not installed")
    config = transformers.GPT2Config(
        vocab_size=ITEMS, n_positions=32, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    base = gpt2()
    settings = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(base, settings)


Train = Callable[[nn.Module, torch.optim.Optimizer, Any], None]


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(**batch) if isinstance(batch, dict) else model(*batch)
    return out if isinstance(out, torch.Tensor) else out.loss


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """The usual loop."""
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def with_lightning(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """The same steps by Lightning's trainer."""
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    data = torch.utils.data.TensorDataset(*batch)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", barebones=True)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))


def with_accelerate(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """The same steps by accelerate's wrappers."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    wrapped, stepping = accelerator.prepare(model, optimizer)
    for _ in range(2):
        stepping.zero_grad()
        accelerator.backward(loss_of(wrapped, batch))
        stepping.step()


def with_ddp(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """The same steps under DistributedDataParallel, in a group of one process."""
    distributed = torch.distributed
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(f"{folder}/store", 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            steps(nn.parallel.DistributedDataParallel(model), optimizer, batch)
        finally:
            distributed.destroy_process_group()


def labelled(client: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = draw(client, *shape)
    return ids, (ids[:, 0] % 2).float()


def classes(client: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = draw(client, *shape)
    return ids, ids[:, 0] % 2


@dataclass(frozen=True)
class Case:
    """A model, a client's batch, and who runs the loop."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    train: Train = steps
    optimize: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.Adagrad(p, lr=0.1)
    settings: dict[str, Any] = field(default_factory=dict)
    retrieves: bool = True


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-3)


TOP = {"rows": Rows(top=64, find="scan")}
CASES = {
    "SASRec": Case(SASRec, lambda c: tuple(draw(10 * c + i, 4, 6) for i in range(3))),
    "GRU4Rec": Case(GRU4Rec, lambda c: (draw(c, 6, 5), draw(9 + c, 6))),
    "factorisation machine": Case(Factorisation, lambda c: labelled(c, 8, 2)),
    "wide and deep": Case(WideAndDeep, lambda c: labelled(c, 8, 3)),
    "two towers": Case(TwoTowers, lambda c: (draw(c, 6), draw(9 + c, 6))),
    "DLRM": Case(
        DLRM, lambda c: (draw(c, 6, 3, 2), draw(c, 6, 4).float() / ITEMS, draw(c, 6) % 2 * 1.0)
    ),
    "word2vec": Case(SkipGram, lambda c: tuple(draw(10 * c + i, 8) for i in range(3))),
    "TransE": Case(TransE, lambda c: tuple(draw(10 * c + i, 8) for i in range(4))),
    "LSTM": Case(Sentences, lambda c: classes(c, 6, 5)),
    "sparse bag, SGD": Case(
        lambda: Bag(sparse=True), lambda c: classes(c, 8, 4),
        optimize=lambda p: torch.optim.SGD(p, lr=0.1),
    ),
    "sparse bag, Adagrad": Case(lambda: Bag(sparse=True), lambda c: classes(c, 8, 4)),
    "BERT": Case(
        bert, lambda c: dict(zip(("input_ids", "labels"), classes(c, 4, 8), strict=True))
    ),
    "GPT-2, tied to its softmax": Case(
        gpt2, lambda c: dict.fromkeys(("input_ids", "labels"), draw(c, 2, 8)), settings=TOP,
        optimize=lambda p: torch.optim.SGD(p, lr=0.1), retrieves=False,
    ),
    "GPT-2 with LoRA": Case(
        adapted, lambda c: dict.fromkeys(("input_ids", "labels"), draw(c, 2, 8)), optimize=adamw,
        retrieves=False,
    ),
    "Lightning": Case(Bag, lambda c: classes(c, 8, 4), train=with_lightning),
    "accelerate": Case(Bag, lambda c: classes(c, 8, 4), train=with_accelerate),
    "DDP": Case(Bag, lambda c: classes(c, 8, 4), train=with_ddp),
    "DDP, scanned": Case(
        Bag, lambda c: classes(c, 8, 4), train=with_ddp, retrieves=False,
        settings={"rows": Rows(find="scan", budget=40)},
    ),
}  # fmt: skip


def fresh(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = case.build()
    return model, case.optimize(model.parameters())


def wrapped(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The lines that a user writes, the round apart."""
    hooks = Hooks(model, optimizer, Settings(**case.settings))
    wanted = {c: hooks.rows_of([case.batch(c)]) for c in range(CLIENTS)} if case.retrieves else {}
    rows = advise(hooks.inventory.tables, wanted.values()).rows_per_client() if wanted else None
    plan = plan_of(hooks, max_clients=CLIENTS, rows_per_client=rows, above_break_even="dense")
    state = hooks.server_state()
    servers = tuple(Server(b, plan=plan, model=ServerModel(state)) for b in (0, 1))
    return hooks, plan, servers, wanted


@pytest.mark.parametrize("name", CASES)
def test_three_clients_train_three_rounds_exactly(name: str) -> None:
    torch.set_num_threads(1)
    case = CASES[name]
    model, optimizer = fresh(case)
    before = copy.deepcopy(optimizer.state_dict())
    hooks, plan, servers, wanted = wrapped(case, model, optimizer)
    assert bool(plan.retrieving) == case.retrieves
    for number in range(ROUNDS):
        begin_round(servers, number)
        updates = []
        for client in range(CLIENTS):
            optimizer.load_state_dict(copy.deepcopy(before))
            who = Client(plan, servers, client_id=client)
            with Round(hooks, who, rows=wanted.get(client), number=number) as rnd:
                case.train(model, optimizer, case.batch(client))
            updates.append(rnd.update)
            compare(case, model, servers[0].model.state, client, rnd.rows or {})
        opened = finish_round(servers)
        for segment, total in plain_sum(plan, updates).items():
            np.testing.assert_array_equal(opened.sums[segment].reshape(total.shape), total)
        assert any(update[s.name].values.any() for update in updates for s in plan.segments)
    assert servers[0].model.digest() == servers[1].model.digest()


def compare(case: Case, model: nn.Module, state: Any, client: int, rows: Any) -> None:
    """A plain copy, trained by the same loop from the servers' state, has the same bits."""
    twin, optimizer = fresh(case)
    names = {name for name, _ in twin.named_parameters()}
    known = {n: torch.from_numpy(v.copy()) for n, v in state.items()}
    assert set(known) <= names
    twin.load_state_dict({**twin.state_dict(), **known})
    case.train(twin, optimizer, case.batch(client))
    mine = dict(model.named_parameters())
    for name, value in twin.named_parameters():
        held = rows.get(name, slice(None))
        assert torch.equal(mine[name][held], value[held]), name

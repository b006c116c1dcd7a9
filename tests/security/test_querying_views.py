"""Private queries: what S, P_A and P_Q receive does not depend on what they must not learn.

One tiny network with every gate (convolution, maximum, ReLU, linear layer) answers a batch of equal
queries, whose masks are drawn for each of them anew: a batch is as many runs of the protocol.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.privhfl.small import federation, images, networks
from torchfsl.crypto import kdf
from torchfsl.privhfl import Querying, QueryPlan, comparison_tables, dealer, query_server
from torchfsl.privhfl.comparison_tables import Tables
from torchfsl.privhfl.comparison_trees import Trees
from torchfsl.privhfl.draws import Draws
from torchfsl.privhfl.graph import Graph, Node
from torchfsl.privhfl.messages import HEADER_BYTES, Kind, kind_of
from torchfsl.privhfl.quantise import Quantised
from torchfsl.privhfl.ring_tensors import Ring

RUNS, BATCHES = 2500, 4
GRAPH = Graph(
    (
        Node("input", (), (1, 2, 2)),
        Node("conv", (0,), (2, 2, 2), (2, 1, 1, 1)),
        Node("max", (1,), (2, 1, 1), window=(2, 2), stride=(2, 2)),
        Node("relu", (2,), (2, 1, 1)),
        Node("flatten", (3,), (2,)),
        Node("linear", (4,), (2,), (2, 2)),
    )
)
MODELS = {"small": (1, 2, 3), "large": (90_001, -70_000, 81_234)}
PICTURES = {"zero": 0.0, "large": 31_855 / 4096}
View = dict[str, np.ndarray]
"""By party what it received: a row a run, a column a byte (or the bits of a byte)."""


def quantised(name: str) -> Quantised:
    a, b, c = MODELS[name]
    whole = torch.tensor
    return Quantised(
        GRAPH,
        {
            1: (whole([a, b], dtype=torch.int32).reshape(2, 1, 1, 1), whole([c, -c]).int()),
            5: (whole([[a, b], [c, a]], dtype=torch.int32), whole([b, c]).int()),
        },
    )


def dealt_sizes(plan: QueryPlan) -> list[int]:
    """Sizes of the arrays in DEALING."""
    sizes: list[int] = []
    for unit in plan.units(GRAPH):
        assert isinstance(plan.backend, Tables)
        for level in plan.backend.levels:
            for table in level:
                sizes += [table.word_bytes * unit.count] * (1 + table.equal)
        sizes += [unit.count * plan.ring.item_bytes] * unit.shares
    return sizes


def online(plan: QueryPlan, said: dict[str, bytes], m: bytes) -> dict[str, list[np.ndarray]]:
    """By party the arrays that the other one sent, and what both then know: bits, c."""
    places = dict.fromkeys(said, 0)
    found: dict[str, list[np.ndarray]] = {party: [] for party in said}

    def take(party: str, size: int) -> np.ndarray:
        start = places[party]
        places[party] += size
        return np.frombuffer(said[party][start : start + size], np.uint8)

    def both(size: int, add: bool, bits: int = 0) -> None:
        parts = {party: take(party, size) for party in said}
        words = [part.view("<u4") for part in parts.values()] if add else []
        opened = (words[0] + words[1]).view(np.uint8) if add else np.bitwise_xor(*parts.values())
        for party, other in (("server", "answering"), ("answering", "server")):
            for rows in (parts[other], opened):
                seen = np.unpackbits(rows, count=bits) if bits else rows
                found[party].append(seen.reshape(RUNS, -1))

    for number, node in enumerate(GRAPH.nodes):
        size = 4 * RUNS * node.numel
        if number in GRAPH.linears:
            sent = take("answering", size)
            found["server"].append(sent.reshape(RUNS, -1))
            if number != GRAPH.linears[-1]:
                c = sent.view("<u4") + np.frombuffer(m, "<u4")
                for rows in found.values():
                    rows.append(c.view(np.uint8).reshape(RUNS, -1))
        for unit in (u for u in plan.units(GRAPH) if u.node == number):
            *groups, last = plan.backend.traffic(unit.count)
            for size in groups:
                both(size, add=False)
            both(last, add=False, bits=unit.count)
            if node.op == "max":
                both(4 * unit.count, add=True)
        if node.op == "relu":
            found["answering"].append(take("server", 4 * RUNS * node.numel).reshape(RUNS, -1))
    assert all(places[party] == len(said[party]) for party in said)
    return found


def dealt_trees(plan: QueryPlan, data: bytes) -> list[np.ndarray]:
    """The same for trees, whose arrays have levels before trees; public keys are left out."""
    found: list[np.ndarray] = []
    for unit in plan.units(GRAPH):
        assert isinstance(plan.backend, Trees)
        depth, count, start = plan.backend.depth, unit.count, 16
        shares = [4 * count] * unit.shares
        for size in (16 * depth * count, -(-depth * count // 8), 16 * count, *shares):
            part = np.frombuffer(data[start : start + size], np.uint8)
            start += size
            if size == -(-depth * count // 8):
                part = np.unpackbits(part, count=depth * count)
            levels = depth if part.size in (16 * depth * count, depth * count) else 1
            rows = part.reshape(levels, count, -1).transpose(1, 0, 2)
            found.append(rows.reshape(RUNS, -1))
        data = data[start:]
    assert not data
    return found


def views(
    model: str, picture: str, seed: bytes, batches: int = BATCHES, comparison: str = "tables"
) -> View:
    """What both parties received in `batches` batches, and what they can make of it."""
    plan = QueryPlan(
        {0: GRAPH, 1: GRAPH}, batch=RUNS, min_answering=1, comparison=comparison, session="views 3"
    )
    got: dict[Kind, bytes] = {}

    def watch(link: str, client: int, data: bytes) -> None:
        kind = kind_of(data)
        got[kind] = got.get(kind, b"") + data[HEADER_BYTES:]

    querying = Querying(plan, seed=seed, watch=watch)
    querying.load_quantised(1, quantised(model))
    rows: dict[str, list[np.ndarray]] = {"server": [], "answering": []}
    for number in range(batches):
        got.clear()
        querying.ask(0, [1], torch.full((RUNS, 1, 2, 2), PICTURES[picture]), number)
        said = {"answering": got[Kind.ANSWER], "server": got[Kind.SERVE]}
        found = online(plan, said, got[Kind.PRODUCTS])
        dealt = got[Kind.DEALING]
        if comparison == "trees":
            found["server"] += dealt_trees(plan, dealt)
        else:
            found["server"] += cut(dealt, dealt_sizes(plan))
        found["server"] += cut(got[Kind.QUERY], [plan.query_bytes()])
        found["answering"] += cut(got[Kind.PRODUCTS], [plan.products_bytes(GRAPH)])
        found["answering"] += solved(plan.ring, querying, got)
        for party, parts in found.items():
            rows[party].append(np.concatenate(parts, axis=1))
    return {party: np.concatenate(parts) for party, parts in rows.items()}


def cut(data: bytes, sizes: list[int]) -> list[np.ndarray]:
    """Arrays of the sizes, with a row a run."""
    assert sum(sizes) == len(data)
    ends = np.cumsum([0, *sizes])
    pieces = (np.frombuffer(data[i:j], np.uint8) for i, j in itertools.pairwise(ends))
    return [piece.reshape(RUNS, -1) for piece in pieces]


def solved(ring: Ring, querying: Querying, got: dict[Kind, bytes]) -> list[np.ndarray]:
    """P_A knows xh and W'; without kappa the first products would give it b, and x = xh + b."""
    _, masked = querying.server._weights[0, 1]
    first = [int(w) for w in masked[1].reshape(-1)]
    odd = next((i for i, w in enumerate(first) if w % 2), None)
    assert odd is not None, "take another seed"
    inverse = np.uint32(pow(first[odd] % (1 << 32), -1, 1 << 32))
    m = np.frombuffer(got[Kind.PRODUCTS], ring.word).reshape(RUNS, 2, 4)
    came = np.frombuffer(got[Kind.INPUT], ring.word).reshape(RUNS, 4)
    held = came + np.frombuffer(PADS[-1], ring.word).reshape(RUNS, 4)
    return [came.view(np.uint8), held.view(np.uint8), (held + m[:, odd] * inverse).view(np.uint8)]


PADS: list[bytes] = []


@pytest.fixture(autouse=True)
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dealer's own masks from a counter; P_A's pad of the input is noted for `solved`."""
    numbers = iter(range(10**9))
    monkeypatch.setattr(
        comparison_tables, "random_bytes",
        lambda size: kdf.derive(b"views" * 4, b"", next(numbers).to_bytes(8, "little"), size),
    )  # fmt: skip
    uniform = Ring.uniform

    def noted(self: Ring, key: bytes, shape: tuple[int, ...]) -> torch.Tensor:
        drawn = uniform(self, key, shape)
        if purpose.get(key) == (0, "input"):
            PADS.append(self.words(drawn).tobytes())
        return drawn

    purpose: dict[bytes, tuple[int, str]] = {}
    give = Draws.key

    def key(self: Draws, node: int, name: str) -> bytes:
        made = give(self, node, name)
        purpose[made] = node, name
        return made

    monkeypatch.setattr(Ring, "uniform", noted)
    monkeypatch.setattr(Draws, "key", key)


def worst(rows: np.ndarray) -> float:
    """Largest chi-square of all columns, in standard deviations above its mean.

    As Wilson and Hilferty bring it to a normal deviate, so that columns of single bits compare.
    """
    most = -9.0
    for column in rows.T:
        values = 256 if column.max() > 127 else 1 << int(column.max()).bit_length()
        if values < 2:
            return 1e9
        counts = np.bincount(column, minlength=values)
        expected = len(column) / values
        chi = float(((counts - expected) ** 2 / expected).sum())
        spread = 2 / (9 * (values - 1))
        most = max(most, float(((chi / (values - 1)) ** (1 / 3) - 1 + spread) / spread**0.5))
    return most


def repeated(rows: np.ndarray) -> float:
    """`worst` of what two batches of equal queries differ by."""
    half = len(rows) // 2
    return worst(rows[:half] ^ rows[half:])


def score(one: np.ndarray, other: np.ndarray) -> float:
    """How often a linear distinguisher is right, on runs that it has not seen.

    It looks at the highest and the lowest bit of every byte.
    """
    bits = [
        np.concatenate([rows >> 7, rows & 1], axis=1).astype(np.float32) - 0.5
        for rows in (one, other)
    ]
    cut = [len(rows) // 2 for rows in bits]
    seen = np.concatenate([b[:c] for b, c in zip(bits, cut, strict=True)])
    signs = np.repeat([1.0, -1.0], cut).astype(np.float32)
    gram = seen.T @ seen + 10 * np.eye(seen.shape[1], dtype=np.float32)
    weights = np.linalg.solve(gram, seen.T @ signs)
    right = [np.mean((b[c:] @ weights > 0) == (s > 0)) for b, c, s in
             zip(bits, cut, (1, -1), strict=True)]  # fmt: skip
    return float(np.mean(right))


@pytest.fixture(scope="module")
def worlds() -> dict[tuple[str, str], View]:
    return {}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("picture", PICTURES)
def test_every_byte_that_a_party_receives_is_uniform(
    model: str, picture: str, worlds: dict[tuple[str, str], View]
) -> None:
    made = worlds[model, picture] = views(model, picture, b"world " + picture.encode())
    assert made["server"].shape[1] > 300
    for rows in made.values():
        assert worst(rows) < 5
        assert repeated(rows) < 5


def test_with_trees_every_byte_is_uniform_and_no_distinguisher_works() -> None:
    """P_A gets of what is dealt the trees alone, which S passes on; they are among S's columns."""
    made = [views("small", p, b"trees " + p.encode(), 2, "trees") for p in PICTURES]
    for view in made:
        for rows in view.values():
            assert worst(rows) < 5
            assert repeated(rows) < 5
    for party in ("server", "answering"):
        assert abs(score(made[0][party], made[1][party]) - 0.5) < 0.03


@pytest.mark.parametrize("party", ["server", "answering"])
def test_no_distinguisher_tells_pictures_or_models_apart(
    party: str, worlds: dict[tuple[str, str], View]
) -> None:
    for name in (("small", "zero"), ("small", "large"), ("large", "zero")):
        if name not in worlds:
            worlds[name] = views(*name, b"world " + name[1].encode())
    base = worlds["small", "zero"][party]
    assert abs(score(base, worlds["small", "large"][party]) - 0.5) < 0.02
    if party == "server":
        assert abs(score(base, worlds["large", "zero"][party]) - 0.5) < 0.02


def test_a_missing_kappa_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """P_A then solves the first layer for b."""
    silent = _zero_draws(monkeypatch, "kappa")
    made = {name: views("small", name, b"no kappa", batches=2)["answering"] for name in PICTURES}
    assert silent
    assert worst(made["large"]) > 50
    assert score(made["zero"], made["large"]) > 0.99


def _zero_draws(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Draws of one purpose give zeros at every party."""
    keys: set[bytes] = set()
    hit: list[str] = []
    give, uniform = Draws.key, Ring.uniform

    def key(self: Draws, node: int, purpose: str) -> bytes:
        made = give(self, node, purpose)
        if purpose == name:
            keys.add(made)
        return made

    def drawn(self: Ring, key: bytes, shape: tuple[int, ...]) -> torch.Tensor:
        if key in keys:
            hit.append(name)
            return torch.zeros(shape, dtype=self.dtype)
        return uniform(self, key, shape)

    monkeypatch.setattr(Draws, "key", key)
    monkeypatch.setattr(Ring, "uniform", drawn)
    return hit


def test_a_dropped_mask_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mask of one chunk's answer the opened bit says which chunk is smaller."""
    stream = kdf.stream

    def dropped(key: bytes, size: int) -> np.ndarray:
        return stream(key, size) & 0xFE

    class Patched:
        SEED_BYTES = kdf.SEED_BYTES

        @staticmethod
        def stream(key: bytes, size: int) -> np.ndarray:
            own = size % RUNS == 0 and size // RUNS in (1, 2, 4)
            return dropped(key, size) if own and key in fresh else stream(key, size)

    fresh: set[bytes] = set()
    draw = comparison_tables.random_bytes

    def random_bytes(size: int) -> bytes:
        made = draw(size)
        fresh.add(made)
        return made

    monkeypatch.setattr(comparison_tables, "random_bytes", random_bytes)
    monkeypatch.setattr(comparison_tables, "kdf", Patched)
    made = views("small", "large", b"dropped", batches=2)
    assert worst(made["answering"]) > 50
    assert worst(made["server"]) > 50


def test_a_mask_of_wires_that_serves_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same b in two batches: the difference of what P_A got is that of both pictures."""
    give = Draws.key

    def key(self: Draws, node: int, purpose: str) -> bytes:
        made = give(self, node, purpose)
        return kdf.derive(b"b" * 16, b"", bytes([node])) if purpose == "wire" else made

    for module in (dealer, query_server):
        assert module.Draws is Draws
    monkeypatch.setattr(Draws, "key", key)
    made = views("small", "zero", b"reused b", batches=2)
    assert worst(made["answering"][:RUNS]) < 5  # one batch looks as it should
    assert repeated(made["answering"]) > 50


def test_the_querying_party_gets_one_message_a_batch_of_a_fixed_length() -> None:
    received: list[bytes] = []
    querying = federation(networks())
    querying._watch = lambda link, c, d: received.append(d) if link == "server-querying" else None
    querying.ask(0, [1, 2], images(6))
    sums = [data for data in received if kind_of(data) != Kind.READY]
    assert [kind_of(data) for data in sums] == [Kind.SUM] * 3
    assert {len(data) for data in sums} == {64 + 10 * querying.plan.batch * 4}


def test_the_sum_says_nothing_of_the_summands() -> None:
    """Logits (y1 + t, y2 - t) in place of (y1, y2) give the querying party the same bytes."""
    received: dict[int, list[bytes]] = {0: [], 1: []}
    for moved, seen in received.items():
        querying = federation(networks())
        for client, sign in ((1, 1), (2, -1)):
            weights = dict(querying._networks[client].weights)
            last = max(weights)
            shift = torch.arange(10, dtype=torch.int32) * 12_345 * sign * moved
            weights[last] = (weights[last][0], weights[last][1] + shift)
            network = Quantised(querying.plan.graphs[client], weights)
            querying.answering[client]._network = network
        querying._watch = lambda link, c, d, seen=seen: (
            seen.append(d) if link == "server-querying" else None
        )
        querying.ask(0, [1, 2], images(4))
    assert received[0] == received[1]

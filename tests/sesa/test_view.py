"""What T colluding clients and the server see: exact distributions over tiny fields.

The code of the library itself runs, over every coin there is, with the field replaced by one of 7
or 11 numbers. A view is everything that the adversary gets; where two secrets with equal sums give
equal distributions of views, nothing but the sums can be learnt from it, by any computation.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.sesa.small import make_model, make_plan, random_update, widths_of
from torchfsl.crypto import field, lagrange
from torchfsl.crypto.field import Words
from torchfsl.sesa import Client, Server, SesaPlan
from torchfsl.sesa.coding import Answer, cut, shares
from torchfsl.sesa.cohort import Cohort, Member
from torchfsl.sesa.messages import HEADER_BYTES, Kind, box_span
from torchfsl.sesa.round import InProcess, begin_round
from torchfsl.types import Indices

SetField = Callable[[int], None]


@pytest.fixture
def set_field(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetField]:
    """Replace the field's modulus for one test."""

    def replace(modulus: int) -> None:
        def multiply(left: Words, right: Words) -> Words:
            exact = left.astype(np.int64) @ right.astype(np.int64)
            return (exact % modulus).astype(np.uint32)

        monkeypatch.setattr(field, "MODULUS", modulus)
        monkeypatch.setattr(field, "CAPACITY", (modulus - 1) // 2)
        monkeypatch.setattr(field, "multiply", multiply)
        lagrange._weights.cache_clear()

    yield replace
    lagrange._weights.cache_clear()


def cohort_of(plan: SesaPlan) -> Cohort:
    widths = [number for number, width in enumerate(plan.widths) for _ in range(width.clients)]
    return Cohort(plan, tuple(Member(c, w, bytes(32)) for c, w in enumerate(widths)))


def all_shares(
    cohort: Cohort, sender: int, owned: Sequence[int], masks: Words, streams: Words
) -> Words:
    """By place the share of `sender`, who owns these submodels: `[n, share_values]`."""
    out = np.empty((len(cohort), streams.shape[1]), dtype=np.uint32)
    chosen: list[Indices] = [np.array(owned, dtype=np.int64)]
    out[list(cohort.evaluated(sender))] = shares(cohort, sender, chosen, [masks], streams)
    out[list(cohort.seeded(sender))] = streams
    return out


def coins(modulus: int, count: int) -> Words:
    """Every value of `count` coins: `[modulus**count, count]`."""
    return np.array(list(itertools.product(range(modulus), repeat=count)), dtype=np.uint32)


@pytest.mark.parametrize("sender", range(6))
def test_t_shares_tell_nothing_and_one_more_does(set_field: SetField, sender: int) -> None:
    """p = 11, K = T = 2, N = 6: the choice (phi) and the mask (varphi), over all 121 coins."""
    plan = make_plan(owned=(1,), clients=(6,), size=1, dense=0)
    set_field(11)
    cohort = cohort_of(plan)
    places = range(6)

    def seen(owned: int, mask: int, column: int, who: Sequence[int]) -> Counter[bytes]:
        views: Counter[bytes] = Counter()
        for drawn in coins(11, 2):
            streams = np.zeros((2, 2), dtype=np.uint32)
            streams[:, column] = drawn
            rows = all_shares(cohort, sender, [owned], np.array([[mask]], np.uint32), streams)
            views[rows[list(who), column].tobytes()] += 1
        return views

    for who in itertools.combinations(places, 2):
        uniform = seen(0, 3, 0, who)
        assert len(uniform) == 121
        assert set(uniform.values()) == {1}
        assert seen(1, 3, 0, who) == uniform
        assert seen(0, 3, 1, who) == seen(0, 8, 1, who) == seen(1, 5, 1, who) == uniform
    learnt = 0
    for who in itertools.combinations(places, 3):
        # T + 1 shares satisfy one equation, a weighted sum of the values at 1 and 2. Both choices
        # give the same where both weights are the same, as for one set of points in eleven.
        points = [cohort.point(place) for place in who]
        weights = [math.prod(beta - x for x in (3 - beta, *points)) % 11 for beta in (1, 2)]
        alike = weights[0] == weights[1]
        assert (seen(0, 3, 0, who) == seen(1, 3, 0, who)) is alike
        assert seen(0, 3, 1, who) != seen(0, 8, 1, who)
        learnt += not alike
    assert learnt >= 17  # of 20


NUM_COINS = 7**4  # by honest client a mask and the stream of varphi


def adversary_views(
    plan: SesaPlan, first: tuple[int, int], second: tuple[int, int]
) -> Counter[bytes]:
    """Views of the server and client 2 over all coins of honest clients 0 and 1, p = 7, T = 1.

    A secret is (submodel, update). Each honest client draws a mask and two numbers of the stream;
    both numbers of phi are enumerated here, all others at once, one a value of a long submodel.
    """
    drawn, size = coins(7, 4), NUM_COINS
    cohort = cohort_of(plan)
    views: Counter[bytes] = Counter()
    for phi in coins(7, 2):
        received, masked = [], []
        for sender, (owned, update) in enumerate((first, second)):
            mask = drawn[:, 2 * sender][None]
            stream = np.concatenate([phi[sender : sender + 1], drawn[:, 2 * sender + 1]])[None]
            received.append(all_shares(cohort, sender, [owned], mask, stream))
            masked.append(field.subtract(np.full_like(mask, update), mask)[0])
        zeros = np.zeros((1, size), dtype=np.uint32)  # client 2's own part is known to it
        received.append(all_shares(cohort, 2, [0], zeros, np.zeros((1, size + 1), np.uint32)))
        masked.append(zeros[0])
        columns = [*masked[:2]]
        for sender in (0, 1):
            columns += [np.full(size, received[sender][2, 0]), received[sender][2, 1:]]
        for place in (0, 1):
            answer = Answer(cohort, (0, 1, 2))
            for sender in range(3):
                answer.add(sender, received[sender][place])
            columns.append(answer.finish(np.concatenate(masked)))
        views.update(row.tobytes() for row in np.stack(columns, axis=1).astype(np.uint8))
    assert views.total() == 7**6
    return views


def test_the_whole_view_depends_on_the_sums_alone(set_field: SetField) -> None:
    """Also which client owns which submodel stays hidden; all 7^6 coins."""
    plan = make_plan(owned=(1,), clients=(3,), size=NUM_COINS, dense=0, collusion=1)
    set_field(7)
    apart = adversary_views(plan, (0, 3), (1, 5))
    assert adversary_views(plan, (1, 5), (0, 3)) == apart
    together = adversary_views(plan, (0, 1), (0, 2))
    assert adversary_views(plan, (0, 6), (0, 4)) == together  # 6 + 4 = 3 = 1 + 2 modulo 7
    assert adversary_views(plan, (0, 3), (1, 0)) == together  # one trains another submodel, in vain
    assert not together & apart
    assert not adversary_views(plan, (0, 3), (1, 4)) & apart


def test_merged_and_seeded_shares_have_the_distribution_of_the_papers(set_field: SetField) -> None:
    """p = 7, T = 1, a client that owns both submodels: shares of all members, over all coins.

    The paper draws a number at point K + 1 for each submodel's phi and varphi; recipients use the
    sum of the varphi. Here T members draw their shares, one varphi for all.
    """
    plan = make_plan(owned=(2,), clients=(4,), size=1, dense=0, collusion=1)
    set_field(7)
    cohort = cohort_of(plan)
    masks = np.array([[4], [6]], dtype=np.uint32)
    # The members' points begin at K + 1, and so does the paper's point: keep them apart here.
    members = tuple(cohort.point(place) for place in range(3))
    basis = lagrange.matrix((1, 2, 6), members)
    paper: Counter[bytes] = Counter()
    for u in coins(7, 2):
        phi = field.multiply(basis, np.stack([[1, 0], [0, 1], u]).astype(np.uint32))
        for v in coins(7, 2):
            varphi = field.multiply(basis, np.array([[4, 0], [0, 6], v], dtype=np.uint32))
            merged = field.add(varphi[:, 0], varphi[:, 1])
            paper[np.column_stack([phi, merged]).astype(np.uint32).tobytes()] += 1
    for sender in range(3):
        ours: Counter[bytes] = Counter()
        for stream in coins(7, 3):
            rows = all_shares(cohort, sender, [0, 1], masks, stream[None])
            ours[rows[:3].tobytes()] += 7
        assert ours == paper


def test_real_shares_fit_every_choice_for_t_colluders_and_one_for_more() -> None:
    """The attack of T and T + 1 clients who compare their shares of a choice, in the real field.

    A polynomial of degree K + T - 1 through K + T points exists always; through one more point it
    exists for the right choice, and for few others.
    """
    plan = make_plan(submodels=4, owned=(1,), clients=(9,), size=2, dense=0, collusion=3)
    cohort = cohort_of(plan)
    streams = field.uniform(bytes(16), 9).reshape(3, 3)
    rows = all_shares(cohort, 2, [1], field.uniform(b"k" * 16, 2)[None], streams)

    def fitting(who: Sequence[int]) -> list[int]:
        """Choices under which these members' shares lie on a polynomial of the degree."""
        points = tuple(cohort.point(place) for place in who)
        fits = []
        for choice in range(4):
            known = np.eye(4, dtype=np.uint32)[:, choice]
            values = np.concatenate([known, rows[list(who), 0]])[:, None]
            nodes = (1, 2, 3, 4, *points)
            predicted = field.multiply(lagrange.matrix(nodes[:7], nodes[7:]), values[:7])
            if np.array_equal(predicted, values[7:]):
                fits.append(choice)
        return fits

    for who in itertools.combinations(range(9), 3):
        assert fitting(who) == [0, 1, 2, 3]
    unique = 0
    for who in itertools.combinations(range(9), 4):
        fits = fitting(who)
        assert 1 in fits
        assert len(fits) < 4
        unique += fits == [1]
    assert unique > 100  # of 126: small points lie so regularly that some choices stay alike
    assert fitting(range(9)) == [1]


def chi_square(words: Words) -> float:
    counts = np.bincount(words >> np.uint32(24), minlength=256)
    return float(((counts - len(words) / 256) ** 2 / (len(words) / 256)).sum())


def test_masked_updates_and_relayed_shares_of_zeros_are_uniform() -> None:
    """A million values each; random by nature, and fails once in 10^12 runs."""
    plan = make_plan(submodels=2, size=250_000, dense=0, owned=(2,), clients=(5,))
    server = Server(plan=plan, model=make_model(plan))
    link = InProcess(server)
    clients = [Client(plan, link, client_id=c, width=w) for c, w in widths_of(plan).items()]
    begin_round(link, clients, 1)
    sessions = [client.start_round(1, indices={"table": [0, 1]}) for client in clients]
    for session in sessions:
        session.abort()
    masked = [server._round.bodies[Kind.MASKED][client.client_id] for client in clients[:2]]
    words = np.concatenate([field.from_bytes(body) for body in masked])
    assert len(words) == 1_000_000
    assert 110 < chi_square(words) < 440
    # Member 3 is among the seeded of members 1 and 2 and gets evaluations from 0 and 4.
    opened = []
    shared = sessions[3]
    for sender in (0, 1, 2, 4):
        body = server._round.bodies[Kind.SHARES][clients[sender].client_id]
        box = body[box_span(shared._cohort, sender, 3)]
        data = memoryview(bytes(body[:16]) + bytes(box))
        opened.append(shared._open_share(shared._channels, sender, data)[2:])
    words = np.concatenate(opened)
    assert len(words) == 1_000_000
    assert 110 < chi_square(words) < 440


def test_no_length_depends_on_the_choice() -> None:
    plan = make_plan(submodels=4, owned=(2,), clients=(8,))
    lengths = set()
    for choice in ([0, 1], [2, 3], [], [3]):
        server = Server(plan=plan, model=make_model(plan))
        sent: list[bytes] = []

        class Recording(InProcess):
            def send(self, message: bytes) -> None:
                sent.append(message)  # noqa: B023
                super().send(message)

        link = Recording(server)
        clients = [Client(plan, link, client_id=c, width=0) for c in widths_of(plan)]
        begin_round(link, clients, 1)
        sent.clear()
        session = clients[0].start_round(1, indices={"table": choice})
        update = random_update(plan, 0, 1)
        table = update["table"]
        keep = type(table)(np.array(choice, dtype=np.int64), table.values[: len(choice)])
        session.submit({**update, "table": keep})
        lengths.add(tuple(len(message) for message in sent))
    assert len(lengths) == 1
    assert next(iter(lengths))[1] == HEADER_BYTES + 4 * (2 * 3 + 2)


def test_cut_puts_a_clients_values_where_the_server_reads_them() -> None:
    plan = make_plan(submodels=3, owned=(2,), clients=(6,), size=2, dense=3)
    table, bias = cut(plan, 0, np.arange(7, dtype=np.uint32))
    assert table.tolist() == [[0, 1], [2, 3]]
    assert bias.tolist() == [[4, 5, 6]]

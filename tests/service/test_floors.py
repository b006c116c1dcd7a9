"""Servers and clients hold the owner's plan to floors of their own; both servers toss its coin."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.test_node import FLOORS, NONCE, SETTINGS, Duo, some_updates
from tests.support.federation import dense_plan, make_plan, make_segment, make_state, mixed_plan
from tests.support.network import HASTY, QUICK, Pair
from torchfsl.errors import DecodeError, ParameterError, ProtocolError
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service import Owner, connect
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities, NotAllowed
from torchfsl.service.server.node import Node
from torchfsl.service.state import coins as coins_on_disk
from torchfsl.service.state.coins import COINS_A_DAY, CoinBook
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.task import Task, bind_plan, decode_task, encode_task

TEMPLATE = bytes(range(32))
CONFIG = """
[floors]
min_clients = 2
max_k = 4
max_rounds = 2
[storage]
reserve_bytes = 1048576
segment_bytes = 1048576
"""


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    folder = tmp_path_factory.mktemp("certs")
    make_development_certificates(folder, [])
    return TlsFiles.in_folder(folder, "server-0").authorities()


def node_of(folder: Path, authorities: Authorities, floors: ClientPolicy, party: int = 0) -> Node:
    return Node(party, folder, authorities, dataclasses.replace(SETTINGS, floors=floors))


def task_of(plan: Plan, authorities: Authorities) -> bytes:
    bound = bind_plan(plan, authorities, NONCE)
    return encode_task(Task(bound, NONCE), make_state(bound))


# --- a server's floors ---


@pytest.mark.parametrize(
    ("floor", "text"),
    [
        ({"verified": True}, "check_bytes is 0; the floor 'verified'"),
        ({"min_clients": 2}, "min_clients is 1; the floor 'min_clients' wants 2"),
        ({"joint_coin": True}, "hash_seed is one party's choice; the floor 'joint_coin'"),
        ({"plans": ("00" * 32,)}, "the floor 'plans' does not list this plan"),
        ({"authorities": ("00" * 32, "11" * 32)}, "the floor 'authorities' pins"),
    ],
)
def test_a_server_refuses_a_task_below_its_floors_and_keeps_the_one_it_has(
    floor: dict[str, object], text: str, authorities: Authorities, tmp_path: Path
) -> None:
    loose = dataclasses.replace(FLOORS, verified=False)
    first = task_of(dense_plan(), authorities)
    node = node_of(tmp_path, authorities, loose)
    node.set_up(first)
    node.storage.ledger.close()
    node = node_of(tmp_path, authorities, dataclasses.replace(loose, **floor))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=text):
        node.set_up(task_of(mixed_plan(secure=False), authorities))
    assert node.plan == decode_task(first)[0].plan
    node.storage.ledger.close()


def test_a_server_that_pins_the_right_authorities_and_plan_takes_the_task(
    authorities: Authorities, tmp_path: Path
) -> None:
    plan = bind_plan(mixed_plan(), authorities, NONCE)
    floors = dataclasses.replace(FLOORS, plans=(plan.digest.hex(),), authorities=authorities.keys)
    node = node_of(tmp_path, authorities, floors)
    node.set_up(task_of(mixed_plan(), authorities))
    assert node.plan == plan
    node.storage.ledger.close()


# --- the joint coin ---


@pytest.fixture
def book(tmp_path: Path) -> Iterator[CoinBook]:
    with contextlib.closing(Ledger(tmp_path / "state.sqlite")) as ledger:
        yield CoinBook(ledger, 1)


def test_a_coin_and_the_peers_commitment_never_change_also_not_after_a_crash(
    tmp_path: Path,
) -> None:
    said, shown = set(), set()
    for _ in range(2):
        with contextlib.closing(Ledger(tmp_path / "state.sqlite")) as ledger:
            book = CoinBook(ledger, 1)
            said.add(book.toss(TEMPLATE))
            shown.add(book.reveal(TEMPLATE, bytes(32)))
            with pytest.raises(ProtocolError, match="has already committed to other randomness"):
                book.reveal(TEMPLATE, bytes(31) + b"1")
    (commitment,), (own,) = said, shown
    assert commitment == coin.commitment(TEMPLATE, 1, own)


def test_no_coin_is_shown_before_it_was_tossed_for_and_each_template_has_its_own(
    book: CoinBook,
) -> None:
    with pytest.raises(ProtocolError, match="has no randomness for this plan"):
        book.reveal(TEMPLATE, bytes(32))
    book.toss(TEMPLATE)
    book.toss(bytes(32))
    assert book.reveal(TEMPLATE, bytes(32)) != book.reveal(bytes(32), bytes(32))


def test_coins_are_few_a_day_and_forgotten_after_it(
    book: CoinBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    monkeypatch.setattr(coins_on_disk.time, "time", lambda: now[0])
    for number in range(COINS_A_DAY):
        book.toss(number.to_bytes(32, "little"))
    book.toss(bytes(32))  # known: no new coin
    with pytest.raises(ProtocolError, match="within a day"):
        book.toss(TEMPLATE)
    before = book.reveal(bytes(32), bytes(32))
    now[0] += coins_on_disk.COIN_SECONDS
    book.toss(TEMPLATE)
    with pytest.raises(ProtocolError, match="or deleted it after a day"):
        book.reveal(bytes(32), bytes(32))
    book.toss(bytes(32))
    assert book.reveal(bytes(32), bytes(32)) != before


def test_a_server_takes_a_seed_of_the_coins_that_were_committed_to_and_no_other(
    authorities: Authorities, tmp_path: Path
) -> None:
    plan = bind_plan(mixed_plan(), authorities, NONCE)
    template = coin.template_of(plan)
    floors = dataclasses.replace(FLOORS, joint_coin=True)
    nodes = [node_of(tmp_path / str(p), authorities, floors, p) for p in (0, 1)]
    said = [node.storage.coins.toss(template) for node in nodes]
    first, second = (nodes[p].storage.coins.reveal(template, said[1 - p]) for p in (0, 1))

    def task(coins: coin.Coins, seeded_by: coin.Coins | None = None) -> bytes:
        seeded = coin.with_coins(plan, seeded_by or coins)
        return encode_task(Task(seeded, NONCE, coins=coins), make_state(plan))

    other = bytes(32)
    for node, coins in ((0, (first, other)), (0, (other, second)), (1, (first, other))):
        with pytest.raises(ParameterError, match="hash_seed"):
            nodes[node].set_up(task(coins))
    with pytest.raises(
        ParameterError, match="was not made with the randomness of these two servers"
    ):
        nodes[0].set_up(task((first, second), (first, other)))
    for node in nodes:
        node.set_up(task((first, second)))
        assert node.plan.hash_seed == coin.with_coins(plan, (first, second)).hash_seed
        node.storage.ledger.close()


def test_coins_that_are_no_two_byte_strings_are_a_decode_error(authorities: Authorities) -> None:
    plan = bind_plan(mixed_plan(), authorities, NONCE)
    for coins in (["00"], ["00", "11", "22"], ["zz", "00"], [1, 2], "0011", 5):
        settings = Task(plan, NONCE).settings() | {"coins": coins}
        with pytest.raises(DecodeError):
            Task.from_settings(settings)


# --- max_rounds in the ledger ---


def test_max_rounds_survives_crashes_and_a_new_task_has_its_own(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, dataclasses.replace(mixed_plan(), max_rounds=2))
    duo.after_event = lambda: duo.crash(0)
    for number in (1, 2):
        duo.play(number, some_updates(duo.plan, number))
    assert [node.storage.rounds_opened for node in duo.nodes] == [2, 2]
    for node in duo.nodes:
        with pytest.raises(ProtocolError, match="max_rounds = 2 rounds of the plan were opened"):
            node.begin(3)
        assert node.storage.running() is None
    other = bind_plan(mixed_plan(), authorities, bytes(15) + b"1")
    data = encode_task(Task(other, bytes(15) + b"1"), make_state(other))
    for node in duo.nodes:
        node.set_up(data, replace=True)
        node.begin(1)


def test_a_round_that_ends_after_the_share_may_have_left_is_spent(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, dataclasses.replace(mixed_plan(), max_rounds=1))
    duo.step(1, Kind.ROUND_STATE)
    for node in duo.nodes:
        node.abandon(1, "nobody came")
        assert node.storage.rounds_opened == 0
    with pytest.raises(ProtocolError, match="acceptable reports: 0"):
        duo.play(2, {})
    duo.nodes[1].abandon(2, "too few")
    duo.after_event = lambda: stop_at(duo, Kind.SHARE_COMMIT)
    with pytest.raises(KeyboardInterrupt):
        duo.play(3, some_updates(duo.plan, 3))
    duo.after_event = lambda: None
    duo.crash(0)
    duo.nodes[0].abandon(3, "the other server is gone", forced=True)
    assert duo.nodes[0].storage.rounds_opened == 1
    with pytest.raises(ProtocolError, match="max_rounds = 1 rounds of the plan were opened"):
        duo.nodes[0].begin(4)
    duo.crash(0)
    with pytest.raises(ProtocolError, match="max_rounds = 1 rounds of the plan were opened"):
        duo.nodes[0].begin(4)


def stop_at(duo: Duo, kind: Kind) -> None:
    """Stop the play once this step of round 3 counts at server 0."""
    row = duo.nodes[0].storage.running()
    if row is not None and row.number == 3 and duo.nodes[0].has_counted(3, kind):
        raise KeyboardInterrupt


# --- over the network ---


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair"), _good(), CONFIG) as servers:
        servers.start()
        yield servers


def _good() -> Plan:
    return dataclasses.replace(mixed_plan(min_clients=2), max_rounds=2)


def _wide() -> Plan:
    return make_plan(make_segment("t", "scalars", (90,), k_max=5), min_clients=2)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (dataclasses.replace(mixed_plan(secure=False, min_clients=2), max_rounds=2), "verified"),
        (dataclasses.replace(mixed_plan(), max_rounds=2), "'min_clients' wants 2"),
        (mixed_plan(min_clients=2), "max_rounds is unbounded; the floor 'max_rounds' allows 2"),
        (dataclasses.replace(_wide(), max_rounds=2), "'t': k_max is 5; the floor 'max_k' allows 4"),
    ],
)
def test_servers_refuse_a_task_below_their_files_floors(pair: Pair, plan: Plan, text: str) -> None:
    with contextlib.closing(Owner(pair.urls, pair.tls, policy=QUICK)) as owner:
        task = owner.bind(plan)
        with pytest.raises(DecodeError, match=text):
            owner.set_up(task, make_state(plan))


def test_servers_refuse_a_seed_of_one_partys_choice(pair: Pair) -> None:
    with contextlib.closing(Owner(pair.urls, pair.tls, policy=QUICK)) as owner:
        task = owner.bind(_good())
        alone = bind_plan(_good(), owner.files.authorities(), NONCE, task.plan.server_keys)
        with pytest.raises(DecodeError, match="the floor 'joint_coin'"):
            owner.set_up(Task(alone, NONCE), make_state(alone))
        mine = (bytes(32), task.coins[1])
        seeded = dataclasses.replace(task, plan=coin.with_coins(task.plan, mine), coins=mine)
        with pytest.raises(DecodeError, match=r"server [01]: hash_seed"):
            owner.set_up(seeded, make_state(seeded.plan))


def test_only_the_owner_has_coins_tossed(pair: Pair) -> None:
    client = Owner(pair.urls, pair.files("client-0"), policy=HASTY)
    with contextlib.closing(client), pytest.raises(NotAllowed, match="may not call Toss"):
        client.bind(_good())
    with contextlib.closing(Owner(pair.urls, pair.tls, policy=HASTY)) as owner:
        for bad in ("00", "zz" * 32, "00" * 33):
            request = calls.encode_request(template=bad)
            with pytest.raises(DecodeError, match="template must be 64 lower-case hex digits"):
                owner.links.links[0].call("Toss", request, limit=32)


def test_clients_with_floors_of_their_own_stay_away_and_the_others_go_on_exactly(
    pair: Pair, tmp_path: Path
) -> None:
    pair.set_up()
    policy = tmp_path / "policy.toml"
    policy.write_text("min_clients = 100\n")
    refused = [
        policy,
        ClientPolicy(max_rounds=1),
        ClientPolicy(lanes=("count",)),
        ClientPolicy(max_k=3),
    ]
    for number in (1, 2):
        pair.open()
        for require in refused:
            with pytest.raises(ParameterError, match="the floor"):
                connect(pair.urls, pair.tls, 0, require=require, policy=QUICK)
        with connect(pair.urls, pair.tls, 1, policy=QUICK) as connection:  # the default floors
            assert connection.plan == pair.plan
        pair.assert_serves()
        assert pair.number == number
    with pytest.raises(ProtocolError, match="max_rounds = 2 rounds of the plan were opened"):
        pair.open()


def test_a_client_is_told_both_coins_and_checks_them(pair: Pair) -> None:
    pair.set_up()
    floors = dataclasses.replace(ClientPolicy(), plans=(pair.plan.digest.hex(),))
    pins = pair.files("client-0").authorities().keys
    floors = dataclasses.replace(floors, authorities=pins)
    with connect(pair.urls, pair.tls, 0, require=floors, policy=QUICK) as connection:
        coin.check_coins(connection.plan, pair.task.coins)  # type: ignore[arg-type]
        assert connection.plan == pair.plan

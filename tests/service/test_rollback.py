"""Older copies of a state folder, put back at one server or at both, and damaged folders."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tests.service.test_node import SETTINGS, Duo, some_updates
from tests.service.test_records import flip
from tests.support.federation import mixed_plan
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.messages import Kind
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.state import vault
from torchfsl.service.state.ledger import LedgerError
from torchfsl.service.state.steps import STEPS
from torchfsl.service.state.witness import Progress, Witness
from torchfsl.submodel.opened import Opened


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    folder = tmp_path_factory.mktemp("certs")
    make_development_certificates(folder, [])
    return TlsFiles.in_folder(folder, "server-0").authorities()


@pytest.fixture
def duo(authorities: Authorities, tmp_path: Path) -> Duo:
    return Duo(tmp_path, authorities, mixed_plan())


def copy(duo: Duo, *names: str) -> Path:
    """A copy of these files and folders of the running pair, as a disk's snapshot has it."""
    there = duo.folder / "copy"
    for name in names:
        path = duo.folder / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, there / name)
    return there


def put_back(duo: Duo, copied: Path) -> None:
    """Stop both servers and put the copy in place of what they have."""
    for node in duo.nodes:
        node.storage.ledger.close()
    for path in copied.iterdir():
        if path.is_dir():
            shutil.rmtree(duo.folder / path.name)
        shutil.move(path, duo.folder / path.name)


def start(duo: Duo, party: int) -> None:
    duo.nodes[party] = Node(party, duo.folder / str(party), duo.authorities, SETTINGS)


def opened(node: Node) -> Opened:
    return vault.decode_opened(node.storage.result_bytes())[0]


FOLDERS = ("0", "1")
WITNESSES = ("0.witness", "1.witness")


@pytest.mark.parametrize("place", range(len(STEPS)), ids=STEPS)
def test_both_servers_refuse_older_copies_of_their_folders(place: int, duo: Duo) -> None:
    if place:
        duo.play(1, some_updates(duo.plan, 1), STEPS[:place])
    (duo.folder / "copy").mkdir()
    copied = copy(duo, *FOLDERS)
    if not place:
        duo.play(1, some_updates(duo.plan, 1), STEPS[:1])
    for kind in STEPS[max(place, 1) :]:
        duo.step(1, kind)
    put_back(duo, copied)
    for party in (0, 1):
        with pytest.raises(LedgerError, match=r"is an old copy: .* could open a round again"):
            start(duo, party)


def test_without_witnesses_older_copies_of_both_open_a_round_twice_and_tell_one_update(
    duo: Duo,
) -> None:
    """The attack that the witness is for: it is off, as its files are put back with the folders."""
    updates = some_updates(duo.plan, 1)
    (duo.folder / "copy").mkdir()
    copied = copy(duo, *FOLDERS, *WITNESSES)
    duo.play(1, updates)
    first = opened(duo.nodes[0])
    put_back(duo, copied)
    for party in (0, 1):
        start(duo, party)
    duo.play(1, {client: update for client, update in updates.items() if client != 2})
    second = opened(duo.nodes[0])
    assert (first.clients, second.clients) == ((0, 1, 2), (0, 1))
    for name, part in updates[2].items():  # type: ignore[attr-defined]
        difference = first.sums[name] - second.sums[name]
        told = difference if part.indices is None else difference[part.indices]
        assert np.array_equal(told, part.values)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("place", range(1, len(STEPS)), ids=STEPS[1:])
def test_an_older_copy_at_one_server_opens_nothing_twice_even_without_its_witness(
    place: int, party: int, duo: Duo
) -> None:
    updates = some_updates(duo.plan, 1)
    duo.play(1, updates, STEPS[:place])
    (duo.folder / "copy").mkdir()
    copied = copy(duo, str(party), f"{party}.witness")
    for kind in STEPS[place:]:
        duo.step(1, kind)
    first = opened(duo.nodes[1 - party])
    said = [duo.nodes[1 - party].exchange(1, kind) for kind in STEPS]
    put_back(duo, copied)
    for one in (0, 1):
        start(duo, one)
    behind, ahead = duo.nodes[party], duo.nodes[1 - party]
    try:
        for kind in STEPS[place:]:
            ours = behind.exchange(1, kind, said[STEPS.index(kind)])
            assert ahead.exchange(1, kind, ours) == said[STEPS.index(kind)]
            behind.count(1, kind)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            duo.step(2, Kind.ROUND_STATE)
    for node in duo.nodes:
        if (node.storage.folder / "opened.fsl").exists():
            again = opened(node)
            assert again.clients == first.clients
            assert all(np.array_equal(again.sums[n], total) for n, total in first.sums.items())


def test_a_witness_that_is_gone_another_ones_or_inside_the_folder_is_refused(duo: Duo) -> None:
    for node in duo.nodes:
        node.storage.ledger.close()
    with pytest.raises(ParameterError, match="lies in the state folder"):
        Node(0, duo.folder / "0", duo.authorities, SETTINGS, witness=duo.folder / "0" / "witness")
    shutil.copy(duo.folder / "1.witness", duo.folder / "0.witness")
    with pytest.raises(LedgerError, match="is the rollback counter of another state"):
        start(duo, 0)
    (duo.folder / "0.witness").unlink()
    with pytest.raises(
        LedgerError, match=r"its rollback counter is not in .* move the counter to this path"
    ):
        start(duo, 0)


def test_a_witness_keeps_the_newest_whole_record(tmp_path: Path) -> None:
    path, identity = tmp_path / "witness", bytes(range(16))
    witness = Witness(path)
    assert witness.read() is None
    for generation in (1, 2, 3):
        witness.mark(Progress(identity, generation))
        assert Witness(path).read() == Progress(identity, generation)
    flip(path, 512 + 20)  # the newest, as a torn write leaves it
    assert Witness(path).read() == Progress(identity, 2)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == 1024


def test_a_state_of_before_there_were_witnesses_is_taken_on(duo: Duo) -> None:
    duo.play(1, some_updates(duo.plan, 1))
    ledger = duo.nodes[0].storage.ledger
    for name in ("identity", "generation", "ends_unclean"):
        ledger._db.execute("DELETE FROM settings WHERE name = ?", (name,))
    (duo.folder / "0.witness").unlink()
    duo.crash(0)
    assert duo.nodes[0].storage.ends_unclean == 0
    duo.crash(0)
    assert duo.nodes[0].storage.ends_unclean == 1
    duo.play(2, some_updates(duo.plan, 2))


# --- files that are gone or damaged ---


def lose_ledger(folder: Path) -> None:
    for path in folder.glob("state.sqlite*"):
        path.unlink()


def empty_ledger(folder: Path) -> None:
    lose_ledger(folder)
    (folder / "state.sqlite").touch()


def new_ledger(folder: Path) -> None:
    lose_ledger(folder)
    sqlite3.connect(folder / "state.sqlite").execute("CREATE TABLE x (y)").connection.close()


def scramble_ledger(folder: Path) -> None:
    content = bytearray((folder / "state.sqlite").read_bytes())
    content[200:-1] = bytes(len(content) - 201)
    (folder / "state.sqlite").write_bytes(content)


def change_model(folder: Path) -> None:
    (path,) = (folder / "models").glob("version-1.fsl")
    flip(path, path.stat().st_size // 2)


def older_model(folder: Path) -> None:
    (older,) = (folder / "models").glob("version-0-*.fsl")
    shutil.copy(older, folder / "models" / "version-1.fsl")


DAMAGES = {
    lose_ledger: "is gone, and models, reports, opened.fsl in its folder are left",
    empty_ledger: "is gone, and models, reports, opened.fsl in its folder are left",
    new_ledger: "is missing, empty or older than the rollback counter",
    scramble_ledger: "is damaged",
    lambda folder: shutil.rmtree(folder / "models"): "the current model in .* cannot be used",
    change_model: "the current model in .* cannot be used",
    older_model: "the model.s digest differs from the one in state.sqlite",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused_and_left_as_it_is(damage: object, duo: Duo) -> None:
    duo.play(1, some_updates(duo.plan, 1))
    duo.play(2, some_updates(duo.plan, 2), STEPS[:1])
    for node in duo.nodes:
        node.storage.close()
    folder, before = duo.folder / "0", (duo.folder / "0.witness").read_bytes()
    copied = duo.folder / "copy"
    shutil.copytree(folder, copied / "0")
    damage(folder)  # type: ignore[operator]
    for _ in range(2):  # the first try leaves nothing that the second one takes for a state
        with pytest.raises(LedgerError, match=DAMAGES[damage] + ".*the page 'Incidents'"):  # type: ignore[index]
            start(duo, 0)
    assert list((folder / "reports" / "2").iterdir())
    assert (duo.folder / "0.witness").read_bytes() == before
    shutil.rmtree(folder)
    shutil.move(copied / "0", folder)  # the newest can be put back, however often it was tried
    start(duo, 0)


def test_nobody_else_can_read_the_state(authorities: Authorities, tmp_path: Path) -> None:
    folder = tmp_path / "0"
    folder.mkdir(mode=0o755)
    (folder / "lock").touch(0o644)
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.play(1, some_updates(duo.plan, 1), STEPS[:3])
    paths = [folder, *folder.rglob("*"), tmp_path / "0.witness"]
    assert {"state.sqlite", "state.sqlite-wal", "lock"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []

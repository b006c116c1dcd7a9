"""State folders of two servers as a commit leaves them, in one small file, and how it is made.

    python -m tests.support.older_states FILE    # with the code of the commit that is to be kept

The file holds no key. The certificates are those of authorities that were thrown away, and the
secrets of the reports are those of clients that never were. Round 1 is applied; round 2 stands
half way, in two versions:

open        client 0 has reported, client 1 has sent half of its trees, client 2 nothing: what they
            have still to send lies beside the folders
committed   all have reported; both servers have committed, and server 0 has heard it of server 1
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.service.test_node import Duo, some_updates
from tests.support.federation import mixed_plan
from tests.support.reference import plaintext
from torchfsl.fsl.messages import Kind
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state.steps import STEPS

_AUTHORITIES = ("ca-server-0", "ca-server-1", "ca-clients")
_SENT_WHEN_OPEN = 5
"""Messages that have arrived in `open`: four of client 0, and one half of client 1's trees."""


def unpack(archive: Path, folder: Path) -> Authorities:
    """The folders `open` and `committed` and what lies beside them."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    first, second, clients = ((folder / f"{name}.pem").read_bytes() for name in _AUTHORITIES)
    return Authorities((first, second), clients)


def waiting_messages(folder: Path) -> list[tuple[int, bytes]]:
    """What clients have still to send in `open`: server and message, in order."""
    paths = sorted((folder / "messages").iterdir())
    return [(int(path.name[-1]), path.read_bytes()) for path in paths]


def restarted(folder: Path, authorities: Authorities) -> Duo:
    """Both servers, started on the states that lie in a folder."""
    duo = Duo.__new__(Duo)
    duo.folder, duo.authorities, duo.after_event = folder, authorities, lambda: None
    duo.nodes = [duo._node(party) for party in (0, 1)]
    duo.plan = duo.nodes[0].plan
    return duo


class _Recorded(Duo):
    sent: list[tuple[int, bytes]]

    def send(self, party: int, message: bytes) -> None:
        if message[6] not in (Kind.TREES_RELAY, Kind.REPORT_RELAY):
            self.sent.append((party, message))
        super().send(party, message)


def make(folder: Path) -> None:
    """Play the rounds and leave the states in a folder."""
    make_development_certificates(folder / "certificates", [])
    for name in _AUTHORITIES:
        shutil.copy(folder / "certificates" / f"{name}.pem", folder)
    first, second, clients = ((folder / f"{name}.pem").read_bytes() for name in _AUTHORITIES)
    authorities = Authorities((first, second), clients)
    duo = _Recorded(folder / "committed", authorities, mixed_plan())
    duo.sent = []
    duo.play(1, some_updates(duo.plan, 1))
    expected: dict[str, object] = {"digest_before": duo.digests()[0]}
    duo.step(2, Kind.ROUND_STATE)
    _close(duo)
    shutil.copytree(folder / "committed", folder / "open")
    duo.nodes, duo.sent = [duo._node(party) for party in (0, 1)], []
    made = _reports(duo)
    for kind in STEPS[1 : STEPS.index(Kind.SHARE_COMMIT)]:
        duo.step(2, kind)
    zero, one = duo.nodes
    zero.exchange(2, Kind.SHARE_COMMIT, one.exchange(2, Kind.SHARE_COMMIT))
    _close(duo)
    shutil.copytree(folder / "committed", folder / "finished")
    sent = duo.sent
    duo = restarted(folder / "open", authorities)
    for party, message in sent[:_SENT_WHEN_OPEN]:
        duo.send(party, message)
    _close(duo)
    (folder / "messages").mkdir()
    for at, (party, message) in enumerate(sent[_SENT_WHEN_OPEN:]):
        (folder / "messages" / f"{at:02d}-{party}").write_bytes(message)
    expected["sums"] = {n: v.tolist() for n, v in plaintext.sums(zero.plan, made).items()}
    expected["digest_after"] = _finished(folder / "finished", authorities)
    (folder / "expected.json").write_text(json.dumps(expected))


def _reports(duo: Duo) -> list[plaintext.Contribution]:
    """The reports of round 2, without its steps."""
    step, duo.step = duo.step, lambda *_: None  # type: ignore[method-assign]
    made = duo.play(2, some_updates(duo.plan, 2))
    duo.step = step  # type: ignore[method-assign]
    return made


def _finished(folder: Path, authorities: Authorities) -> str:
    duo = restarted(folder, authorities)
    for kind in (Kind.SHARE_COMMIT, Kind.SHARE):
        duo.step(2, kind)
    (digest,) = set(duo.digests())
    _close(duo)
    return digest


def _close(duo: Duo) -> None:
    for node in duo.nodes:
        node.storage.ledger.close()


def pack(archive: Path) -> None:
    """Make the states and pack what a test needs of them."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(archive, "w:xz") as packed:
        folder = Path(name)
        make(folder)
        kept = [f"{name}.pem" for name in _AUTHORITIES]
        for name in (*kept, "expected.json", "messages", "open", "committed"):
            packed.add(folder / name, arcname=name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    pack(Path(sys.argv[1]))

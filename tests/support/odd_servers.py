"""`torchfsl serve` as a process that dies at one instant, lies in one step, or hears too late.

    TORCHFSL_TEST_ODD=die|lie|deaf|rash|add|two|shown python -m tests.support.odd_servers serve ...

`die` kills the process with SIGKILL once, when the peer's counts are here and the rows are not
revealed yet; a file beside the state folder remembers. `lie` alters the share of the rows after the
counts are known to both. `deaf` never hears that the peer has a public part; `rash`, deaf as well,
does not look into the peer's set before it refuses a client. `add` adds 2**16 to a dense value of
its share before it commits to it. `two` signs a second commitment, to nothing, and tells the peer
that; `shown` shows that one to its auditor instead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torchfsl.fsl.audit import transcript
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.server.evaluation import share_of
from torchfsl.fsl.server.server import Server
from torchfsl.service.command import main
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.transcript import Transcript

ODD = "TORCHFSL_TEST_ODD"

_honest = Server.reveal_kept
_commit = Server.commit
_insist = PeerLink.insist
_parts = transcript.parts


def _die_once(server: Server, peer_counts: bytes) -> bytes:
    died = Path(sys.argv[sys.argv.index("--state") + 1]).with_suffix(".died")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _honest(server, peer_counts)


def _lie(server: Server, peer_counts: bytes) -> bytes:
    said = bytearray(_honest(server, peer_counts))
    said[-1] ^= 1
    return bytes(said)


async def _send_and_hang(link: PeerLink, method: str, *parts: bytes, **kwargs: Any) -> bytes:
    answer = await _insist(link, method, *parts, **kwargs)
    if method == "Relay":
        await asyncio.Event().wait()
    return answer


def _make_deaf() -> None:
    PeerLink.insist = _send_and_hang  # type: ignore[method-assign, assignment]


def _make_rash() -> None:
    _make_deaf()
    Transcript.peer_counts = lambda *_: False  # type: ignore[method-assign, assignment]


def _reveal_as(odd: Callable[[Server, bytes], bytes]) -> None:
    Server.reveal_kept = odd  # type: ignore[method-assign]


def add(server: Server, *, salt: bytes = b"", share: Buffer = b"") -> bytes:
    """Commit to a share with an offset; one that was committed to before stays as it is."""
    if not share:
        opening = server._opening
        if server.noise is not None and server.audit is not None:
            past = server.audit.past_noise()[1]
            server.noise.begin(server.rounds_opened, server.last_round, past)
        share = bytearray(share_of(server._evaluator, opening.accepted.values(), server.reports))
        share[-2] ^= 1  # of the last value of the last, dense, segment
    return _commit(server, salt=salt, share=share)


def _make_two(*, shown: bool) -> None:
    said: list[bytes] = []  # by whom it is for: the peer, the auditor

    def commit(server: Server, **kept: Any) -> bytes:
        honest = _commit(server, **kept)
        audit, key = server.audit, server.sign_key
        assert audit is not None
        assert key is not None
        second = audit.signed(key, bytes(32)).message(
            server.plan, 1 - server.party, server.last_round
        )
        said[:] = (honest, second) if shown else (second, honest)
        return said[0]

    Server.commit = commit  # type: ignore[method-assign]
    transcript.parts = lambda server, _: _parts(server, said[1])


def _make_add() -> None:
    Server.commit = add  # type: ignore[method-assign]


_MAKE_ODD: Final[dict[str, Callable[[], None]]] = {
    "die": lambda: _reveal_as(_die_once),
    "lie": lambda: _reveal_as(_lie),
    "deaf": _make_deaf,
    "rash": _make_rash,
    "add": _make_add,
    "two": lambda: _make_two(shown=False),
    "shown": lambda: _make_two(shown=True),
}

if __name__ == "__main__":
    _MAKE_ODD[os.environ[ODD]]()
    sys.exit(main())

"""`torchfsl serve` as a process that dies at one instant, or that lies in one step.

    python -m tests.support.odd_servers serve ...      with TORCHFSL_TEST_ODD=die|lie

`die` kills the process with SIGKILL once, when the peer's counts are here and the rows are not
revealed yet; a file beside the state folder remembers. `lie` alters the share of the rows after the
counts are known to both.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from torchfsl.fsl.server.server import Server
from torchfsl.service.command import main

ODD = "TORCHFSL_TEST_ODD"

_honest = Server.reveal_kept


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


if __name__ == "__main__":
    Server.reveal_kept = {"die": _die_once, "lie": _lie}[os.environ[ODD]]  # type: ignore[method-assign]
    sys.exit(main())

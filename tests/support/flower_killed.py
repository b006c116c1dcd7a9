"""A client that dies inside its round, after its trees and before its report.

python -m tests.support.flower_killed URL0,URL1 FOLDER NAME ROUND
"""

from __future__ import annotations

import os
import signal
import sys

from flwr.app import ConfigRecord, Message, RecordDict

from tests.support.flower_grid import HereGrid
from tests.support.flower_task import Recorder, build, words_of
from torchfsl.integrations.flower import client_servers


def main(servers: str, folder: str, name: str, number: str) -> None:
    """Take part, and end by SIGKILL."""
    config = {"torchfsl-tls": folder, "torchfsl-name": name}
    context = HereGrid(Recorder().app, [config], run_id=1).contexts[0]
    call = ConfigRecord({"round": int(number), "servers": servers})
    message = Message(RecordDict({"torchfsl": call}), 100, "train")
    fed = build()
    with (
        client_servers(message, context, fed) as both,
        fed.round(both, rows={"words": words_of(0)}),
    ):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])

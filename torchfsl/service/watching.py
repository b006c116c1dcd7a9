"""Shows something again and again, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from torchfsl.errors import Error
from torchfsl.service.net.text import say

_HOME = "\x1b[H\x1b[2J"
"""Sends a terminal's cursor home and empties the screen."""


def watch(show: Callable[[], int], seconds: float) -> int:
    """Show it every `seconds`; returns the last status. What fails for a while is said and retried.

    On a terminal each picture takes the place of the one before, elsewhere they follow each other.
    """
    status, stopped = 0, False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True  # gRPC may swallow what is raised inside its calls
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        while not stopped:
            if sys.stdout.isatty():
                print(_HOME, end="")
            print(time.strftime("%Y-%m-%d %H:%M:%S %z"))
            try:
                status = show()
            except Error as error:
                say(str(error))
                status = 1
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
    return status

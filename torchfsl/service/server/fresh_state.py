"""Removes what a failed start has made of a state, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

from torchfsl.service.state.witness import counter_path

log = logging.getLogger(__name__)


class FreshState:
    """Remembers what was there before a server's state is made.

    Args:
        folder: of the state.
        counter: path of its rollback counter. None is the folder's path with `.witness` behind.
    """

    def __init__(self, folder: Path, counter: Path | None) -> None:
        """Look; nothing is made."""
        self._folder = folder
        self._is_new = not folder.exists()
        counter = counter_path(folder, counter)
        self._counter = None if counter.exists() else counter
        self._known: set[Path] | None = None

    def begin(self) -> None:
        """Look again, now that this process has the folder's lock and made nothing else."""
        self._known = set(self._folder.iterdir()) - {self._folder / "lock"}
        if self._folder / "state.sqlite" in self._known:
            self.keep()

    def keep(self) -> None:
        """The start succeeded, or a state was there: nothing is removed."""
        self._known = None

    def remove(self) -> None:
        """Remove what was not there before, unless it is kept; the log names what cannot be.

        A failure is not raised, since the start has failed for another reason, which counts.
        """
        if self._known is None:
            return
        try:
            self._remove(self._known)
        except OSError as error:
            log.warning("cannot remove the files that this failed start made: %s", error)
        self.keep()

    def _remove(self, known: set[Path]) -> None:
        for path in set(self._folder.iterdir()) - known:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if self._counter is not None:
            self._counter.unlink(missing_ok=True)
        if self._is_new:
            with contextlib.suppress(OSError):  # of a folder that holds something
                self._folder.rmdir()

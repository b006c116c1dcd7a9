"""What the user of `python -m training` sees while a run goes on."""

from __future__ import annotations

import sys
from typing import Any

from training.trainer import RoundRecord


class Console:
    """Lines and a bar."""

    def __init__(self, *, quiet: bool) -> None:
        """Nothing shown yet."""
        self._quiet = quiet
        self._bar: Any = None

    def say(self, text: str) -> None:
        """Print a line or a table."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(text, flush=True)

    def start(self, finished: int, rounds: int) -> None:
        """Show the bar."""
        if not self._quiet:
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(
                total=rounds, initial=finished, unit="round", file=sys.stderr, dynamic_ncols=True
            )

    def round_done(self, record: RoundRecord) -> None:
        """Advance the bar; a line for rounds that evaluate."""
        if self._bar is None:
            return
        self._bar.set_postfix_str(f"exact {record.exact}", refresh=False)
        self._bar.update()
        if record.metrics:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
            self.say(
                f"round {record.round:4d}  {shown}  up {record.upload_bytes / 1e6:.3f} MB  "
                f"down {record.download_bytes / 1e6:.3f} MB a client  exact {record.exact}"
            )

    def stop(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

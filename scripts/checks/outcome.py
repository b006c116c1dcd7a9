"""What a check found: printed as JSON, written where asked, and an exit code."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def report(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, Path], dict[str, Any]]
) -> int:
    """Run a check with the command's options, in a folder of its own; 0 if it found all well.

    Args:
        parser: of the options; gets `--json FILE` besides.
        run: the check. What it returns has `ok`.
    """
    parser.add_argument("--json", type=Path, help="write what was found to this file, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(options, Path(folder))
    text = json.dumps(found, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 0 if found["ok"] else 1

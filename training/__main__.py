"""Entry point of `python -m training`."""

from __future__ import annotations

import sys

from training import cli, compare, export
from training.privhfl import command

if __name__ == "__main__":
    if sys.argv[1:2] == ["privhfl"]:
        sys.exit(command.main(sys.argv[2:]))
    if sys.argv[1:2] == ["compare"]:
        sys.exit(compare.main(sys.argv[2:]))
    if sys.argv[1:2] == ["export"]:
        sys.exit(export.main(sys.argv[2:]))
    sys.exit(cli.main())

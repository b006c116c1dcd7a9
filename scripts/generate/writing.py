"""Files that programs write, whole or between two marks, or compare with `--check`."""

from __future__ import annotations

from pathlib import Path

from scripts.program import Options, option

CHECK = option("--check", False, "write nothing; exit status 1 if a file is stale")


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with the text between two marks replaced."""
    head, _, rest = page.partition(begin)
    return head + begin + text + end + rest.partition(end)[2]


def write(options: Options, path: Path, text: str) -> int:
    """Write a file, or compare it if the options have `check`; returns the exit status."""
    if not getattr(options, "check", False):
        path.write_text(text, encoding="utf-8")
        return 0
    is_stale = not path.exists() or path.read_text(encoding="utf-8") != text
    if is_stale:
        print(f"{path.name} is stale: run this without --check, and look at the change")
    return int(is_stale)

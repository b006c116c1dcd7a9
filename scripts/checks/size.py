"""The size of the repository at a commit: lines and files by folder, words by page.

    python -m scripts.checks.size [COMMIT] [--json FILE]    # default: HEAD

Files are those of the commit, so that one program measures before and after. Words leave code out.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scripts.checks.prose import prose_of, words
from scripts.program import ROOT, Found, Options, option, program

WINGS: Final = ("torchfsl", "training", "models", "scripts", "tests", "docs")


def files_at(root: Path, commit: str) -> dict[str, bytes]:
    """All files of a commit by name.

    Raises:
        SystemExit: if git does not know the commit.
    """
    command = ["git", "-C", str(root), "archive", "--format=tar", commit]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"expected a commit, got {commit}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        members = [(member.name, tar.extractfile(member)) for member in tar if member.isfile()]
        return {name: file.read() for name, file in members if file is not None}


def size(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The figures of a set of files.

    Returns:
        `wings` with `files`, `lines` and `python_lines` by folder, `total_files`, `results_files`,
        `root_markdown_bytes`, and `words` by page.
    """
    wings = {wing: {n: f for n, f in files.items() if n.startswith(f"{wing}/")} for wing in WINGS}
    pages = [
        n for n in sorted(files) if n.endswith(".md") and ("/" not in n or n.startswith("docs/"))
    ]
    return {
        "total_files": len(files),
        "results_files": sum(name.startswith("results/") for name in files),
        "root_markdown_bytes": sum(len(files[name]) for name in pages if "/" not in name),
        "wings": {
            wing: {
                "files": len(there),
                "lines": sum(lines(file) for file in there.values()),
                "python_lines": sum(lines(f) for n, f in there.items() if n.endswith(".py")),
            }
            for wing, there in wings.items()
        },
        "words": {name: words(prose_of(files[name].decode())) for name in pages},
    }


def lines(file: bytes) -> int:
    """Lines of a text; of other files none."""
    return 0 if b"\0" in file else len(file.splitlines())


def table(figures: Mapping[str, Any]) -> str:
    """The figures for the terminal."""
    rows = [f"{'wing':12}{'files':>8}{'lines':>10}{'of Python':>12}"]
    rows += [
        f"{wing:12}{row['files']:8}{row['lines']:10,}{row['python_lines']:12,}"
        for wing, row in figures["wings"].items()
    ]
    rows += [
        "",
        f"{'files':34}{figures['total_files']:8,}",
        f"{'files in results/':34}{figures['results_files']:8,}",
        f"{'bytes of Markdown in the root':34}{figures['root_markdown_bytes']:8,}",
        "",
        f"{'words of a page':34}{sum(figures['words'].values()):8,}",
    ]
    rows += [f"{name:34}{count:8,}" for name, count in figures["words"].items()]
    return "\n".join(rows)


@program(option("commit", "HEAD", "commit to measure", nargs="?"))
def main(options: Options) -> Found:
    """Print the figures."""
    figures = size(files_at(ROOT, options.commit))
    print(table(figures))
    return figures

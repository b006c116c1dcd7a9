"""The size of the repository at a commit: lines and files by folder, words by page.

    python -m scripts.checks.size [COMMIT] [--json FILE]    # default: HEAD

Files are those of the commit, so that one program measures before and after. Words leave code out.
Words that count are those of docs/ without the specification and generated text. A page of `ASKED`
counts from its word 1,201 on.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scripts.checks.prose import prose_of, words
from scripts.program import ROOT, Found, Options, option, program

WINGS: Final = ("torchfsl", "training", "models", "scripts", "tests", "docs")
MAX_WORDS: Final = 36_000
"""Most words of docs/ that count."""
GENERATED: Final = ("api", "api-systems", "client-abi", "error-codes", "settings")
"""Pages of docs/ that programs write as a whole, or whose text the site takes from docstrings."""
TABLE: Final = re.compile(
    r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->|<!-- (optimizer table) -->.*?<!-- end of \2 -->",
    flags=re.DOTALL,
)
"""The text between the marks of a generated table."""
MAX_ASKED_WORDS: Final = 1200
ASKED: Final = {
    "CODE_OF_CONDUCT": "the file that projects have",
    "audit": "audited rounds, for operators",
    "audit-pack": "claims with code and tests, for auditors",
    "client-core": "the client without Python",
    "explain": "the first path of a user",
    "findings": "mended weaknesses",
    "growing": "the first path of a user",
    "mistakes": "the first path of a user",
    "privacy": "differential privacy that trains",
    "recipes/averaging": "recipes",
    "recipes/data-frame": "recipes",
    "recipes/hugging-face": "recipes",
    "recipes/index": "recipes",
    "recipes/lightning": "recipes",
    "recipes/sample-clients": "recipes",
    "recipes/several-processes": "recipes",
    "recipes/several-tables": "recipes",
    "recipes/weighting": "recipes",
    "releases": "how a release is made and checked",
    "run-on-two-servers": "the first path of a user",
    "simulate": "the first path of a user",
    "web-client": "clients in web pages",
    "web-door": "clients in web pages",
    "wrap-your-model": "the first path of a user",
}
"""Pages of docs/ that were asked for separately, and why. Each may add `MAX_ASKED_WORDS` words."""


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
        `root_markdown_bytes`, `words` by page, and `counted_words`.
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
        "counted_words": sum(counted(name, files[name].decode()) for name in pages),
    }


def counted(name: str, text: str) -> int:
    """Words of a page that count towards `MAX_WORDS`, by its name from the root."""
    page = name.removeprefix("docs/").removesuffix(".md")
    if f"docs/{page}.md" != name or page in GENERATED or page.startswith("specification/"):
        return 0
    count = words(prose_of(TABLE.sub("", text)))
    return max(count - MAX_ASKED_WORDS, 0) if page in ASKED else count


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
        f"{'words of docs that count':34}{figures['counted_words']:8,}",
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

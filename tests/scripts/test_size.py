"""Sizes are those of a commit: of each wing, page and folder what is in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.checks.size import (
    ASKED,
    GENERATED,
    MAX_ASKED_WORDS,
    MAX_WORDS,
    counted,
    files_at,
    size,
    table,
)

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "torchfsl/a.py": b"x = 1\ny = 2\n",
    "torchfsl/csrc/a.cc": b"int a;\n",
    "torchfsl/picture.png": b"\x89\0\n\n\n",
    "scripts/run": b"#!/bin/sh\ntrue",
    "scriptsx/a.py": b"x\n",
    "docs/page.md": b"---\nkind: how-to\n---\n# Two words\n\n```sh\nnot these four words\n```\n",
    "docs/deep/page.md": b"One `two` three.\n",
    "README.md": b"four\n",
    "results/a.json": b"{}\n",
    "results/b/c.json": b"{}\n",
}


def test_figures_are_those_of_the_files() -> None:
    figures = size(FILES)
    assert figures["total_files"] == 10
    assert figures["results_files"] == 2
    assert figures["root_markdown_bytes"] == 5
    assert figures["wings"]["torchfsl"] == {"files": 3, "lines": 3, "python_lines": 2}
    assert figures["wings"]["scripts"] == {"files": 1, "lines": 2, "python_lines": 0}
    assert figures["wings"]["models"] == {"files": 0, "lines": 0, "python_lines": 0}
    assert figures["words"] == {"README.md": 1, "docs/deep/page.md": 3, "docs/page.md": 2}
    assert figures["counted_words"] == 5
    assert "docs/page.md" in table(figures)


def test_words_that_count_are_written_by_hand_and_outside_the_specification() -> None:
    made = "<!-- lies: begin -->\n| three more words |\n<!-- lies: end -->\n"
    optimizers = "<!-- optimizer table -->\nmore\n<!-- end of optimizer table -->\n"
    page = f"two words\n{made}and three here\n{optimizers}"
    assert counted("docs/a.md", page) == 5
    assert counted("docs/deep/a.md", page.replace("lies: end", "truth: end")) == 8
    for name in ("README.md", "docs/specification/a.md", "docs/settings.md"):
        assert counted(name, page) == 0
    assert counted("docs/deep/settings.md", page) == 5


def test_a_page_that_was_asked_for_counts_from_its_limit_on() -> None:
    for name in ("docs/audit.md", "docs/recipes/index.md"):
        assert counted(name, "word " * MAX_ASKED_WORDS) == 0
        assert counted(name, "word " * (MAX_ASKED_WORDS + 7)) == 7
    assert counted("docs/recipes.md", "word " * MAX_ASKED_WORDS) == MAX_ASKED_WORDS


def test_the_words_of_docs_stay_within_their_limit() -> None:
    docs = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    assert {f"docs/{page}.md" for page in (*ASKED, *GENERATED)} <= set(docs)
    words = {name: counted(name, path.read_text(encoding="utf-8")) for name, path in docs.items()}
    longest = sorted(words.items(), key=lambda page: -page[1])[:10]
    assert sum(words.values()) <= MAX_WORDS, f"cut pages; the longest are {longest}"


def test_the_files_are_those_of_the_commit_and_not_of_the_folder(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "torchfsl").mkdir()
    file = tmp_path / "torchfsl" / "a.py"
    for text in ("1\n", "1\n2\n"):
        file.write_text(text)
        git("add", "--all")
        git("commit", "--message", "a")
    file.write_text("1\n2\n3\n")
    (tmp_path / "not-committed").touch()
    sizes = [size(files_at(tmp_path, commit)) for commit in ("HEAD~1", "HEAD")]
    assert [figures["wings"]["torchfsl"]["lines"] for figures in sizes] == [1, 2]
    assert [figures["total_files"] for figures in sizes] == [1, 1]
    with pytest.raises(SystemExit, match="expected a commit, got nothing"):
        files_at(tmp_path, "nothing")

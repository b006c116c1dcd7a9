"""Counts hits of the rules of docs/style.md in pages, docstrings and messages.

    python -m scripts.checks.prose                     # totals, and what rose above the baseline
    python -m scripts.checks.prose --list [PATH ...]   # every hit, with what to write
    python -m scripts.checks.prose --update            # rewrite the baseline, print what rose

The baseline, tests/docs/prose_baseline.json, has the number of hits by folder, kind of text and
rule. A test fails if a number rises. Pages with front matter, docstrings of public names and the
files under "clean" in the baseline must have no hit. At most 5 % of the sentences of pages, and of
public docstrings, have more than 30 words.
"""

from __future__ import annotations

import ast
import bisect
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.checks.prose_rules import RULES
from scripts.checks.public_names import PublicNames
from scripts.program import ROOT as ROOT
from scripts.program import Options, option, program

BASELINE: Final = ROOT / "tests" / "docs" / "prose_baseline.json"
GLOSSARY: Final = ROOT / "docs" / "glossary.md"
PAGES: Final = ("*.md", "docs/**/*.md", "examples/**/*.md", "deploy/**/*.md")
SOURCES: Final = ("torchfsl", "training", "models", "scripts")
KINDS: Final = {
    "page": "pages", "public": "public docstrings", "docstring": "internal ones",
    "message": "messages",
}  # fmt: skip
"""Kinds of text, and their columns in the table."""
MAX_SENTENCE_WORDS: Final = 30
MAX_LONG_SHARE: Final = 0.05
"""Largest share of longer sentences."""
MAX_MESSAGE_CHARACTERS: Final = 200
WORD_LIMITS: Final = {"tutorial": 1000, "how-to": 600, "explanation": 1500, "reference": None}
"""Most words of a page by its kind, code left out."""
READERS: Final = ("user", "researcher", "operator", "cryptographer", "contributor")
LOGS: Final = ("debug", "info", "warning", "error", "critical", "exception")
SPEAKING: Final = ("warn", "add_note", "refuse", "expect_a", "expect_able")
"""Calls whose strings are messages, besides logs, argparse and `scripts.program.option`."""
SHOWN: Final = ("help", "about", "description", "remedy")
"""Arguments of any call that are messages."""
_NEW_BLOCK: Final = re.compile(r" *(?:[-*+] |\||#|\d+\. |[`\w*]+(?:, [`\w*]+)*: )")
_MARK: Final = re.compile(r"^ *(?:[-*+] |#+ |\d+\. )")
_ENTRY: Final = re.compile(r"^([`\w*]+(?:, [`\w*]+)*): ")
"""The name of an entry in a docstring; what follows it is a new sentence."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose.

    Attributes:
        file: relative to the root.
        kind: one of `KINDS`.
        line: on which it begins.
        text: without code; a line break where the source has one.
    """

    file: str
    kind: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A place that a rule found; `write` says what to write there."""

    file: str
    kind: str
    line: int
    rule: str
    found: str
    write: str


def front_matter(page: str) -> dict[str, str]:
    """The fields before a page's text; empty if it has none."""
    found = re.match(r"---\n(.*?)\n---\n", page, flags=re.DOTALL)
    lines = found[1].splitlines() if found else []
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}


def prose_of(page: str) -> str:
    """A page without front matter, code, comments and link targets; lines keep their numbers."""
    page = re.sub(r"\A---\n.*?\n---\n", _blank, page, flags=re.DOTALL)
    page = re.sub(r"^ *(```|~~~).*?^ *\1 *$", _blank, page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", _blank, page, flags=re.DOTALL)
    page = re.sub(r"^ *> ?", "", page, flags=re.MULTILINE)
    return re.sub(r"\]\([^()\s]*\)", "]", without_code(page))


def _blank(found: re.Match[str]) -> str:
    """The line breaks of a match."""
    return "\n" * found[0].count("\n")


def without_code(text: str) -> str:
    """The text with x in place of each inline code."""
    return re.sub(r"``?[^`]+``?", lambda found: "`x`" + _blank(found), text)


def words(text: str) -> int:
    """How many words a text has."""
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


def blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Paragraphs, list items, headings, cells of tables and entries of docstrings.

    Yields:
        The line that a block begins on, from 0, and its lines.
    """
    start = 0
    lines: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""]):
        if lines and (not line.strip() or _NEW_BLOCK.match(line)):
            yield start, lines
            lines = []
        if line.lstrip().startswith("|"):
            yield from ((number, [cell]) for cell in line.split("|") if cell.strip())
        elif line.strip():
            start = start if lines else number
            lines.append(_MARK.sub("", line))


def sentences(block: str) -> list[str]:
    """The sentences of a block."""
    return re.split(r"(?<=[.!?])[)\"'*_]* +(?=[\"'(*`\[]*[A-Z`0-9])", block)


def page_texts() -> Iterator[Text]:
    """The prose of all pages."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield Text(str(path.relative_to(ROOT)), "page", 1, prose_of(path.read_text()))


def source_texts() -> Iterator[Text]:
    """Docstrings and messages of all sources."""
    public = PublicNames(ROOT).lines
    for base in SOURCES:
        for path in sorted((ROOT / base).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                for kind, part in texts_of(node):
                    if kind == "docstring" and part.lineno in public.get(name, ()):
                        kind = "public"
                    yield Text(name, kind, part.lineno, said(part))


def texts_of(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The text that a node shows to readers: a docstring, or the strings of a message."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        if isinstance(node.value.value, str):
            yield "docstring", node.value
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from (("message", part) for part in strings(node.exc.args))
    elif isinstance(node, ast.Call):
        whole, _, name = ast.unparse(node.func).rpartition(".")
        given = [k.value for k in node.keywords if k.arg in SHOWN]
        if name in SPEAKING or (name in LOGS and whole.rpartition(".")[2] in ("log", "logger")):
            given += node.args
        elif name == "option":
            given += node.args[2:]
        yield from (("message", part) for part in strings(given))


def strings(arguments: list[ast.expr]) -> Iterator[ast.expr]:
    """The strings among arguments, also in sums and choices."""
    for argument in arguments:
        if isinstance(argument, ast.JoinedStr) or (
            isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        ):
            yield argument
        elif isinstance(argument, ast.BinOp):
            yield from strings([argument.left, argument.right])
        elif isinstance(argument, ast.IfExp):
            yield from strings([argument.body, argument.orelse])


def said(part: ast.expr) -> str:
    """A string as its readers see it, with {x} for what is filled in."""
    if isinstance(part, ast.JoinedStr):
        return "".join(said(piece) for piece in part.values)
    if isinstance(part, ast.Constant):
        return without_code(str(part.value))
    return "{x}"


def terms(glossary: str) -> list[str]:
    """Terms in code marks in the column "not" of the glossary."""
    rows = [line.split("|") for line in glossary.splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in rows[0]].index("not")
    return [term for row in rows[2:] for term in re.findall(r"`([^`]+)`", row[column])]


def hits_of(text: Text, forbidden: re.Pattern[str]) -> Iterator[Hit]:
    """Every hit in a text."""

    def hit(line: int, rule: str, found: str, write: str) -> Hit:
        return Hit(text.file, text.kind, text.line + line, rule, found, write)

    patterns = [(rule.name, rule.regex, rule.write) for rule in RULES]
    patterns.append(("glossary", forbidden, "see docs/glossary.md"))
    for start, lines in blocks(text.text):
        block = " ".join(" ".join(lines).split())
        if text.kind in ("docstring", "public"):
            block = _ENTRY.sub(r"\1. ", block)
        for name, regex, write in patterns:
            for found in regex.finditer(block):
                before = len(block[: found.start() + 1].split())
                ends = list(itertools.accumulate(len(line.split()) for line in lines))
                line = start + bisect.bisect_left(ends, before)
                yield hit(line, name, found[0], write)
        for sentence in sentences(block) if text.kind == "page" else []:
            if (count := words(sentence)) > MAX_SENTENCE_WORDS:
                yield hit(start, "long-sentence", sentence[:60], f"{count} words: two sentences")
    if text.kind == "message" and len(text.text) > MAX_MESSAGE_CHARACTERS:
        write = f"at most {MAX_MESSAGE_CHARACTERS} characters; details in a note"
        yield hit(0, "long-message", text.text[:60], write)


def long_sentences(texts: list[Text], kind: str) -> tuple[int, int]:
    """How many sentences of a kind of text are too long, and how many there are."""
    counted = [
        words(sentence)
        for text in texts
        if text.kind == kind
        for _, lines in blocks(text.text)
        for sentence in sentences(_ENTRY.sub(r"\1. ", " ".join(" ".join(lines).split())))
    ]
    return sum(count > MAX_SENTENCE_WORDS for count in counted), sum(map(bool, counted))


def all_texts() -> list[Text]:
    """All prose of the repository."""
    return [*page_texts(), *source_texts()]


def all_hits(texts: list[Text]) -> list[Hit]:
    """Every hit in texts."""
    forbidden = re.compile(
        r"\b(?:" + "|".join(map(re.escape, terms(GLOSSARY.read_text()))) + r")s?\b", re.IGNORECASE
    )
    return [hit for text in texts for hit in hits_of(text, forbidden)]


def area(file: str) -> str:
    """The folder whose hits are added up: a page or module may move within it."""
    folders = Path(file).parent.parts
    return "/".join(folders[: 1 if folders[:1] == ("docs",) else 2]) or "."


def counts(hits: list[Hit]) -> dict[str, int]:
    """Hits by folder, kind and rule."""
    return dict(sorted(Counter(f"{area(h.file)} {h.kind} {h.rule}" for h in hits).items()))


def risen(hits: list[Hit], baseline: dict[str, Any]) -> list[str]:
    """Numbers above the baseline, one line for each."""
    before = baseline["hits"]
    return [
        f"{key}: {count}, was {before.get(key, 0)}"
        for key, count in counts(hits).items()
        if count > before.get(key, 0)
    ]


def clean_files(baseline: dict[str, Any]) -> set[str]:
    """Files that must have no hit: pages with front matter, and those that the baseline lists."""
    paths = [path for pattern in PAGES for path in ROOT.glob(pattern)]
    pages = {str(path.relative_to(ROOT)) for path in paths if front_matter(path.read_text())}
    return pages | set(baseline["clean"])


def page_problems(name: str, page: str) -> list[str]:
    """Faults of a page: its front matter, or its length for its kind."""
    fields = front_matter(page)
    if not fields:
        return []
    found = []
    if fields.get("kind") not in WORD_LIMITS:
        found.append(f"{name}: kind is {fields.get('kind')}, expected one of {[*WORD_LIMITS]}")
    if fields.get("reader") not in READERS:
        found.append(f"{name}: reader is {fields.get('reader')}, expected one of {[*READERS]}")
    limit, count = WORD_LIMITS.get(fields.get("kind", "")), words(prose_of(page))
    if limit is not None and count > limit:
        found.append(f"{name}: {count} words, a {fields['kind']} has at most {limit}")
    return found


def listed(hit: Hit) -> str:
    """A line for the terminal."""
    return f"{hit.file}:{hit.line}: {hit.rule}: {' '.join(hit.found.split())!r} -> {hit.write}"


@program(
    option("--list", False, "print every hit"),
    option("--update", False, "rewrite the baseline"),
    option("paths", nargs="*", about="files or folders to list (default: all)"),
    finds=False,
)
def main(options: Options) -> int:
    """Count, list or update."""
    baseline, texts = json.loads(BASELINE.read_text()), all_texts()
    hits = all_hits(texts)
    if options.list:
        chosen = tuple(options.paths) or ("",)
        print(*(listed(hit) for hit in hits if hit.file.startswith(chosen)), sep="\n")
        return 0
    above = risen(hits, baseline)
    if options.update:
        BASELINE.write_text(json.dumps({**baseline, "hits": counts(hits)}, indent=1) + "\n")
    table = Counter((hit.rule, hit.kind) for hit in hits)
    totals = Counter(hit.kind for hit in hits)
    for rule in sorted({rule for rule, _ in table}):
        print(f"{rule:18}" + "".join(f"{table[rule, k]:6} {KINDS[k]}" for k in KINDS))
    print(f"{'total':18}" + "".join(f"{totals[k]:6} {KINDS[k]}" for k in KINDS))
    for kind in ("page", "public"):
        long, count = long_sentences(texts, kind)
        print(f"{KINDS[kind]}: {long} of {count} sentences ({long / count:.1%}) over 30 words")
    print("\n".join(["rose above the baseline:", *above]) if above else "nothing rose")
    return 0 if options.update or not above else 1

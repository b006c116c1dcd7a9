"""The language of pages, docstrings and messages: docs/style.md, as far as patterns can tell."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import prose
from scripts.checks.prose import Hit, Text
from scripts.checks.prose_rules import RULES, Rule
from scripts.checks.public_names import PublicNames

PACKAGES = (
    "torchfsl", "torchfsl.errors", "torchfsl.fsl", "torchfsl.optim", "torchfsl.policies",
    "torchfsl.privacy", "torchfsl.privhfl", "torchfsl.sefl", "torchfsl.service", "torchfsl.sesa",
    "torchfsl.submodel",
)  # fmt: skip
NEVER = re.compile(r"(?!)")
TERMS = re.compile(r"\bwidget\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return prose.all_texts()


@pytest.fixture(scope="module")
def hits(texts: list[Text]) -> list[Hit]:
    return prose.all_hits(texts)


@pytest.fixture(scope="module")
def baseline() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(prose.BASELINE.read_text())
    return read


def rules_of(text: str, kind: str = "page") -> set[str]:
    return {hit.rule for hit in prose.hits_of(Text("x", kind, 1, text), NEVER)}


def test_no_number_rises_above_the_baseline(hits: list[Hit], baseline: dict[str, Any]) -> None:
    above = prose.risen(hits, baseline)
    assert not above, "\n".join(
        [*above, "see python -m scripts.checks.prose --list PATH; moved? --update"]
    )


def test_clean_files_have_no_hit(hits: list[Hit], baseline: dict[str, Any]) -> None:
    clean = prose.clean_files(baseline)
    assert {"docs/style.md", "docs/glossary.md", "torchfsl/errors.py"} <= clean
    assert not [name for name in clean if not (prose.ROOT / name).is_file()]
    assert not [prose.listed(hit) for hit in hits if hit.file in clean]


def public_lines() -> dict[str, list[range]]:
    """By file, the lines of the names that the packages offer."""
    found: dict[str, list[range]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", dir(module)):
            one = getattr(module, name)
            own = str(getattr(one, "__module__", "")).startswith("torchfsl")
            if own and (inspect.isclass(one) or inspect.isfunction(one)):
                lines, start = inspect.getsourcelines(one)
                file = Path(str(inspect.getsourcefile(inspect.unwrap(one)))).relative_to(prose.ROOT)
                found.setdefault(str(file), []).append(range(start, start + len(lines)))
    return found


def test_messages_and_docstrings_of_public_names_have_no_hit(hits: list[Hit]) -> None:
    assert not [prose.listed(hit) for hit in hits if hit.kind in ("message", "public")]


def test_the_sources_tell_the_public_names_that_the_packages_offer() -> None:
    known, offered = PublicNames(prose.ROOT), public_lines()
    for file, lines in offered.items():
        for each in lines:
            assert known.lines.get(file, set()) & set(each), f"{file}:{each[0]} is not known"
    assert sum(map(len, offered.values())) > 100


@pytest.mark.parametrize("kind", ["page", "public"])
def test_few_sentences_are_long(texts: list[Text], kind: str) -> None:
    long, count = prose.long_sentences(texts, kind)
    assert count > 1000
    assert long <= prose.MAX_LONG_SHARE * count


def test_pages_with_front_matter_keep_to_their_kind() -> None:
    for pattern in prose.PAGES:
        for path in prose.ROOT.glob(pattern):
            assert not prose.page_problems(path.name, path.read_text())


def test_every_text_of_the_baseline_is_still_read(
    baseline: dict[str, Any], texts: list[Text]
) -> None:
    """An empty result would pass all tests above."""
    assert {key.split()[1] for key in baseline["hits"]} <= {"page", "docstring"}
    count = {kind: sum(text.kind == kind for text in texts) for kind in prose.KINDS}
    assert count["page"] > 30
    assert count["message"] > 1000
    assert count["public"] > 500


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_hits_its_bad_sentence_and_not_its_good_one(rule: Rule) -> None:
    for kind in prose.KINDS:
        assert rule.name in rules_of(rule.bad, kind)
        assert not rules_of(rule.good, kind), "the plain form must break no rule at all"


def test_rules_have_names_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "text",
    [
        "There is no limit.", "It is no longer open.", "Who asks for rows?",
        "What the client sends: is it private?", "Where is the model?", "You, too, can run it.",
        "A value: the client, the server.", "`is no handle`", "See [x](a-is-no-b.md).",
    ],
)  # fmt: skip
def test_plain_english_is_not_hit(text: str) -> None:
    assert not rules_of(prose.prose_of(text)) - {"too-at-end"}


@pytest.mark.parametrize(
    "text",
    [
        "A tensor\nis no handle.", "- a tensor is no\n  handle", "| a | a tensor is no handle |",
        "# A tensor is no handle", "> A tensor is no\n> handle",
    ],
)  # fmt: skip
def test_a_hit_is_found_across_lines_and_in_lists_and_tables(text: str) -> None:
    assert "negated-noun" in rules_of(prose.prose_of(text))


@pytest.mark.parametrize(
    "code",
    [
        "```python\n# nobody\n```\n", "~~~\nnobody\n~~~\n", "  ```text\n  nobody\n  ```\n",
        "a `nobody` b", "a ``nobody` x`` b", "<!-- nobody -->", "[x](nobody.md)",
        "---\nkind: nobody\n---\n",
    ],
)  # fmt: skip
def test_code_comments_and_front_matter_are_left_out(code: str) -> None:
    assert not rules_of(prose.prose_of(code))
    assert prose.prose_of(code).count("\n") == code.count("\n"), "lines keep their numbers"


def test_lines_are_those_of_the_page() -> None:
    page = "# A\n\n```\ncode\n```\n\nOne line\nand nobody\nmore\n"
    (hit,) = prose.hits_of(Text("x.md", "page", 1, prose.prose_of(page)), NEVER)
    assert (hit.rule, hit.line) == ("nobody", 8)
    assert prose.listed(hit).startswith("x.md:8: nobody: 'nobody' -> ")


def test_sentences_over_the_limit_are_counted_and_others_not() -> None:
    long, short = " ".join(["word"] * 31) + ".", " ".join(["word"] * 30) + "."
    assert rules_of(long) == {"long-sentence"}
    assert not rules_of(f"{short} {short.capitalize()} `x` {short}"[:-6] + ".")
    assert not rules_of(f"- {short}\n- {short}\n\n{short}\n\n| {short} | {short} |\n")
    assert not rules_of(long, "docstring")


def test_messages_over_the_limit_are_counted() -> None:
    assert rules_of("x" * 201, "message") == {"long-message"}
    assert not rules_of("x" * 200, "message")
    assert not rules_of("x" * 201, "docstring")


PUBLIC = Text("torchfsl/a.py", "public", 1, " ".join(["word"] * 31) + ". Short one.")


def test_the_share_of_long_sentences_is_by_kind() -> None:
    assert prose.long_sentences([PUBLIC, Text("a.md", "page", 1, "A.")], "public") == (1, 2)
    assert prose.long_sentences([PUBLIC, Text("a.md", "page", 1, "A.")], "page") == (0, 1)


PACKAGE = '''"""Package."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from torchfsl.b import B as B
'''
MODULE = '''"""Internal module."""
class Base:
    """Public base."""
    def f(self):
        """Public method."""
    def _g(self):
        """Private method."""
class B(Base):
    """Public class."""
def h():
    """Internal function."""
def onpage():
    """Function of a page."""
LIMIT = 3
"""Public attribute."""
OTHER = 3
"""Internal attribute."""
'''


def test_public_docstrings_are_those_of_packages_pages_and_their_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("torchfsl", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "torchfsl" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "torchfsl" / "b.py").write_text(MODULE)
    (tmp_path / "docs" / "api.md").write_text("::: torchfsl.b.onpage\n::: torchfsl.b.LIMIT\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert {text.text for text in prose.source_texts() if text.kind == "public"} == {
        "Package.", "Public base.", "Public method.", "Public class.", "Function of a page.",
        "Public attribute.",
    }  # fmt: skip


SOURCE = '''
"""Module docstring."""
LIMIT = 3
"""Attribute docstring."""
class A:
    """Class docstring."""
    async def f(self):
        """Function docstring."""
        x = "not a message"
        raise ValueError(f"message {x} one" + "message two", code="not-a-message")
log.info("message three", extra={"not": "a message"})
self.log.warning("message four" if x else "message five")
np.log("not a message")
warnings.warn("message six", stacklevel=2)
error.add_note("message seven")
refuse("message eight", x, "message nine")
parser.add_argument("--not-a-message", help="message ten")
raise Error("""message
eleven""") from None
'''


def test_docstrings_and_messages_are_found_and_other_strings_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in prose.SOURCES:
        (tmp_path / base).mkdir()
    (tmp_path / "torchfsl" / "a.py").write_text(SOURCE)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    found = list(prose.source_texts())
    assert sorted(text.text for text in found if text.kind == "docstring") == [
        "Attribute docstring.", "Class docstring.", "Function docstring.", "Module docstring.",
    ]  # fmt: skip
    messages = [text.text.split()[-1] for text in found if text.kind == "message"]
    assert sorted(messages) == sorted(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    )
    assert "message {x} one" in {text.text for text in found}
    assert {text.file for text in found} == {"torchfsl/a.py"}


def test_terms_of_the_glossarys_column_not_are_forbidden() -> None:
    table = "# G\n| write | not | meaning |\n| --- | --- | --- |\n| a | `b c`, d, `e` | `f` |\n"
    assert prose.terms(table) == ["b c", "e"]
    assert "opened sum" in prose.terms(prose.GLOSSARY.read_text())
    (hit,) = prose.hits_of(Text("x", "page", 1, "A widget. A midget."), TERMS)
    assert (hit.rule, hit.found) == ("glossary", "widget")


def made(file: str, rule: str = "nobody", kind: str = "page") -> Hit:
    return Hit(file, kind, 1, rule, "x", "y")


def test_the_baseline_catches_new_hits_and_lets_files_move_within_their_folder() -> None:
    before = {"hits": prose.counts([made("docs/a.md"), made("torchfsl/fsl/b.py")]), "clean": []}
    same = [made("docs/how-to/new.md"), made("torchfsl/fsl/server/c.py")]
    assert not prose.risen(same, before)
    assert not prose.risen([], before)
    for more in [
        made("docs/d.md"), made("README.md"), made("torchfsl/fsl/b.py"),
        made("torchfsl/fsl/b.py", kind="message"), made("docs/a.md", rule="beside"),
        made("torchfsl/front/new.py"), made("scripts/checks/new.py"),
    ]:  # fmt: skip
        (line,) = prose.risen([*same, more], before)
        assert more.rule in line


def test_a_page_is_held_to_its_kind_reader_and_length() -> None:
    def page(kind: str, reader: str, count: int) -> list[str]:
        code = "```\n" + "code " * 5000 + "\n```\n"
        text = f"---\nkind: {kind}\nreader: {reader}\n---\n{code}" + "word " * count
        return prose.page_problems("x.md", text)

    assert not page("how-to", "user", 600)
    for kind, limit in [("tutorial", 1000), ("how-to", 600), ("explanation", 1500)]:
        assert page(kind, "user", limit + 1) == [
            f"x.md: {limit + 1} words, a {kind} has at most {limit}"
        ]
    assert not page("reference", "operator", 9000)
    assert "kind is guide" in page("guide", "user", 1)[0]
    assert "reader is expert" in page("how-to", "expert", 1)[0]
    assert not prose.page_problems("x.md", "word " * 9000), "no front matter, no limit yet"


def test_the_update_writes_the_numbers_and_names_what_rose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"clean": ["a"], "hits": {"docs page beside": 9}}))
    monkeypatch.setattr(prose, "BASELINE", path)
    monkeypatch.setattr(prose, "all_texts", lambda: [Text("docs/a.md", "page", 1, "A."), PUBLIC])
    monkeypatch.setattr(prose, "all_hits", lambda _: [made("docs/a.md")])
    monkeypatch.setattr("sys.argv", ["prose"])
    assert prose.main() == 1
    monkeypatch.setattr("sys.argv", ["prose", "--update"])
    assert prose.main() == 0
    assert "docs page nobody: 1, was 0" in capsys.readouterr().out
    assert json.loads(path.read_text()) == {"clean": ["a"], "hits": {"docs page nobody": 1}}
    monkeypatch.setattr("sys.argv", ["prose"])
    assert prose.main() == 0

"""Pages of the site: their code runs as printed, links lead somewhere, figures are the script's."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from scripts.generate import figures, scale_table, service_tables, settings_page, site_hooks
from tests.specification.pages import ORDER
from torchfsl.faces import homes

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {
    "wrap-your-model.md", "simulate.md", "run-on-two-servers.md", "mistakes.md", "growing.md",
    "own-experiments.md", "flower.md",
}  # fmt: skip
"""Pages whose code other tests run, and look at what it gives."""
CONTEXT = {"sefl.md"}
"""Pages whose lines continue a program that they do not show."""
PROGRAM = {f"specification/{name}.md" for name in ORDER}
"""Pages that are one program, which `tests/specification` runs in their order."""
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if "```python" in path.read_text()
    and path.name not in ELSEWHERE | CONTEXT
    and path.relative_to(DOCS).as_posix() not in PROGRAM
)
MARKDOWN = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
)


WITH_TORCH = multiprocessing.get_context("forkserver")
"""Processes that have loaded torch, which takes longer than most pages."""
WITH_TORCH.set_forkserver_preload(["torch", "torchfsl"])


def run_page(program: Path, printed: Path) -> None:
    """Run a page's code as a program; what it prints goes into a file."""
    os.chdir(ROOT)
    with printed.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [str(program)]
    runpy.run_path(str(program), run_name="__main__")


def test_words_behind_the_language_of_a_fence_stay_out_of_the_site() -> None:
    block = "```python continuation\nx = 1\n```\n"
    found = site_hooks.FENCE.sub(r"\1", block)
    assert found == "```python\nx = 1\n```\n"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_printed(page: str, tmp_path: Path) -> None:
    """In a process of its own, since recipes start process groups and patch torch."""
    text = (DOCS / page).read_text()
    for name in re.findall(r"<!-- needs: (.*?) -->", text):
        for module in name.split(", "):
            pytest.importorskip(module, reason=f"the recipe {page} needs it")
    program = tmp_path / "page.py"
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    program.write_text("import torch\ntorch.set_num_threads(1)\n" + "\n".join(blocks))
    process = WITH_TORCH.Process(target=run_page, args=(program, tmp_path / "printed"))
    process.start()
    process.join(300)
    process.kill()
    assert process.exitcode == 0, (tmp_path / "printed").read_text()[-3000:]


def test_every_block_of_python_is_run_by_some_test() -> None:
    """Pages outside the lists above are run above; those in them by the test that names them."""
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    del tests[Path(__file__).resolve()]
    for name in ELSEWHERE:
        assert any(f'"{name}"' in text for text in tests.values()), f"no test runs {name}"
    for page in MARKDOWN:
        text = (ROOT / page).read_text()
        languages = set(re.findall(r"^ *```(\w+)", text, flags=re.MULTILINE))
        # Another name of the language, or another place than docs/, would not be found above.
        assert not languages & {"py", "python3", "pycon", "ipython"}, page
        if not page.startswith("docs/") and page != "README.md":
            assert "python" not in languages, f"no test runs the code of {page}"


def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub and the site make them, and of explicit ids."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    found: set[str] = set(re.findall(r'id="([^"]+)"', text))
    for title in re.findall(r"^#+ +(.*?)\s*$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", MARKDOWN)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", path.read_text(), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^()\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there)
        ):
            dead.append(target)
    assert not dead


def test_the_figures_are_those_of_the_script() -> None:
    for name, drawn in figures.figures().items():
        assert (DOCS / "figures" / name).read_text() == drawn, (
            "stale: python -m scripts.generate.figures"
        )


def test_the_reference_of_settings_is_that_of_the_dataclasses() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), (
        "stale: python -m scripts.generate.settings_page"
    )


def test_the_table_of_scale_is_that_of_the_script_and_its_rates() -> None:
    text = scale_table.PAGE.read_text()
    assert text == scale_table.written(text), "stale: python -m scripts.generate.scale_table"


def test_the_tables_of_the_service_are_those_of_its_stored_results() -> None:
    text = service_tables.PAGE.read_text()
    assert service_tables.render() in text, "stale: python -m scripts.generate.service_tables"


def test_the_reference_has_every_public_name() -> None:
    named = set(re.findall(r"^::: [\w.]+\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    public = {name for name, home in homes("torchfsl").items() if home != "torchfsl"}
    assert public - {"__version__"} <= named


def test_the_navigation_names_pages_that_exist() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(
        re.findall(r"([\w./-]+\.(?:md|ipynb))$", text.partition("\nnav:")[2], re.MULTILINE)
    )
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert not sorted(listed - set(site_hooks.PAGES) - there)


def test_links_to_pages_stay_in_the_site_and_those_to_sources_become_labels() -> None:
    known = {"SECURITY.md", "engine.md", "recipes/index.md"}
    page = "[a](../../SECURITY.md#x) [`b`](../../torchfsl/errors.py) ![c](../engine.md) [d](#e)"
    found = site_hooks.rewritten(page, "recipes/index.md", False, known)
    assert found == "[a](../SECURITY.md#x) `b` ![c](../engine.md) [d](#e)"
    root = site_hooks.rewritten("[a](docs/engine.md) [b](README.md)", "SECURITY.md", True, known)
    assert root == "[a](engine.md) b"

"""Hooks of mkdocs.yml: pages of the repository's root, links to files outside the site.

SECURITY.md, RESULTS.md, CHANGELOG.md and CONTRIBUTING.md stay where readers of the repository look
for them; the site shows them as pages. A link to a file of the repository that is not a page
(source code, an example) becomes its label. The reason is that the site may be read without a
checkout.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ("SECURITY.md", "RESULTS.md", "CHANGELOG.md", "CONTRIBUTING.md")
FENCE: Final = re.compile(r"^(```\w+) .*$", re.MULTILINE)
"""A fence with words behind its language, with which the site's renderer takes no block."""
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the root's pages to those of docs/."""
    from mkdocs.structure.files import File

    for page in PAGES:
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points the page's links into the site, or takes them away."""
    source = page.file.src_uri
    in_root = source in PAGES
    plain = FENCE.sub(r"\1", markdown)
    return rewritten(plain, source, in_root, {file.src_uri for file in files})


def on_page_content(html_text: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Warns, which fails a strict build, of a fence that was not taken for one."""
    text = html.unescape(re.sub(r"<code.*?</code>|<[^>]*>", "", html_text, flags=re.DOTALL))
    if "```" in text:
        logging.getLogger("mkdocs.hooks").warning("%s shows a code fence", page.file.src_uri)


def rewritten(markdown: str, source: str, in_root: bool, known: set[str]) -> str:
    """The page with links of the site.

    Args:
        markdown: as it stands in the repository.
        source: its name in the site, `concepts/round.md` say.
        in_root: it lies in the repository's root rather than in docs/.
        known: names of all pages and files of the site.
    """
    folder = "" if in_root else posixpath.join("docs", posixpath.dirname(source))

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, hash_mark, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        name = posixpath.normpath(posixpath.join(folder, path))
        name = "index.md" if name == "README.md" else name.removeprefix("docs/")
        if name not in known:
            return label
        here = posixpath.relpath(name, posixpath.dirname(source) or ".")
        return f"{mark}[{label}]({here}{hash_mark}{anchor})"

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)  # links in code are none
    return "".join(p if p.startswith("```") else LINK.sub(link, p) for p in parts)

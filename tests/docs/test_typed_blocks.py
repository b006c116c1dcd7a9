"""All Python blocks of README and docs pass `mypy --strict` and pyright.

Blocks of one page are one module, as `test_pages` runs them; a block that begins with `# name.py`
is that file. Calls of torch's own functions without types, `loss.backward()`, are left out.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.specification.pages import ORDER

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = {"docs/growing.md": "continues a program that it does not show"}
UNTYPED_PAGES = {f"docs/specification/{name}.md" for name in ORDER}
"""One program over several pages, without annotations; `tests/specification` runs it."""
PAGES = sorted(
    name
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "```python" in path.read_text()
    and (name := path.relative_to(ROOT).as_posix()) not in FRAGMENTS
    and name not in UNTYPED_PAGES
)
TOOLS = ("mypy", "pyright")
OURS = {"models", "torchfsl", "training"}
UNTYPED = "[mypy]\n[mypy-accelerate.*,pandas.*]\nignore_missing_imports = true\n"
ERROR = re.compile(r"^(\w+\.py):\d+: error: .*", re.MULTILINE)


def files_of(page: str) -> dict[str, str]:
    """File names and texts of a page's blocks."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    named = [re.match(r"# (\w+\.py)\n", block) for block in blocks]
    if any(named):
        return {found[1]: block for found, block in zip(named, blocks, strict=True) if found}
    return {re.sub(r"\W", "_", page.removesuffix(".md")).lower() + ".py": "\n".join(blocks)}


def missing_of(page: str) -> list[str]:
    """Packages that a page imports and that are not installed here."""
    files = files_of(page)
    roots = set()
    for text in files.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                roots |= {one.name.partition(".")[0] for one in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                roots.add(node.module.partition(".")[0])
    own = {name.removesuffix(".py") for name in files}
    return sorted(name for name in roots - own - OURS if importlib.util.find_spec(name) is None)


def checked_by(tool: str, folder: Path) -> str:
    """What a tool prints about the Python files of a folder."""
    names = sorted(path.name for path in folder.glob("*.py"))
    if tool == "mypy":
        command = ["--strict", "--follow-imports=silent", "--untyped-calls-exclude=torch",
                   "--no-color-output", "--no-error-summary"]  # fmt: skip
        (folder / "mypy.ini").write_text(UNTYPED)
    else:
        settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
        (folder / "pyrightconfig.json").write_text(json.dumps(settings))
        command = ["--pythonpath", sys.executable]
        names = []  # all, as the settings are read only then
    done = subprocess.run(
        [sys.executable, "-m", tool, *command, *names], cwd=folder, text=True, timeout=900,
        capture_output=True, env={**os.environ, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    printed = done.stdout.replace(f"{folder}/", "")
    return re.sub(r"^ +(\w+\.py:\d+):\d+ - error", r"\1: error", printed, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By tool the errors in all pages that can be checked here."""
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        for name, text in files_of(page).items() if not missing_of(page) else ():
            assert not (folder / name).exists(), f"{name} is a file of two pages"
            (folder / name).write_text(text)
    return {
        tool: [found[0] for found in ERROR.finditer(checked_by(tool, folder))]
        for tool in TOOLS
        if importlib.util.find_spec(tool) is not None
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_page_passes_the_type_checker(tool: str, page: str, errors: dict[str, list[str]]) -> None:
    if tool not in errors:
        pytest.skip(f"{tool} is not installed: pip install '.[dev]'")
    if missing := missing_of(page):
        pytest.skip(f"{page} needs {', '.join(missing)}")
    mine = [line for line in errors[tool] if line.partition(":")[0] in files_of(page)]
    assert not mine, "\n".join(mine)


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_the_checker_finds_wrong_uses_of_the_library(tool: str, tmp_path: Path) -> None:
    """A tool that did not find torchfsl, or took everything for Any, would pass all pages."""
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed: pip install '.[dev]'")
    lines = [
        "torchfsl.Federated(model, optimizer, average='row')",
        "torchfsl.Federated(model, optimizer, max_client=3)",
        "torchfsl.Federated(optimizer, model)",
        "torchfsl.optim.Adam(lr='0.01')",
        "torchfsl.nothing",
    ]
    head = "import torch\nimport torchfsl\nmodel = torch.nn.Linear(1, 1)\n"
    optimizer = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    (tmp_path / "wrong.py").write_text(head + optimizer + "\n".join(lines) + "\n")
    printed = checked_by(tool, tmp_path)
    found = {int(line) for line in re.findall(r"^wrong\.py:(\d+): error", printed, re.MULTILINE)}
    assert found == set(range(5, 10)), printed

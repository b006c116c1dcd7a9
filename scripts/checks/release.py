"""Whether the checkout can be released: its addresses, its versions, its changelog.

    python -m scripts.checks.release [--tag v0.1.0]
    python -m scripts.checks.release --repository https://github.com/OWNER/torchfsl

The second form writes the address of the repository into pyproject.toml and all other files that
name it. Until then the address is a placeholder that leads nowhere, and the check fails.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

from scripts.program import ROOT, Options, option, program

PLACEHOLDER: Final = "https://repository.invalid/torchfsl"
ADDRESS: Final = re.compile(r"https://[\w.-]+(?:/\w[\w.-]*){2,}")
NO_PAGES: Final = (":!scripts/checks/release.py", ":!tests")
"""Files that name the placeholder and no repository."""


def project_of(root: Path) -> dict[str, object]:
    """The table of pyproject.toml."""
    table: dict[str, object] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def repository_of(root: Path) -> str:
    """The address that all others begin with."""
    urls = project_of(root)["urls"]
    assert isinstance(urls, dict)
    return str(urls["Repository"])


def files_with(root: Path, text: str) -> list[str]:
    """Tracked files that hold a text."""
    command = ["git", "-C", str(root), "grep", "-lF", "-e", text, "--", ".", *NO_PAGES]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def write_repository(root: Path, address: str) -> list[str]:
    """Put an address in place of the current one.

    Returns:
        The files that changed.

    Raises:
        SystemExit: if the address is not https://HOST/OWNER/NAME.
    """
    if not ADDRESS.fullmatch(address):
        raise SystemExit(f"expected https://HOST/OWNER/NAME without a last slash, got {address}")
    before = repository_of(root)
    changed = files_with(root, before)
    for name in changed:
        path = root / name
        path.write_text(path.read_text().replace(before, address))
    return changed


def problems(root: Path, tag: str | None = None) -> list[str]:
    """List the reasons against a release of the checkout.

    Args:
        root: the checkout.
        tag: name of the release's tag, if there is one yet.
    """
    found = [
        f"{name}: the address is a placeholder; run python -m scripts.checks.release "
        "--repository URL"
        for name in files_with(root, PLACEHOLDER)
    ]
    project, repository = project_of(root), repository_of(root)
    urls = project["urls"]
    assert isinstance(urls, dict)
    found += [
        f"pyproject.toml: {name} is {url}, expected an address that begins with {repository}"
        for name, url in urls.items()
        if not f"{url}/".startswith(f"{repository}/")
    ]
    version = str(project["version"])
    places = {
        "torchfsl/version.py": f'__version__: Final = "{version}"',
        "CITATION.cff": f"version: {version}",
    }
    for name, line in places.items():
        if line not in (root / name).read_text().splitlines():
            found.append(f"{name}: expected the line {line}")
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, expected v{version}")
    return found + changelog_problems((root / "CHANGELOG.md").read_text(), version)


def changelog_problems(text: str, version: str) -> list[str]:
    """What CHANGELOG.md lacks for a version."""
    found = []
    if not re.search(rf"(?m)^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text):
        found.append(f"CHANGELOG.md: expected a heading ## [{version}] - YYYY-MM-DD")
    unreleased = re.search(r"(?ms)^## \[Unreleased\]\n(.*?)(?=^## |\Z)", text)
    if unreleased and unreleased[1].strip():
        found.append("CHANGELOG.md: lines under Unreleased, expected them under the version")
    return found


@program(
    option("--tag", about="tag of the release, such as v0.1.0"),
    option("--repository", metavar="URL", about="address to write into all files"),
    finds=False,
)
def main(options: Options) -> int:
    """Check, or write the address."""
    if options.repository:
        print(*write_repository(ROOT, options.repository), sep="\n")
        return 0
    found = problems(ROOT, options.tag)
    print(*(found or ["ready for a release"]), sep="\n")
    return 1 if found else 0

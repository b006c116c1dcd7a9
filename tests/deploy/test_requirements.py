"""A server's packages are the project's own without torch, and its image has them by hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements() -> list[str]:
    """The lines of deploy/requirements.txt."""
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def locked(name: str) -> list[Requirement]:
    """What a lock file pins; every entry has a hash."""
    text = re.sub(r"(?m)^ *#.*\n", "", (DEPLOY / name).read_text())
    entries = text.replace("\\\n", "").strip().splitlines()
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
    return [Requirement(entry.partition(" --hash")[0].strip()) for entry in entries]


def test_a_server_needs_what_the_project_lists_but_torch() -> None:
    project = TABLE["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["service"], *extras["web"]]
    assert requirements() == [name for name in wanted if not name.startswith("torch")]


def test_the_image_pins_by_hash_all_that_it_needs_to_run_and_to_build() -> None:
    wanted = {
        "requirements.lock": requirements(),
        "build.lock": TABLE["build-system"]["requires"],
    }
    for lock, lines in wanted.items():
        pins = locked(lock)
        assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins)
        for asked in map(Requirement, lines):
            found = [str(pin.specifier)[2:] for pin in pins if pin.name == asked.name]
            assert found, f"{lock} lacks {asked}; run scripts/release lock"
            assert all(asked.specifier.contains(version) for version in found), asked
    assert not [pin.name for pin in locked("requirements.lock") if pin.name.startswith("torch")]


def test_pages_and_files_for_operators_install_by_hash() -> None:
    texts = [path.read_text() for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]]
    texts += [path.read_text() for path in DEPLOY.rglob("*") if path.suffix in (".yml", ".service")]
    commands = [c for text in texts for c in re.findall(r"pip install [^\n]*deploy/[^\n]*", text)]
    assert commands
    for command in commands:
        assert re.search(r"--require-hashes (?:-r|--requirement) deploy/\w+\.lock", command), (
            command
        )


def test_nothing_gets_into_the_image_without_a_hash() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    commands = re.findall(r"\bpip (?:install|wheel)[^&\n]*", text)
    assert len(commands) >= 4
    for command in commands:
        by_hash = re.search(r"--require-hashes --requirement deploy/\w+\.lock", command)
        assert by_hash or "--no-deps" in command, command
        assert "pip wheel" not in command or "--no-build-isolation" in command, command

"""The package itself: sizes, and what it leaves to whom installs it."""

from __future__ import annotations

import json

import pytest

from tests.support.web_page import SOURCES, built_package

pytestmark = pytest.mark.slow
MOST_CORE, MOST_SCRIPT = 300_000, 30_000


def test_what_a_page_loads_is_small() -> None:
    built = built_package() / "dist"
    assert (built / "core.wasm").stat().st_size <= MOST_CORE
    assert 0 < sum(path.stat().st_size for path in built.glob("*.js")) <= MOST_SCRIPT
    assert (built / "index.d.ts").exists()


def test_nothing_is_installed_with_the_package() -> None:
    told = json.loads((SOURCES / "package.json").read_text())
    assert "dependencies" not in told
    lock = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    assert [name for name, one in lock.items() if name and not one.get("dev")] == []
    assert all("integrity" in one for name, one in lock.items() if name)

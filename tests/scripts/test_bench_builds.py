"""`scripts.bench.builds`: two builds of the kernels called in turns."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchfsl
from scripts.bench import builds, kernels

pytestmark = pytest.mark.skipif(torchfsl.backend() != "native", reason="no native kernels built")


def test_a_build_is_as_fast_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchfsl.kernels import _native

    monkeypatch.setattr(kernels, "kernels", kernels.kernels)  # restored afterwards
    file = Path(str(_native.__file__))
    old, new = builds.load(file, "old"), builds.load(file, "new")
    assert old is not new
    rows = list(builds.compare([old, new], 3, "accumulate, 1 report", small=True))
    assert [row["rows_a_leaf"] for row in rows] == [1, 2, 4, 8, 1]
    assert all(len(row["turns"]) == 3 for row in rows)
    assert all(row["share"] > 0 and row["new_to_old"] > 0 for row in rows)


def test_a_file_that_is_no_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not an extension module"):
        builds.load(tmp_path / "kernels.txt", "old")

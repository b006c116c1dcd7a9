"""Where the bytes of DIN's uploads go, and that 16 bits a value reach what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench import upload_parts
from scripts.bench.upload_parts import beauty, parts_of, published
from torchfsl.fsl.costs import client_bytes

KILO = 1000


@pytest.mark.parametrize(("name", "most"), [("din", 200 * KILO), ("din-small", 85 * KILO)])
def test_in_16_bits_presets_reach_their_aims_on_beautys_tables(name: str, most: int) -> None:
    wide, narrow = beauty(name, 32), beauty(name, 16)
    assert narrow.verified
    assert all(segment.tag_bytes for segment in narrow.retrieving)
    assert narrow.max_clients == upload_parts.CLIENTS
    assert narrow.rings == {16}
    assert wide.rings == {32}
    assert client_bytes(narrow) <= most < client_bytes(wide)
    for segment in narrow.segments:
        assert narrow.encoding_of(segment).rounding == "stochastic"
        assert narrow.max_clients * narrow.encoding_of(segment).q_max < 1 << 15


def test_the_published_shape_in_16_bits_first_and_later_in_a_session() -> None:
    plan = published(16, 3)
    assert plan.verified
    assert parts_of(plan).total <= 300 * KILO
    later = parts_of(plan, first_round=False)
    assert later.total <= 190 * KILO
    assert (later.trees, later.checks) == (0, 0)


def test_values_alone_are_halved() -> None:
    wide, narrow = parts_of(beauty("din", 32)), parts_of(beauty("din", 16))
    assert (wide.trees, wide.checks, wide.around) == (narrow.trees, narrow.checks, narrow.around)
    assert (wide.hints, wide.dense) == (2 * narrow.hints, 2 * narrow.dense)
    assert wide.around < 1000


def test_the_table_of_the_page_is_what_the_plans_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert upload_parts.main([]) == 0
    page = (Path(__file__).parents[2] / "docs" / "upload-bytes.md").read_text("utf-8")
    assert capsys.readouterr().out in page

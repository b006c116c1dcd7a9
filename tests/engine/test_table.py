"""Every cell of the optimizer table in docs/optimizers.md, and the page itself."""

from __future__ import annotations

import pytest

from tests.support.engine_features import (
    DECAYING,
    FEATURES,
    OPTIMIZERS,
    PAGE,
    cell,
    page_with,
    table,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("column", FEATURES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_cell_works_or_is_rejected_for_a_stated_reason(name: str, column: str) -> None:
    verdict, message = cell(name, column)
    if name == "LBFGS" and verdict != "torch":
        assert verdict == "no"
    elif name in DECAYING and column == "delta":
        assert verdict == "no"
        assert "item.weight" in message
        assert "restrict" in message
    elif name in DECAYING and column == "gradient":
        assert verdict == "no"
        assert "weight_decay=" in message
        assert "source='delta'" in message
    else:
        assert verdict in ("yes", "torch")
    if verdict == "torch":
        assert message, "torch says why"
        assert column in ("sparse", "foreach", "fused")


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "RMSprop", "SparseAdam"])
def test_the_common_optimizers_work_in_delta_and_gradient_mode(name: str) -> None:
    assert cell(name, "delta")[0] == cell(name, "gradient")[0] == "yes"


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "LBFGS"])
def test_every_optimizer_works_under_restrict_and_without_rows(name: str) -> None:
    for column in ("restrict", "touched", "top rows", "top-k", "blocks", "dense"):
        assert cell(name, column)[0] == "yes"


def test_the_page_holds_the_table_of_this_code() -> None:
    assert PAGE.read_text() == page_with(table()), (
        "run: python tests/support/engine_features.py --write"
    )

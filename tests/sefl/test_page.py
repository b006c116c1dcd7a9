"""docs/sefl.md: its example prints what it says, and so do its defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sefl.small import make_draft, make_servers, random_update
from torchfsl.errors import RejectedSubmission
from torchfsl.sefl import Client
from torchfsl.sefl.explain import explain
from torchfsl.sefl.round import InProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sefl.md").read_text()

pytest.importorskip("tenseal", reason="needs the extra homomorphic")


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(compile(block[1], "docs/sefl.md", "exec"), {})  # noqa: S102
    expected = re.search(r"print\(.*\)  # (.*)", block[1])
    assert expected is not None
    assert capsys.readouterr().out.strip() == expected[1]


def test_a_torch_model_trains_in_the_round_block(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"## From a torch model\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(compile(block[1], "docs/sefl.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.strip() == "9 True"


def cells(row: str) -> list[str]:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_first_table_says_what_a_plan_has_by_default() -> None:
    """Of noise, renewal and signatures; in front of whom the page trusts and what is learnt."""
    assert PAGE.index("| noise |") < PAGE.index("## Whom it trusts")
    draft = make_draft()
    assert (draft.noise_sigma, draft.max_rounds) == (0, 0)
    told = explain(draft)
    assert cells("noise")[1] == "none: the aggregator opens the exact sum"
    assert "no noise: the aggregator opens exact sums" in told
    assert cells("renewal of keys")[1] == "none: one key pair opens any number of rounds"
    assert "one key pair for all rounds until you call sefl.renew; it opens any number" in told
    other = make_draft(l2_bound=1 << 20, noise_sigma=1000, max_rounds=7)
    assert "no noise" not in explain(other)
    assert "it opens at most 7 rounds" in explain(other)


@pytest.mark.parametrize("page", ["docs/sefl.md", "docs/systems.md", "SECURITY.md"])
def test_no_page_promises_noise_that_a_plan_does_not_have(page: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text())
    promised = re.findall("with the key holder's noise(.{12})", text)
    assert [rest for rest in promised if rest != " if the plan"] == []
    assert "noise if the plan" in text


def test_signed_are_what_the_first_table_says() -> None:
    """A byte of the signature or of what it covers: refused, and no round is spent."""
    aggregator, key_holder, plan = make_servers(make_draft())
    for number in range(2):
        aggregator.open_round(number)
        link = InProcess(aggregator)
        for client in range(3):
            session = Client(plan, link, client_id=client).start_round(number)
            session.submit(random_update(plan, client))
            assert session.signed
        question = aggregator.close_round()
        for place in (64 + 32, 64 + 32 + 63):
            with pytest.raises(RejectedSubmission, match="signature is not from"):
                key_holder.open(altered(question, place))
        assert key_holder.num_opened == number
        answer = key_holder.open(question)
        with pytest.raises(RejectedSubmission, match="signature is not from"):
            aggregator.open(altered(answer, 64 + 32))
        aggregator.apply(aggregator.open(answer))
    assert cells("signatures")[1].startswith("SUM and VALUE, by keys that the plan names; RECEIPT.")


def altered(message: bytes, place: int) -> bytes:
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]

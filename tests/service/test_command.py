"""The `torchfsl` command in this process: what it refuses, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchfsl.service.command import client_numbers, main


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    return capsys.readouterr().err


def test_client_numbers_are_numbers_and_ranges() -> None:
    assert client_numbers("") == []
    assert client_numbers("0-2,7,5-5") == [0, 1, 2, 7, 5]


def test_a_range_that_ends_below_its_start_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = complaint(capsys, "certs", str(tmp_path / "certs"), "--clients", "0,5-2")
    assert "the range 5-2 ends below its start: write 2-5" in text
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("given", ["0", "-3"])
def test_fewest_reports_that_a_server_opens_are_at_least_one(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = complaint(
        capsys, "serve", "--party", "0", "--listen", "127.0.0.1:0", "--peer", "https://b:1",
        "--state", str(tmp_path / "state"), "--tls", str(tmp_path), "--min-clients", given,
    )  # fmt: skip
    assert f"--min-clients is {given}: it is at least 1" in text
    assert "storage" not in text

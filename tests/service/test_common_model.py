"""What both servers say of their models, compared by whoever calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import raises
from torchfsl.errors import ProtocolError
from torchfsl.service.client.links import Links, RetryPolicy
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles

ONE, OTHER = {"version": 3, "digest": "aa"}, {"version": 3, "digest": "bb"}


@pytest.mark.parametrize(
    ("models", "code"), [(({}, {}), "no-task"), ((ONE, OTHER), "models-differ"), ((ONE, ONE), "")]
)
def test_servers_without_a_task_are_not_said_to_differ(
    models: tuple[dict[str, Any], dict[str, Any]],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_development_certificates(tmp_path, range(1))
    monkeypatch.setattr(Links, "info", lambda _self, party: {"model": models[party]})
    files = TlsFiles.in_folder(tmp_path, "client-0")
    urls = ["https://127.0.0.1:1", "https://127.0.0.1:2"]
    links = Links(urls, files, RetryPolicy(attempt_seconds=1, total_seconds=1))
    try:
        if code:
            with raises(ProtocolError, code):
                links.common_model()
        else:
            assert links.common_model() == (3, "aa")
    finally:
        links.close()

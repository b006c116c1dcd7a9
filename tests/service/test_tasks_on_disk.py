"""A task on its way to the disk: odd arrays are refused, a crash leaves the task before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.test_node import NONCE, SETTINGS, Duo
from tests.support.federation import make_state, mixed_plan
from torchfsl.errors import DecodeError
from torchfsl.service.backup import Backup
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.state import arrays, vault
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.task import Task, bind_plan, encode_task


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    folder = tmp_path_factory.mktemp("certs")
    make_development_certificates(folder, [])
    return TlsFiles.in_folder(folder, "server-0").authorities()


class PowerLossError(BaseException):
    """The process is gone."""


def fail(*_: object) -> None:
    raise PowerLossError


def state(folder: Path) -> Path:
    return folder / "0"


def test_a_crash_between_the_model_and_the_ledger_leaves_the_task_before(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    digest, nonce = duo.digests()[0], b"another nonce..."
    plan = bind_plan(mixed_plan(), authorities, nonce)
    model = {name: value + 1 for name, value in make_state(plan).items()}
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "delete_rounds", fail)
        with pytest.raises(PowerLossError):
            duo.nodes[0].set_up(encode_task(Task(plan, nonce), model))
    duo.crash(0)
    assert duo.digests()[0] == digest
    assert duo.nodes[0].plan == duo.plan
    for node in duo.nodes:
        node.set_up(encode_task(Task(plan, nonce), model))
    assert duo.digests()[0] != digest
    duo.crash(0)
    assert Backup.of_state(state(tmp_path)).model.digest().hex() == duo.digests()[0]
    assert len(list((state(tmp_path) / "models").iterdir())) == 1


def test_a_model_file_is_found_under_the_name_that_earlier_versions_gave_it(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    ledger = duo.nodes[0].storage.ledger
    known = json.loads(ledger.setting("model") or b"")
    path = vault.model_file(state(tmp_path), known)
    with ledger.transaction():
        del known["file"]
        ledger.put_setting("model", json.dumps(known).encode())
    path.rename(path.with_name("version-0.fsl"))
    duo.crash(0)
    assert duo.digests()[0] == duo.digests()[1]


def with_array(task: bytes, *described: Any) -> bytes:
    """The task with one more array, which has no bytes."""
    size = int.from_bytes(task[8:16], "little")
    fields = json.loads(task[16 : 16 + size])
    fields["arrays"].append(described)
    text = json.dumps(fields).encode()
    body = task[:8] + len(text).to_bytes(8, "little") + text + task[16 + size : -32]
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model/extra", [0, 2**39, 2**39]),
        ("model/extra", [0, 2**39, 2**39, 2**39]),
        ("model/\ud800", [0]),
        ("optimizer/velocity/\udfff", [0]),
    ],
)
def test_arrays_that_no_array_can_be_are_refused_and_do_not_end_the_server(
    name: str, shape: list[int], authorities: Authorities, tmp_path: Path
) -> None:
    node = Node(0, tmp_path, authorities, SETTINGS)
    plan = bind_plan(mixed_plan(), authorities, NONCE)
    task = encode_task(Task(plan, NONCE), make_state(plan))
    with pytest.raises(DecodeError, match="damaged data: "):
        node.set_up(with_array(task, name, "float32", shape))
    node.set_up(task)
    with pytest.raises(DecodeError, match="damaged data: "):
        vault.decode_opened(with_array(arrays.encode({}, {}), name, "float32", shape))


def test_sums_with_counts_that_are_no_numbers_are_refused() -> None:
    meta = {
        "round": float("inf"), "num_clients": 1, "total_weight": 1, "zeroed": {},
        "weight_clamped": False, "withheld": {},
    }  # fmt: skip
    with pytest.raises(DecodeError, match="expected aggregates"):
        vault.decode_opened(arrays.encode({"clients": np.arange(1, dtype=np.uint64)}, meta))

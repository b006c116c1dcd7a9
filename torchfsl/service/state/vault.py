"""Files of a state folder, written in full or not: model versions, aggregates, trees of sessions.

And the folder before it is used: this user's alone, and not what is left of a lost one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.server.reports import TreeRecord
from torchfsl.service.state import arrays
from torchfsl.service.state.ledger import REMEDY, LedgerError
from torchfsl.service.state.records import sync_folder
from torchfsl.submodel.opened import Opened


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step: after a crash it holds the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(path.name + ".part")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def model_file(folder: Path, known: Mapping[str, Any]) -> Path:
    """Path of the model that the ledger names. Earlier versions stored no file name."""
    return folder / "models" / str(known.get("file", f"version-{known['version']}.fsl"))


def encode_opened(opened: Opened, round_number: int) -> bytes:
    """The aggregate of a round, as bytes."""
    values = {f"sums/{name}": value for name, value in opened.sums.items()}
    values |= {f"lanes/{name}": value for name, value in opened.lanes.items()}
    values["clients"] = np.array(opened.clients, dtype=np.uint64)
    meta = {
        "round": round_number,
        "num_clients": opened.num_clients,
        "total_weight": opened.total_weight,
        "zeroed": opened.zeroed,
        "cut": opened.cut,
        "weight_clamped": opened.weight_clamped,
        "withheld": opened.withheld,
        **({"scaled": opened.scaled} if opened.scaled else {}),
    }
    return arrays.encode(values, meta)


def decode_opened(data: bytes) -> tuple[Opened, int]:
    """Inverse of `encode_opened`: the sums and the round.

    Raises:
        DecodeError: if the data have another form.
    """
    values, meta = arrays.decode(data)
    try:
        clients = tuple(int(client) for client in values.pop("clients"))
        sums = {n.removeprefix("sums/"): v for n, v in values.items() if n.startswith("sums/")}
        lanes = {n.removeprefix("lanes/"): v for n, v in values.items() if n.startswith("lanes/")}
        opened = Opened(
            sums,
            lanes,
            meta["num_clients"],
            meta["total_weight"],
            clients,
            zeroed={str(name): int(count) for name, count in meta["zeroed"].items()},
            cut={str(name): int(count) for name, count in meta.get("cut", {}).items()},
            weight_clamped=bool(meta["weight_clamped"]),
            withheld={str(name): int(count) for name, count in meta["withheld"].items()},
            scaled={str(name): float(left) for name, left in meta.get("scaled", {}).items()},
        )
        return opened, int(meta["round"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DecodeError(f"expected aggregates: {error}") from error


def encode_trees(record: TreeRecord) -> bytes:
    """Trees of a session, secrets included."""
    parts: dict[str, bytes | memoryview | None] = {
        "nonces": record.nonce,
        "public": record.public,
        "commitment": record.commitment,
        "relayed_nonces": record.relayed_nonces,
        "master_seed": record.master_seed,
        "seed_sent": record.seed_sent,
    }
    parts |= {f"seen/{int(kind)}": digest for kind, digest in record.seen.items()}
    given = {name: part for name, part in parts.items() if part is not None}
    values = {name: np.frombuffer(part, dtype=np.uint8) for name, part in given.items()}
    meta: dict[str, Any] = {
        "opening_round": str(record.opening_round),
        "epochs": record.epochs,
        "verified": record.verified,
    }
    return arrays.encode(values, meta)


def decode_trees(data: bytes) -> TreeRecord:
    """Inverse of `encode_trees`."""
    values, meta = arrays.decode(data)
    parts = {name: value.tobytes() for name, value in values.items()}
    seen = {Kind(int(n[5:])): value for n, value in parts.items() if n.startswith("seen/")}
    return TreeRecord(
        nonce=parts.get("nonces", b""),
        public=parts.get("public"),
        commitment=parts.get("commitment"),
        relayed_nonces=parts.get("relayed_nonces"),
        seen=seen,
        opening_round=int(meta["opening_round"]),
        master_seed=parts.get("master_seed"),
        seed_sent=parts.get("seed_sent"),
        epochs=meta["epochs"],
        verified=meta["verified"],
    )


def keep_from_others(folder: Path) -> None:
    """Let no user except this one read the folder and what is in it.

    Raises:
        LedgerError: the folder is another user's.
    """
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        if mode & 0o077:
            try:
                path.chmod(mode & 0o700)
            except PermissionError:
                raise LedgerError(
                    f"other users may read {path}, and another user owns it: make the user of this "
                    "process the owner"
                ) from None


def check_parent(path: Path, option: str) -> None:
    """Refuse a path in a folder that does not exist, which is more often mistyped than meant.

    Raises:
        ParameterError: there is no such folder.
    """
    if not path.parent.is_dir():
        raise ParameterError(
            f"{option} is {path}, and there is no folder {path.parent}: correct the path, or make "
            f"the folder with `mkdir -p {path.parent}`"
        )


def check_not_lost(folder: Path) -> None:
    """Refuse to begin anew next to what an earlier server has left.

    Raises:
        LedgerError: the ledger is missing or empty, and models or reports are there.
    """
    path = folder / "state.sqlite"
    left = [name for name in ("models", "reports", "opened.fsl") if (folder / name).exists()]
    if left and (not path.exists() or not path.stat().st_size):
        raise LedgerError(
            f"{path} is gone, and {', '.join(left)} in its folder are left from before: {REMEDY}"
        )

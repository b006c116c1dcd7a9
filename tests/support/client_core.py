"""The client core, built for tests and called as Python's own client is."""

from __future__ import annotations

import ctypes
import fcntl
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.transport import Transport
from torchfsl.submodel.segments import in_the_clear
from torchfsl.submodel.update import Update

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "torchfsl" / "kernels" / "csrc"

OK, ARGUMENT, DECODE, PROTOCOL, STATE, UNSUPPORTED, MEMORY, RANDOM, INTERNAL = range(9)
SEND, FETCH, TRAIN, DONE = range(4)
NO_OUTCOME, REPORT, DUMMY, SILENT = range(4)
ERRORS: dict[int, type[Error]] = {
    ARGUMENT: ParameterError, DECODE: DecodeError, PROTOCOL: ProtocolError, STATE: ProtocolError,
    UNSUPPORTED: DecodeError,
}  # fmt: skip
FLOAT32, FLOAT64, INT64 = 1, 2, 3

Wanted = Mapping[str, npt.ArrayLike]


class View(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))

    def bytes(self) -> bytes:
        return ctypes.string_at(self.data, self.size) if self.size else b""


class PlanFields(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.c_uint64) for name in (
            "max_clients", "min_clients", "max_weight", "max_rounds", "min_contributors",
            "max_participations", "min_separation", "l2_bound", "noise_sigma", "lane_sigma",
            "upload_bytes", "download_bytes")),
        *((name, ctypes.c_uint32) for name in (
            "lane", "proofs", "clip", "sum_bound", "checked", "num_segments", "num_clear",
            "num_server_keys")),
        ("digest", ctypes.c_uint8 * 32),
        ("session", ctypes.c_uint8 * 16),
        ("server_keys", ctypes.c_uint8 * 64),
    )  # fmt: skip


class SegmentFields(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.c_uint64) for name in ("positions", "width", "most_rows", "l2_bound")),
        ("clip", ctypes.c_double),
        *((name, ctypes.c_uint32) for name in ("frac_bits", "policy", "retrieved", "num_tensors")),
        ("name", View),
    )


class TensorFields(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("dtype", ctypes.c_uint32),
        ("num_dims", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_uint64)),
        ("positions", ctypes.c_uint64),
        ("name", View),
    )


class _Rows(ctypes.Structure):
    _fields_ = (
        ("segment", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("ids", ctypes.c_void_p),
        ("num", ctypes.c_size_t),
    )


class Part(ctypes.Structure):
    _fields_ = (
        ("segment", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_size_t),
        ("values", ctypes.c_void_p),
    )


class Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("kind", "party", "message", "outcome")),
        ("round", ctypes.c_uint64),
        ("client", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
    )


_STATUS = ("tfsl_plan_open", "tfsl_plan_info", "tfsl_plan_segment", "tfsl_plan_tensor",
           "tfsl_round_begin", "tfsl_test_round_begin", "tfsl_round_next", "tfsl_round_give",
           "tfsl_round_rows", "tfsl_round_clear", "tfsl_round_submit", "tfsl_round_abort",
           "tfsl_last_message")  # fmt: skip


def build(target: str, *settings: str, name: str = "plain") -> Path:
    """The folder of a build, done only where something has changed; one process at a time."""
    folder = ROOT / "build" / "client_core" / name
    folder.mkdir(parents=True, exist_ok=True)
    cores = sorted(ROOT.glob("build/cp*/libfsl_core.a"), key=lambda core: core.stat().st_mtime)
    sources = [p for p in SOURCES.rglob("*") if p.is_file() and "client" not in p.parts]
    newest = max(path.stat().st_mtime for path in sources if path.suffix in (".h", ".cc"))
    installed = [str(core) for core in cores[-1:] if core.stat().st_mtime > newest]
    command = [
        "cmake", "-S", SOURCES, "-B", folder, "-DTORCHFSL_BINDING=OFF", "-DTORCHFSL_CLIENT=ON",
        "-DTORCHFSL_CLIENT_TESTS=ON", "-DCMAKE_BUILD_TYPE=None",
        f"-DTORCHFSL_CORE={''.join(installed)}", *settings,
    ]  # fmt: skip
    if shutil.which("ccache"):
        command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for words in (command, ["cmake", "--build", folder, "--target", target, "--parallel", "2"]):
            done = subprocess.run(
                [str(word) for word in words], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "warning:" not in done.stdout + done.stderr, done.stdout + done.stderr
    return folder


class Core:
    """The library with its functions' types."""

    def __init__(self, path: Path) -> None:
        self.lib = lib = ctypes.CDLL(str(path))
        size, pointer, u64 = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
        for name in _STATUS:
            getattr(lib, name).restype = ctypes.c_int
        lib.tfsl_plan_open.argtypes = (ctypes.c_char_p, size, pointer, ctypes.c_char_p, size)
        begin = (pointer, u64, u64, pointer, size)
        lib.tfsl_round_begin.argtypes = (*begin, pointer)
        lib.tfsl_test_round_begin.argtypes = (*begin, ctypes.c_char_p, size, pointer)
        lib.tfsl_round_next.argtypes = (pointer, pointer)
        lib.tfsl_round_give.argtypes = (pointer, ctypes.c_char_p, size)
        lib.tfsl_round_submit.argtypes = (pointer, pointer, size, u64)
        lib.tfsl_round_rows.argtypes = (pointer, ctypes.c_uint32, pointer, pointer)
        lib.tfsl_round_clear.argtypes = (pointer, ctypes.c_uint32, pointer)
        lib.tfsl_last_message.argtypes = (pointer, ctypes.c_char_p, size)
        for name in ("tfsl_round_abort", "tfsl_round_close", "tfsl_plan_close"):
            getattr(lib, name).argtypes = (pointer,)
        for name in ("tfsl_plan_info", "tfsl_plan_segment", "tfsl_plan_tensor"):
            getattr(lib, name).argtypes = None

    def open(self, text: str | bytes) -> CorePlan:
        """A plan.

        Raises:
            DecodeError: as the core says; `status` has its number.
        """
        data = text.encode() if isinstance(text, str) else text
        handle, message = ctypes.c_void_p(), ctypes.create_string_buffer(512)
        status = self.lib.tfsl_plan_open(data, len(data), ctypes.byref(handle), message, 512)
        if status:
            raise as_error(status, message.value.decode())
        return CorePlan(self, handle)


def as_error(status: int, message: str) -> Error:
    """The core's status as Python's client raises it."""
    code, _, text = message.partition(": ")
    error = ERRORS.get(status, Error)(text or f"status {status}", code=code or None)
    error.status = status  # type: ignore[attr-defined]
    return error


class CorePlan:
    """A plan's handle."""

    def __init__(self, core: Core, handle: ctypes.c_void_p) -> None:
        self.core, self.handle = core, handle

    def __del__(self) -> None:
        self.core.lib.tfsl_plan_close(self.handle)

    def info(self) -> PlanFields:
        fields = PlanFields(struct_size=ctypes.sizeof(PlanFields))
        assert self.core.lib.tfsl_plan_info(self.handle, ctypes.byref(fields)) == OK
        return fields

    def segment(self, index: int) -> SegmentFields:
        fields = SegmentFields(struct_size=ctypes.sizeof(SegmentFields))
        status = self.core.lib.tfsl_plan_segment(self.handle, index, ctypes.byref(fields))
        assert status == OK
        return fields

    def tensor(self, segment: int, index: int) -> TensorFields:
        fields = TensorFields(struct_size=ctypes.sizeof(TensorFields))
        status = self.core.lib.tfsl_plan_tensor(self.handle, segment, index, ctypes.byref(fields))
        assert status == OK
        return fields


class CoreRound:
    """A round of the core over a transport, with the calls of `ClientRound`."""

    def __init__(
        self,
        plan: Plan,
        handle: CorePlan,
        servers: Transport,
        client: int,
        number: int,
        wanted: Wanted,
        tape: bytes | None = None,
    ) -> None:
        self.plan, self.servers, self._plan_handle = plan, servers, handle
        self.lib = handle.core.lib
        names = [segment.name for segment in plan.segments]
        kept = [(name, np.ascontiguousarray(ids, dtype=np.int64)) for name, ids in wanted.items()]
        rows = (_Rows * max(1, len(kept)))(
            *(
                _Rows(names.index(n) if n in names else 999, 0, i.ctypes.data, len(i))
                for n, i in kept
            )
        )
        self.handle = ctypes.c_void_p()
        arguments = (handle.handle, client, number, rows, len(kept))
        if tape is None:
            status = self.lib.tfsl_round_begin(*arguments, ctypes.byref(self.handle))
        else:
            self._tape = ctypes.create_string_buffer(tape, len(tape))
            status = self.lib.tfsl_test_round_begin(
                *arguments, self._tape, len(tape), ctypes.byref(self.handle)
            )
        if status:
            error = as_error(status, self.message() if self.handle else "")
            if self.handle:
                self.go()
            raise error

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> CoreRound:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self.step().kind == TRAIN:
            self.abort()

    def close(self) -> None:
        if self.handle:
            self.lib.tfsl_round_close(self.handle)
            self.handle = ctypes.c_void_p()

    def message(self) -> str:
        text = ctypes.create_string_buffer(512)
        assert self.lib.tfsl_last_message(self.handle, text, 512) == OK
        return text.value.decode()

    def check(self, status: int) -> None:
        if status:
            raise as_error(status, self.message())

    def step(self) -> Step:
        step = Step()
        self.check(self.lib.tfsl_round_next(self.handle, ctypes.byref(step)))
        return step

    def give(self, answer: bytes = b"") -> None:
        self.check(self.lib.tfsl_round_give(self.handle, answer, len(answer)))

    def go(self, until: int = TRAIN) -> Step:
        """Takes steps until there is one of this kind, or the end."""
        while True:
            step = self.step()
            if step.kind in (until, DONE, TRAIN):
                return step
            if step.kind == SEND:
                self.servers.send(step.party, ctypes.string_at(step.data, step.size))
                self.give()
            else:
                kind = Kind(step.message)
                answer = self.servers.fetch(step.party, kind, step.round, step.client)
                try:
                    self.give(answer)
                except Error:
                    self.go()
                    raise

    def download(self) -> dict[str, npt.NDArray[Any]]:
        self.go()
        specs = [t for s in in_the_clear(self.plan.segments) for t in s.tensors]
        view, found = View(), {}
        for index, spec in enumerate(specs):
            self.check(self.lib.tfsl_round_clear(self.handle, index, ctypes.byref(view)))
            found[spec.name] = np.frombuffer(view.bytes(), spec.dtype).reshape(spec.shape)
        return found

    def retrieve(self) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
        self.go()
        found, ids, values = {}, View(), View()
        for index, segment in enumerate(self.plan.segments):
            if segment.retrieve:
                both = ctypes.byref(ids), ctypes.byref(values)
                self.check(self.lib.tfsl_round_rows(self.handle, index, *both))
                rows = np.frombuffer(values.bytes(), segment.tensors[0].dtype)
                rows = rows.reshape(-1, segment.tau)
                found[segment.name] = np.frombuffer(ids.bytes(), np.int64), rows
        return found

    def submit(self, update: Update | Mapping[str, Any], *, weight: int = 1) -> int:
        self.go()
        names = [segment.name for segment in self.plan.segments]
        kept, parts = [], (Part * max(1, len(update)))()
        for place, (name, part) in enumerate(update.items()):
            dtype = {"int64": INT64, "float32": FLOAT32, "float64": FLOAT64}[str(part.values.dtype)]
            rows = None if part.indices is None else np.ascontiguousarray(part.indices, np.int64)
            values = np.ascontiguousarray(part.values)
            kept += [rows, values]
            count = len(values) if rows is None else len(rows)
            at = None if rows is None else rows.ctypes.data
            index = names.index(name) if name in names else 999
            parts[place] = Part(index, dtype, at, count, values.ctypes.data)
        status = self.lib.tfsl_round_submit(self.handle, parts, len(update), weight)
        error = as_error(status, self.message()) if status else None
        outcome = int(self.go().outcome)
        if error:
            raise error
        return outcome

    def abort(self) -> int:
        self.check(self.lib.tfsl_round_abort(self.handle))
        return int(self.go().outcome)


class CoreClient:
    """As `Client`, with the core."""

    def __init__(
        self, core: Core, plan: Plan, servers: Transport, client: int, tape: bytes | None = None
    ) -> None:
        self.plan, self.servers, self.client_id, self.tape = plan, servers, client, tape
        self.handle = core.open(plan.to_json())

    def start_round(self, number: int, *, indices: Wanted | None = None) -> CoreRound:
        return CoreRound(
            self.plan, self.handle, self.servers, self.client_id, number, indices or {}, self.tape
        )

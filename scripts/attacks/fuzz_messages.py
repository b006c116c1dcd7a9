"""Throw mutated bytes at every decoder; anything but the documented errors is a bug.

    python -m scripts.attacks.fuzz_messages --executions 10000000
    python -m scripts.attacks.fuzz_messages --seconds 60 --only plan,arrays --json found.json

An input that is refused in a new way joins the corpus, from which later inputs are made. The
starting corpus is in tests/service/corpus, one small file an input; --write-corpus adds to it what
was found. A failing input is written to the current folder and named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scripts.parties import plain_plan
from scripts.program import ROOT, Found, Options, option, program
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, Error, ParameterError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.book import ReportBook
from torchfsl.service import task
from torchfsl.service.net import answers, calls
from torchfsl.service.net.identity import Identity, NotAllowed
from torchfsl.service.state import arrays, vault
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import TensorSpec

CORPUS = ROOT / "tests" / "service" / "corpus"
_MOST_FEATURES = 48


def tiny_plan() -> Plan:
    """A plan whose messages are small, with trees, stash, retrieval, check words and dense."""
    sizes = {"num_bins": 6, "theta": 3, "stash": 1, "check_bytes": 32, "tag_bytes": 16}
    rows = TreeSegment("r", "rows", (TensorSpec("t", (6, 1)),), 6, 1, 2, True, **sizes)
    rest = TreeSegment("d", "dense", (TensorSpec("b", (2,), "float32"),), 2, 1, 2)
    return plain_plan(rows, rest, encoding=FixedPoint(32, 16, 4.0), max_clients=4)


PLAN = tiny_plan()
_INFO = {
    **{"party": 0, "library": "1", "wire_version": 4, "plan_digest": "", "model": {}, "round": -1},
    **{"state": "", "open": False, "closes_at": 0.0, "complete": 0, "halted": "", "stalled": ""},
}
_ROW = {"number": 1, "state": "open", "reports": 0, "accepted": 0, "bytes": 0, "reason": "x"}
_PLANNED = {"nonce": "00", "coins": ["00", "11"], "plan": "{}", "certificate": "x"}


@dataclass
class Target:
    """A decoder and what it may raise."""

    name: str
    run: Callable[[bytes], Any]
    allowed: tuple[type[Exception], ...]
    seeds: list[bytes]
    corpus: list[bytes] = field(default_factory=list)
    features: set[str] = field(default_factory=set)


def make_targets() -> list[Target]:
    """All decoders of bytes that come from others, and of files."""
    sizes = {kind: messages.body_bytes(PLAN, kind) for kind in Kind}
    valid = [
        messages.encode(PLAN, kind, 0, 1, 0, bytes(size if size is not None else 48))
        for kind, size in sizes.items()
    ]
    values = {"a": np.arange(3, dtype=np.int32), "b": np.zeros((2, 2))}
    opened = vault.encode_opened(Opened({"r": np.zeros((6, 1), np.int64)}, {}, 1, 1, (0,)), 3)
    state = {"t": np.zeros((6, 1), np.float32), "b": np.zeros(2, np.float32)}
    adam = task.Task(PLAN, bytes(16), task.OptimizerSettings("adam"))
    moments = {
        f"{kind}/{name}": np.zeros(value.size)
        for kind in ("first", "second")
        for name, value in state.items()
    }
    tasks = [
        task.encode_task(task.Task(PLAN, bytes(16)), state)[:-32],
        task.encode_task(adam, state, {"round": np.array(3), **moments})[:-32],
    ]
    request = calls.encode_request(round=3)
    tree_bytes = sum(s.tree_bytes for s in PLAN.early)
    parse, refuse = DecodeError, (DecodeError, RejectedSubmission)
    return [
        Target("header", lambda d: messages.decode_header(PLAN, d, *Kind), (parse,), valid),
        Target("message", lambda d: messages.decode(PLAN, d, *Kind), (parse,), valid),
        Target("trees", _trees, (parse,), [bytes(tree_bytes)]),
        Target("book", _book, refuse, valid[:3] + valid[4:7]),
        Target("plan", Plan.from_json, (parse,), [PLAN.to_json().encode()]),
        Target("arrays", arrays.decode, (parse,), [arrays.encode(values, {"x": 1}), opened]),
        Target("signed", _signed, (parse,), [arrays.encode(values, {"x": 1})[:-32]]),
        Target("opened", lambda d: vault.decode_opened(_sign(d)), (parse,), [opened[:-32]]),
        Target("task", lambda d: task.decode_task(_sign(d)), (parse, ParameterError), tasks),
        Target("request", lambda d: calls.decode_request(d, round=int), (parse,), [request]),
        Target("info", answers.decode_info, (parse,), [json.dumps(_INFO).encode()]),
        Target("row", answers.decode_row, (parse,), [json.dumps(_ROW).encode()]),
        Target("planned", answers.decode_plan, (parse,), [json.dumps(_PLANNED).encode()]),
        Target("identity", _identity, (NotAllowed,), [b"torchfsl:client:7", b"torchfsl:owner"]),
    ]


def _trees(data: bytes) -> None:
    wanted = sum(s.tree_bytes for s in PLAN.early)
    dpf.decode_trees(PLAN.early, data[:wanted].ljust(wanted, b"\0"))


def _book(data: bytes) -> None:
    book = ReportBook(PLAN, 0, max_sessions=4)
    book.open(1, b"")
    book.holds(data)
    book.receive(data)
    book.receive(data)
    book.complete()


def _sign(data: bytes) -> bytes:
    """With a digest that fits, so that the mutation gets past it."""
    return data + hashlib.sha256(data).digest()


def _signed(data: bytes) -> None:
    arrays.decode(_sign(data))


def _identity(data: bytes) -> None:
    Identity.parse(data.decode("latin-1"))


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A changed copy of an input of the corpus."""
    data = bytearray(corpus[int(rng.random() * len(corpus))])
    for _ in range(1 + int(rng.random() * 3)):
        way = int(rng.random() * 8)
        size = len(data)
        if not size or way == 0:
            data[int(rng.random() * (size + 1)) : 0] = rng.randbytes(1 + int(rng.random() * 8))
        elif way <= 2:
            data[int(rng.random() * size)] ^= 1 << int(rng.random() * 8)
        elif way == 3:
            data[int(rng.random() * size)] = int(rng.random() * 256)
        elif way == 4:
            start = int(rng.random() * size)
            value = (0, 1, (1 << 63) - 1, (1 << 64) - 1, 1 << 32, 10 << 30)[int(rng.random() * 6)]
            data[start : start + 8] = value.to_bytes(8, "little")[: size - start]
        elif way == 5:
            del data[int(rng.random() * size) :]
        elif way == 6:
            start, stop = sorted((int(rng.random() * size), int(rng.random() * size)))
            del data[start : min(stop, start + 16)]
        else:
            other = corpus[int(rng.random() * len(corpus))]
            cut = int(rng.random() * size)
            data[cut : cut + 32] = other[cut : cut + 32]
    return bytes(data)


def execute(target: Target, data: bytes) -> str:
    """One execution: the way it ended. Raises what is not allowed."""
    try:
        target.run(data)
    except target.allowed as error:
        return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "#", f"{type(error).__name__} {error}"[:60])
    return "accepted"


def fuzz(
    targets: list[Target],
    executions: int,
    seconds: float,
    seed: int,
    done: Counter[str],
    failures: list[str],
) -> None:
    """Run until one of the limits; `done` counts executions by target."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    while sum(done.values()) < executions and time.monotonic() < deadline:
        for target in targets:
            batch = 2000 if target.name in ("header", "message", "identity", "request") else 250
            for _ in range(batch):
                data = mutate(rng, target.corpus)
                try:
                    feature = execute(target, data)
                except Error as error:
                    failures.append(_keep(target, data, error))
                except Exception as error:  # the point of the exercise
                    failures.append(_keep(target, data, error))
                else:
                    new = feature not in target.features
                    if new and len(target.features) < _MOST_FEATURES and len(data) < 2048:
                        target.features.add(feature)
                        target.corpus.append(data)
            done[target.name] += batch
            if len(failures) > 20:
                return


def _keep(target: Target, data: bytes, error: Exception) -> str:
    name = f"fuzz-{target.name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    Path(name).write_bytes(data)
    return f"{name}: {''.join(traceback.format_exception(error)[-3:])}"


def load_corpus(targets: list[Target]) -> None:
    """Seeds and the files of the repository."""
    for target in targets:
        files = [path.read_bytes() for path in sorted(CORPUS.glob(f"{target.name}-*.bin"))]
        for data in (*target.seeds, *files):
            target.corpus.append(data)
            target.features.add(execute(target, data))


@program(
    option("--executions", 1_000_000),
    option("--seconds", 1e9),
    option("--seed", 0),
    option("--only", "", "names of decoders, with commas between"),
    option("--write-corpus", False),
)
def main(options: Options) -> Found:
    """Run; exit status 1 after a failure."""
    wanted = set(filter(None, options.only.split(",")))
    targets = [t for t in make_targets() if not wanted or t.name in wanted]
    load_corpus(targets)
    start = time.perf_counter()
    done: Counter[str] = Counter()
    failures: list[str] = []
    with contextlib.suppress(KeyboardInterrupt):  # what was done until then counts
        fuzz(targets, options.executions, options.seconds, options.seed, done, failures)
    found = {
        "executions": sum(done.values()),
        "by_decoder": dict(done),
        "ways_to_end": {target.name: len(target.features) for target in targets},
        "failures": failures,
        "seconds": round(time.perf_counter() - start, 1),
        "seed": options.seed,
    }
    print(json.dumps(found, indent=2))
    if options.write_corpus:
        CORPUS.mkdir(exist_ok=True)
        for target in targets:
            for data in target.corpus[len(target.seeds) :]:
                name = f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
                (CORPUS / name).write_bytes(data)
    return found | {"ok": not failures}

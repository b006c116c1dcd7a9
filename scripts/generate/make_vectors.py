"""Writes the test vectors of `tests/vectors`, or checks that those on disk are still the ones.

    python -m scripts.generate.make_vectors           # write
    python -m scripts.generate.make_vectors --check   # exit status 1 if a file differs

Trees, hints, checks and matchings come from the slow reference in `tests/reference`, keys and
permutations from the formulas written out below; only whole rounds come from torchfsl itself, with
a seeded stream in the place of the operating system's randomness. A change of any file is a change
of the wire format: raise `config.WIRE_VERSION` with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.support.federation import Wire, make_plan, make_segment, mixed_plan, submit
from tests.support.reference import checks_reference, dpf_reference
from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.fsl import messages
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "vectors"
ORIGIN = "scripts/make_vectors.py"
"""Where this file lay when the vectors were made: their bytes stay until the wire changes."""

FIELDS = {"version": 4, "kind": 6, "party": 7, "round": 8, "body length": 24, "plan digest": 32}
"""Where fields of a message's header begin."""

AFTER_NONCE = HEADER_BYTES + SEED_BYTES
AFTER_MASTER_SEED = AFTER_NONCE + SEED_BYTES
"""Where a message goes on behind its first seeds."""

Json = dict[str, Any]


def drawn(label: str, size: int) -> bytes:
    """Bytes that look random and are the same on every run."""
    return hashlib.shake_128(label.encode()).digest(size)


def state_of(label: str, bit: int) -> bytes:
    """A root state with the given control bit."""
    return dpf_reference.make_state(drawn(label, 16), bit)


# --- primitives -----------------------------------------------------------------------------------


def framed(*parts: bytes) -> bytes:
    """Each part behind its length."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def derived(secret: bytes, label: bytes, context: bytes, size: int) -> bytes:
    """HKDF-SHA256 with framed label and context as info."""
    return HKDF(hashes.SHA256(), size, salt=None, info=framed(label, context)).derive(secret)


def streamed(key: bytes, size: int) -> bytes:
    """AES-128 in counter mode from zero."""
    return Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def kdf_vectors() -> Json:
    """Labels, derived keys, digests and streams."""
    labels = {n: getattr(kdf, n).decode() for n in sorted(dir(kdf)) if n.startswith("LABEL_")}
    cases = []
    for name, label in labels.items():
        for size in (16, 40):
            secret, context = drawn(f"secret {name}", 16), drawn(f"context {name}", size)
            cases.append({
                "label": label, "secret": secret.hex(), "context": context.hex(), "size": size,
                "derived": derived(secret, label.encode(), context, size).hex(),
                "digest": hashlib.sha256(framed(label.encode(), secret, context)).hexdigest(),
                "stream": streamed(secret, size + 1).hex(),
            })  # fmt: skip
    return {"labels": labels, "cases": cases}


def tree_vectors() -> Json:
    """Trees of several depths; every leaf of both parties."""
    cases = []
    for num_leaves, alpha in ((1, 0), (2, 0), (2, 1), (3, 2), (5, 4), (8, 3), (13, 12), (33, 32)):
        name = f"tree {num_leaves} {alpha}"
        key, depth = drawn(f"key {name}", 16), dpf_reference.depth_of(num_leaves)
        roots = [state_of(f"{name} {party}", party) for party in (0, 1)]
        words, *_ = dpf_reference.tree_gen(key, roots[0], roots[1], alpha, depth)
        leaves = [
            [dpf_reference.leaf_state(key, root, words, leaf).hex() for leaf in range(num_leaves)]
            for root in roots
        ]
        cases.append({
            "key": key.hex(), "roots": [root.hex() for root in roots], "alpha": alpha,
            "num_leaves": num_leaves, "correction_words": [w.packed().hex() for w in words],
            "right_bits": [w.right_bit for w in words], "leaves": leaves,
        })  # fmt: skip
    return {"cases": cases}


def hint_vectors() -> Json:
    """Hints of both signs, all ring widths, with and without early termination."""
    cases = []
    for bits in (16, 24, 32, 48, 64, 128):
        for nu, slot, values_a_row in ((0, 0, 1), (0, 0, 5), (2, 3, 2)):
            name, width = f"hint {bits} {nu} {values_a_row}", bits // 8
            key, sign = drawn(f"key {name}", 16), (bits // 8 + nu) % 2
            leaves = [state_of(f"{name} {p}", p ^ sign) for p in (0, 1)]
            values = drawn(f"values {name}", values_a_row * width)
            hint = dpf_reference.hint_gen(key, *leaves, values, slot, nu, width)
            shares = [
                dpf_reference.leaf_value(key, leaf, hint, party, width).hex()
                for party, leaf in enumerate(leaves)
            ]
            cases.append({
                "key": key.hex(), "ring_bits": bits, "nu": nu, "slot": slot,
                "leaves": [leaf.hex() for leaf in leaves], "values": values.hex(),
                "hint": hint.hex(), "shares": shares,
            })  # fmt: skip
    return {"cases": cases}


def check_vectors() -> Json:
    """Check words, and tags of answers over a small table."""
    cases = []
    for tree, leaf, num_leaves, row_bytes in ((0, 0, 1, 16), (7, 2, 3, 5), (300, 4, 6, 40)):
        name = f"check {tree} {leaf}"
        key, depth = drawn(f"key {name}", 16), dpf_reference.depth_of(num_leaves)
        roots = [state_of(f"{name} {party}", party) for party in (0, 1)]
        words, *leaves = dpf_reference.tree_gen(key, roots[0], roots[1], leaf, depth)
        rows = [drawn(f"row {name} {i}", row_bytes) for i in range(num_leaves)]
        tags = []
        for root in roots:
            states = [dpf_reference.leaf_state(key, root, words, i) for i in range(num_leaves)]
            tags.append(checks_reference.tag(key, states, rows).hex())
        cases.append({
            "key": key.hex(), "tree": tree, "leaf": leaf, "roots": [r.hex() for r in roots],
            "rows": [row.hex() for row in rows], "leaves": [state.hex() for state in leaves],
            "correction_words": [w.packed().hex() for w in words],
            "right_bits": [w.right_bit for w in words],
            "check_word": checks_reference.check_word(key, *leaves, tree, leaf).hex(),
            "tags": tags,
        })  # fmt: skip
    return {"cases": cases}


def permutation_vectors() -> Json:
    """Public permutations: rows in the stable order of 64-bit keys."""
    cases = []
    for m, label in ((1, "rows"), (2, "rows"), (40, "rows"), (40, "tables \u00e9")):
        seed = drawn(f"hash seed {m}", 32)
        table = []
        for i in range(3):
            context = framed(label.encode(), bytes([i]), m.to_bytes(8, "little"))
            data = streamed(derived(seed, b"torchfsl permutation", context, 16), 8 * m)
            keys = [int.from_bytes(data[8 * x : 8 * x + 8], "little") for x in range(m)]
            table.append(sorted(range(m), key=keys.__getitem__))
        cases.append({"hash_seed": seed.hex(), "label": label, "m": m, "permutations": table})
    return {"cases": cases}


def matching_vectors() -> Json:
    """Matchings with augmenting paths, and with items left out."""
    cases = []
    for seed, (num_items, bins_each) in enumerate(((0, 1), (3, 1), (9, 2), (12, 5), (40, 14))):
        draw = random.Random(seed)
        items = [
            tuple(i * bins_each + draw.randrange(bins_each) for i in range(3))
            for _ in range(num_items)
        ]
        place = dpf_reference.match(items, 3 * bins_each)  # type: ignore[arg-type]
        cases.append({"num_bins": 3 * bins_each, "candidates": items, "bins": place})
    return {"cases": cases}


# --- plans and rounds -----------------------------------------------------------------------------


def small_plan() -> Plan:
    """Every kind of segment and message, in few bytes."""
    return make_plan(
        make_segment("table", "rows", (6, 2), k_max=2, tau=2, theta=3, retrieve=True),
        make_segment("few", "scalars", (5,), k_max=1, nu=1),
        make_segment("bias", "dense", (3,)),
        max_clients=3,
        lane="count",
    )


def plan_vectors() -> Json:
    """Canonical texts and their digests."""
    fixed = make_plan(make_segment("table", "rows", (9, 2), k_max=2, tau=2, theta=3), max_epochs=4)
    plans = [small_plan(), mixed_plan(), mixed_plan(secure=False, lane="weight"), fixed]
    texts = [plan.to_json() for plan in plans]
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return {"cases": [{"text": t, "digest": d} for t, d in zip(texts, digests, strict=True)]}


def bad_plan_vectors() -> Json:
    """Texts that are refused, one defect each."""
    text = small_plan().to_json()
    changes = {
        "white space": (',"', ', "'),
        "a number as text": ('"tau":2', '"tau":"2"'),
        "a fraction": ('"tau":2', '"tau":2.0'),
        "m that does not fit": ('"m":6', '"m":7'),
        "k_max above m": ('"k_max":2', '"k_max":7'),
        "bins that do not fit": ('"num_bins":6', '"num_bins":9'),
        "negative stash": ('"stash":0', '"stash":-1'),
        "idle stash trees": ('"stash":1', '"stash":1000000'),
        "unknown policy": ('"scalars"', '"columns"'),
        "no headroom": ('"clip":4.0', '"clip":30000.0'),
        "clip beyond any ring": ('"clip":4.0', '"clip":1e+308'),
        "clip not a number": ('"clip":4.0', '"clip":NaN'),
        "short check words": ('"check_bytes":32', '"check_bytes":16'),
        "another suite": ("bgi16-aes128-mmo", "bgi16-aes128-xyz"),
        "a later version": ('"wire_version":1', '"wire_version":2'),
        "upper-case hex": ("0a0b0c", "0A0B0C"),
        "an unknown field": ('"lane"', '"extra":1,"lane"'),
        "a missing field": ('"lane":"count",', ""),
        "a truncated text": ("}", ""),
    }
    cases = [
        {"defect": defect, "text": text.replace(old, new, 1)}
        for defect, (old, new) in changes.items()
    ]
    assert all(case["text"] != text for case in cases)
    return {"cases": cases}


def small_state(plan: Plan) -> dict[str, Any]:
    """A model of multiples of 1/16."""
    tensors = [tensor for segment in plan.segments for tensor in segment.tensors]
    values = {t.name: np.frombuffer(drawn(t.name, t.numel), dtype=np.int8) for t in tensors}
    return {t.name: (values[t.name] / 16).astype(t.dtype).reshape(t.shape) for t in tensors}


def small_updates() -> dict[int, Update]:
    """What clients 4 and 9 send: full and nearly empty."""
    nothing = SegmentUpdate(np.empty(0, dtype=np.int64), np.empty((0, 1), dtype=np.int64))
    return {
        4: {
            "table": SegmentUpdate(np.array([1, 5]), np.array([[1, -1], [262144, -262144]])),
            "few": SegmentUpdate(np.array([3]), np.array([[-77]])),
            "bias": SegmentUpdate(None, np.array([[5], [0], [-6]])),
        },
        9: {
            "table": SegmentUpdate(np.array([5]), np.array([[0, 12345]])),
            "few": nothing,
            "bias": SegmentUpdate(None, np.array([[1], [1], [1]])),
        },
    }


def play(plan: Plan) -> tuple[Wire, Opened]:
    """Round 7 of clients 4 and 9, with retrieval: the wire, and what was opened."""
    counter = iter(range(1 << 20))
    one, two = (Server(b, plan=plan, model=ServerModel(small_state(plan))) for b in (0, 1))
    with mock.patch("os.urandom", lambda size: drawn(f"entropy {next(counter)}", size)):
        begin_round((one, two), 7)
        wire = Wire((one, two))
        for client, update in small_updates().items():
            submit(wire, client, 7, update)
            for party in (0, 1):
                wire.fetch(party, Kind.ANSWER, 7, client)
        return wire, finish_round((one, two))


def round_vectors() -> Json:
    """A whole round at the servers: messages in, answers and opened sums out."""
    plan = small_plan()
    wire, opened = play(plan)
    answers = [
        {"party": e.party, "client": messages.peek(e.data).client, "data": e.data.hex()}
        for e in wire.events
        if e.is_reply
    ]
    sent = [e for e in wire.events if not e.is_reply]
    return {
        "plan": plan.to_json(),
        "round": 7,
        "state": {name: value.tobytes().hex() for name, value in small_state(plan).items()},
        "messages": [{"party": e.party, "kind": e.kind.name, "data": e.data.hex()} for e in sent],
        "answers": answers,
        "clients": list(opened.clients),
        "sums": {name: total.tolist() for name, total in opened.sums.items()},
        "lanes": {name: total.tolist() for name, total in opened.lanes.items()},
        "model": wire.servers[0].model.digest().hex(),
    }


def bad_report_vectors() -> Json:
    """One message of client 4 in `round.json` replaced; client 9 must open alone."""
    plan = small_plan()
    wire, _ = play(plan)
    sent = [e for e in wire.events if not e.is_reply]
    trees = sum(s.tree_bytes for s in plan.early)
    defects: dict[str, tuple[Kind, Callable[[bytearray], None]]] = {
        "a correction word altered on the way": (Kind.TREES_RELAY, flip(AFTER_NONCE + 3)),
        "a nonce altered on the way": (Kind.TREES_RELAY, flip(HEADER_BYTES)),
        "a check word altered on the way": (Kind.TREES_RELAY, flip(AFTER_NONCE + trees - 1)),
        "a hint altered on the way": (Kind.REPORT_RELAY, flip(-1)),
        "a hint nonce altered on the way": (Kind.REPORT_RELAY, flip(AFTER_NONCE)),
        "another commitment to the trees": (Kind.TREES_COMMIT, flip(-1)),
        "another commitment to the report": (Kind.REPORT_COMMIT, flip(-1)),
        "another master seed in the report": (Kind.REPORT_COMMIT, flip(AFTER_NONCE)),
        "another tree nonce in the report": (Kind.REPORT, flip(HEADER_BYTES)),
        "the wrong round": (Kind.REPORT, flip(FIELDS["round"])),
        "the wrong server": (Kind.REPORT, flip(FIELDS["party"])),
        "the wrong kind": (Kind.REPORT, flip(FIELDS["kind"])),
        "another version": (Kind.REPORT, flip(FIELDS["version"])),
        "another plan": (Kind.REPORT, flip(FIELDS["plan digest"])),
        "another length": (Kind.REPORT, flip(FIELDS["body length"])),
        "a byte too many": (Kind.REPORT, lambda data: data.append(0)),
        "a byte too few": (Kind.REPORT, lambda data: data.__delitem__(-1)),
        "padding that is not zero": (Kind.TREES, flip(AFTER_MASTER_SEED + padding(plan), 0x80)),
    }
    cases = []
    for defect, (kind, change) in defects.items():
        (index,) = (
            i for i, e in enumerate(sent) if messages.peek(e.data).client == 4 and e.kind is kind
        )
        data = bytearray(sent[index].data)
        change(data)
        cases.append({"defect": defect, "replaces": index, "data": data.hex()})
    return {"accepted": [9], "cases": cases}


def flip(place: int, bits: int = 1) -> Callable[[bytearray], None]:
    """A change of one byte."""

    def change(data: bytearray) -> None:
        data[place] ^= bits

    return change


def padding(plan: Plan) -> int:
    """Offset of the last byte of packed control corrections in the early trees."""
    (group,) = plan.early[0].groups
    levels = group.num_trees * group.depth
    assert levels % 8, "choose a plan whose first trees have padding bits"
    return 16 * levels + levels // 8


FILES: dict[str, Callable[[], Json]] = {
    "kdf": kdf_vectors,
    "trees": tree_vectors,
    "hints": hint_vectors,
    "checks": check_vectors,
    "permutations": permutation_vectors,
    "matchings": matching_vectors,
    "plans": plan_vectors,
    "plans_bad_fields": bad_plan_vectors,
    "round": round_vectors,
    "round_bad_reports": bad_report_vectors,
}


def main() -> int:
    """Write or check every file; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    different = []
    for name, make in FILES.items():
        content = {"origin": ORIGIN, **make()}
        text = json.dumps(content, indent=1, ensure_ascii=True) + "\n"
        path = FOLDER / f"{name}.json"
        if check:
            different += [path.name] if not path.exists() or path.read_text() != text else []
        else:
            path.write_text(text)
    for name in different:
        print(f"{name} differs: run python -m scripts.generate.make_vectors and look at the change")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

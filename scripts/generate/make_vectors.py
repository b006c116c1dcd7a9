"""Writes the test vectors of `tests/vectors`, or checks that those on disk are still the ones.

    python -m scripts.generate.make_vectors           # write
    python -m scripts.generate.make_vectors --check   # exit status 1 if a file differs

Trees, hints, checks and matchings come from the slow reference in `tests/support/reference`, keys,
permutations and the field from formulas (`primitive_vectors.py`); only whole rounds come from
torchfsl, with a seeded stream in the place of the operating system's randomness. A change of any
file is a change of the wire format: raise `WIRE_VERSION` with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any
from unittest import mock

import numpy as np

from scripts.generate import primitive_vectors as primitives
from scripts.generate.primitive_vectors import Json, drawn
from scripts.generate.sefl_vectors import sefl_vectors
from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from tests.support.audited import SIGN_KEYS, audited
from tests.support.federation import Wire, make_plan, make_segment, mixed_plan, submit
from tests.support.reference import sum_bound as reference
from tests.support.tags import tagged
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.fsl import messages
from torchfsl.fsl.audit.replay import Auditor, Finding
from torchfsl.fsl.messages import HEADER_BYTES, Buffer, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import norms
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update

FOLDER = ROOT / "tests" / "vectors"

FIELDS = {"version": 4, "kind": 6, "party": 7, "round": 8, "body length": 24, "plan digest": 32}
"""Where fields of a message's header begin."""

AFTER_NONCE = HEADER_BYTES + SEED_BYTES
AFTER_MASTER_SEED = AFTER_NONCE + SEED_BYTES
AFTER_TAG = AFTER_MASTER_SEED + SEED_BYTES
"""Offsets in a message behind its nonce, master seed and tag."""


def small_plan() -> Plan:
    """Every kind of segment and message, in few bytes."""
    return make_plan(
        make_segment("table", "rows", (6, 2), k_max=2, tau=2, theta=3, retrieve=True),
        make_segment("few", "scalars", (5,), k_max=1, nu=1),
        make_segment("bias", "dense", (3,)),
        max_clients=3,
        lane="count",
    )


def audited_plan(plan: Plan) -> Plan:
    """The plan with noise, proofs of the norm, and an audit by fixed keys."""
    noise = {"noise_sigma": 300, "lane_sigma": 2}
    return audited(dataclasses.replace(plan, proofs="norm", l2_bound=1 << 20, **noise))


def plan_vectors() -> Json:
    """Canonical texts and their digests."""
    fixed = make_plan(make_segment("table", "rows", (9, 2), k_max=2, tau=2, theta=3), max_epochs=4)
    weights = dataclasses.replace(mixed_plan(lane="weight"), proofs="norm", l2_bound=1 << 12)
    bounded = [dataclasses.replace(s, l2_bound=900 if s.is_dense else 0) for s in weights.segments]
    plans = [small_plan(), mixed_plan(), mixed_plan(secure=False, lane="weight"), fixed]
    plans.append(dataclasses.replace(small_plan(), proofs="lanes"))
    plans.append(dataclasses.replace(weights, segments=tuple(bounded)))
    plans.append(audited_plan(small_plan()))
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
        "a segment's bound of nothing": ('"k_max":2', '"k_max":2,"l2_bound":0'),
        "a segment's bound as text": ('"k_max":2', '"k_max":2,"l2_bound":"9"'),
        "a segment's bound without one of all": ('"k_max":2', '"k_max":2,"l2_bound":9'),
        "negative stash": ('"stash":0', '"stash":-1'),
        "idle stash trees": ('"stash":1', '"stash":1000000'),
        "unknown policy": ('"scalars"', '"columns"'),
        "no headroom": ('"clip":4.0', '"clip":30000.0'),
        "clip beyond any ring": ('"clip":4.0', '"clip":1e+308'),
        "clip not a number": ('"clip":4.0', '"clip":NaN'),
        "short check words": ('"check_bytes":32', '"check_bytes":16'),
        "another suite": ("bgi16-aes128-mmo", "bgi16-aes128-xyz"),
        "a later version": (f'"wire_version":{WIRE_VERSION}', f'"wire_version":{WIRE_VERSION + 1}'),
        "upper-case hex": ("0a0b0c", "0A0B0C"),
        "an unknown field": ('"hash_seed"', '"extra":1,"hash_seed"'),  # where it is in order
        "a missing field": ('"lane":"count",', ""),
        "a truncated text": ("}", ""),
    }
    cases = [
        {"defect": defect, "text": text.replace(old, new, 1)}
        for defect, (old, new) in changes.items()
    ]
    assert all(case["text"] != text for case in cases)
    return {"cases": cases}


def sum_bound_vectors() -> Json:
    """Sums beyond their bound, and what the slow reference makes of them."""
    own = [dataclasses.replace(s, l2_bound=900 * s.is_dense) for s in small_plan().segments]
    plain = dataclasses.replace(
        small_plan(), segments=tuple(own), l2_bound=4000, sum_bound=True, session="5b" * 16
    )
    noisy = dataclasses.replace(plain, noise_sigma=300, lane_sigma=2)
    weights = dataclasses.replace(plain, lane="weight", max_weight=7, noise_sigma=0)
    taps = {"noise_taps": (16, 8, 6), "min_separation": 3, "max_rounds": 9}
    correlated = dataclasses.replace(noisy, lane="none", lane_sigma=0, **taps)
    cases = []
    for number, plan in enumerate((plain, noisy, weights, correlated)):
        rng = np.random.default_rng(number)
        sums = {s.name: rng.integers(-60_000, 60_000, (s.m, s.tau)) for s in plan.segments}
        counted = {s.name: s.m for s in plan.with_trees if plan.lane_values}
        lanes = {name: rng.integers(0, 5, m) for name, m in counted.items()}
        opened = Opened(sums, lanes, 3, 5 if plan.lane == "weight" else 3, (0, 1, 2))
        kept = reference.kept(plan, opened)
        cases.append({
            "plan": json.loads(plan.to_json()),
            "clients": opened.num_clients, "weight": opened.total_weight,
            "sums": {name: values.tolist() for name, values in sums.items()},
            "lanes": {name: lane.tolist() for name, lane in lanes.items()},
            "kept": {name: values.tolist() for name, values in kept.sums.items()},
            "scaled": kept.scaled,
            "proven": str(norms.most_squared(plan, plan.segments, plan.l2_bound, 3)),
        })  # fmt: skip
    return {"cases": cases}


def small_state(plan: Plan) -> dict[str, Any]:
    """A model of multiples of 1/16."""
    tensors = [tensor for segment in plan.segments for tensor in segment.tensors]
    values = {t.name: np.frombuffer(drawn(t.name, t.numel), dtype=np.int8) for t in tensors}
    return {t.name: (values[t.name] / 16).astype(t.dtype).reshape(t.shape) for t in tensors}


def small_updates() -> dict[int, Update]:
    """Updates of client 4, which is full, and of client 9, which is nearly empty."""
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


class Showing(Auditor):
    """An auditor that keeps the transcript."""

    def replay(self, data: Buffer, offered: Collection[int] | None = None) -> Finding:
        """Keep it."""
        self.shown = bytes(data)
        return super().replay(data, offered)


class Played:
    """Rounds at both servers of a plan, from 7 on, each of two other clients, with retrieval."""

    def __init__(self, plan: Plan) -> None:
        """No round yet."""
        keys, state = SIGN_KEYS if plan.audited else (None, None), small_state(plan)
        self.plan, self.number = plan, 6
        self.judges = tuple(Showing(plan, b, SIGN_KEYS[2 + b]) for b in (0, 1) if plan.audited)
        one, two = (
            Server(b, plan=plan, model=ServerModel(state), sign_key=keys[b]) for b in (0, 1)
        )
        self.servers = one, two

    def play(self) -> tuple[Wire, Opened]:
        """The next round, of clients 4 and 9 the first time: the wire and the sums."""
        later, self.number = self.number - 6, self.number + 1
        counter = iter(range(later << 10, 1 << 20))
        one, two = self.servers
        with mock.patch("os.urandom", lambda size: drawn(f"entropy {next(counter)}", size)):
            begin_round((one, two), self.number)
            self.secrets = [server.secrets.hex() for server in (one, two)]
            wire = Wire((one, two))
            for client, update in small_updates().items():
                submit(wire, client + later, self.number, update)
                for party in (0, 1):
                    wire.fetch(party, Kind.ANSWER, self.number, client + later)
            return wire, finish_round((one, two), auditors=self.judges)


def audited_vectors() -> Json:
    """The same of a plan with proofs and an audit."""
    return round_vectors(audited_plan(small_plan()))


def correlated_vectors() -> Json:
    """Two rounds of an audited plan with correlated noise, with the servers' transcripts."""
    limits: Json = {"noise_taps": (16, 8, 6), "min_separation": 3, "max_rounds": 3}
    played = Played(dataclasses.replace(audited_plan(small_plan()), **limits))
    rounds = [played_round(played) for _ in range(2)]
    shared = {name: rounds[0][name] for name in ("plan", "state")}
    return shared | {"rounds": [{k: v for k, v in x.items() if k not in shared} for x in rounds]}


def round_vectors(plan: Plan | None = None) -> Json:
    """A whole round at the servers: messages in, answers and aggregates out."""
    return played_round(Played(plan or small_plan()))


def played_round(played: Played) -> Json:
    """The next round of a plan."""
    plan, (wire, opened) = played.plan, played.play()
    answers = [
        {"party": e.party, "client": messages.peek(e.data).client, "data": e.data.hex()}
        for e in wire.events
        if e.is_reply
    ]
    sent = [e for e in wire.events if not e.is_reply]
    return {
        "plan": plan.to_json(),
        "round": played.number,
        **({"secrets": played.secrets} if plan.audited else {}),
        "state": {name: value.tobytes().hex() for name, value in small_state(plan).items()},
        "messages": [{"party": e.party, "kind": e.kind.name, "data": e.data.hex()} for e in sent],
        "answers": answers,
        "clients": list(opened.clients),
        "sums": {name: total.tolist() for name, total in opened.sums.items()},
        "lanes": {name: total.tolist() for name, total in opened.lanes.items()},
        "model": wire.servers[0].model.digest().hex(),
        **({"transcripts": [a.shown.hex() for a in played.judges]} if plan.noise_taps else {}),
    }


def bad_report_vectors() -> Json:
    """One message of client 4 in `round.json` replaced; client 9 must open alone."""
    plan = small_plan()
    wire, _ = Played(plan).play()
    sent = [e for e in wire.events if not e.is_reply]
    trees = sum(s.tree_bytes for s in plan.early)
    defects: dict[str, tuple[Kind, Callable[[bytearray], None]]] = {
        "a correction word altered on the way": (Kind.TREES_RELAY, flip(AFTER_NONCE + 3)),
        "a nonce altered on the way": (Kind.TREES_RELAY, flip(HEADER_BYTES)),
        "a check word altered on the way": (Kind.TREES_RELAY, flip(AFTER_NONCE + trees - 1)),
        "a hint altered on the way": (Kind.REPORT_RELAY, flip(-1)),
        "a hint nonce altered on the way": (Kind.REPORT_RELAY, flip(AFTER_NONCE)),
        "a commitment altered on the way": (Kind.REPORT_COMMIT, flip(-1)),
        "a masked value altered on the way": (Kind.REPORT, flip(-1)),
        "another tag": (Kind.TREES, flip(AFTER_MASTER_SEED)),
        "another commitment to the trees": (Kind.TREES_COMMIT, lie(flip(-1))),
        "another commitment to the report": (Kind.REPORT_COMMIT, lie(flip(-1))),
        "another master seed in the report": (Kind.REPORT_COMMIT, lie(flip(AFTER_NONCE))),
        "another tree nonce in the report": (Kind.REPORT, lie(flip(HEADER_BYTES))),
        "the wrong round": (Kind.REPORT, flip(FIELDS["round"])),
        "the wrong server": (Kind.REPORT, flip(FIELDS["party"])),
        "the wrong kind": (Kind.REPORT, flip(FIELDS["kind"])),
        "another version": (Kind.REPORT, flip(FIELDS["version"])),
        "another plan": (Kind.REPORT, flip(FIELDS["plan digest"])),
        "another length": (Kind.REPORT, flip(FIELDS["body length"])),
        "a byte too many": (Kind.REPORT, lambda data: data.append(0)),
        "a byte too few": (Kind.REPORT, lambda data: data.__delitem__(-1)),
        "padding that is not zero": (Kind.TREES, lie(flip(AFTER_TAG + padding(plan), 0x80))),
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


def lie(change: Callable[[bytearray], None]) -> Callable[[bytearray], None]:
    """The change made by the client itself, which knows the tag's key."""

    def tagged_change(data: bytearray) -> None:
        change(data)
        data[:] = tagged(small_plan(), bytes(data))

    return tagged_change


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
    "kdf": primitives.kdf_vectors,
    "trees": primitives.tree_vectors,
    "hints": primitives.hint_vectors,
    "bits": primitives.bit_vectors,
    "checks": primitives.check_vectors,
    "permutations": primitives.permutation_vectors,
    "matchings": primitives.matching_vectors,
    "field": primitives.field_vectors,
    "plans": plan_vectors,
    "plans_bad_fields": bad_plan_vectors,
    "round": round_vectors,
    "round_audited": audited_vectors,
    "rounds_correlated": correlated_vectors,
    "round_bad_reports": bad_report_vectors,
    "sefl": sefl_vectors,
    "sum_bound": sum_bound_vectors,
}


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check every file; see the module's docstring."""
    FOLDER.mkdir(exist_ok=True)
    stale = 0
    for name, make in FILES.items():
        content = {"origin": "scripts/generate/make_vectors.py", **make()}
        text = json.dumps(content, indent=1, ensure_ascii=True) + "\n"
        stale |= write(options, FOLDER / f"{name}.json", text)
    return stale

"""The pages against the code: tables, rules, and the blocks that a round does not reach."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from scripts.generate import specification_tables as tables
from tests.specification import pages, rounds
from tests.support.federation import make_plan, make_segment
from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl.client.report import _by_weight
from torchfsl.fsl.dpf import checks as library_checks
from torchfsl.fsl.dpf.trees import decode_groups
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.commitments import RowCommitments
from torchfsl.fsl.server.opening import Opening, decode_shares
from torchfsl.submodel import halves
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.update import SegmentUpdate

PAGES = {path.stem: path.read_text() for path in pages.FOLDER.glob("*.md")}


@pytest.fixture(scope="module")
def spec() -> ModuleType:
    return pages.run()


def test_tables_are_those_of_the_code() -> None:
    for name, text in tables.pages().items():
        stale = "stale: python -m scripts.generate.specification_tables"
        assert PAGES[name.removesuffix(".md")] == text, stale
    for kind, meanings in tables.MEANINGS.items():
        assert [field.name for field in dataclasses.fields(kind)] == list(meanings)


def test_pages_with_blocks_are_run_and_listed_in_order() -> None:
    others = {name for name, text in PAGES.items() if "```python" in text} - set(pages.ORDER)
    assert all("import torchfsl" in PAGES[name] for name in others)  # run as printed
    listed = re.findall(r"^\| \[\w+\]\((\w+)\.md\)", PAGES["index"], flags=re.MULTILINE)
    assert listed[: len(pages.ORDER)] == list(pages.ORDER)


def test_kinds_and_fields_are_those_of_the_code(spec: ModuleType) -> None:
    assert {kind.name: kind.value for kind in Kind} == spec.KINDS
    fields: list[tuple[Any, list[str]]] = [
        (Plan, [*spec.PLAN_COUNTS, *spec.PLAN_TEXTS, *spec.PLAN_LATER]),
        (TreeSegment, [*spec.SEGMENT_COUNTS, *spec.SEGMENT_TEXTS, *spec.SEGMENT_LATER]),
    ]
    for kind, names in fields:
        assert {field.name for field in dataclasses.fields(kind)} == set(names)
        later = spec.PLAN_LATER if kind is Plan else spec.SEGMENT_LATER
        assert {name for name in names if tables.is_later(kind, name)} == set(later)
        for field in dataclasses.fields(kind):
            if field.name in later:
                assert json.dumps(field.default) == json.dumps(later[field.name])


def test_rules_are_numbered_in_order() -> None:
    numbers = re.findall(r"need\((\d+),", PAGES["plan"])
    assert list(map(int, numbers)) == list(range(1, len(numbers) + 1))


JUNK: list[Any] = [
    0, 1, 2, 3, 5, 7, 16, 32, 64, 10**6, -1, 1 << 63, 2.0, 4.0, 1e30, True, False, None, "", "x",
    "é", "count", "weight", "dense", "rows", "blocks", "scalars", "float16", "float64", [], [0],
    [1, 2], [2, 1], ["ab"], {}, [16, 9], [16, 17], [64, 0, -64], [16, True], [256, 256, 256, 256],
    "open", ["ab" * 32, "cd" * 32], "lanes", "norm",
]  # fmt: skip


def altered(rng: np.random.Generator, text: str) -> str:
    """A plan with one field altered, left out or added, in canonical form."""
    fields = json.loads(text)
    place: Any = fields
    while True:
        names: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        name = names[int(rng.integers(len(names)))]
        if not isinstance(place[name], dict | list) or not place[name] or rng.random() < 0.2:
            break
        place = place[name]
    if isinstance(place, dict) and rng.random() < 0.2:
        later = ["l2_bound", "binned", "download", "clip", "min_separation", "max_participations",
                 "noise_taps", "noise_taps", "sum_bound", "audit", "audit_keys", "auditors",
                 "proofs", "proofs"]  # fmt: skip
        name = str(rng.choice(later))
    if rng.random() < 0.1:
        place.pop(name, None) if isinstance(place, dict) else place.pop(name)
    else:
        junk = JUNK[int(rng.integers(len(JUNK)))]
        near = place.get(name) if isinstance(place, dict) else place[name]
        place[name] = near + 1 if type(near) is int and rng.random() < 0.3 else junk
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def digest_of(read: Any, error: type[Exception], text: str) -> tuple[bytes | None, str]:
    """The digest of a plan that is accepted, or why it is not."""
    try:
        digest: bytes = read(text).digest
    except error as refusal:
        return None, str(refusal)
    return digest, ""


def test_altered_plans_are_refused_by_both_or_by_none(spec: ModuleType) -> None:
    rng, rules, accepted = np.random.default_rng(5), set(), 0
    for seed in range(120):
        text = rounds.random_plan(np.random.default_rng(seed)).to_json()
        for _ in range(12):
            other = altered(rng, text)
            ours, rule = digest_of(spec.read_plan, spec.Malformed, other)
            theirs, why = digest_of(Plan.from_json, DecodeError, other)
            assert ours == theirs, (rule, why, other)
            accepted += ours is not None
            rules.add(rule)
    assert accepted > 20
    assert len(rules) > 30, sorted(rules)


def rules_of_changes(spec: ModuleType, text: str, changes: list[dict[str, Any]]) -> list[str]:
    """The rule that each change of a plan breaks, empty if it is accepted; the library agrees."""
    rules = []
    for change in changes:
        other = spec.canonical({**json.loads(text), **change})
        ours, rule = digest_of(spec.read_plan, spec.Malformed, other)
        theirs, why = digest_of(Plan.from_json, DecodeError, other)
        assert ours == theirs, (change, rule, why)
        rules.append(rule.removeprefix("plan, rule "))
    return rules


def test_unions_are_accepted_by_both_or_by_none(spec: ModuleType) -> None:
    wide = FixedPoint(64, 0, 9.0)
    segments = [make_segment("s", "scalars", (9,), k_max=2, theta=3)]
    segments += [
        make_segment("d", "dense", (2,)),
        make_segment("b", "blocks", (9,), binned=True, k_max=2),
    ]
    segments += [make_segment("r", "rows", (9, 1), k_max=2, retrieve=True)]
    plan = dataclasses.replace(make_plan(segments[0], encoding=wide), payload="masks")
    parts = json.loads(make_plan(*segments, encoding=wide).to_json())["segments"]
    narrow = {**json.loads(plan.to_json())["encoding"], "ring_bits": 32}
    changes: list[dict[str, Any]] = [
        {}, {"payload": "mask"}, {"payload": []}, {"encoding": narrow}, {"lane": "count"},
        {"segments": [{**parts[0], "encoding": narrow}]}, {"l2_bound": 9}, {"max_epochs": 2},
        *({"segments": [parts[0], part]} for part in parts[1:]), {"max_rounds": 3},
        {"segments": [{**parts[0], "encoding": json.loads(plan.to_json())["encoding"]}],
         "encoding": narrow},
    ]  # fmt: skip
    rules = rules_of_changes(spec, plan.to_json(), changes)
    assert {"", "77", "78", "79", "80"} == set(rules)
    assert rules.count("") == 3


def of_wrong_types() -> Iterator[tuple[str, str]]:
    """Names of fields and the plans in which they have another type, or a number to shift by."""
    text = make_plan(make_segment("s", "scalars", (9,), k_max=2)).to_json()
    junk: list[tuple[str, Any]] = [
        ("noise_taps", None), ("sum_bound", None), ("audit_keys", 5), ("auditors", ["ab"]),
        ("dtype", []), ("dtype", {}), ("nu", 1 << 62),
    ]  # fmt: skip
    for name, value in junk:
        plan = json.loads(text)
        (segment,) = plan["segments"]
        {"dtype": segment["tensors"][0], "nu": segment}.get(name, plan)[name] = value
        yield name, json.dumps(plan, sort_keys=True, separators=(",", ":"))
    yield "depth", "[" * 100000


@pytest.mark.parametrize(("name", "text"), list(of_wrong_types()))
def test_fields_of_wrong_types_are_refused_by_both(spec: ModuleType, name: str, text: str) -> None:
    with pytest.raises(DecodeError):
        Plan.from_json(text)
    with pytest.raises(spec.Malformed, match="plan, "):
        spec.read_plan(text)


def test_folds_of_many_leaves_are_those_of_the_library(spec: ModuleType) -> None:
    plan = make_plan(make_segment("s", "scalars", (1100,), k_max=2))
    (theirs,), (ours,) = plan.segments, spec.read_plan(plan.to_json()).segments
    keys = [bytes([i]) * 16 for i in range(4)]
    roots = [spec.root_states(ours, b"C", keys[b], b) for b in (0, 1)]
    pairs = [spec.make_tree(keys[2], [r[j] for r in roots], 1030 + j, 11) for j in (0, 1)]
    checks = [spec.check_word(keys[3], states, j, 1030 + j) for j, (_, states) in enumerate(pairs)]
    encoded = spec.encode_group(ours.groups[0], [tree for tree, _ in pairs], checks)
    arrays = np.frombuffer(b"".join(roots[0]), np.uint8).reshape(2, 16)
    (group,) = decode_groups(theirs, memoryview(encoded), 0)
    masks = library_checks.fold_masks(theirs, keys[0])
    total = library_checks.fold(theirs, keys[2], keys[3], masks, arrays, [group])
    for own in roots:  # honest trees: equal at both
        leaves = spec.leaves_of(ours, keys[2], own, encoded)
        assert spec.fold(ours, keys[0], keys[3], leaves) == total.to_bytes(16, "little")


def test_sums_that_no_reports_make_up_are_zero_as_at_the_library(spec: ModuleType) -> None:
    zeroed = scaled = cut = halted = 0
    for seed in range(90):
        rng = np.random.default_rng(seed)
        plan, clients = rounds.random_plan(rng), tuple(range(int(rng.integers(1, 4))))
        own, first, second = spec.read_plan(plan.to_json()), b"", b""
        for segment in own.with_trees + own.dense:
            most = len(clients) * plan.max_weight
            ends = [0, 1, 2, most, most * segment.q_max, 1 << 8 * segment.width - 1]
            ends = [sign * end + more for end in ends for sign in (1, -1) for more in (0, 0, 1, -1)]
            sums = [ends[int(i)] for i in rng.integers(len(ends), size=segment.sum_values)]
            if rng.random() < 0.5:
                sums = [total if abs(total) < 3 else 0 for total in sums]
            masks = [int.from_bytes(rng.bytes(segment.width), "little") for _ in sums]
            first += spec.packed(masks, segment.width)
            left = [total - mask for total, mask in zip(sums, masks, strict=True)]
            second += spec.packed(left, segment.width)
        said = own, first, second, list(clients)
        try:
            theirs = decode_shares(plan, first, second, clients)
        except ProtocolError:
            halted += 1
            with pytest.raises(spec.Halted):
                spec.decode_sums(*said)
            continue
        ours = spec.decode_sums(*said)
        assert {name: total.tolist() for name, total in theirs.sums.items()} == ours["sums"]
        assert {name: lane.tolist() for name, lane in theirs.lanes.items()} == ours["lanes"]
        assert theirs.total_weight == ours["weight"]
        zeroed, scaled = zeroed + len(theirs.zeroed), scaled + len(theirs.scaled)
        cut += len(theirs.cut)
    assert zeroed > 20
    assert scaled > 5
    assert cut > 5
    assert halted > 2


def test_equal_keys_of_a_permutation_keep_their_order() -> None:
    spec = pages.run()
    vars(spec)["stream"] = lambda key, size: bytes(size)
    assert spec.permutation(bytes(32), "s", 0, 9) == list(range(9))


def test_long_digests_are_made_of_chunks(spec: ModuleType) -> None:
    for size in (0, spec.CHUNK, spec.CHUNK + 1, 2 * spec.CHUNK, 2 * spec.CHUNK + 5):
        data = np.random.default_rng(size).bytes(size)
        theirs = kdf.digest(b"torchfsl share", b"a", pieces=[data[:7], data[7:]])
        assert spec.digest_long(b"share", b"a", data) == theirs


@pytest.mark.parametrize("lane_sigma", [0, 3])
def test_counts_are_kept_up_to_what_clients_add_up_to(spec: ModuleType, lane_sigma: int) -> None:
    noise: Any = {"l2_bound": 9, "noise_sigma": 1} if lane_sigma else {}
    for bits in (16, 64, 128):
        segments = make_segment("s", "scalars", (14,), k_max=2), make_segment("d", "dense", (2,))
        plan = make_plan(*segments, lane="count", encoding=FixedPoint(bits, 0, 1.0))
        plan = dataclasses.replace(plan, min_contributors=2, lane_sigma=lane_sigma, **noise)
        own, width = spec.read_plan(plan.to_json()), bits // 8
        tail = spec.noise_tail(lane_sigma, 1.0)
        ends = [0, 1, 2, 3, 4, -1, -2, 2 + tail, 3 + tail, 4 + tail, 1 << bits - 1, 2 - (1 << bits)]
        counts = [spec.packed([count], width) for count in [*ends, 2, 3]] + [b""]
        masks = [spec.packed([7 * x], width) for x in range(14)] + [b""]
        pairs = [
            (spec.integer(c) - spec.integer(m), len(c)) for c, m in zip(counts, masks, strict=True)
        ]
        left = [spec.packed([part] * (size > 0), size) for part, size in pairs]
        rows = [bytes(size) for size in [width] * 14 + [2 * width]]
        opening = Opening(plan, 0)
        opening.accepted = dict.fromkeys((1, 5, 9))  # type: ignore[assignment]
        opening.share = spec.joined(left, rows)
        opening._count_out(b"".join(masks))
        is_kept = spec.kept_rows(own, left, masks, [1, 5, 9])
        assert is_kept == [*opening._kept["s"].tolist(), True]
        assert is_kept[:5] == [False, False, True, True, lane_sigma > 0]


def test_late_trees_are_in_the_order_of_the_library(spec: ModuleType) -> None:
    """Masks are so large that sums of magnitudes leave 64 bits."""
    rng, ends = np.random.default_rng(0), [-(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62), 0, 1]
    for _ in range(40):
        values = rng.choice(ends, (6, int(rng.integers(1, 4))))
        theirs = _by_weight(SegmentUpdate(np.arange(6), values)).positions.tolist()
        assert spec.late_order(dict(enumerate(values.tolist()))) == theirs


def test_the_root_of_many_rows_has_chunks_of_leaves(spec: ModuleType) -> None:
    commitments = RowCommitments(make_plan(make_segment("s", "dense", (1,))), 1, bytes(32))
    for count in (0, 3, spec.CHUNK, spec.CHUNK + 1):
        leaves = np.random.default_rng(count).integers(0, 256, (count, 32), dtype=np.uint8)
        theirs = commitments.root({"a": leaves[:2], "b": leaves[2:]})
        assert spec.row_root(bytes(32), 1, [leaf.tobytes() for leaf in leaves]) == theirs


def test_values_are_rounded_as_by_the_library(spec: ModuleType) -> None:
    rng, key = np.random.default_rng(0), bytes(range(16))
    segment = spec.read_plan(rounds.random_plan(rng).to_json()).segments[0]
    for rounding in ("nearest", "stochastic"):
        encoding = FixedPoint(32, 5, 4.1, rounding)
        segment.encoding = dataclasses.asdict(encoding)
        segment.q_max = encoding.q_max
        reals = np.concatenate([rng.normal(size=50) * 3, np.arange(-9, 9) / 64, [4.1, -9, 1e300]])
        chosen = None if rounding == "nearest" else key
        theirs = encoding.quantise(reals, rounding_key=chosen)[0]
        assert spec.quantise(segment, reals.tolist(), chosen) == theirs.tolist()
    context = kdf.frame(segment.name.encode(), bytes([3, 0, 0, 0]))
    assert spec.rounding_key(key, segment, 3) == kdf.derive(key, kdf.LABEL_ROUNDING, context)


@pytest.mark.parametrize("download", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_downloads_are_rounded_as_by_the_library(
    spec: ModuleType, download: Any, dtype: str
) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 3000, dtype=np.uint32).view(np.float32)
    odd = [0.0, -0.0, np.inf, -np.inf, 65504, 65520, 1e-8, 6e-8, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-9]
    values = np.concatenate([bits[~np.isnan(bits)], odd]).astype(dtype)
    theirs = halves.narrow(values, download).tobytes()
    assert spec.narrow(values.tobytes(), dtype, download) == theirs


def test_the_hash_seed_is_that_of_the_coins(spec: ModuleType) -> None:
    plan = rounds.random_plan(np.random.default_rng(2))
    coins = bytes(range(32)), bytes(range(1, 33))
    template = spec.template_of(plan.to_json())
    assert template == coin.template_of(plan)
    for party in (0, 1):
        theirs = coin.commitment(template, party, coins[party])
        assert spec.coin_commitment(template, party, coins[party]) == theirs
    assert spec.hash_seed_of(template, coins).hex() == coin.with_coins(plan, coins).hash_seed


def test_public_bins_are_those_of_the_library(spec: ModuleType) -> None:
    for m, count in [(1, 1), (7, 7), (12, 5), (30, 4), (97, 10), (1 << 32, 3)]:
        ours = spec.PublicBins(bytes(32), "é", m, count, 9)
        theirs = PublicBins.of(bytes(32), "é", m, count, 9)
        some = np.unique(np.linspace(0, m - 1, 200).astype(np.int64))
        owner, within = theirs.part(theirs.places(some))
        assert [ours.find(int(x)) for x in some] == list(
            zip(owner.tolist(), within.tolist(), strict=True)
        )


def test_a_sealed_seed_opens_for_its_server_alone(spec: ModuleType) -> None:
    public, seed = rounds.KEYS[0].public, bytes(range(16))
    sealed = spec.seal_seed(public, b"info", seed, None)
    assert len(sealed) == 64
    assert rounds.KEYS[0].unseal(b"info", sealed) == seed
    assert spec.unseal_seed(rounds.KEYS[0].raw, b"info", sealed) == seed
    with pytest.raises(spec.InvalidTag):
        spec.unseal_seed(rounds.KEYS[1].raw, b"info", sealed)

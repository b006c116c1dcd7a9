"""Edges of single rules, made by the blocks: the cases of `tests/vectors/edges.json`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.specification.entries import encoding, plan, segment
from tests.specification.scenes import Json, drawn, hexed, numbers

NAMES = "tablé", "\U0001f701 späte"
EDGE = plan(
    "edges",
    segment(NAMES[0], "rows", (7, 2), k=2, tau=2, theta=3, nu=1, stash=1, retrieve=True),
    segment(NAMES[1], "scalars", (5,), k=1, encoding=encoding(64, 0, 1e16), dtype="float64"),
    segment("bias", "dense", (3,), encoding=encoding(16, 20, 1e-05)),
    lane="weight", max_weight=2, encoding=encoding(32, 10, 0.1),
)  # fmt: skip
"""Names that are not ASCII, and floats with one digit, an exponent, and both."""


def edges(spec: ModuleType) -> Json:
    """All cases, each with the name of what it is of."""
    cases = [{"of": make.__name__, **case} for make in MAKERS for case in make(spec)]
    return {"about": ABOUT, "cases": cases}


LIMITS = (
    EDGE,
    plan("limits", segment("s", "scalars", (1,), k=1), encoding=encoding(64, 52, 512.0)),
    plan("limits", segment("s", "scalars", (300,), k=1, nu=7), l2_bound=1),
    plan("limits", segment("s", "scalars", (6,), k=6, theta=6, stash=6), max_clients=8191),
    plan("limits", segment("s", "scalars", (6,), k=2), l2_bound=1 << 62, clip="normalise",
         noise_sigma=1000, max_participations=4, min_separation=3, max_rounds=4),
    plan("limits", segment("s", "blocks", (6,), k=2, binned=True), lane="count",
         min_contributors=3),
)  # fmt: skip
"""Plans at the ends of rules, which are valid."""


def plans(spec: ModuleType) -> list[Json]:
    return [coins_of(spec, spec.canonical(fields)) for fields in LIMITS]


def coins_of(spec: ModuleType, text: str) -> Json:
    """A plan's digest, and the hash seed of two coins."""
    own = spec.read_plan(text)
    template, coins = spec.template_of(text), [drawn(f"coin {b}", 32) for b in (0, 1)]
    commitments = [spec.coin_commitment(template, b, coin) for b, coin in enumerate(coins)]
    return {
        "text": text, "digest": own.digest.hex(), "template": template.hex(),
        "coins": [coin.hex() for coin in coins],
        "commitments": [each.hex() for each in commitments],
        "hash_seed": spec.hash_seed_of(template, coins).hex(),
    }  # fmt: skip


def halves(spec: ModuleType) -> list[Json]:
    values = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-23, 1 + 2**-11, 1 + 3 * 2**-11,
              65504.0, 65519.0, 65520.0, -70000.0, 2.0**-24, 2.0**-25, 3e-8, 3.39e38, 0.1, -0.3,
              1e-40]  # fmt: skip
    found = []
    for dtype, form in (("float32", "f"), ("float64", "d")):
        data = struct.pack(f"<{len(values)}{form}", *values)
        for download in ("float16", "bfloat16"):
            sent = spec.narrow(data, dtype, download).hex()
            found.append({"dtype": dtype, "download": download, "values": data.hex(), "sent": sent})
    return found


def keys(spec: ModuleType) -> list[Json]:
    own = spec.read_plan(spec.canonical(EDGE))
    table, late, bias = own.segments
    nonce, hint_nonce, seed = (drawn(f"key {name}", 16) for name in ("nonce", "hint", "seed"))
    client, first, number = 6, 3, 1 << 40
    C = spec.context_of_trees(own, first, client, nonce)
    R = spec.context_of_report(C, number, hint_nonce)
    at = spec.number(number)
    named = {
        "C": C, "R": R,
        "tree": spec.segment_key(b"tree", nonce, C, table),
        "check": spec.segment_key(b"check", nonce, C, table),
        "bits": spec.segment_key(b"bits", nonce, C, table),
        "authenticate": spec.segment_key(b"authenticate", nonce, C, table, at),
        "convert": spec.segment_key(b"convert", hint_nonce, R, table),
        "row key": spec.derive(drawn("rows", 32), b"row digest",
                               spec.frame(own.digest, table.name.encode())),
        "fetched answer": spec.derive(
            seed, b"answer", spec.frame(C, b"\1", spec.number(spec.FETCH_ROUND),
                                        drawn("bound", 96))),
        "commitment of trees": spec.digest_long(b"commitment", b"trees", C, b"public"),
        "commitment of a fetch": spec.digest_long(b"commitment", b"fetch", C, b"public"),
        "commitment of a report": spec.digest_long(b"commitment", b"report", R, b"public"),
        "masked": spec.digest_long(b"upload", b"masked"),
    }  # fmt: skip
    for b in (0, 1):
        named |= {
            f"roots of early trees, {b}": b"".join(spec.root_states(table, C, seed, b)),
            f"roots of late trees, {b}": b"".join(spec.root_states(late, R, seed, b)),
            f"dense, {b}": spec.packed(spec.dense_mask(bias, R, seed, b), bias.width),
            f"answer, {b}": spec.derive(seed, b"answer", spec.frame(C, bytes([b]), at)),
            f"tag of trees, {b}": spec.upload_tag(C, seed, b, [bytes(32)]),
            f"tag of a report, {b}": spec.upload_tag(R, seed, b, [bytes(32), bytes(32), bytes(64)]),
            f"info of a seed, {b}": spec.seal_info(own, b, client, nonce),
        }
    given = {"nonce": nonce, "hint nonce": hint_nonce, "seed": seed, "rows": drawn("rows", 32),
             "bound": drawn("bound", 96)}  # fmt: skip
    about = {"client": client, "opening_round": first, "round": number}
    return [{"plan": spec.canonical(EDGE), **about, "given": hexed(given), "keys": hexed(named)}]


def digests(spec: ModuleType) -> list[Json]:
    sizes = 0, spec.CHUNK, spec.CHUNK + 1, 2 * spec.CHUNK + 5
    return [
        {"label": "torchfsl share", "part": "61", "size": size,
         "digest": spec.digest_long(b"share", b"a", spec.stream(bytes(16), size)).hex()}
        for size in sizes
    ]  # fmt: skip


def orders(spec: ModuleType) -> list[Json]:
    honest, found = spec.stream, []
    for words in ([5, 5, 5, 5, 5], [9, 1 << 63, 9, 0, 1 << 63, 0, 9], [(1 << 64) - 1, 0, 0]):
        vars(spec)["stream"] = lambda key, size, words=words: spec.packed(words, 8)
        found.append({"keys": words, "order": spec.permutation(bytes(32), "s", 0, len(words))})
    vars(spec)["stream"] = honest
    return found


def places(spec: ModuleType) -> list[Json]:
    found = []
    wanted: list[tuple[str, Json, list[int]]] = [
        ("bins that are not full", segment("s", "scalars", (10,), k=4, theta=4), [2, 5, 8, 9]),
        ("more rows than bins and stash", segment("s", "scalars", (9,), k=6, theta=9, stash=1),
         [8, 1, 3, 7, 0, 4]),
        ("trees over all positions", segment("s", "scalars", (5,), k=2), [4, 1]),
        ("one position", segment("s", "scalars", (1,), k=1, theta=1), [0]),
        ("public bins, two rows in one", segment("s", "scalars", (11,), k=3, binned=True),
         [0, 1, 2]),
    ]  # fmt: skip
    for comment, each, positions in wanted:
        own = spec.read_plan(spec.canonical(plan("places", each)))
        (s,) = own.segments
        words: list[str] = []

        def rand(name: str, size: int, words: list[str] = words) -> bytes:
            words.append(drawn(f"words {len(words)}", size).hex())
            return bytes.fromhex(words[-1])

        item_of, alpha_of, unmatched = spec.place(own, s, positions, 7)
        found.append({
            "comment": comment, "plan": spec.canonical(plan("places", each)), "round": 7,
            "positions": positions, "item_of": item_of, "unmatched": unmatched,
            "alphas": spec.choose_alphas(s, alpha_of, rand), "words": words,
            "depths": [group.depth for group in s.groups],
        })  # fmt: skip
    return found


def late_orders(spec: ModuleType) -> list[Json]:
    part = {0: [1, -1], 3: [0, 0], 4: [-3, 2], 7: [5, 0], 9: [-2, 0]}
    return [{"part": part, "order": spec.late_order(part)}]


def roundings(spec: ModuleType) -> list[Json]:
    found = []
    reals = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1 / 3, 4.1, -9.0, 1e300, 0.0, 131.25, -131.25, 1e-300]
    for frac, clip in ((0, 131.25), (5, 4.1), (0, 2.5)):
        own = encoding(32, frac, clip)
        s = spec.read_plan(spec.canonical(plan("r", segment("é", "dense", (3,)), encoding=own)))
        (s,) = s.segments
        seed = drawn(f"rounding {frac}", 16)
        for attempt in (None, 0, 3):
            key = None if attempt is None else spec.rounding_key(seed, s, attempt)
            found.append({
                "encoding": own, "values": struct.pack(f"<{len(reals)}d", *reals).hex(),
                "segment": "é", "seed": seed.hex(), "attempt": attempt,
                "key": key and key.hex(), "rounded": spec.quantise(s, reals, key),
            })  # fmt: skip
    return found


def trees(spec: ModuleType) -> list[Json]:
    """Both servers on trees of one segment, with a key of its own for each use."""
    own = spec.read_plan(spec.canonical(EDGE))
    s, names = own.segments[0], ("tree", "check", "authenticate", "convert", "row", "verify")
    key = {name: drawn(f"trees {name}", 16) for name in names}
    key["verify"] = drawn("trees verify", 32)
    roots = [[spec.with_bit(drawn(f"root {b} {j}", 16), b) for j in range(s.num_trees)]
             for b in (0, 1)]  # fmt: skip
    alphas = [int(drawn(f"alpha {j}", 1)[0]) % g.domain for g in s.groups
              for j in range(g.num_trees)]  # fmt: skip
    encoded, hints, first = b"", b"", 0
    for group in s.groups:
        made, checks = [], []
        for j in range(first, first + group.num_trees):
            leaf = alphas[j] >> s.nu
            tree, states = spec.make_tree(key["tree"], [r[j] for r in roots], leaf, group.depth)
            made.append(tree)
            checks.append(spec.check_word(key["check"], states, j, leaf))
            values = numbers(f"hint {j}", s.tau + s.lanes, 1 << 31)
            slot = alphas[j] % (1 << s.nu)
            hints += spec.make_hint(key["convert"], states, values, slot, s.nu, s.width)
        encoded += spec.encode_group(group, made, checks)
        first += group.num_trees
    rows = [drawn(f"row {x}", s.row_bytes) for x in range(s.m)]
    given = {"encoded": encoded, "hints": hints, "rows": b"".join(rows), **key}
    sides = [side(spec, own, key, roots[b], encoded, hints, rows, b) for b in (0, 1)]
    for b, each in enumerate(sides):
        spoilt = spec.leaves_of(s, key["tree"], roots[b], encoded[:-1] + byte_xor(encoded[-1]))
        each["spoilt fold"] = spec.fold(s, key["verify"], key["check"], spoilt).hex()
    joined = [b"".join(r).hex() for r in roots]
    return [{"plan": spec.canonical(EDGE), "alphas": alphas, "given": hexed(given),
             "roots": joined, "servers": sides}]  # fmt: skip


def byte_xor(value: int) -> bytes:
    """A byte with its lowest bit altered."""
    return bytes([value ^ 1])


def side(spec: ModuleType, own: Any, key: dict[str, bytes], roots: list[bytes], encoded: bytes,
         hints: bytes, rows: list[bytes], b: int) -> Json:  # fmt: skip
    """What one server makes of the trees: fold, answers, tags, shares."""
    s = own.segments[0]
    leaves = spec.leaves_of(s, key["tree"], roots, encoded)
    tables = spec.make_tables(own, s, rows)
    pairs = [(states, table) for (states, _), table in zip(leaves, tables, strict=True)]
    cut = spec.cut(hints, [len(hints) // s.num_trees] * s.num_trees)
    shares = [
        [v for state in states
         for v in spec.output_share(key["convert"], state, hint, s.width, b)]
        for (states, _), hint in zip(leaves, cut, strict=True)
    ]  # fmt: skip
    tags = [
        spec.tag_of_tree(key["authenticate"], states,
                         [spec.row_digest(key["row"], block) for block in table])
        for states, table in pairs
    ]  # fmt: skip
    return {
        "fold": spec.fold(s, key["verify"], key["check"], leaves).hex(),
        "answers": b"".join(spec.answer_tree(*pair) for pair in pairs).hex(),
        "tags": b"".join(tags).hex(),
        "shares": b"".join(spec.packed(share, s.width) for share in shares).hex(),
    }


def ranges(spec: ModuleType) -> list[Json]:
    wide = plan("wide", segment("bias", "dense", (2,)), lane="weight", max_weight=2,
                encoding=encoding(128, 10, 4.1))  # fmt: skip
    over = [in_range(spec, wide, {"bias": [weight, 1, -1]}) for weight in (1 << 63, -(1 << 64), -1)]
    noisy = {**EDGE, "l2_bound": 3000, "noise_sigma": 9, "lane_sigma": 2,
             "segments": [{k: v for k, v in s.items() if k != "encoding"}
                          for s in EDGE["segments"]]}  # fmt: skip
    ends = [in_range(spec, fields, sums_at_ends(spec, fields)) for fields in (EDGE, noisy)]
    return [*ends, *over]


def sums_at_ends(spec: ModuleType, fields: Json) -> dict[str, list[int]]:
    """Sums of three clients on both sides of every end."""
    own, found = spec.read_plan(spec.canonical(fields)), {}
    sigmas = own.noise_sigma, own.lane_sigma
    tail, lane_tail = (spec.noise_tail(sigma, own.growth) for sigma in sigmas)
    for s in own.with_trees + own.dense:
        most, row = 3 * own.max_weight, s.tau + s.lanes
        sums, end = [0] * s.sum_values, most * s.q_max + tail
        if s.is_dense:
            sums = [-lane_tail - 9, 0, 0, 0] if tail else [most + 9, end, -end, 0]
        else:
            rows = [[most + lane_tail, end], [most, end + 1], [-lane_tail - 1, 0],
                    [most + lane_tail + 1, 0], [1, -s.q_max - 1 - tail]]  # fmt: skip
            for x, (lane, value) in enumerate(rows):
                sums[x * row : (x + 1) * row] = [lane, value, *[0] * (row - 2)]
        found[s.name] = sums
    return found


def in_range(spec: ModuleType, fields: Json, sums: dict[str, list[int]]) -> Json:
    """Shares of these sums, and what opens."""
    own, first, second = spec.read_plan(spec.canonical(fields)), b"", b""
    for s in own.with_trees + own.dense:
        masks = spec.unpacked(drawn(f"mask {s.name}", s.sum_values * s.width), s.width)
        first += spec.packed(masks, s.width)
        left = [total - mask for total, mask in zip(sums[s.name], masks, strict=True)]
        second += spec.packed(left, s.width)
    opened = spec.decode_sums(own, first, second, [2, 5, 6])
    return {"plan": spec.canonical(fields), "shares": [first.hex(), second.hex()],
            "clients": [2, 5, 6], "opened": opened}  # fmt: skip


def steps(spec: ModuleType) -> list[Json]:
    found = []
    for dtype, rate, source, reduce in [
        ("float16", 0.3, "delta", "mean"), ("float32", 0.1, "gradient", "mean"),
        ("float64", 1 / 3, "delta", "sum"), ("float32", 1.0, "delta", "mean"),
    ]:  # fmt: skip
        text = spec.canonical(plan(
            "steps", segment("s", "scalars", (5,), k=2, dtype=dtype),
            segment("buffers", "dense", (3,), dtype=dtype), lane="count",
            encoding=encoding(48, 13, 7.7)))  # fmt: skip
        own, form = spec.read_plan(text), {"float16": "e", "float32": "f", "float64": "d"}[dtype]
        before = {"s.0": struct.pack(f"<5{form}", 0.1, -3.3, 0.0, 1e-3, 7.0),
                  "buffers.0": struct.pack(f"<3{form}", 0.7, 100.0, -0.2)}  # fmt: skip
        model = spec.Model(own, before, rate, source, reduce)
        sums = {"s": [[v] for v in numbers(f"{dtype} {rate}", 5, 3 * 63078)],
                "buffers": [[v] for v in numbers("buffers", 3, 3 * 63078)]}  # fmt: skip
        opened = {"clients": [1, 2, 3], "weight": 3, "sums": sums, "lanes": {"s": [3, 2, 1, 0, 3]}}
        spec.apply_sums(model, opened)
        settings = {"rate": rate, "source": source, "reduce": reduce}
        found.append({"plan": text, "settings": settings, "opened": opened,
                      "before": hexed(before), "after": hexed(model.tensors)})  # fmt: skip
    return found


MAKERS: tuple[Callable[[ModuleType], list[Json]], ...] = (
    plans, keys, digests, orders, places, late_orders, roundings, trees, halves, ranges, steps,
)  # fmt: skip
ABOUT = {
    "plans": "a valid text at the end of some rule, its digest, and the hash seed of two coins",
    "keys": "all that is derived for one client in a plan whose names are not ASCII",
    "digests": "digest_long(label, part, data) of the first `size` bytes of stream(16 zero bytes)",
    "orders": "the order of given keys, of which some are equal",
    "places": "where positions go; `words` are the draws for dummies, a text for each group",
    "late_orders": "the order of late positions",
    "roundings": "`values` are floats of 8 bytes; attempt null rounds to the nearest",
    "trees": "what both servers make of the trees of a segment, under a key for each use; the "
    "spoilt fold is that after the last bit 0 of `encoded` was altered, in its last byte",
    "halves": "values of a tensor, and their 16 bits as a server sends them",
    "ranges": "two shares, and the sums after positions that no reports make up became zero",
    "steps": "tensors before and after a change",
}

"""The edges of `tests/vectors/edges.json` at the library; the blocks have made them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.specification import library
from torchfsl.crypto import entropy, kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client import report
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import checks, psr
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import FETCH_ROUND, ReportContext, TreeContext
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.opening import decode_shares
from torchfsl.kernels.backends import kernels
from torchfsl.submodel.halves import narrow
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerSGD
from torchfsl.submodel.update import SegmentUpdate

EDGES = library.read("edges")


def cases(of: str) -> list[library.Json]:
    found = [case for case in EDGES["cases"] if case["of"] == of]
    assert found
    return found


def raw(items: dict[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(data) for name, data in items.items()}


def test_every_group_is_tested_here() -> None:
    assert {case["of"] for case in EDGES["cases"]} == set(EDGES["about"])
    names = {name.removeprefix("test_edge_") for name in globals() if "test_edge_" in name}
    assert names == set(EDGES["about"])


def test_edge_plans() -> None:
    for case in cases("plans"):
        assert case["text"].isascii()
        plan = Plan.from_json(case["text"])
        assert (plan.to_json(), plan.digest.hex()) == (case["text"], case["digest"])
        coins = tuple(bytes.fromhex(each) for each in case["coins"])
        template = coin.template_of(plan)
        assert template.hex() == case["template"]
        said = [coin.commitment(template, b, each).hex() for b, each in enumerate(coins)]
        assert said == case["commitments"]
        assert coin.with_coins(plan, coins).hash_seed == case["hash_seed"]  # type: ignore[arg-type]


def test_edge_keys() -> None:
    for case in cases("keys"):
        plan, given, number = Plan.from_json(case["plan"]), raw(case["given"]), case["round"]
        table, late, bias = plan.segments
        C = TreeContext(plan, case["opening_round"], case["client"], given["nonce"])
        R, seed = ReportContext(C, number, given["hint nonce"]), given["seed"]
        named: dict[str, Any] = {
            "C": C.encoded, "R": R.encoded, "tree": C.tree_key(table), "check": C.check_key(table),
            "bits": C.bits_key(table), "authenticate": C.mac_key(table, number),
            "convert": R.convert_key(table), "row key": psr.row_key(plan, table, given["rows"]),
            "fetched answer": C.answer_key(seed, 1, FETCH_ROUND, given["bound"]),
            "commitment of trees": C.commitment(b"pub", b"lic"),
            "commitment of a fetch": C.fetch_commitment(b"public"),
            "commitment of a report": R.commitment(b"public"),
            "masked": R.masked_digest(b"masked"),
        }  # fmt: skip
        for b in (0, 1):
            named |= {
                f"roots of early trees, {b}": C.roots(table, seed, b).tobytes(),
                f"roots of late trees, {b}": R.roots(late, seed, b).tobytes(),
                f"dense, {b}": R.dense_mask(bias, seed, b).tobytes(),
                f"answer, {b}": C.answer_key(seed, b, number),
                f"tag of trees, {b}": C.upload_tag(seed, b, bytes(32)),
                f"tag of a report, {b}": R.upload_tag(seed, b, bytes(32), bytes(32), bytes(64)),
                f"info of a seed, {b}": C.seal_info(b),
            }
        assert {name: value.hex() for name, value in named.items()} == case["keys"]
        assert len(set(case["keys"].values())) == len(named)


def test_edge_digests() -> None:
    assert max(case["size"] for case in cases("digests")) > 2 << 20
    for case in cases("digests"):
        data = kdf.stream(bytes(16), case["size"]).tobytes()
        label, part = case["label"].encode(), bytes.fromhex(case["part"])
        found = kdf.digest(label, part, pieces=[data[:9], data[9:]])
        assert found.hex() == case["digest"]


def test_edge_orders() -> None:
    for case in cases("orders"):
        keys = np.array(case["keys"], dtype=np.uint64)
        assert kernels().stable_order(keys).tolist() == case["order"]


def test_edge_places() -> None:
    seen = {"unmatched": False, "depth": False}
    for case in cases("places"):
        plan = Plan.from_json(case["plan"])
        (segment,) = plan.segments
        words = [bytes.fromhex(each) for each in case["words"]]
        context = ReportContext(TreeContext(plan, case["round"], 0, bytes(16)), case["round"], b"")
        trees, positions = ClientTrees(plan, 0, case["round"]), np.array(case["positions"])
        placement = trees._placed(segment, positions, context)
        items = [None if item < 0 else item for item in placement.item.tolist()]
        assert items == case["item_of"]
        assert placement.unmatched.tolist() == case["unmatched"]
        assert [group.depth for group in segment.groups] == case["depths"]
        with (
            mock.patch.object(entropy, "os", mock.Mock(urandom=mock.Mock(side_effect=words))),
            mock.patch.object(dpf, "gen", lambda *given: ([], given[-1])),
        ):
            trees.grow(segment, positions, context)
        assert trees.selection(segment).leaves.tolist() == case["alphas"]  # type: ignore[attr-defined]
        seen["unmatched"] |= bool(case["unmatched"])
        seen["depth"] |= 0 in case["depths"]
    assert all(seen.values())


def test_edge_late_orders() -> None:
    for case in cases("late_orders"):
        where = np.array([int(x) for x in case["part"]])
        part = SegmentUpdate(where, np.array(list(case["part"].values())))
        assert report._by_weight(part).positions.tolist() == case["order"]


def test_edge_roundings() -> None:
    for case in cases("roundings"):
        attempt, key = case["attempt"], None
        own = {**case["encoding"], "rounding": "nearest" if attempt is None else "stochastic"}
        if attempt is not None:
            context = kdf.frame(case["segment"].encode(), attempt.to_bytes(4, "little"))
            key = kdf.derive(bytes.fromhex(case["seed"]), kdf.LABEL_ROUNDING, context)
            assert key.hex() == case["key"]
        values = np.frombuffer(bytes.fromhex(case["values"]))
        found = FixedPoint(**own).quantise(values, rounding_key=key)[0]
        assert found.tolist() == case["rounded"]


def servers_make(plan: Plan, segment: TreeSegment, given: dict[str, bytes], roots: Any, b: int,
                 encoded: bytes) -> dict[str, str]:  # fmt: skip
    """What a server of the library makes of trees and hints."""
    groups = dpf.decode_groups(segment, memoryview(encoded), 0)
    masks = checks.fold_masks(segment, given["verify"])
    fold = checks.fold(segment, given["tree"], given["check"], masks, roots, groups)
    rows = np.frombuffer(given["rows"], np.uint8).reshape(segment.m, -1)
    bins = psr.empty_bins(segment)
    psr.lay_out(plan, segment, rows, bins)
    tables = psr.tables(segment, bins, rows)
    digests = psr.digest_rows(plan, segment, given["row"], rows, tables)
    question = psr.Question(given["tree"], given["authenticate"], roots, groups)
    ((answers, tags),) = psr.answers(segment, [question], tables, digests)
    hints = np.frombuffer(given["hints"], np.uint8).reshape(segment.num_trees, -1)
    shares = b""
    for (group, span), part in zip(dpf.split(segment), groups, strict=True):
        acc = np.zeros((group.num_trees, group.num_leaves, hints.shape[1]), dtype=np.uint8)
        words = part.cw, part.cw_right, group.num_leaves
        width = plan.ring_bytes(segment)
        kernels().accumulate(given["tree"], given["convert"], roots[span], *words, hints[span], b,
                             width, acc, 1)  # fmt: skip
        shares += acc.tobytes()
    return {"fold": fold.to_bytes(16, "little").hex(), "answers": answers.tobytes().hex(),
            "tags": tags.tobytes().hex(), "shares": shares.hex()}  # fmt: skip


def test_edge_trees() -> None:
    for case in cases("trees"):
        plan, given = Plan.from_json(case["plan"]), raw(case["given"])
        segment, encoded = plan.segments[0], given["encoded"]
        roots = [np.frombuffer(bytes.fromhex(r), np.uint8).reshape(-1, 16) for r in case["roots"]]
        alphas = np.array(case["alphas"], dtype=np.uint64)
        made, _ = dpf.gen(segment, given["tree"], given["check"], roots[0], roots[1], alphas)
        assert b"".join(tree.encode() for tree in made) == encoded
        spoilt = encoded[:-1] + bytes([encoded[-1] ^ 1])
        for b, wanted in enumerate(case["servers"]):
            found = servers_make(plan, segment, given, roots[b], b, encoded)
            found["spoilt fold"] = servers_make(plan, segment, given, roots[b], b, spoilt)["fold"]
            assert found == wanted
        first, second = (each["spoilt fold"] for each in case["servers"])
        assert first != second
        assert len({each["fold"] for each in case["servers"]}) == 1


def test_edge_halves() -> None:
    for case in cases("halves"):
        values = np.frombuffer(bytes.fromhex(case["values"]), case["dtype"])
        with np.errstate(over="ignore"):
            assert narrow(values, case["download"]).tobytes().hex() == case["sent"]


def test_edge_ranges() -> None:
    zeroed = False
    for case in cases("ranges"):
        plan, wanted = Plan.from_json(case["plan"]), case["opened"]
        shares = [bytes.fromhex(each) for each in case["shares"]]
        opened = decode_shares(plan, shares[0], shares[1], tuple(case["clients"]))
        assert {name: total.tolist() for name, total in opened.sums.items()} == wanted["sums"]
        assert {name: lane.tolist() for name, lane in opened.lanes.items()} == wanted["lanes"]
        assert opened.total_weight == wanted["weight"]
        zeroed |= bool(opened.zeroed)
        assert opened.weight_clamped
    assert zeroed


@pytest.mark.parametrize("case", cases("steps"), ids=lambda case: str(case["settings"]))
def test_edge_steps(case: library.Json) -> None:
    plan, settings, given = Plan.from_json(case["plan"]), case["settings"], case["opened"]
    state = {
        t.name: np.frombuffer(bytes.fromhex(case["before"][t.name]), t.dtype).reshape(t.shape)
        for s in plan.segments for t in s.tensors
    }  # fmt: skip
    chosen = {"source": settings["source"], "reduce": settings["reduce"]}
    model = ServerModel(state, ServerSGD(settings["rate"]), **chosen)
    sums = {name: np.array(values) for name, values in given["sums"].items()}
    lanes = {name: np.array(values) for name, values in given["lanes"].items()}
    clients = tuple(given["clients"])
    model.apply(plan, Opened(sums, lanes, len(clients), given["weight"], clients))
    assert {name: value.tobytes().hex() for name, value in model.state.items()} == case["after"]

"""Rounds of the specification and of the library: byte for byte, and with each other."""

from __future__ import annotations

import contextlib
import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.specification import pages, rounds
from tests.support.federation import make_plan, make_segment, make_state, mixed_plan
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl import build_plan
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind, lengths
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.fsl.union import mask_update
from torchfsl.submodel.plan import noise_tail
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate

COUNT = 25
"""Random plans in the suite; `python -m scripts.checks.specification --rounds 500` plays more."""

FIXED = make_plan(
    make_segment("table", "rows", (9, 2), k_max=3, tau=2, theta=3, retrieve=True),
    make_segment("bias", "dense", (3,)),
    max_epochs=2, lane="weight", max_weight=3,
)  # fmt: skip
BINS = make_plan(
    make_segment("few", "blocks", (22,), k_max=4, tau=2, nu=1, binned=True),
    make_segment("table", "rows", (9, 2), k_max=3, tau=2, theta=3, stash=1, retrieve=True),
    lane="count",
)
CLOSED = dataclasses.replace(mixed_plan(lane="count"), min_contributors=2)
NOISY = dataclasses.replace(
    mixed_plan(lane="weight"), l2_bound=1000, sum_bound=True, noise_sigma=3, lane_sigma=2,
    noise_taps=(16, -7, 3), min_separation=3, max_rounds=3,
)  # fmt: skip
UNION = dataclasses.replace(
    make_plan(
        make_segment("few", "scalars", (30,), k_max=3, theta=5, nu=2, stash=1),
        make_segment("table", "rows", (9, 2), k_max=3, tau=2, theta=3, stash=1),
        encoding=FixedPoint(64, 0, 1.0),
    ),
    payload="masks",
)
PROVEN = dataclasses.replace(mixed_plan(lane="weight"), proofs="norm", l2_bound=4000)
ONE_BLOCK = build_plan(
    [SegmentSpec("w", "blocks", (TensorSpec("w", (50,)),), k_max=1, tau=4)],
    encoding=FixedPoint(24, 10, 1.0), max_clients=8, max_rounds=10, min_clients=1,
    l2_bound=1024, proofs="norm", server_keys=(), above_break_even="keep",
    clip="clip",
)  # fmt: skip
PLANS = {"mixed": mixed_plan(lane="weight"), "session": FIXED, "public bins": BINS,
         "closed rows": CLOSED, "noise": NOISY, "union": UNION, "proofs": PROVEN,
         "one block": ONE_BLOCK}  # fmt: skip
ROLES = ["specification client", "specification servers", "server 0", "server 1"]


@pytest.mark.parametrize("seed", range(COUNT))
def test_every_message_share_sum_and_model_is_equal(seed: int) -> None:
    assert rounds.play(rounds.with_given_ephemerals(pages.run()), seed) >= 8


def test_random_plans_have_every_option_and_all_lengths_are_equal() -> None:
    spec = pages.run()
    plans = [rounds.random_plan(np.random.default_rng(seed)) for seed in range(COUNT)]
    segments = [s for plan in plans for s in plan.segments]
    assert {s.mechanism for s in segments} == {"dense", "dpf", "bins", "full-domain"}
    assert {s.download for s in segments} == {"full", "float16", "bfloat16"}
    assert {bits for plan in plans for bits in plan.rings} == {16, 24, 32, 48, 64, 128}
    for name in ("subset", "stash", "nu", "retrieve", "check_bytes", "encoding"):
        assert len({bool(getattr(s, name)) for s in segments}) == 2, name
    for name in ("server_keys", "noise_sigma", "max_rounds", "max_participations",
                 "opens_counts_first", "l2_bound", "sum_bound", "noise_taps",
                 "audited"):  # fmt: skip
        assert len({bool(getattr(plan, name)) for plan in plans}) == 2, name
    assert {(plan.proofs, plan.lane) for plan in plans} >= {
        *(("norm", lane) for lane in ("none", "count", "weight")), ("lanes", "count"),
    }  # fmt: skip
    assert {plan.payload for plan in plans} == {"values", "masks"}
    assert {plan.clip for plan in plans} == {"whole", "clip", "normalise"}
    assert {plan.encoding.rounding for plan in plans} == {"nearest", "stochastic"}
    assert {plan.lane for plan in plans} == {"none", "count", "weight"}
    assert any(plan.max_epochs > 1 and plan.retrieving for plan in plans)
    for plan in plans:
        own = spec.read_plan(plan.to_json())
        theirs = lengths(plan)
        for kind in spec.KINDS:
            one = theirs[Kind[kind]]
            assert spec.length(own, kind) == (one.fixed, one.each), kind


@pytest.mark.parametrize("step", ["reveal_kept", "open"])
def test_spoiled_counts_and_slots_are_refused_by_both_or_by_none(step: str) -> None:
    """Every part: salt, root, counts, slots of opened and of closed rows, and their padding."""
    spec, ended = pages.run(), []
    first = CLOSED.segment("few")
    small = dataclasses.replace(CLOSED, segments=(first, *CLOSED.dense))
    size = lengths(small)[Kind.COUNTS if step == "reveal_kept" else Kind.SHARE].fixed
    for place in range(0, size, 7):
        pair = rounds.Pair(spec, small, 0)
        pair.spoiled = step, place
        try:
            pair.round()
        except rounds.Ended:
            ended.append(place)
    assert {0, 35} <= set(ended) if step == "reveal_kept" else 20 < len(ended) < size // 7


def test_a_plan_with_one_block_a_client_has_one_tree_and_a_proof_of_the_norm() -> None:
    """The mode of docs/specification/related.md."""
    (segment,) = ONE_BLOCK.segments
    own = pages.run().read_plan(ONE_BLOCK.to_json())
    assert (segment.num_bins, segment.num_trees, own.segments[0].num_trees) == (0, 1, 1)
    assert own.statement.num_elements > 0
    assert segment.check_bytes == 32


class Endpoint:
    """A server of the specification as the library's transports see one."""

    def __init__(self, server: Any) -> None:
        self.server, self.due = server, {}  # type: ignore[var-annotated]

    def receive(self, data: bytes) -> tuple[Kind, int] | None:
        relay = self.server.receive(bytes(data))
        if relay is None:
            return None
        due = Kind(relay[6]), int.from_bytes(relay[16:24], "little")
        self.due[due] = relay
        return due

    def relay(self, kind: Kind, client: int) -> bytes:
        return bytes(self.due[kind, client])

    def reply(self, kind: Kind, round_number: int, client: int, waiting: object = ()) -> bytes:
        return bytes(self.server.reply(kind.name, client))


def make_pair(spec: ModuleType, plan: Plan, ours: tuple[bool, bool]) -> list[Any]:
    """Both servers; those of `ours` are the specification's."""
    own, state, servers = spec.read_plan(plan.to_json()), make_state(plan), []
    for b, key in enumerate(rounds.KEYS):
        if ours[b]:
            tensors = {name: value.tobytes() for name, value in state.items()}
            servers.append(spec.Fetching(b, own, spec.Model(own, tensors), key.raw))
        else:
            servers.append(Server(b, plan=plan, model=ServerModel(state), key=key))
    return servers


def rand(name: str, size: int) -> bytes:
    return np.random.default_rng().bytes(size)


def close(server: Any) -> bytes:
    said = server.close_round() if isinstance(server, Server) else server.close_round(rand)
    return bytes(said)


def commit(server: Any) -> bytes:
    return bytes(server.commit() if isinstance(server, Server) else server.commit(rand))


def crossed(servers: list[Any], step: str, said: list[bytes]) -> list[Any]:
    return [getattr(s, step)(told) for s, told in zip(servers, reversed(said), strict=True)]


def revealed(plan: Plan, servers: list[Any]) -> list[bytes]:
    commits = [commit(server) for server in servers]
    if not plan.opens_counts_first:
        return crossed(servers, "reveal", commits)
    return crossed(servers, "reveal_kept", crossed(servers, "reveal_counts", commits))


def close_few(plan: Plan, sums: dict[str, Any], senders: dict[str, Any]) -> None:
    """Zero what fewer than `min_contributors` clients have sent."""
    for segment in plan.with_trees:
        sums[segment.name][senders[segment.name] < plan.min_contributors] = 0


def sums_of(opened: Any) -> dict[str, Any]:
    if isinstance(opened, dict):
        return dict(opened["sums"])
    return {name: total.tolist() for name, total in opened.sums.items()}


def spec_client(spec: ModuleType, own: Any, link: Any, kept: dict[int, Any], number: int,
                round_number: int, update: Any, wanted: Any) -> None:  # fmt: skip
    """A round of the specification's client, with fresh coins and real HPKE."""
    trees = kept.get(number)
    if trees is None:
        trees = spec.ClientTrees(own, number, round_number, rand)
        asked = {name: rows.tolist() for name, rows in wanted.items()}
        for party, data in spec.ask(trees, round_number, asked):
            link.send(party, data)
    if own.max_epochs > 1:
        kept[number] = trees
    ask = [(trees.S_a, Kind.MODEL), (trees.S_b, Kind.MODEL_DIGEST)]
    model = [link.fetch(party, kind, round_number, number) for party, kind in ask]
    heard = spec.read_model(trees, round_number, *model)[1]
    if own.retrieving:
        answers = [link.fetch(b, Kind.ANSWER, round_number, number) for b in (0, 1)]
        assert set(spec.read_rows(trees, round_number, answers)) == {s.name for s in own.retrieving}
    if update is not None:
        for party, data in spec.report(trees, round_number, rounds.as_own(update), heard):
            link.send(party, data)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", list(PLANS))
def test_the_specification_plays_with_the_library(name: str, role: str) -> None:
    spec = pages.run()
    plan = dataclasses.replace(PLANS[name], server_keys=tuple(k.public.hex() for k in rounds.KEYS))
    own, rng, kept = spec.read_plan(plan.to_json()), np.random.default_rng(3), {}  # type: ignore[var-annotated]
    ours = role == "specification servers", role == "specification servers"
    ours = {"server 0": (True, False), "server 1": (False, True)}.get(role, ours)
    servers = make_pair(spec, plan, ours)
    link = InProcess(*(s if isinstance(s, Server) else Endpoint(s) for s in servers))
    members: dict[int, Any] = {}
    is_union = plan.payload == "masks"
    fixed = {c: {s.name: rounds.random_rows(rng, s) for s in plan.early} for c in range(3)}
    for number in range(1, (plan.max_rounds or plan.max_epochs) + 1):
        crossed(servers, "start", [server.open_round(number) for server in servers])
        wanted_sums: dict[str, Any] = {}
        senders = {s.name: np.zeros(s.index_space, dtype=np.int64) for s in plan.with_trees}
        for client in range(3):
            parts = {s.name: rounds.random_part(rng, plan, s, fixed[client].get(s.name))
                     for s in plan.segments}  # fmt: skip
            for segment in plan.with_trees:
                if segment.binned:  # two positions of one bin would lose one of them
                    part = parts[segment.name]
                    parts[segment.name] = SegmentUpdate(part.positions[:1], part.values[:1])
            if is_union:
                parts = mask_update(plan, {name: part.positions for name, part in parts.items()})
            who = client + 3 * number * bool(plan.noise_taps)  # others each round
            if client == 2 or role == "specification client":
                spec_client(spec, own, link, kept, who, number, parts, fixed[client])
            else:
                library_client(plan, link, members, who, number, parts, fixed[client])
            add(plan, wanted_sums, parts)
            for name, count in senders.items():
                count[parts[name].positions] += 1
        folds = crossed(servers, "agree", [close(server) for server in servers])
        assert [len(a) for a in crossed(servers, "verify", folds)] == [3, 3]
        opened = crossed(servers, "open", revealed(plan, servers))
        close_few(plan, wanted_sums, senders)
        for server, sums in zip(servers, opened, strict=True):
            server.apply(*([sums] if isinstance(server, Server) else []))
            assert sums_of(sums) == sums_of(opened[0])
            tail = noise_tail(plan.noise_sigma, plan.noise_growth)
            for name, total in wanted_sums.items():
                wanted = (total != 0).any(axis=1, keepdims=True) if is_union else total
                assert np.abs(np.array(sums_of(sums)[name]) - wanted).max() <= tail
    first, second = (tensors_of(server) for server in servers)
    assert first == second


def library_client(plan: Plan, link: Any, members: dict[int, Any], client: int, number: int,
                   parts: Any, wanted: Any) -> None:  # fmt: skip
    member = members.setdefault(client, Client(plan, link, client_id=client))
    start = member.continue_session if plan.max_epochs > 1 else member.start_round
    with start(number, indices=wanted) as client_round:
        client_round.download()
        if plan.retrieving:
            client_round.retrieve()
        left = client_round.submit(parts).unmatched
    assert not any(len(rows) for rows in left.values())


def add(plan: Plan, sums: dict[str, Any], parts: Any) -> None:
    for segment in plan.segments:
        total = sums.setdefault(segment.name, np.zeros((segment.m, segment.tau), dtype=np.int64))
        part = parts[segment.name]
        total[slice(None) if part.indices is None else part.indices] += part.values


def tensors_of(server: Any) -> dict[str, bytes]:
    if isinstance(server, Server):
        return {name: value.tobytes() for name, value in server.model.state.items()}
    return dict(server.model.tensors)


def test_trees_that_fail_the_check_or_have_served_are_forgotten() -> None:
    """Only the fold shows wrong check words; right trees serve `max_epochs` rounds."""
    spec = pages.run()
    plan = dataclasses.replace(FIXED, server_keys=tuple(k.public.hex() for k in rounds.KEYS))
    own, rng = spec.read_plan(plan.to_json()), np.random.default_rng(4)
    wanted = {s.name: rounds.random_rows(rng, s) for s in plan.early}
    honest = spec.check_word
    for ours in ((True, True), (False, False)):
        servers = make_pair(spec, plan, ours)
        link = InProcess(*(s if isinstance(s, Server) else Endpoint(s) for s in servers))
        kept: dict[int, Any] = {}
        for number in (1, 2, 3):
            crossed(servers, "start", [server.open_round(number) for server in servers])
            for client in (1, 2):
                bad = (number, client) == (1, 1)  # its trees stay, as its report does not come
                if bad:
                    vars(spec)["check_word"] = lambda *said: spec.xor(honest(*said), b"1" * 32)
                refused = pytest.raises((RejectedSubmission, spec.Rejected))
                with refused if number == 3 else contextlib.nullcontext():
                    parts = None if bad else rounds.nothing(plan)
                    spec_client(spec, own, link, kept, client, number, parts, wanted)
                vars(spec)["check_word"] = honest
            if number == 3:
                break
            folds = crossed(servers, "agree", [close(server) for server in servers])
            assert [list(a) for a in crossed(servers, "verify", folds)] == [[2], [2]]
            shares = crossed(servers, "reveal", [commit(server) for server in servers])
            crossed(servers, "open", shares)

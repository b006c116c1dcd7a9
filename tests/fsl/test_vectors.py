"""The vectors of `tests/vectors`, good and bad; see `scripts/generate/make_vectors.py`.

They freeze labels, layouts and the wire: a change here is a change of the wire version.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from scripts.generate.make_vectors import Showing
from tests.support.audited import SIGN_KEYS, auditors
from torchfsl.crypto import kdf
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.audit.replay import Auditor
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import bits
from torchfsl.fsl.dpf.trees import SelectedLeaves
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.kernels.backends import kernels
from torchfsl.submodel.correlated_noise import NO_ROUND
from torchfsl.submodel.server_model import ServerModel

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
Bytes = npt.NDArray[np.uint8]


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(name)["cases"]
    assert found
    return found


def array(*items: str) -> Bytes:
    """Hex strings of one length as the rows of an array."""
    return np.stack([np.frombuffer(bytes.fromhex(item), dtype=np.uint8) for item in items])


def test_the_vectors_are_those_that_the_script_makes() -> None:
    command = [sys.executable, "-m", "scripts.generate.make_vectors", "--check"]
    root = FOLDER.parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_keys_digests_and_streams_are_frozen() -> None:
    for name, label in read("kdf")["labels"].items():
        assert getattr(kdf, name) == label.encode()
    for case in cases("kdf"):
        label, secret = case["label"].encode(), bytes.fromhex(case["secret"])
        context, size = bytes.fromhex(case["context"]), case["size"]
        assert kdf.derive(secret, label, context, size).hex() == case["derived"]
        assert kdf.digest(label, secret, context).hex() == case["digest"]
        assert kdf.stream(secret, size + 1).tobytes().hex() == case["stream"]


def test_no_two_labels_are_equal() -> None:
    labels = list(read("kdf")["labels"].values())
    assert len(set(labels)) == len(labels)


def tree_of(case: dict[str, Any]) -> tuple[bytes, list[Bytes], Bytes, Bytes]:
    """Key, both roots, and the words of one tree in the kernels' shapes."""
    depth = len(case["right_bits"])
    words = array(*case["correction_words"]) if depth else np.empty((0, 16), dtype=np.uint8)
    right = np.array(case["right_bits"], dtype=np.uint8)
    roots = [array(root) for root in case["roots"]]
    return bytes.fromhex(case["key"]), roots, words.reshape(depth, 1, 16), right.reshape(depth, 1)


def test_trees_and_all_their_leaves() -> None:
    for case in cases("trees"):
        key, roots, words, right = tree_of(case)
        alpha, num_leaves = case["alpha"], case["num_leaves"]
        cw, cw_right, *leaves = kernels().tree_gen(
            key, roots[0], roots[1], np.array([alpha], dtype=np.uint64), len(words)
        )
        assert np.array_equal(cw, words)
        assert np.array_equal(cw_right, right)
        for party in (0, 1):
            states = kernels().tree_eval(key, roots[party], words, right, num_leaves)
            assert [state.tobytes().hex() for state in states[0]] == case["leaves"][party]
            assert leaves[party][0].tobytes().hex() == case["leaves"][party][alpha]


def test_hints_and_shares() -> None:
    for case in cases("hints"):
        key, width, nu = bytes.fromhex(case["key"]), case["ring_bits"] // 8, case["nu"]
        leaves, values = [array(leaf) for leaf in case["leaves"]], array(case["values"])
        slots = np.array([case["slot"]], dtype=np.uint64)
        hint = kernels().hint_gen(key, leaves[0], leaves[1], values, slots, nu, width)
        assert hint.tobytes().hex() == case["hint"]
        for party, root in enumerate(leaves):  # a tree of one leaf: the root is the leaf
            acc = np.zeros((1, 1, hint.shape[1]), dtype=np.uint8)
            no_words = np.empty((0, 1, 16), dtype=np.uint8), np.empty((0, 1), dtype=np.uint8)
            kernels().accumulate(key, key, root, *no_words, 1, hint, party, width, acc, 1)
            assert acc.tobytes().hex() == case["shares"][party]


def test_check_words_and_tags() -> None:
    for case in cases("checks"):
        key, roots, words, right = tree_of(case)
        leaves = [array(leaf) for leaf in case["leaves"]]
        leaf = np.array([case["leaf"]], dtype=np.uint64)
        word = kernels().check_gen(key, leaves[0], leaves[1], leaf, case["tree"])
        assert word.tobytes().hex() == case["check_word"]
        table, row_key = array(*case["rows"])[None], bytes.fromhex(case["row_key"])
        digests = kernels().row_digests(row_key, table[0])
        assert [digest.tobytes().hex() for digest in digests] == case["digests"]
        answers = []
        for party, root in enumerate(roots):
            answer, tag = kernels().authenticate(
                key, key, root, words, right, len(case["rows"]), table, digests[None], 1
            )
            assert tag.tobytes().hex() == case["tags"][party]
            answers.append(answer)
        row = answers[0] ^ answers[1]
        assert row.tobytes().hex() == case["rows"][case["leaf"]]
        both = array(*case["tags"])
        expected = kernels().tags(key, leaves[0], leaves[1], kernels().row_digests(row_key, row))
        assert np.array_equal(expected[0], both[0] ^ both[1])


def test_answers_by_bits() -> None:
    for case in cases("bits"):
        key, roots, cw, right = tree_of(case)
        key_bits, row = bytes.fromhex(case["key_bits"]), case["row"]
        alpha = np.array([row // 128], dtype=np.uint64)
        *_, leaf0, leaf1 = kernels().tree_gen(key, *roots, alpha, len(right))
        leaves = SelectedLeaves(leaf0, leaf1, np.array([row % 128], dtype=np.uint64))
        word = bits.words(key_bits, leaves)
        assert word.tobytes().hex() == case["word"]
        table, answers = array(*case["rows"])[None], []
        for party, root in enumerate(roots):
            answer = kernels().answer_bits(key, key_bits, root, cw, right, word, table, 1)
            assert answer.tobytes().hex() == case["answers"][party]
            answers.append(answer)
        assert (answers[0] ^ answers[1]).tobytes().hex() == case["rows"][row]


def test_permutations() -> None:
    for case in cases("permutations"):
        table = cuckoo.permutations(bytes.fromhex(case["hash_seed"]), case["label"], case["m"])
        assert table.tolist() == case["permutations"]


def test_matchings() -> None:
    for case in cases("matchings"):
        candidates = np.array(case["candidates"], dtype=np.uint32).reshape(-1, 3).T
        found = cuckoo.match(np.ascontiguousarray(candidates), case["num_bins"])
        assert found.tolist() == case["bins"]


def test_plans_and_their_digests() -> None:
    for case in cases("plans"):
        plan = Plan.from_json(case["text"])
        assert plan.digest.hex() == case["digest"]
        assert plan.to_json() == case["text"]


@pytest.mark.parametrize("case", cases("plans_bad_fields"), ids=lambda case: case["defect"])
def test_a_bad_plan_is_a_decode_error(case: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        Plan.from_json(case["text"])


def servers_of(vector: dict[str, Any]) -> tuple[Server, Server]:
    plan = Plan.from_json(vector["plan"])
    state = {
        tensor.name: np.frombuffer(bytes.fromhex(vector["state"][tensor.name]), tensor.dtype)
        .reshape(tensor.shape)
        for segment in plan.segments
        for tensor in segment.tensors
    }  # fmt: skip
    keys = SIGN_KEYS if plan.audited else (None, None)
    one, two = (
        Server(party, plan=plan, model=ServerModel(state), sign_key=keys[party]) for party in (0, 1)
    )
    return one, two


def begin(servers: tuple[Server, Server], vector: dict[str, Any]) -> None:
    one, two = servers
    if "secrets" not in vector:
        begin_round(servers, vector["round"])
        return
    secrets = [bytes.fromhex(secret) for secret in vector["secrets"]]
    states = [s.open_round(vector["round"], secrets=secrets[s.party]) for s in (one, two)]
    one.start(states[1])
    two.start(states[0])


@pytest.mark.parametrize("name", ["round", "round_audited"])
def test_a_whole_round_at_the_servers(name: str) -> None:
    vector = read(name)
    servers = servers_of(vector)
    judges = auditors(servers[0].plan) if servers[0].plan.audited else ()
    assert_played(servers, judges, vector)


def test_rounds_with_an_audit_and_correlated_noise_are_those_of_the_transcripts() -> None:
    vector = read("rounds_correlated")
    servers = servers_of(vector)
    plan = servers[0].plan
    judges = Showing(plan, 0, SIGN_KEYS[2]), Showing(plan, 1, SIGN_KEYS[3])
    for number, played in enumerate(vector["rounds"]):
        assert_played(servers, judges, played)
        for party, data in enumerate(played["transcripts"]):
            shown = transcript.decode(plan, bytes.fromhex(data), party)
            here = transcript.decode(plan, judges[party].shown, party)
            assert shown.audit.record == here.audit.record  # the servers' messages, byte for byte
            assert shown.audit.is_signed(party, shown.said)
            past = played["round"] - 1 if number else NO_ROUND
            assert shown.audit.past_noise() == (number, (past, NO_ROUND))
            alone = Auditor(plan, party, SIGN_KEYS[2 + party])
            if number == 0:
                assert alone.replay(bytes.fromhex(data)).step == ""
            else:  # its share builds on noise of the first round, which this auditor never saw
                with pytest.raises(ProtocolError, match="which is missing here"):
                    alone.replay(bytes.fromhex(data))


def assert_played(
    servers: tuple[Server, Server], judges: tuple[Auditor, ...], vector: dict[str, Any]
) -> None:
    begin(servers, vector)
    for message in vector["messages"]:
        server = servers[message["party"]]
        data = bytes.fromhex(message["data"])
        due = server.receive(data)
        assert (due is not None) == (data[6] in (Kind.TREES, Kind.REPORT))
        if due is not None:
            assert server.relay(*due).hex() in [other["data"] for other in vector["messages"]]
    for answer in vector["answers"]:
        given = servers[answer["party"]].reply(Kind.ANSWER, vector["round"], answer["client"])
        assert given.hex() == answer["data"]
    opened = finish_round(servers, auditors=judges)
    assert list(opened.clients) == vector["clients"]
    assert {name: total.tolist() for name, total in opened.sums.items()} == vector["sums"]
    assert {name: total.tolist() for name, total in opened.lanes.items()} == vector["lanes"]
    assert [server.model.digest().hex() for server in servers] == [vector["model"]] * 2


@pytest.mark.parametrize("case", cases("round_bad_reports"), ids=lambda case: case["defect"])
def test_a_bad_report_is_refused_and_the_other_client_opens_alone(case: dict[str, Any]) -> None:
    vector = read("round")
    servers = servers_of(vector)
    begin(servers, vector)
    refused = []
    for index, message in enumerate(vector["messages"]):
        data = case["data"] if index == case["replaces"] else message["data"]
        try:
            servers[message["party"]].receive(bytes.fromhex(data))
        except (DecodeError, RejectedSubmission):
            refused.append(index)
    assert refused
    assert case["replaces"] in refused or "commitment" in case["defect"]
    opened = finish_round(servers)
    assert list(opened.clients) == read("round_bad_reports")["accepted"]

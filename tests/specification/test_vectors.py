"""The vectors of `tests/vectors` that concern the specification, without anything of torchfsl."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.specification import pages

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
ALLOWED = {"hashlib", "hmac", "json", "math", "struct", "cryptography"}
"""What the blocks may import; `math` for whole square roots and greatest common divisors."""
OTHERS = {"field.json", "sefl.json"}
"""Vectors of other protocols."""


@pytest.fixture(scope="module")
def spec() -> ModuleType:
    return pages.run()


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(name)["cases"]
    assert found
    return found


def raw(*items: str) -> list[bytes]:
    return [bytes.fromhex(item) for item in items]


def imported(text: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_the_blocks_import_nothing_of_the_library() -> None:
    found = set().union(*(imported(text) for page in pages.ORDER for _, text in pages.blocks(page)))
    assert found == ALLOWED
    for name in ("pages", "test_vectors"):
        assert "torchfsl" not in imported((Path(__file__).parent / f"{name}.py").read_text())
    calls = ("__import__", "importlib", "exec(", "eval(")
    assert not any(call in text for page in pages.ORDER for _, text in pages.blocks(page)
                   for call in calls)  # fmt: skip


def test_every_file_of_vectors_is_read_here_or_named_as_left_out() -> None:
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in FOLDER.glob("*.json"):
        assert path.name in OTHERS or f'"{path.stem}"' in here, path.name


def test_the_page_lists_every_file() -> None:
    page = (pages.FOLDER / "vectors.md").read_text()
    for path in FOLDER.rglob("*.json"):
        assert f"`{path.relative_to(FOLDER).as_posix()}`" in page, path.name


def test_labels_keys_digests_and_streams(spec: ModuleType) -> None:
    suite = (pages.FOLDER / "suite.md").read_text().partition("## Labels")[2]
    table = suite.replace(",", " ").replace("|", " ").split("\n")
    for label in read("kdf")["labels"].values():
        words = label.removeprefix("torchfsl ")
        assert any(words in line for line in table), f"suite.md does not name {label}"
    for case in cases("kdf"):
        label = case["label"].removeprefix("torchfsl ").encode()
        secret, context = raw(case["secret"], case["context"])
        assert spec.derive(secret, label, context, case["size"]).hex() == case["derived"]
        assert spec.digest(label, secret, context).hex() == case["digest"]
        assert spec.stream(secret, case["size"] + 1).hex() == case["stream"]


def tree_of(case: dict[str, Any]) -> list[tuple[bytes, int]]:
    return list(zip(raw(*case["correction_words"]), case["right_bits"], strict=True))


def test_trees(spec: ModuleType) -> None:
    for case in cases("trees"):
        key, *roots = raw(case["key"], *case["roots"])
        tree, states = spec.make_tree(key, roots, case["alpha"], len(case["right_bits"]))
        assert tree == tree_of(case)
        for party, root in enumerate(roots):
            leaves = spec.expand(key, root, tree, case["num_leaves"])
            assert leaves == raw(*case["leaves"][party])
            assert leaves[case["alpha"]] == states[party]


def test_hints_and_shares(spec: ModuleType) -> None:
    for case in cases("hints"):
        width = case["ring_bits"] // 8
        key, values = raw(case["key"], case["values"])
        leaves, values = raw(*case["leaves"]), spec.unpacked(values, width)
        hint = spec.make_hint(key, leaves, values, case["slot"], case["nu"], width)
        assert hint.hex() == case["hint"]
        for party, leaf in enumerate(leaves):
            share = spec.output_share(key, leaf, hint, width, party)
            assert spec.packed(share, width).hex() == case["shares"][party]


def test_check_words_and_tags(spec: ModuleType) -> None:
    for case in cases("checks"):
        key, row_key = raw(case["key"], case["row_key"])
        leaves, rows = raw(*case["leaves"]), raw(*case["rows"])
        assert spec.check_word(key, leaves, case["tree"], case["leaf"]).hex() == case["check_word"]
        digests = [spec.row_digest(row_key, row) for row in rows]
        assert digests == raw(*case["digests"])
        tags, answers = [], []
        for root in raw(*case["roots"]):
            states = spec.expand(key, root, tree_of(case), len(rows))
            tags.append(spec.tag_of_tree(key, states, digests))
            answers.append(spec.answer_tree(states, rows))
        assert tags == raw(*case["tags"])
        row = spec.xor(*answers)
        assert row == rows[case["leaf"]]
        assert spec.expected_tag(key, leaves, row_key, row) == spec.xor(*tags)


def test_answers_by_bits(spec: ModuleType) -> None:
    for case in cases("bits"):
        key, key_bits, *roots = raw(case["key"], case["key_bits"], *case["roots"])
        rows, row = raw(*case["rows"]), case["row"]
        tree, states = spec.make_tree(key, roots, row // 128, len(case["right_bits"]))
        assert tree == tree_of(case)
        word = spec.bit_word(key_bits, states, row % 128)
        assert word.hex() == case["word"]
        for party, root in enumerate(roots):
            leaves = spec.expand(key, root, tree, -(-len(rows) // 128))
            answer = spec.answer_by_bits(key_bits, leaves, word, rows)
            assert answer.hex() == case["answers"][party]


def test_permutations_and_matchings(spec: ModuleType) -> None:
    for case in cases("permutations"):
        seed = bytes.fromhex(case["hash_seed"])
        for i, wanted in enumerate(case["permutations"]):
            assert spec.permutation(seed, case["label"], i, case["m"]) == wanted
    for case in cases("matchings"):
        found = spec.match(case["candidates"], case["num_bins"])
        assert [-1 if bin is None else bin for bin in found] == case["bins"]


def test_plans(spec: ModuleType) -> None:
    for case in cases("plans"):
        assert spec.read_plan(case["text"]).digest.hex() == case["digest"]
        assert spec.canonical(json.loads(case["text"])) == case["text"]
    assert sum('"proofs"' in case["text"] for case in cases("plans")) == 3


@pytest.mark.parametrize("case", cases("plans_bad_fields"), ids=lambda case: case["defect"])
def test_bad_plans(spec: ModuleType, case: dict[str, Any]) -> None:
    rules = {"an unknown field": "rule 2", "white space": "rule 68", "upper-case hex": "rule 9"}
    with pytest.raises(spec.Malformed, match=rules.get(case["defect"], "plan")):
        spec.read_plan(case["text"])


def servers_of(spec: ModuleType, vector: dict[str, Any]) -> list[Any]:
    plan = spec.read_plan(vector["plan"])
    state = {name: bytes.fromhex(data) for name, data in vector["state"].items()}
    servers = [spec.Fetching(b, plan, spec.Model(plan, state)) for b in (0, 1)]
    states = [server.open_round(vector["round"]) for server in servers]
    for server, told in zip(servers, reversed(states), strict=True):
        server.start(told)
    return servers


def finish(servers: list[Any]) -> dict[str, Any]:
    """Close, check, commit, open and apply; both servers open the same."""
    said = [server.close_round(lambda name, size: bytes([7]) * size) for server in servers]
    said = [server.agree(told) for server, told in zip(servers, reversed(said), strict=True)]
    for server, told in zip(servers, reversed(said), strict=True):
        server.verify(told)
    said = [server.commit(lambda name, size: bytes([9]) * size) for server in servers]
    said = [server.reveal(told) for server, told in zip(servers, reversed(said), strict=True)]
    opened = [server.open(told) for server, told in zip(servers, reversed(said), strict=True)]
    for server in servers:
        server.apply()
    assert opened[0] == opened[1]
    assert servers[0].model.tensors == servers[1].model.tensors
    first: dict[str, Any] = opened[0]
    return first


def test_sums_within_their_bound(spec: ModuleType) -> None:
    for case in cases("sum_bound"):
        plan = spec.read_plan(json.dumps(case["plan"], sort_keys=True, separators=(",", ":")))
        opened = {"clients": list(range(case["clients"])), "weight": case["weight"]}
        opened |= {"sums": case["sums"], "lanes": case["lanes"]}
        assert case["kept"] != case["sums"]
        spec.keep_bound(plan, opened)
        assert opened["sums"] == case["kept"]


def test_a_round_at_both_servers(spec: ModuleType) -> None:
    vector = read("round")
    servers = servers_of(spec, vector)
    sent = [message["data"] for message in vector["messages"]]
    for message in vector["messages"]:
        due = servers[message["party"]].receive(bytes.fromhex(message["data"]))
        assert due is None or due.hex() in sent
    for answer in vector["answers"]:
        given = servers[answer["party"]].reply("ANSWER", answer["client"])
        assert given.hex() == answer["data"]
    opened = finish(servers)
    assert opened["clients"] == vector["clients"]
    assert opened["sums"] == vector["sums"]
    assert opened["lanes"] == vector["lanes"]
    assert spec.whole_digest(servers[0].model).hex() == vector["model"]


def test_an_audited_round_with_proofs(spec: ModuleType) -> None:
    """Both servers and their auditors; the clients' messages are given."""
    vector, raw_keys = read("round_audited"), [bytes([n]) * 32 for n in range(1, 5)]
    plan, secrets = spec.read_plan(vector["plan"]), raw(*vector["secrets"])
    state = {name: bytes.fromhex(data) for name, data in vector["state"].items()}
    servers = [spec.Audited(b, plan, spec.Model(plan, state), raw_keys[b]) for b in (0, 1)]

    def step(do: str, told: list[bytes]) -> list[Any]:
        return [getattr(s, do)(data) for s, data in zip(servers, reversed(told), strict=True)]

    said = [s.open_round(vector["round"], lambda *_, b=b: secrets[b])
            for b, s in enumerate(servers)]  # fmt: skip
    step("start", said)
    for message in vector["messages"]:
        servers[message["party"]].receive(bytes.fromhex(message["data"]))
    for answer in vector["answers"]:
        given = servers[answer["party"]].reply("ANSWER", answer["client"])
        assert given.hex() == answer["data"]
    verdicts = step("agree", [server.close_round() for server in servers])
    assert step("verify", verdicts) == [vector["clients"]] * 2
    commits = [server.commit(lambda name, size: bytes([9]) * size) for server in servers]
    auditors = [spec.Auditor(plan, b, raw_keys[2 + b]) for b in (0, 1)]
    shown = [spec.transcript(server) for server in servers]
    step("hear_commit", commits)
    passed = [a.sign(a.replay(data)) for a, data in zip(auditors, shown, strict=True)]
    opened = step("open", step("reveal", passed))
    for server, sums in zip(servers, opened, strict=True):
        assert (sums["sums"], sums["lanes"]) == (vector["sums"], vector["lanes"])
        server.apply()
        assert spec.whole_digest(server.model).hex() == vector["model"]


def test_transcripts_of_rounds_with_correlated_noise(spec: ModuleType) -> None:
    """An auditor passes both rounds, and without the offer the second share is another one."""
    vector = read("rounds_correlated")
    plan = spec.read_plan(vector["plan"])
    for party in (0, 1):
        auditor = spec.Auditor(plan, party, bytes([3 + party]) * 32)
        for played in vector["rounds"]:
            data = bytes.fromhex(played["transcripts"][party])
            offered = auditor.offer()
            found = auditor.replay(data, offered)
            assert (found["round"], found["step"]) == (played["round"], "")
            if offered:
                assert auditor.replay(data, [])["step"] == "share"
            auditor.keep(played["round"])


def test_private_digests_of_an_audited_round(spec: ModuleType) -> None:
    """The length of the relay tells how long the public share is."""
    vector = read("round_audited")
    plan, sent = spec.read_plan(vector["plan"]), {}
    for message in vector["messages"]:
        data = bytes.fromhex(message["data"])
        sent[spec.integer(data[16:24]), message["kind"]] = data[spec.HEADER.size :]
    for client in vector["clients"]:
        (nonce, seed_a, hint, tag_a, told_a), a = heads(sent[client, "REPORT"])
        (_, seed_b, _, tag_b, told_b), commitment = heads(sent[client, "REPORT_COMMIT"])
        masked = a[len(sent[client, "REPORT_RELAY"]) - 32 :]
        C = spec.context_of_trees(plan, vector["round"], client, nonce)
        R, S_a = spec.context_of_report(C, vector["round"], hint), client % 2
        assert told_b == spec.private_digest(R, S_a, seed_a, masked)
        assert told_a == spec.private_digest(R, 1 - S_a, seed_b, b"")
        hidden = spec.digest_long(b"upload", masked)
        assert tag_a == spec.upload_tag(R, seed_a, S_a, [told_a, commitment, hidden])
        assert tag_b == spec.upload_tag(R, seed_b, 1 - S_a, [told_b, commitment])


def heads(body: bytes) -> tuple[list[bytes], bytes]:
    """Nonce, seed, hint nonce, tag and private digest of a report, and what follows."""
    return [body[at : at + 16] for at in (0, 16, 32, 48)] + [body[64:96]], body[96:]


@pytest.mark.parametrize("case", cases("round_bad_reports"), ids=lambda case: case["defect"])
def test_a_bad_report_is_refused(spec: ModuleType, case: dict[str, Any]) -> None:
    vector = read("round")
    servers = servers_of(spec, vector)
    refused = 0
    for index, message in enumerate(vector["messages"]):
        data = case["data"] if index == case["replaces"] else message["data"]
        try:
            servers[message["party"]].receive(bytes.fromhex(data))
        except (spec.Malformed, spec.Rejected):
            refused += 1
    assert refused
    assert finish(servers)["clients"] == read("round_bad_reports")["accepted"]

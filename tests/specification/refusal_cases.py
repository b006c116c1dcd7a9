"""The cases of `tests/vectors/refused_messages.json`, by section of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.specification.refusals import HEADER, Change, Source, flip, put, resized
from tests.specification.replays import Blocks
from tests.specification.scenes import Json

Case = tuple[str, str, str, Json]
"""Section, comment, the library's code, and what is altered or done in addition."""

source = cache(Source)


def altered(name: str, *messages: Json, **more: object) -> Json:
    return {"transcript": name, "altered": list(messages), **more}


def one(kind: str, change: Change, client: int = 4, name: str = "plain", **more: object) -> Json:
    """One message of a client altered; by the client itself if `lies`."""
    own = source(name)
    change = own.lie(change) if more.pop("lies", False) else change
    return altered(name, own.alter(own.find(kind, client), change), **more)


def heard(client: int) -> bytes:
    """The model's digests that a client has downloaded."""
    own = source("plain")
    return own.scene.sent[own.find("MODEL_DIGEST", client)][HEADER:]


def number(n: int, size: int = 8) -> bytes:
    return n.to_bytes(size, "little")


def headers() -> Iterator[Case]:
    """At a server, and at its peer."""
    fields: list[tuple[str, str, Change]] = [
        ("another first byte", "not-a-message", put(0, b"X")),
        ("a later version", "version", put(4, number(5, 2))),
        ("an unknown kind", "wrong-kind", put(6, b"\x63")),
        ("a kind of servers", "wrong-kind", put(6, b"\x0e")),
        ("no server", "wrong-kind", put(7, b"\x02")),
        ("the other server", "another-recipient", put(7, b"\x01")),
        ("another round", "wrong-round", put(8, number(8))),
        ("a false length", "length", put(24, number(1))),
        ("another plan", "another-plan", flip(32)),
        ("half a header", "length", lambda data: data[:63]),
        ("a byte too many", "length", lambda data: data + b"\0"),
        ("a byte too few", "length", lambda data: data[:-1]),
        ("a longer body", "length", resized(lambda body: body + b"\0")),
    ]
    for comment, code, change in fields:
        yield "header", f"{comment}, to a server", code, one("REPORT", change)
    yield "header", "another round, to the peer", "protocol", one("SHARE", put(8, number(8)), 0)
    part = resized(lambda body: body[:-1])
    yield "header", "no whole entry, to the peer", "length", one("REPORT_SET", part, 0)
    more = resized(lambda body: body + body[-40:])
    yield "header", "entries of too many clients, to the peer", "length", one(
        "REPORT_SET", more, 0)  # fmt: skip


def uploads() -> Iterator[Case]:
    """Padding, tags, commitments, relays, seeds."""
    own = source("plain")
    early, late = own.plan.early[0].groups[0], own.plan.late[0].groups[0]
    ends = [16 * g.num_trees * g.depth + -(-g.num_trees * g.depth // 8) for g in (early, late)]
    last = HEADER + 48 + ends[0] - 1
    assert early.num_trees * early.depth % 8, "trees with padding bits"
    out = "client-rejected"
    yield "padding", "a padding bit of trees", out, one("TREES", flip(last, 0x80), lies=True)
    yield "tag", "another tag of trees", out, one("TREES", flip(96))
    yield "tag", "another tag of a commitment", out, one("TREES_COMMIT", flip(96))
    yield "tag", "a correction altered on the way", out, one("TREES", flip(112))
    yield "tag", "a masked value altered on the way", out, one("REPORT", flip(-1))
    yield "tag", "a hint altered on the way", out, one("REPORT", flip(-13))
    yield "tag", "a commitment altered on the way", out, one("REPORT_COMMIT", flip(-1))
    other = own.alter(own.find("REPORT", 4), own.lie(lambda data: data, bytes(64)))
    yield "tag", "a client that was shown another model", out, altered("plain", other)
    yield "commitment", "to other trees", out, one("TREES_COMMIT", flip(-1), lies=True)
    yield "commitment", "to another report", out, one("REPORT_COMMIT", flip(-1), lies=True)
    yield "relay", "another correction", out, one("TREES_RELAY", flip(80))
    yield "relay", "another nonce", out, one("TREES_RELAY", flip(64))
    yield "relay", "another check word", out, one("TREES_RELAY", flip(-1))
    yield "relay", "another hint", out, one("REPORT_RELAY", flip(-1))
    yield "relay", "another hint nonce", out, one("REPORT_RELAY", flip(80))
    yield "second seed", "in a report", out, one("REPORT", flip(80), lies=True)
    yield "second seed", "in a commitment", out, one("REPORT_COMMIT", flip(80), lies=True)
    yield "second seed", "another nonce", out, one("REPORT", flip(64), lies=True)
    yield "second seed", "another encapsulated key", out, one("TREES", flip(80), 6, "sealed")
    yield "second seed", "another sealed seed", out, one("TREES", flip(80 + 63), 6, "sealed")


def later(name: str, before: str, n: int, change: Change = lambda data: data,
          by: str = "server 0") -> Json:  # fmt: skip
    """Message n once more, or a changed one, before a server's first step of this kind."""
    own = source(name)
    at = next(i for i, step in enumerate(own.content["steps"])
              if (step["by"], step["do"]) == ("server 0", before))  # fmt: skip
    edits = own.alter(n, change)["edits"]
    step = {"by": by, "do": "receive", "takes": [n]}
    return {"transcript": name, "before": at, "step": step, "edits": edits}


def replays() -> Iterator[Case]:
    """The same message again, and others of its kind."""
    own, session = source("plain"), source("session")
    trees, report = own.find("TREES", 4), own.find("REPORT", 4)
    end, out = "close_round", "client-rejected"
    yield "replay", "a report once more, the same bytes", "", later("plain", end, report)
    second = later("plain", end, report, own.lie(flip(-1)))
    yield "replay", "a second report", out, second
    others = later("plain", end, trees, own.lie(flip(112)))
    yield "replay", "other trees behind a report", out, others
    wrong = later("plain", end, trees, put(7, b"\x01"), by="server 1")
    yield "replay", "a public share at the other server", out, wrong
    third = later("plain", end, trees, put(16, number(6)))
    yield "replay", "a client too many", "round-full", third
    other, steps = source("correlated"), source("correlated").content["steps"]
    n = other.find("REPORT_COMMIT", 3)
    index = next(i for i, step in enumerate(steps) if step.get("takes") == [n])
    extra = {"by": "server 0", "do": "receive", "takes": [n]}
    edits = other.alter(n, put(16, number(2)))["edits"]
    early = {"transcript": "correlated", "before": index, "step": extra, "edits": edits}
    yield "replay", "a client that has to stay away", "too-early", early
    n = session.find("REPORT", 2)
    at = session.find("REPORT", 2, nth=1)
    steps = session.content["steps"]
    index = next(i for i, step in enumerate(steps) if step.get("takes") == [at])
    again = {"by": "server 0", "do": "receive", "takes": [n]}
    late: dict[str, object] = {"transcript": "session", "before": index, "step": again, "edits": []}
    yield "replay", "a report of an earlier round", "wrong-round", late
    changed = {**late, "edits": [[8, 8, number(5).hex()]]}
    yield "replay", "the same in a header of this round", out, changed


def checks() -> Iterator[Case]:
    """Only the fold sees them: nobody refuses, and the client is not in the sum."""
    own = source("plain")
    trees, commit = own.find("TREES", 4), own.find("TREES_COMMIT", 4)
    early = own.plan.early[0]
    places = {
        "the first one of trees": HEADER + 48 + early.tree_bytes - 32 * early.num_trees,
        "the last one of trees": -1,
        "a correction of the last level": 112 + 16 * early.num_trees * 2,
    }
    for comment, place in places.items():
        lies = own.committed(trees, flip(place), commit)
        yield "check word", comment, "", altered("plain", *lies)
    session = source("session")
    lies = session.committed(session.find("TREES", 1), flip(-1), session.find("TREES_COMMIT", 1))
    comment = "of a session, whose trees are then forgotten"
    yield "check word", comment, "no-accepted-keys", altered("session", *lies)
    place = HEADER + 64 + own.plan.late[0].tree_bytes - 1
    late = own.find("REPORT", 4), flip(place), own.find("REPORT_COMMIT", 4), heard(4)
    yield "check word", "the last one of late trees", "", altered("plain", *own.committed(*late))


def answers() -> Iterator[Case]:
    """At the client."""
    by: Json = {"by": "client 4"}
    own = source("plain")
    for party in (0, 1):
        n = own.find("ANSWER", 4, nth=party)
        for comment, code, place in [("rows", "tag-mismatch", 0), ("tags", "tag-mismatch", 144),
                                     ("the digest of rows", "models-differ", -1)]:  # fmt: skip
            change = own.alter(n, own.reseal(4, party, flip(place)))
            yield "answer", f"server {party} alters {comment}", code, altered("plain", change, **by)
    n = own.find("ANSWER", 4)
    for comment, code, made in [
        ("a byte altered on the way", "altered-message", flip(70)),
        ("a tag of the seal altered on the way", "altered-message", flip(-1)),
        ("of the other server", "answer-for-another", put(7, b"\x01")),
        ("of another round", "answer-for-another", put(8, number(8))),
        ("too short", "length", lambda data: data[:-1]),
        ("a later version", "version", put(4, number(5, 2))),
    ]:
        yield "answer", comment, code, altered("plain", own.alter(n, made), **by)
    fetch = source("fetch_tags")
    for kind, comment, made in [
        ("MODEL", "another clear tensor", flip(-1)),
        ("MODEL", "another digest of the clear tensors", flip(64)),
        ("MODEL", "another digest of the rows", flip(96)),
        ("MODEL_DIGEST", "another digest of the rows", flip(-1)),
    ]:
        yield "answer", f"{kind}: {comment}", "models-differ", one(kind, made, **by)
    for kind, comment, code, made in [
        ("FETCH_ANSWER", "another digest of the rows", "models-differ", flip(96)),
        ("FETCH_ANSWER", "a byte altered on the way", "altered-message", flip(-1)),
        ("FETCH_MODEL", "another clear tensor", "models-differ", flip(-1)),
    ]:
        change = fetch.alter(fetch.find(kind, 5), made)
        yield "answer", f"{kind}: {comment}", code, altered("fetch_tags", change, by="client 5")


def opening() -> Iterator[Case]:
    """Between the servers; message `nth` of a kind is that of server `nth`."""

    def peer(kind: str, change: Change, nth: int = 1) -> Json:
        own = source("plain")
        return altered("plain", own.alter(own.find(kind, nth=nth), change))

    empty, fewer = resized(lambda body: body[:32]), resized(lambda body: body[:16])
    differ, mismatch = "report-sets-differ", "commitment-mismatch"
    yield "set", "no report is at both", "too-few-reports", peer("REPORT_SET", empty)
    yield "set", "another digest at one server", differ, peer("REPORT_SET", flip(104))
    yield "set", "another coin at one server", "too-few-reports", peer("REPORT_SET", flip(64))
    yield "set", "one report fails at one server", mismatch, peer("VERDICTS", flip(64))
    yield "set", "too few verdicts", differ, peer("VERDICTS", fewer)
    short = resized(lambda body: body[:-1])
    yield "share", "another sum", mismatch, peer("SHARE", flip(-1))
    yield "share", "another salt", mismatch, peer("SHARE", flip(64))
    yield "share", "another commitment", mismatch, peer("SHARE_COMMIT", flip(64))
    yield "share", "a share that is too short", "length", peer("SHARE", short)
    yield "state", "other clear tensors", "models-differ", peer("ROUND_STATE", flip(64))
    yield "state", "other rows", "models-differ", peer("ROUND_STATE", flip(-1))
    steps: list[tuple[str, str, str, Json]] = [
        ("a number that was used", "round-number-used", "", {"do": "open_round", "round": 7}),
        ("the number of fetches", "round-number-reserved", "",
         {"do": "open_round", "round": (1 << 64) - 1}),
        ("a second round", "wrong-step", "start", {"do": "open_round", "round": 8}),
        ("a report after the end", "wrong-step", "agree", {"do": "receive", "takes": [10]}),
        ("a reply after the end", "wrong-step", "agree",
         {"do": "reply", "kind": "MODEL", "client": 4}),
        ("a set before the end", "round-open", "close_round", {"do": "agree", "takes": [21]}),
        ("a share before the commitment", "wrong-step", "commit", {"do": "reveal", "takes": [25]}),
        ("a second opening", "wrong-step", "apply", {"do": "open", "takes": [27]}),
        ("an answer without trees", "no-accepted-keys", "close_round",
         {"do": "reply", "kind": "ANSWER", "client": 11}),
    ]  # fmt: skip
    total = source("plain").content["steps"]
    for comment, code, before, step in steps:
        at = next((i for i, each in enumerate(total) if each["do"] == before), len(total))
        step = {"by": "server 0", **step}
        own = {"transcript": "plain", "before": at, "step": step, "edits": []}
        yield "state", comment, code, own


def counts() -> Iterator[Case]:
    """Rows that stay closed: position 2 is opened, position 1 is not."""
    own, mismatch, at = source("closed"), "commitment-mismatch", HEADER + 32

    def peer(kind: str, place: int) -> Json:
        return altered("closed", own.alter(own.find(kind, nth=1), flip(place)))

    opened = next(s["opened"] for s in own.content["steps"] if "opened" in s)
    assert opened["lanes"]["table"][1:3] == [1, 2]
    yield "counts", "another salt", mismatch, peer("COUNTS", HEADER)
    yield "counts", "another root", mismatch, peer("COUNTS", at)
    yield "counts", "another count", mismatch, peer("COUNTS", -1)
    yield "counts", "another value of an opened row", mismatch, peer("SHARE", at + 64 + 16)
    yield "counts", "another salt of an opened row", mismatch, peer("SHARE", at + 64)
    yield "counts", "another leaf of a closed row", mismatch, peer("SHARE", at + 32)
    yield "counts", "bytes behind an opened row", "", peer("SHARE", at + 64 + 31)
    steps = own.content["steps"]
    before = next(i for i, each in enumerate(steps) if each["do"] == "reveal_counts")
    step = {"by": "server 0", "do": "reveal", "takes": [own.find("SHARE_COMMIT", nth=1)]}
    early = {"transcript": "closed", "before": before, "step": step, "edits": []}
    yield "counts", "all values before the counts", "protocol", early


def proofs() -> Iterator[Case]:
    """A proof that does not hold is seen in the verdicts alone, and the one report is left out."""
    own, few = source("proofs"), "too-few-reports"
    report, commit = own.find("REPORT", 2), own.find("REPORT_COMMIT", 2)
    statement = own.plan.statement
    slack = -statement.masked_bytes, -16 * statement.num_elements
    for comment, place in [("a slack value", slack[0]), ("a bit of the carries", slack[1]),
                           ("the last coefficient", -16)]:  # fmt: skip
        yield "proof", comment, few, one("REPORT", flip(place), 2, "proofs", lies=True)
    lies = own.committed(report, flip(slack[0] - own.plan.dense[0].width * 2 - 1), commit)
    yield "proof", "the hint of a carry", few, altered("proofs", *lies)
    beyond = put(len(own.scene.sent[report]) - 16, b"\xff" * 16)
    yield "proof", "an element beyond the field", "client-rejected", one(
        "REPORT", beyond, 2, "proofs", lies=True)  # fmt: skip
    n = own.find("VERDICTS", nth=1)
    for comment, code, change in [
        ("another opened element of the peer", few, flip(-16)),
        ("an element of the peer beyond the field", "decode", put(HEADER + 16, b"\xff" * 16)),
    ]:
        yield "proof", comment, code, altered("proofs", own.alter(n, change))


def fetches() -> Iterator[Case]:
    """Of client 5, whose public server is 1, in an open round; message by message."""
    own, name, out = source("fetch_tags"), "fetch_tags", "rejected"
    commit, fetch, relay = (own.find(kind, 5) for kind in ("FETCH_COMMIT", "FETCH", "FETCH_RELAY"))
    group = own.spec.trees_of_fetch(own.plan, own.plan.retrieving[0]).groups[0]
    bits = group.num_trees * group.depth
    assert bits % 8, "trees with padding bits"
    last = HEADER + 48 + 16 * bits + -(-bits // 8) - 1
    steps = own.content["steps"]

    def more(comment: str, code: str, before: int, step: Json,
             change: Change = lambda data: data) -> Case:  # fmt: skip
        edits = [edit for n in step.get("takes", ()) for edit in own.alter(n, change)["edits"]]
        extra = {"transcript": name, "before": before, "step": {"by": "server 0", **step}}
        return "fetch", comment, code, {**extra, "edits": edits}

    def at(do: str, takes: list[int] | None = None) -> int:
        wanted = ("server 0", do, takes)
        return next(i for i, s in enumerate(steps) if (s["by"], s["do"], s.get("takes")) == wanted)

    for comment, code, n, change in [
        ("another tag of a commitment", out, commit, flip(96)),
        ("a commitment altered on the way", out, commit, flip(-1)),
        ("a correction altered on the way", out, fetch, flip(112)),
        ("a padding bit of trees", out, fetch, own.lie(flip(last, 0x80))),
        ("of a round", "another-recipient", fetch, put(8, number(2))),
        ("a commitment for the other server", "another-recipient", commit, put(7, b"\x01")),
        ("another correction in a relay", "commitment-mismatch", relay, flip(80)),
        ("another nonce in a relay", "commitment-mismatch", relay, flip(64)),
    ]:
        yield "fetch", comment, code, altered(name, own.alter(n, change))
    first, second, answer = (
        at("receive_fetch", [commit]), at("receive_fetch", [relay]), at("reply_fetch"),
    )  # fmt: skip

    def receive(n: int) -> Json:
        return {"do": "receive_fetch", "takes": [n]}

    def reply(kind: str) -> Json:
        return {"do": "reply_fetch", "kind": kind, "client": 5}

    other = "public trees at the other server"
    yield more(other, "another-recipient", second, receive(fetch), put(7, b"\0"))
    yield more("a relay before the commitment", "no-fetch", first, receive(relay))
    yield more("a second relay", "no-fetch", second + 1, receive(relay))
    yield more("the reply of the other server", out, answer, reply("FETCH_MODEL"))
    yield more("a reply without trees", "no-fetch", second, reply("FETCH_ANSWER"))
    yield more("a second reply", "no-fetch", answer + 1, reply("FETCH_ANSWER"))
    yield more("a fetch while the round closes", "fetch-in-round", at("commit"), receive(commit))


def limits() -> Iterator[Case]:
    """Rounds of the plan, and a sum that no proven reports make up."""
    step = {"by": "server 0", "do": "open_round", "round": 9}
    end = len(source("correlated").content["steps"])
    more = {"transcript": "correlated", "before": end, "step": step, "edits": []}
    yield "state", "a round beyond the last one", "rounds-spent", more
    own = source("proofs")
    spec, share = own.spec, own.find("SHARE", nth=1)
    value = HEADER + 32 + own.plan.with_trees[0].width  # behind the weight in its lane
    lie = flip(value + 4)(own.scene.sent[share])
    agreed = next(s["after"]["set"] for s in own.content["steps"] if s.get("do") == "verify")
    parts = bytes([1]), bytes.fromhex(agreed), lie[HEADER : HEADER + 32], lie[HEADER + 32 :]
    fits = put(HEADER, spec.digest_long(b"share", *parts))
    changes = own.alter(share, lambda _: lie), own.alter(own.find("SHARE_COMMIT", nth=1), fits)
    comment = "a sum that no proven reports make up"
    yield "share", comment, "sum-beyond-bound", altered("proofs", *changes)


SECTIONS = headers, uploads, replays, checks, answers, opening, counts, proofs, fetches, limits


def refused_messages() -> Json:
    """Every case, with what the blocks make of it."""
    cases = []
    for section in SECTIONS:
        for name, comment, code, alteration in section():
            case = {"section": name, "comment": comment, **alteration}
            cases.append({**case, **outcome(case), "code": code})
    return {
        "about": "Transcripts with altered messages: who refuses in which step, with the exception "
        "and the reason of the blocks and the code of the library, and which clients are in the "
        "sum that each server opens.",
        "cases": cases,
    }


def outcome(case: Json) -> Json:
    """Who refuses, with which exception and reason of the blocks, and what opens."""
    own = source(case["transcript"])
    blocks = Blocks(own.spec, own.content)
    if "by" in case:
        refused, opened = blocks.client(case), {}
    else:
        replay = blocks.replay(case)
        refused, opened = replay.refused, {"opened": replay.opened}
    if refused is None:
        return {"refused": None, **opened}
    by, do, error = refused
    said = {"by": by, "do": do, "refusal": type(error).__name__, "reason": str(error)}
    return {"refused": said, **opened}

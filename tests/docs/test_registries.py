"""Registries: the page has what the sources have, and no two uses of a label can meet."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter

import pytest

from scripts.generate import labels, registries
from tests.fsl.test_proofs import small
from tests.support.audited import audited, audited_servers, auditors, reported, shown_by
from tests.support.audited import until_verified as close
from tests.support.federation import Wire, mixed_plan, open_wire, start, update_of
from torchfsl.crypto import kdf
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import CARRIES
from torchfsl.fsl.round import finish_round

USES = labels.uses()
WITHOUT_VECTOR = ("sesa/", "sefl/", "privhfl/", "service/net/")
"""Other systems and the transport, which `docs/specification` does not specify."""
OF_CARRIES = f'"{CARRIES}"'


def clashes(uses: list[labels.Use]) -> list[tuple[labels.Use, labels.Use]]:
    """Pairs of uses of one label under one primitive whose contexts could be the same bytes."""
    return [
        (one, other)
        for one, other in itertools.combinations(uses, 2)
        if (one.label, one.how) == (other.label, other.how) and labels.could_be_equal(one, other)
    ]


def use(*parts: str, label: str = "a") -> labels.Use:
    return labels.Use(label, "derive", "", parts, ())


def test_the_tables_are_those_of_the_sources() -> None:
    assert registries.PAGE.read_text() == registries.page(), (
        "stale: python -m scripts.generate.registries"
    )


def test_every_label_is_registered_and_has_one_constant() -> None:
    """A literal away from its constant would escape the test of places below."""
    constants = list(labels.defined().values())
    assert len(constants) > 40
    assert Counter(labels.literals()) == Counter(constants) == Counter(set(constants))
    assert {use.label for use in USES} == set(constants)


def test_other_languages_have_labels_of_the_registry_alone() -> None:
    found = labels.elsewhere()
    assert {"torchfsl tree", "torchfsl coin"} <= found, "C++ and TypeScript"
    assert found <= set(labels.defined().values())


def test_every_label_of_the_specification_is_in_a_vector() -> None:
    """A planted label of `fsl` without a vector is found."""
    file = registries.PAGE.parents[2] / "tests" / "vectors" / "kdf.json"
    vectors = {case["label"] for case in json.loads(file.read_text())["cases"]}

    def lacking(uses: list[labels.Use]) -> set[str]:
        named = {use.label for use in uses for place in use.places
                 if not place.startswith(WITHOUT_VECTOR)}  # fmt: skip
        return named - vectors

    assert not lacking(USES)
    planted = labels.Use("torchfsl new", "derive", "", (), ("fsl/server/book.py:Book",))
    assert lacking([*USES, planted]) == {"torchfsl new"}


def test_places_are_those_of_the_syntax_trees() -> None:
    named = {(use.label, place) for use in USES for place in use.places if place != "reserved"}
    assert named == labels.used()


def test_no_two_uses_of_a_label_have_contexts_that_could_be_equal() -> None:
    """Carry trees have the name of no segment: see `test_proofs`, which has such a plan refused."""
    for one, other in clashes(USES):
        assert (OF_CARRIES in one.parts) != (OF_CARRIES in other.parts), (one, other)
    planted = use("what", "client:8", label="torchfsl proof")
    found = [one.parts[0] for one, _ in clashes([*USES, planted]) if one.label == planted.label]
    assert found == ['"point"', '"weights"', '"rho"']


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (use("C:96", "n"), use("R:144", "n"), False),
        (use("C:96", "n"), use("C:96", "m"), True),
        (use('"key"', "n"), use('"masks"', "n"), False),
        (use("n", '"key"'), use("n", '"masks"'), False),
        (use("n:3"), use('"key"'), True),
        (use("n:4"), use('"key"'), False),
        (use("n"), use("n", "m"), False),
        (use("n", "m.."), use("n"), True),
        (use("n:8", "m.."), use("n:9", "k.."), False),
        (use(), use(), True),
    ],
)
def test_contexts_differ_by_number_literal_or_size(
    one: labels.Use, other: labels.Use, equal: bool
) -> None:
    assert labels.could_be_equal(one, other) is equal
    assert labels.could_be_equal(other, one) is equal


def parts_of(framed: bytes) -> list[bytes]:
    found = []
    while framed:
        size = int.from_bytes(framed[:8], "little")
        found.append(framed[8 : 8 + size])
        framed = framed[8 + size :]
    return found


def fits(use: labels.Use, parts: list[bytes]) -> bool:
    """Whether these parts are of this line of the table."""
    given = labels.Use("", "", "", tuple(f"x:{len(part)}" for part in parts), ())
    literal = all(
        wanted.strip('"').encode() == part
        for wanted, part in zip(use.parts, parts, strict=False)
        if wanted.startswith('"')
    )
    return literal and labels.could_be_equal(use, given)


def play(plan: Plan) -> None:
    """A round with a fetch before it; under an audit up to a transcript and a verdict."""
    updates = {client: update_of(plan, client) for client in range(2)}
    if not plan.audited:
        servers, wire = open_wire(plan)
        for client, update in updates.items():
            own = start(wire, client, update)
            own.retrieve()
            own.submit(update)
        finish_round(servers)
        Client(plan, Wire(servers), client_id=1).fetch({s.name: [1] for s in plan.retrieving})
        return
    servers = reported(audited_servers(plan), 1, updates)
    close(servers)
    shown = shown_by(servers[0])
    auditors(plan)[0].replay(shown)


def test_contexts_of_played_rounds_fit_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[labels.Use] = set()
    derive, digest = kdf.derive, kdf.digest

    def check(how: str, label: bytes, parts: list[bytes]) -> None:
        lines = [use for use in USES if (use.label.encode(), use.how) == (label, how)]
        found = [use for use in lines if fits(use, parts)]
        assert found, (label, how, [len(part) for part in parts])
        seen.update(found)

    def derived(secret: bytes, label: bytes, context: bytes, size: int = 16) -> bytes:
        check("derive", label, parts_of(context))
        return derive(secret, label, context, size)

    def digested(label, *parts, pieces=None):  # type: ignore[no-untyped-def]
        last = [] if pieces is None else [b"".join(bytes(piece) for piece in pieces)]
        check("digest", label, [*map(bytes, parts), *last])
        return digest(label, *parts, pieces=pieces)

    monkeypatch.setattr(kdf, "derive", derived)
    monkeypatch.setattr(kdf, "digest", digested)
    play(mixed_plan(lane="count"))
    play(dataclasses.replace(mixed_plan(lane="count"), min_contributors=2))
    play(dataclasses.replace(mixed_plan(secure=False)))
    plan = audited(
        small(proofs="norm", l2_bound=400, lane="weight", max_weight=3, noise_sigma=9, lane_sigma=3)
    )
    play(plan)
    coin.commitment(coin.template_of(plan), 0, bytes(32))
    coin.with_coins(plan, (bytes(32), bytes(32)))
    of_fsl = [use for use in USES if any(place.startswith("fsl/") for place in use.places)]
    left = {use for use in of_fsl if use.how in ("derive", "digest")} - seen
    kept = {"torchfsl permutation"}  # of earlier tests' plans, which a process computes once
    assert {use.label for use in left} - kept == {"torchfsl row"}, (
        "a segment's frame is hashed once"
    )

"""Random plans and rounds, played by the library and by the specification from equal coins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.specification import audited
from tests.specification.draws import KEYS as KEYS
from tests.specification.draws import nothing as nothing
from tests.specification.draws import random_part as random_part
from tests.specification.draws import random_plan as random_plan
from tests.specification.draws import random_reals
from tests.specification.draws import random_rows as random_rows
from tests.support.federation import HEADER, make_state
from tests.support.reference import hpke as reference
from torchfsl.crypto import entropy, hpke
from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl.client import round as client_round
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.noise import KeyedNoise
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.union import mask_update
from torchfsl.submodel.halves import heard
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerSGD
from torchfsl.submodel.update import RawSegment, Update, quantise

ENDS = "reports", "aborts", "drops", "attacks"
"""What a client does at the end of a round."""


class Tape:
    """Bytes that follow from a seed, for both implementations."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def draw(self, size: int) -> bytes:
        return self._rng.bytes(size)

    def rand(self, name: str, size: int) -> bytes:
        """As the specification draws."""
        return self.draw(size)

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """The library draws from here too, except the one nonce that never travels."""
        with (
            mock.patch.object(entropy, "os", SimpleNamespace(urandom=self.draw)),
            mock.patch.object(client_round, "random_bytes", bytes),
            mock.patch.object(hpke, "seal", lambda *said: reference.seal(self.draw(32), *said)),
        ):
            yield


def with_given_ephemerals(spec: ModuleType) -> ModuleType:
    """HPKE of the specification takes its ephemeral key from `rand`, as the library's on a tape."""
    vars(spec)["seal_seed"] = lambda public, info, seed, rand: reference.seal(
        rand("ephemeral", 32), public, info, seed
    )
    return spec


class Ended(Exception):
    """Both implementations have refused a step, and the round has ended unopened."""


class Pair:
    """One plan at two servers of each implementation, which get equal coins and must say the same.

    `compared` counts the byte strings and numbers that were. `spoiled` is a step and a place: one
    byte of what server 0 is told in this step, from the end if the place is negative.
    """

    def __init__(self, spec: ModuleType, plan: Plan, seed: int) -> None:
        self.spec, self.plan, self.own = spec, plan, spec.read_plan(plan.to_json())
        self.rng, self.number, self.compared = np.random.default_rng(seed), 0, 0
        self.members: dict[int, Any] = {}
        self.spoiled: tuple[str, int] | None = None
        rate = float(self.rng.choice([1.0, 0.3]))
        chosen: dict[str, Any] = {
            "source": str(self.rng.choice(["delta", "gradient"])),
            "reduce": str(self.rng.choice(["mean", "sum"])),
        }
        state, keys = make_state(plan, seed), KEYS if plan.server_keys else (None, None)
        tensors = {name: value.tobytes() for name, value in state.items()}
        self.theirs, self.ours = [], []
        self.keyed = KeyedNoise(), KeyedNoise()
        for b, key in enumerate(keys):
            model = ServerModel(state, ServerSGD(rate), **chosen)
            keyed = self.keyed[b]
            sign: Any = {"sign_key": audited.SIGN_KEYS[b]} if plan.audited else {}
            self.theirs.append(Server(b, plan=plan, model=model, key=key, draw_noise=keyed, **sign))
            own = spec.Model(self.own, tensors, rate, **chosen)
            make, signs = (
                (spec.Audited, audited.RAW[b : b + 1]) if plan.audited else (spec.Fetching, ())
            )
            self.ours.append(make(b, self.own, own, *signs, key and key.raw))
        self.judges = audited.Judges(spec, plan, self.own) if plan.audited else None

    def same(self, theirs: Any, ours: Any) -> Any:
        """What both are."""
        assert theirs == ours
        self.compared += 1
        return ours

    # --- a round ----------------------------------------------------------------------------------

    def round(self) -> None:
        """Play the next round, with some clients that stop half-way and some fetches."""
        self.number += int(self.rng.integers(1, 4))
        if self.plan.max_rounds and self.theirs[0].rounds_opened >= self.plan.max_rounds:
            with pytest.raises(ProtocolError):
                self.theirs[0].open_round(self.number)
            with pytest.raises(self.spec.Malformed):
                self.ours[0].open_round(self.number)
            return
        said = [self.same(*self.begun(b)) for b in (0, 1)]
        self.cross("start", said)
        for client in self.rng.choice(6, self.plan.max_clients - 1, replace=False):
            number = int(client) << (40 if client > 3 else 0)
            if self.same(
                self.theirs[0].participation.allows(number, self.theirs[0].rounds_opened),
                self.ours[0].allows(number),
            ):
                self.client(number)
        if self.plan.retrieving:
            self.fetching()
        self.finish()

    def begun(self, b: int) -> tuple[bytes, bytes]:
        """ROUND_STATE of one server."""
        if not self.plan.audited:
            return self.theirs[b].open_round(self.number), self.ours[b].open_round(self.number)
        secrets = self.rng.bytes(96)
        theirs = self.theirs[b].open_round(self.number, secrets=secrets)
        return theirs, self.ours[b].open_round(self.number, lambda *_: secrets)

    def finish(self) -> None:
        """From closing to the changed model."""
        coins, said = [self.rng.bytes(32) for _ in range(2)], []
        for b, coin in enumerate(coins):
            theirs = self.theirs[b].close_round(coin=coin)
            said.append(self.same(theirs, self.ours[b].close_round(lambda *_, coin=coin: coin)))
        entries = [{s[at : at + 40] for at in range(96, len(s), 40)} for s in said]
        if not entries[0] & entries[1]:
            for b in (0, 1):
                with pytest.raises(ProtocolError):
                    self.theirs[b].agree(said[1 - b])
                with pytest.raises(self.spec.Unopened):
                    self.ours[b].agree(said[1 - b])
            return
        folds = self.cross("agree", said)
        for b in (0, 1):
            theirs, accepted = self.both("verify", b, folds[1 - b])
            self.same(theirs, tuple(accepted))
        commits = [self.commit(b) for b in (0, 1)]
        if self.plan.noise_taps and self.rng.random() < 0.2:  # the next round has the same index
            for b in (0, 1):
                self.theirs[b].abandon_round()
                self.ours[b].end([])
            return
        shares = self.reveal(commits)
        for b in (0, 1):
            sums, opened = self.both("open", b, shares[1 - b])
            self.opened(sums, opened)
            self.theirs[b].apply(sums)
            self.ours[b].apply()
            for name, value in self.theirs[b].model.state.items():
                self.same(value.tobytes(), self.ours[b].model.tensors[name])

    def cross(self, step: str, said: list[bytes]) -> list[bytes]:
        """A step of all servers, with what the peers have said; what they say now."""
        return [self.same(*self.both(step, b, said[1 - b])) for b in (0, 1)]

    def both(self, step: str, b: int, told: bytes) -> tuple[Any, Any]:
        """A step of server `b` by both; `Ended` if both refuse what it is told."""
        if self.spoiled is not None and (step, b) == (self.spoiled[0], 0):
            place = (HEADER if self.spoiled[1] >= 0 else len(told)) + self.spoiled[1]
            told = told[:place] + bytes([told[place] ^ 1]) + told[place + 1 :]
        theirs, ours = (getattr(server[b], step) for server in (self.theirs, self.ours))
        try:
            found = theirs(told)
        except ProtocolError:
            with pytest.raises(self.spec.Unopened):
                ours(told)
            raise Ended from None
        return found, ours(told)

    def reveal(self, commits: list[bytes]) -> list[bytes]:
        """The shares, after the counts if those are opened first; the other order is refused."""
        first = self.plan.opens_counts_first
        for b in (0, 1):
            other = "reveal" if first else "reveal_counts"
            with pytest.raises(ProtocolError):
                getattr(self.theirs[b], other)(commits[1 - b])
            with pytest.raises(self.spec.Malformed):
                getattr(self.ours[b], other)(commits[1 - b])
        if self.judges is not None:
            commits = self.passes(commits)
        if not first:
            return self.cross("reveal", commits)
        return self.cross("reveal_kept", self.cross("reveal_counts", commits))

    def passes(self, commits: list[bytes]) -> list[bytes]:
        """What each server's auditor signs once it has replayed the transcript."""
        assert self.judges is not None
        sides = zip(self.theirs, self.ours, commits, strict=True)
        shown = [self.judges.shown(b, *side) for b, side in enumerate(sides)]
        self.cross("hear_commit", commits)
        self.compared += len(shown)
        return [self.judges.passed(b, data) for b, data in enumerate(shown)]

    def commit(self, b: int) -> bytes:
        """One server's commitment; both implementations draw its noise from one key."""
        salt, keyed = self.rng.bytes(48 if self.plan.opens_counts_first else 32), self.keyed[b]
        if self.judges is not None:
            audit, offered = self.theirs[b].audit, self.judges.offer(b)
            assert audit is not None
            audit.offered = offered
            theirs = self.theirs[b].commit(salt=salt)
            return bytes(self.same(theirs, self.ours[b].commit(lambda *_: salt, offered)))
        keyed.begin(self.rng.bytes(16))
        theirs = self.theirs[b].commit(salt=salt)
        return bytes(self.same(theirs, self.ours[b].commit(lambda *_: salt, words_of(keyed))))

    def opened(self, theirs: Opened, ours: dict[str, Any]) -> None:
        """Sums, lanes and clients."""
        self.same({name: total.tolist() for name, total in theirs.sums.items()}, ours["sums"])
        self.same({name: lane.tolist() for name, lane in theirs.lanes.items()}, ours["lanes"])
        self.same((theirs.clients, theirs.total_weight), (tuple(ours["clients"]), ours["weight"]))

    # --- clients ----------------------------------------------------------------------------------

    def client(self, number: int) -> None:
        """One client of each implementation in the round: all that travels is equal."""
        rng, plan, seed = self.rng, self.plan, int(self.rng.integers(1 << 32))
        member = self.members.get(number)
        if member is None:
            wanted = {s.name: random_rows(rng, s) for s in plan.early}
            library = Client(plan, self, client_id=number)
            member = SimpleNamespace(library=library, wanted=wanted, epochs=0, trees=None)
            if plan.max_epochs > 1:
                self.members[number] = member
        parts = [random_part(rng, plan, s, member.wanted.get(s.name)) for s in plan.segments]
        update = {s.name: part for s, part in zip(plan.segments, parts, strict=True)}
        if plan.payload == "masks":
            update = self.masks(update)
        elif plan.l2_bound or rng.random() < 0.3:
            update = self.quantised(update)
        weight = int(rng.integers(1, plan.max_weight, endpoint=True))
        downloads, ends = bool(rng.random() < 0.7), str(rng.choice(ENDS, p=(0.7, 0.1, 0.1, 0.1)))
        self.log: list[tuple[int, bytes]] = []
        with Tape(seed).patched():
            theirs = self.library_round(member)
            if downloads:
                theirs.download()
            rows = theirs.retrieve() if plan.retrieving else {}
            if ends == "aborts":
                theirs.abort()
            missing = theirs.submit(update, weight=weight).unmatched if ends == "reports" else {}
        log, self.log = self.log, []
        if ends == "aborts":  # the report of a client whose data or training is wrong
            update, weight = nothing(plan), 0
        given = downloads, ends in ("reports", "aborts")
        trees, found = self.own_client(member, Tape(seed), update, weight, *given)
        assert len(log) == len(self.log)
        for one, two in zip(log, self.log, strict=True):
            self.same(one, two)
        if ends == "attacks":
            self.members.pop(number, None)
            empty = as_own(nothing(plan))
            messages = self.spec.report(trees, self.number, empty)
            if rng.random() < 0.3 and not plan.late:  # a second report on the same trees
                messages += self.spec.report(trees, self.number, empty)
            if rng.random() < 0.5:  # other trees of the client, behind its report
                others = self.spec.ClientTrees(self.own, number, self.number, Tape(seed + 1).rand)
                asked = {name: rows.tolist() for name, rows in member.wanted.items()}
                messages += self.spec.ask(others, self.number, asked)
            self.attack(messages)
        self.rows(rows, found)
        for name, positions_left in missing.items():
            left = set(trees.unmatched[name]) & set(update[name].positions.tolist())
            self.same(positions_left.tolist(), sorted(left))

    def quantised(self, update: Update) -> Update:
        """Real values in place of those of an update, rounded within the bounds."""
        raw, seed = random_reals(self.rng, update), None
        if self.plan.encoding.rounding == "stochastic":
            seed = self.rng.bytes(16)
        theirs = quantise(self.plan, raw, rounding_seed=seed)[0]
        ours = self.spec.quantise_update(self.own, as_own(raw), seed)
        assert self.spec.is_within(self.own, ours) or not self.plan.l2_bound
        self.same(as_own(theirs), ours)
        return theirs

    def masks(self, update: Update) -> Update:
        """Masks at the positions of an update."""
        wanted, seed = {name: part.positions for name, part in update.items()}, self.number
        with Tape(seed).patched():
            theirs = mask_update(self.plan, wanted)
        asked = {name: rows.tolist() for name, rows in wanted.items()}
        self.same(as_own(theirs), self.spec.mask_update(self.own, asked, Tape(seed).rand))
        return theirs

    def library_round(self, member: Any) -> Any:
        if self.plan.max_epochs > 1:
            return member.library.continue_session(self.number, indices=member.wanted)
        return member.library.start_round(self.number, indices=member.wanted)

    def own_client(
        self, member: Any, tape: Tape, update: Update, weight: int, downloads: bool, reports: bool
    ) -> tuple[Any, Any]:
        """The specification's client; its trees and the rows that it read."""
        spec, number = self.spec, self.number
        if member.trees is None or member.epochs == self.plan.max_epochs:
            client = member.library.client_id
            member.trees, member.epochs = spec.ClientTrees(self.own, client, number, tape.rand), 0
            wanted = {name: rows.tolist() for name, rows in member.wanted.items()}
            self.deliver(spec.ask(member.trees, number, wanted))
        trees, heard, rows = member.trees, b"", {}
        trees.rand, member.epochs = tape.rand, member.epochs + 1
        if downloads:
            model = self.ask(trees.S_a, "MODEL", trees), self.ask(trees.S_b, "MODEL_DIGEST", trees)
            heard = spec.read_model(trees, number, *model)[1]
        if self.plan.retrieving:
            rows = spec.read_rows(trees, number, [self.ask(b, "ANSWER", trees) for b in (0, 1)])
        if reports:
            self.deliver(spec.report(trees, number, as_own(update), heard, weight))
        return trees, rows

    def attack(self, waiting: list[tuple[int, bytes]]) -> None:
        """Deliver messages, some of them again and some spoiled; relays are spoiled as well."""

        def outcome(receive: Callable[[], bytes | None]) -> bytes | str | None:
            try:
                return receive()
            except (Error, self.spec.Malformed, self.spec.Rejected):
                return "refused"

        waiting = [*waiting, waiting[int(self.rng.integers(2))]]
        while waiting:
            party, data = waiting.pop(0)
            if self.rng.random() < 0.3:
                place = int(self.rng.integers(len(data)) ** self.rng.choice([0.5, 1]))
                place = 7 if 16 <= place < 24 else place  # never the client: others are honest
                data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            if self.rng.random() < 0.15:
                party = 1 - party
                data = data[:7] + bytes([party]) + data[8:]
            theirs = outcome(lambda: self.relayed(party, data))  # noqa: B023 - called here
            relay = self.same(theirs, outcome(lambda: self.ours[party].receive(data)))  # noqa: B023
            waiting += [(1 - party, relay)] if isinstance(relay, bytes) else []
        for theirs_, ours in zip(self.theirs, self.ours, strict=True):
            self.same(list(theirs_.reports.complete()), list(ours.complete()))

    def fetching(self) -> None:
        """A fetch by both implementations."""
        wanted = {s.name: random_rows(self.rng, s) for s in self.plan.retrieving}
        number, seed = int(self.rng.integers(8)), int(self.rng.integers(1 << 32))
        self.log = []
        with Tape(seed).patched():
            library = Client(self.plan, self, client_id=number)
            rows = library.fetch(wanted)[1]
        log, self.log = self.log, []
        trees = self.spec.ClientTrees(self.own, number, self.spec.FETCH_ROUND, Tape(seed).rand)
        asked = {name: part.tolist() for name, part in wanted.items()}
        commitment, messages = self.spec.ask_fetch(trees, asked)
        self.deliver(messages, fetch=True)
        kinds = (trees.S_a, "FETCH_MODEL"), (trees.S_b, "FETCH_ANSWER")
        answers = [self.ask(b, kind, trees, fetch=True) for b, kind in kinds]
        found = self.spec.read_fetch(trees, commitment, *answers)[1]
        for one, two in zip(log, self.log, strict=True):
            self.same(one, two)
        self.rows(rows, found)

    def rows(self, theirs: dict[str, Any], ours: dict[str, dict[int, bytes]]) -> None:
        """Rows that a client has read: the library gives numbers of the tensor's dtype."""
        for segment in self.plan.retrieving if theirs else ():
            indices, values = theirs[segment.name]
            own = sorted(ours[segment.name].items())
            self.same(indices.tolist(), [x for x, _ in own])
            data = b"".join(row for _, row in own)
            numbers = heard(data, segment.download, segment.tensors[0].dtype)
            self.same(values.tobytes(), numbers.tobytes())

    # --- transports: of the library's client, and of the specification's --------------------------

    def send(self, party: int, data: bytes) -> None:
        """As `Transport.send`, to the library's servers."""
        self.log.append((party, data))
        relay = self.relayed(party, data)
        if relay is not None:
            self.log.append((1 - party, relay))
            self.theirs[1 - party].receive(relay)

    def relayed(self, party: int, data: bytes) -> bytes | None:
        """The library's relay of a message that one of its servers takes, if there is any."""
        due = self.theirs[party].receive(data)
        return None if due is None else self.theirs[party].relay(*due)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """As `Transport.fetch`."""
        reply = self.theirs[party].reply(kind, round_number, client)
        self.log.append((party, reply))
        return reply

    def deliver(self, messages: list[tuple[int, bytes]], *, fetch: bool = False) -> None:
        """To the specification's servers."""
        receive = [o.receive_fetch if fetch else o.receive for o in self.ours]
        for party, data in messages:
            self.log.append((party, data))
            relay = receive[party](data)
            if relay is not None:
                self.log.append((1 - party, relay))
                receive[1 - party](relay)

    def ask(self, party: int, kind: str, trees: Any, *, fetch: bool = False) -> bytes:
        """A reply of the specification's server."""
        server = self.ours[party]
        reply: bytes = (server.reply_fetch if fetch else server.reply)(kind, trees.client)
        self.log.append((party, reply))
        return reply


def words_of(keyed: KeyedNoise) -> Callable[[int, int], Callable[[int], list[int]]]:
    """The words of a keyed noise as a source of the specification."""

    def source(number: int, chunk: int) -> Callable[[int], list[int]]:
        words = keyed._words(number, chunk)
        return lambda count: words(count).tolist()

    return source


def as_own(update: Update | dict[str, RawSegment]) -> dict[str, Any]:
    """An update as the specification has it."""
    return {
        name: part.values.reshape(-1).tolist()
        if part.indices is None
        else dict(zip(part.indices.tolist(), part.values.tolist(), strict=True))
        for name, part in update.items()
    }


def play(spec: ModuleType, seed: int) -> int:
    """A random plan and its rounds: how many byte strings and numbers were compared."""
    rng = np.random.default_rng(seed)
    plan = random_plan(rng)
    pair = Pair(spec, plan, seed)
    count = len(plan.noise_taps) * 2 or 1 + plan.max_participations
    for _ in range(3 if plan.max_epochs > 1 else count):
        pair.round()
    return pair.compared

"""Rows of the applied model for clients that report nothing, outside any round.

A fetch is trees up, answers down. It is forgotten once it was answered, and opens nothing, so that
`min_clients` has no part in it; how often a client may fetch from one model is limited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from torchfsl.crypto import kdf
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import AnswerBody, Body, FetchAnswer, FetchModel, ModelDigest
from torchfsl.fsl.dpf import bits, psr
from torchfsl.fsl.dpf.keys import FETCH_ROUND, TreeContext
from torchfsl.fsl.dpf.trees import bytes_of, check_trees, decode_groups
from torchfsl.fsl.messages import Buffer, Header, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.row_tables import RowTables
from torchfsl.fsl.server.states import RoundState
from torchfsl.fsl.uploads import FETCHES, FetchBody, FetchCommit, FetchRelay, fetch_trees
from torchfsl.submodel.server_model import ServerModel


@dataclass(slots=True)
class _Fetch:
    """The arrived parts of one client's fetch. Holds a secret."""

    context: TreeContext
    seed: bytes = field(repr=False)
    commitment: bytes
    public: Buffer | None = field(default=None, repr=False)


class Fetches:
    """The fetches under way at one server, one a client.

    Args:
        plan: of the task.
        party: of this server.
        key: opens master seeds, where the plan has keys.
        most: fetches of one client from one model.
    """

    def __init__(self, plan: Plan, party: int, key: SealKey | None, most: int) -> None:
        """None is under way."""
        self._plan, self._party, self._key, self._most = plan, party, key, most
        self._under_way: dict[int, _Fetch] = {}
        self._count: Counter[int] = Counter()
        self._tables = RowTables(plan)
        self._model: tuple[ModelDigest, bytes] | None = None

    def at(self, state: RoundState) -> Self:
        """This object, where the model does not change under a fetch.

        Raises:
            ProtocolError: the round is being closed.
        """
        if state not in (RoundState.IDLE, RoundState.OPEN):
            raise ProtocolError(
                f"the round is {state.value}: fetch before or after the round",
                code="fetch-in-round",
            )
        return self

    def forget(self) -> None:
        """The model has changed: what is under way has to be sent anew."""
        self._under_way, self._model = {}, None
        self._count.clear()
        self._tables.forget()

    def drop(self, client: int) -> None:
        """Forget what is under way of one client, if anything is."""
        self._under_way.pop(client, None)

    def receive(self, data: Buffer, header: Header | None = None) -> tuple[Kind, int] | None:
        """Take a client's FETCH_COMMIT or FETCH, or the peer's relay; what the peer needs now.

        `header` is that of a message that was checked before.

        Raises:
            DecodeError: malformed, or of another plan.
            RejectedSubmission: too often, too many at once, or not what the client committed to.
        """
        message = messages.decode(self._plan, data, *FETCHES, header=header)
        client = message.client
        body = FETCHES[message.kind].decode(self._plan, message.body)
        first = isinstance(body, FetchBody)
        fits = message.party == self._party and message.round_number == FETCH_ROUND
        if not fits or first != (self._party == client % 2):
            raise RejectedSubmission(
                f"client {client}: the fetch is for another server or round: "
                "check the order of the two servers, then fetch again",
                code="another-recipient",
            )
        if isinstance(body, FetchRelay):
            self._take_relay(client, body)
            return None
        self._count_one(client)
        context = TreeContext(self._plan, FETCH_ROUND, client, body.nonce)
        try:
            fetch = self._opened(context, body)
        except (DecodeError, ProtocolError) as error:
            raise RejectedSubmission(f"client {client}: {error}") from None
        self._under_way[client] = fetch
        return None if fetch.public is None else (Kind.FETCH_RELAY, client)

    def relay(self, client: int) -> bytes:
        """FETCH_RELAY of trees that the client sent here.

        Raises:
            RejectedSubmission: it sent none.
        """
        fetch = self._complete(client)
        assert fetch.public is not None
        body = FetchRelay(fetch.context.nonce, (fetch.public,))
        return body.message(self._plan, 1 - self._party, FETCH_ROUND, client)

    def reply(self, kind: Kind, client: int, model: ServerModel) -> bytes:
        """FETCH_MODEL at the server of the client's public shares, FETCH_ANSWER at the other, once.

        Raises:
            RejectedSubmission: nothing to be answered is here.
        """
        fetch = self._complete(client)
        if (kind is Kind.FETCH_MODEL) != (client % 2 == self._party):
            raise RejectedSubmission(
                f"this server does not send {kind.name} to client {client}: ask the other server"
            )
        del self._under_way[client]
        if self._model is None:
            clear, rows = model.clear_bytes(self._plan), model.row_bytes(self._plan)
            self._model = ModelDigest.of(clear, rows), clear
        digests, clear = self._model
        answer = FetchAnswer(digests, self._answer(fetch, model, digests))
        body: Body = FetchModel(answer, clear) if kind is Kind.FETCH_MODEL else answer
        return body.message(self._plan, self._party, FETCH_ROUND, client)

    # --- what the methods above are made of ---------------------------------------------------

    def _opened(self, context: TreeContext, body: FetchBody | FetchCommit) -> _Fetch:
        """A client's own message, once its seed, tag and trees are seen to be well formed."""
        seed, public = body.seed, None
        if self._key is not None:
            seed = self._key.unseal(context.seal_info(self._party), seed)
        if isinstance(body, FetchCommit):
            commitment = body.commitment
        else:
            public = bytes(body.public[0])
            views = fetch_trees(self._plan, public)
            for segment in self._plan.retrieving:
                check_trees([segment.fetch_trees], views[segment.name])
            commitment = context.fetch_commitment(public)
        tag = context.upload_tag(seed, self._party, commitment)
        if not kdf.digests_equal(tag, body.tag):
            raise ProtocolError(
                "the fetch was altered on the way to this server, because its tag is wrong: fetch "
                "again",
                code="altered-message",
            )
        return _Fetch(context, seed, commitment, public)

    def _take_relay(self, client: int, body: FetchRelay) -> None:
        fetch = self._under_way.get(client)
        if fetch is None or fetch.public is not None:
            raise RejectedSubmission(
                f"this server has no commitment of client {client} to this fetch: fetch again",
                code="no-fetch",
            )
        computed = fetch.context.fetch_commitment(*body.public)
        fits = kdf.digests_equal(computed, fetch.commitment)
        if not fits or body.nonce != fetch.context.nonce:
            del self._under_way[client]
            raise RejectedSubmission(
                f"client {client}: the relayed trees do not fit the client's commitment: "
                "fetch again",
                code="commitment-mismatch",
            )
        fetch.public = bytes(body.public[0])

    def _count_one(self, client: int) -> None:
        if self._count[client] >= self._most:
            raise RejectedSubmission(
                f"client {client} has used all fetches of this model (max-fetches = "
                f"{self._most}): fetch after the next applied round, or ask both operators for a "
                "larger max-fetches",
                code="too-many-fetches",
            )
        if client not in self._under_way and len(self._under_way) >= self._plan.max_clients:
            raise RejectedSubmission(
                "too many fetches are under way: fetch again later", code="too-many-fetches"
            )
        self._count[client] += 1

    def _complete(self, client: int) -> _Fetch:
        fetch = self._under_way.get(client)
        if fetch is None or fetch.public is None:
            raise RejectedSubmission(
                f"client {client} has no fetch under way: begin the fetch again", code="no-fetch"
            )
        return fetch

    def _answer(self, fetch: _Fetch, model: ServerModel, digests: ModelDigest) -> AnswerBody:
        context = fetch.context
        parts: list[memoryview | bytes] = []
        assert fetch.public is not None
        tables, views = self._tables.of(model, digests.rows), fetch_trees(self._plan, fetch.public)
        for segment in self._plan.retrieving:
            key, view = context.tree_key(segment), views[segment.name]
            roots = context.roots(segment, fetch.seed, self._party)
            trees, laid_out = decode_groups(segment.fetch_trees, view, 0), tables[segment.name]
            if segment.by_bits:
                words = bits.words_of(segment, view), context.bits_key(segment)
                parts.append(bytes_of(bits.answer(segment, key, *words, roots, trees, laid_out[0])))
                continue
            question = psr.Question(key, context.mac_key(segment, FETCH_ROUND), roots, trees)
            ((answers, tags),) = psr.answers(segment, [question], *laid_out)
            parts += [bytes_of(answers), bytes_of(tags)]
        bound = fetch.commitment + digests.clear + digests.rows
        key = context.answer_key(fetch.seed, self._party, FETCH_ROUND, bound)
        return AnswerBody.seal(key, [*parts, digests.rows])

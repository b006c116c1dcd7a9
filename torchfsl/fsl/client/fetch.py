"""Rows and clear tensors of the applied model, without a round and without a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torchfsl.errors import ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import FetchAnswer, FetchModel, ModelBody
from torchfsl.fsl.client.trees import ClientTrees, nothing
from torchfsl.fsl.dpf import bits
from torchfsl.fsl.dpf.keys import FETCH_ROUND
from torchfsl.fsl.dpf.trees import bytes_of
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.transport import Transport
from torchfsl.fsl.uploads import FetchBody, FetchCommit
from torchfsl.submodel.update import check_named
from torchfsl.types import Indices

Values: TypeAlias = npt.NDArray[np.generic]
Fetched: TypeAlias = tuple[dict[str, Values], dict[str, tuple[Indices, Values]]]


def fetch(
    servers: Transport, plan: Plan, client_id: int, rows: Mapping[str, npt.ArrayLike]
) -> Fetched:
    """See `Client.fetch`."""
    trees = ClientTrees(plan, client_id, FETCH_ROUND)
    wrong: Exception | None = None
    try:
        wanted = check_named(plan.retrieving, rows)
    except Exception as error:  # private: the servers see a usual fetch
        wrong, wanted = error, {segment.name: nothing() for segment in plan.retrieving}
    fetched = _read(servers, trees, _send(servers, trees, wanted))
    if wrong is not None:
        raise wrong
    return fetched


def _send(servers: Transport, trees: ClientTrees, wanted: Mapping[str, Indices]) -> bytes:
    """Upload the trees; their commitment."""
    plan, context = trees.plan, trees.context
    public = tuple(piece for s in plan.retrieving for piece in _public(trees, s, wanted[s.name]))
    first, commitment = context.public_party, context.fetch_commitment(*public)
    second = 1 - first
    commit = FetchCommit(*trees.heads(second, commitment), commitment)
    body = FetchBody(*trees.heads(first, commitment), public)
    servers.send(second, commit.message(plan, second, FETCH_ROUND, context.client))
    servers.send(first, body.message(plan, first, FETCH_ROUND, context.client))
    return commitment


def _public(trees: ClientTrees, segment: TreeSegment, wanted: Indices) -> list[memoryview]:
    grown = trees.grow(segment.fetch_trees, wanted)
    pieces = [piece for tree in grown for piece in tree.pieces()]
    if segment.by_bits:
        key = trees.context.bits_key(segment)
        pieces.append(bytes_of(bits.words(key, trees.selection(segment).leaves)))
    return pieces


def _read(servers: Transport, trees: ClientTrees, commitment: bytes) -> Fetched:
    plan, context = trees.plan, trees.context
    first = context.public_party

    def ask(party: int, kind: Kind) -> memoryview:
        data = servers.fetch(party, kind, FETCH_ROUND, context.client)
        message = messages.decode(plan, data, kind)
        if (message.party, message.round_number) != (party, FETCH_ROUND):
            raise ProtocolError(
                f"the answer of server {party} names another server or round: check the order of "
                "the servers, then fetch again",
                code="answer-for-another",
            )
        return message.body

    model = FetchModel.decode(plan, ask(first, Kind.FETCH_MODEL))
    other = FetchAnswer.decode(plan, ask(1 - first, Kind.FETCH_ANSWER))
    clear = ModelBody(model.answer.digests, model.clear).tensors(plan, other.digests)
    answers = model.answer.answer, other.answer
    bound = commitment + other.digests.clear + other.digests.rows
    return clear, trees.rows_in(answers if first == 0 else answers[::-1], FETCH_ROUND, bound)

"""Uploads of a client that lies: altered, and tagged anew under the master seed that it knows."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from torchfsl.fsl import messages
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.uploads import (
    FETCHES,
    UPLOADS,
    FetchBody,
    FetchCommit,
    ReportBody,
    ReportCommit,
    TreesBody,
    TreesCommit,
)

Tagged: TypeAlias = TreesBody | TreesCommit | ReportBody | ReportCommit


def tagged(plan: Plan, data: bytes, opening_round: int | None = None) -> bytes:
    """The message with the tag that fits what else is in it; the plan has no server keys.

    `opening_round` is that of a session's trees, if not the message's.
    """
    assert not plan.server_keys
    message = messages.decode(plan, data, *UPLOADS, *FETCHES)
    body = {**UPLOADS, **FETCHES}[message.kind].decode(plan, message.body)
    assert isinstance(body, Tagged)
    party, number = message.party, message.round_number
    began = number if opening_round is None else opening_round
    trees = TreeContext(plan, began, message.client, body.nonce)
    if isinstance(body, ReportBody | ReportCommit):
        context = ReportContext(trees, number, body.hint_nonce)
        said = [_commitment(context, body)]
        if isinstance(body, ReportBody):
            said.append(context.masked_digest(*body.masked))
        if body.private:
            said.insert(0, body.private)
        tag = context.upload_tag(body.seed, party, *said)
    else:
        tag = trees.upload_tag(body.seed, party, _commitment(trees, body))
    return dataclasses.replace(body, tag=tag).message(plan, party, number, message.client)


def _commitment(context: TreeContext | ReportContext, body: Tagged) -> bytes:
    if isinstance(body, TreesCommit | ReportCommit | FetchCommit):
        return body.commitment
    if isinstance(body, FetchBody):
        assert isinstance(context, TreeContext)
        return context.fetch_commitment(*body.public)
    return context.commitment(*body.public)

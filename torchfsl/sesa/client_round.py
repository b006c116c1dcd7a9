"""One client in one round: shares, retrieval, the masked update, the answer.

If a client's private choices or values are invalid, the server sees the same messages of the same
lengths: the client sends zeros and only then raises the error. There is one exception: under a plan
with `counts_on_owners`, a client that contributes to fewer submodels than its width owns drops out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import field, kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.field import Words
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.sesa import coding, messages
from torchfsl.sesa.channels import Box, Channels
from torchfsl.sesa.cohort import Cohort, check_survivors
from torchfsl.sesa.messages import Kind
from torchfsl.sesa.sesa_plan import LABEL_SEED
from torchfsl.sesa.transport import Line
from torchfsl.submodel.aggregation import AbortsOnError, Receipt
from torchfsl.submodel.segments import tensor_spans
from torchfsl.submodel.update import SegmentUpdate, Update, check_named, check_update, check_weight
from torchfsl.submodel.whole_model import decode_model
from torchfsl.types import Array, Indices, Whole


class ClientRound(AbortsOnError):
    """One client in one round. Use as a context manager: an exception submits zeros."""

    def __init__(
        self, line: Line, cohort: Cohort, channels: Channels, indices: Mapping[str, npt.ArrayLike]
    ) -> None:
        """Send the shares; see `Client.start_round`."""
        self._line, self._plan, self._cohort, self._channels = line, line.plan, cohort, channels
        self._place = cohort.places[line.client_id]
        self._width = cohort.width(self._place)
        self._model: dict[str, Array] | None = None
        self._submitted = self._answered = False
        self._own_share: Words | None = None
        self._masks: list[Words] = []
        self._chosen: list[Indices] = []
        try:
            self._asked = self._check_asked(indices)
        except Exception:  # whatever is wrong with private choices, the server sees a usual client
            nothing = np.empty(0, dtype=np.int64)
            self._asked = {s.name: nothing for s in self._plan.asked_early}
            self._send_shares()
            with contextlib.suppress(Exception):
                self.download()
            self.abort()
            raise
        self._expect_owned({name: len(rows) for name, rows in self._asked.items()})
        self._send_shares()

    def __repr__(self) -> str:
        return f"ClientRound(client={self._line.client_id}, round={self._line.round_number})"

    @property
    def client_id(self) -> int:
        """The client's number."""
        return self._line.client_id

    def download(self) -> dict[str, Array]:
        """The tensors outside retrieving segments. The whole model travels, once a round."""
        state = self._fetch_model()
        return {tensor.name: state[tensor.name] for tensor in self._plan.clear_tensors}

    def retrieve(self) -> dict[str, tuple[Indices, Array]]:
        """By retrieving segment the submodels selected in `start_round`: indices, `[k, tau]`.

        The client cuts them out of the whole model, so that no other party learns its selection.
        """
        state, retrieved = self._fetch_model(), {}
        for segment in self._plan.retrieving:
            rows = [state[t.name].reshape(t.shape[0], -1) for t, _ in tensor_spans(segment)]
            wanted = self._asked[segment.name]
            retrieved[segment.name] = (wanted, np.concatenate(rows)[wanted])
        return retrieved

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        """Send the masked update.

        Args:
            update: quantised, one entry for every segment; positions among those of `start_round`.
            weight: 1.

        Raises:
            ParameterError: the update does not fit; zeros were sent. Or it changes fewer submodels
                than this client's width owns; nothing was sent, and the client has dropped out.
            ProtocolError: this round was submitted before.
        """
        if self._submitted:
            raise ProtocolError(
                "the client has already submitted its update of this round: start the next round",
                code="already-submitted",
            )
        try:
            values = self._check_submission(update, weight)
        except Exception:  # see the constructor
            self.abort()
            raise
        changed = [int(rows.any(axis=1).sum()) for rows in values]
        self._expect_owned({s.name: n for s, n in zip(self._plan.segments, changed, strict=True)})
        return self._send_masked(values)

    def abort(self) -> Receipt:
        """Hand in zeros, in messages like any other."""
        if self._submitted:
            raise ProtocolError(
                "the client has already submitted its update of this round: start the next round",
                code="already-submitted",
            )
        return self._send_masked([np.zeros(mask.shape, dtype=np.int64) for mask in self._masks])

    def drop_out(self) -> Receipt:
        """Hand in nothing: the server counts this client among the round's dropouts.

        Raises:
            ProtocolError: this round was submitted before.
        """
        if self._submitted:
            raise ProtocolError(
                "the client has already submitted its update of this round: start the next round",
                code="already-submitted",
            )
        self._submitted, self._masks = True, []
        return self._line.receipt()

    def receipt(self) -> Receipt:
        """The cost of the round so far."""
        return self._line.receipt()

    def answer(self) -> Receipt:
        """After the server has closed the round: this client's part of the sums of the survivors.

        Everything secret of the round is forgotten, whether this succeeds or not.

        Raises:
            ProtocolError: not submitted, answered before, or survivors that the plan refuses.
            RejectedSubmission: a share was altered on the way.
            DecodeError: malformed bytes.
        """
        if not self._submitted or self._answered:
            raise ProtocolError(
                "a client answers the server's list of survivors once, after submit(): call "
                "submit() first, or start the next round"
            )
        self._answered = True
        own, channels = self._own_share, self._channels
        self._own_share, self._channels = None, Channels()
        self._chosen, self._asked = [], {}
        assert own is not None
        cohort = self._cohort
        survivors, masked = messages.decode_survivors(cohort, self._line.fetch(Kind.SURVIVORS))
        if self._place not in survivors:
            raise ProtocolError(
                "the server counts this client as dropped out, so the client does not answer: "
                "start the next round"
            )
        check_survivors(cohort, survivors)
        relay = self._line.fetch(Kind.RELAY)
        messages.expect_bytes(relay, messages.relay_bytes(cohort, survivors, self._place))
        answer = coding.Answer(cohort, survivors)
        start = 0
        for sender in survivors:
            if sender == self._place:
                answer.add(sender, own)
                continue
            stop = start + SEED_BYTES + messages.box_bytes(cohort, sender, self._place)
            answer.add(sender, self._open_share(channels, sender, relay.body[start:stop]))
            start = stop
        psi = answer.finish(field.from_bytes(masked))
        digest = messages.survivors_digest(cohort, self._line.round_number, survivors)
        self._line.send(Kind.ANSWER, digest, field.to_bytes(psi))
        return self._line.receipt()

    # --- what the methods above are made of ---------------------------------------------------

    def _owned(self, number: int) -> int:
        return self._plan.widths[self._width].owned[number]

    def _check_asked(self, indices: Mapping[str, npt.ArrayLike]) -> dict[str, Indices]:
        asked = check_named(self._plan.asked_early, indices)
        for number, segment in enumerate(self._plan.segments):
            if segment.name in asked and len(asked[segment.name]) > self._owned(number):
                raise ParameterError(
                    f"segment {segment.name!r}: the client selects {len(asked[segment.name])} "
                    f"submodels, but a client of this width trains {self._owned(number)}: select "
                    f"{self._owned(number)} submodels"
                )
        return asked

    def _expect_owned(self, counts: Mapping[str, int]) -> None:
        """Drop out if this client contributes to fewer submodels than the plan counts it for.

        Zeros in its place would make the round's guard count a contributor that is not there.
        """
        for number, segment in enumerate(self._plan.segments):
            count, owned = counts.get(segment.name, 1), self._owned(number)
            if count < owned and self._plan.counts_on_owners:
                self.drop_out()
                raise ParameterError(
                    f"segment {segment.name!r}: the client contributes to {count} submodels, "
                    f"expected all {owned} of its width, so it sent no update: plan a smaller "
                    "Width, or use torchfsl.fsl with min_contributors"
                )

    def _send_shares(self) -> None:
        """Code the choice and the masks; keep the masks and this client's own share."""
        plan, cohort, place = self._plan, self._cohort, self._place
        width = self._width
        self._chosen = [
            np.zeros(1, dtype=np.int64)
            if part.segment.is_dense
            else _filled_up(self._asked[part.segment.name], owned, part.num_submodels)
            for part, owned, _ in coding.parts_of(plan, width)
        ]
        drawn = field.uniform(random_bytes(SEED_BYTES), plan.masked_values(width))
        self._masks = coding.cut(plan, width, drawn)
        seeds = {recipient: random_bytes(SEED_BYTES) for recipient in cohort.seeded(place)}
        streams = np.stack([self._stream(seed, place, to) for to, seed in seeds.items()])
        rows = coding.shares(cohort, place, self._chosen, self._masks, streams)
        contents = dict(seeds)
        for recipient, row in zip(cohort.evaluated(place), rows, strict=True):
            if recipient == place:
                self._own_share = row.copy()
            else:
                contents[recipient] = field.to_bytes(row)
        number = self._line.round_number
        salt = random_bytes(SEED_BYTES)  # drawn late: a process restored from before has another
        boxes = [
            self._channels.seal(Box(cohort, number, place, to, salt), contents[to])
            for to in sorted(contents)
        ]
        self._line.send(Kind.SHARES, salt, *boxes)

    def _stream(self, seed: bytes, sender: int, recipient: int) -> Words:
        """The share that a seed stands for."""
        members = self._cohort.members
        ends = members[sender].client, members[recipient].client
        numbers = (n.to_bytes(8, "little") for n in (self._line.round_number, *ends))
        context = kdf.frame(self._plan.digest, *numbers)
        key = kdf.derive(seed, LABEL_SEED, context)
        return field.uniform(key, self._plan.share_values(members[sender].width))

    def _open_share(self, channels: Channels, sender: int, data: memoryview) -> Words:
        """The share in a relayed box, which stands behind its salt."""
        salt, box = bytes(data[:SEED_BYTES]), data[SEED_BYTES:]
        number = self._line.round_number
        content = channels.open(Box(self._cohort, number, sender, self._place, salt), box)
        if self._place in self._cohort.seeded(sender):
            return self._stream(content, sender, self._place)
        return field.from_bytes(content)

    def _fetch_model(self) -> dict[str, Array]:
        if self._model is None:
            self._model = decode_model(self._plan, self._line.fetch(Kind.MODEL))
        return self._model

    def _check_submission(self, update: Update, weight: int) -> list[Whole]:
        """The update's values by segment, one row for each submodel that this client owns."""
        check_update(self._plan, update)
        check_weight(self._plan, weight)
        values = []
        for chosen, mask, part in zip(self._chosen, self._masks, self._plan.parts, strict=True):
            given: SegmentUpdate = update[part.segment.name]
            rows = np.zeros(mask.shape, dtype=np.int64)
            if given.indices is None:
                rows[0] = given.values[:, 0]
            else:
                if not np.isin(given.indices, self._asked[part.segment.name]).all():
                    raise ParameterError(
                        f"segment {part.segment.name!r}: the update has submodels that the client "
                        "did not select for the round: send only selected submodels",
                        code="row-not-selected",
                    )
                rows[np.searchsorted(chosen, given.indices)] = given.values
            values.append(rows)
        return values

    def _send_masked(self, values: list[Whole]) -> Receipt:
        """Send x = g - r."""
        self._submitted = True
        masked = [
            field.to_bytes(field.subtract(field.encode(rows), mask))
            for rows, mask in zip(values, self._masks, strict=True)
        ]
        self._masks, self._model = [], None
        self._line.send(Kind.MASKED, *masked)
        return self._line.receipt()


def _filled_up(asked: Indices, owned: int, num_submodels: int) -> Indices:
    """`asked` and the lowest others, `owned` in all, in rising order."""
    if len(asked) == owned:
        return asked
    others = np.setdiff1d(np.arange(num_submodels), asked, assume_unique=True)
    return np.sort(np.concatenate([asked, others[: owned - len(asked)]]))

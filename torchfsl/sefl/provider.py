"""The key holder decrypts one masked sum per round and sees only uniform numbers.

It is the paper's crypto service provider (CSP). It could read a single client's ciphertext, so it
must never get one. Clients therefore send to the aggregator alone, over a separate channel. The key
holder also cannot tell a sum of many from one client's ciphertext. So the aggregator must follow
the protocol (see docs/sefl.md). The key holder enforces one opening per round, rising round
numbers, at least `min_clients` names, the plan's limit of rounds, and its own noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.homomorphic import Ciphertexts, KeyPair
from torchfsl.errors import ParameterError, RejectedSubmission
from torchfsl.sefl import messages
from torchfsl.sefl.messages import Kind, Named
from torchfsl.sefl.packing import pack
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.types import Whole

Draw = Callable[[int, int], Whole]
"""Takes a standard deviation and a count, gives so many draws."""


def noise(plan: SeflPlan, draw: Draw) -> Whole:
    """One server's noise on all values and the weight: `int64[num_values]`, zeros without noise."""
    out = np.zeros(plan.num_values, dtype=np.int64)
    if plan.noise_sigma:
        num_sums = plan.num_values - plan.lane_values
        out[:num_sums] = draw(plan.noise_sigma, num_sums)
        if plan.lane_values:
            out[num_sums:] = draw(plan.lane_sigma, 1)
    return out


class BoundServer:
    """One of both servers: makes a key for signatures, and waits for the plan that names it.

    Args:
        draft: the plan without keys.
        draw: this server's noise.

    Raises:
        ParameterError: the plan has keys.
    """

    def __init__(self, draft: SeflPlan, draw: Draw) -> None:
        if not draft.is_draft:
            raise ParameterError(
                "expected a draft without keys, got a plan with keys: pass the draft of the plan",
                code="not-a-draft",
            )
        self._draft, self._draw = draft, draw
        self._signing = Ed25519PrivateKey.generate()
        self._plan: SeflPlan | None = None

    @property
    def signing_key(self) -> bytes:
        """The key that what this server signs is checked with: 32 bytes."""
        return self._signing.public_key().public_bytes_raw()

    @property
    def plan(self) -> SeflPlan:
        """The completed plan.

        Raises:
            ParameterError: there is none yet.
        """
        if self._plan is None:
            raise ParameterError(
                "the key holder has only the draft of the plan: call bind(plan) with the plan that "
                "has both servers' keys",
                code="draft-plan",
            )
        return self._plan

    def _check_bound(self, plan: SeflPlan, *keys: bytes) -> None:
        """Refuse what is not the draft with these keys, or a second plan."""
        wanted = self._draft.bound_to(*keys)
        if self._plan is not None or plan.is_draft or plan != wanted:
            raise ParameterError(
                "the plan lacks the servers' keys, or does not fit the draft of this key holder or "
                "aggregator: pass the plan that sefl.introduce returns"
            )


class KeyHolder(BoundServer):
    """The key holder of a task; its key pair is fresh.

    Args:
        draft: the plan without keys; `bind` completes it.
        draw: its noise; tests inject a known one.
    """

    def __init__(self, draft: SeflPlan, *, draw: Draw = discrete_gaussian.sample) -> None:
        """Make the keys."""
        super().__init__(draft, draw)
        self._keys = KeyPair(draft.scheme)
        self.last_round, self.num_opened = -1, 0
        self._listed: dict[int, list[Named]] = {}

    def __repr__(self) -> str:
        return f"KeyHolder(last_round={self.last_round})"

    @property
    def key_digest(self) -> bytes:
        """The name of the public key in a plan: 32 bytes."""
        return messages.key_digest(self._keys.public)

    @property
    def answer_key(self) -> bytes:
        """The key that what it opens is checked with: 32 bytes."""
        return self.signing_key

    def bind(self, plan: SeflPlan) -> None:
        """Take the completed plan, once.

        Raises:
            ParameterError: it is not the draft with these keys and an aggregator's.
        """
        receipt_key = bytes.fromhex(plan.receipt_key)
        self._check_bound(plan, self.key_digest, receipt_key, self.answer_key)
        self._plan = plan

    def key_message(self) -> bytes:
        """KEY: the public key, for whoever asks."""
        return messages.encode(self.plan, Kind.KEY, 0, 0, self._keys.public)

    def open(self, message: bytes) -> bytes:
        """Decrypt the masked sum of a round and add this server's noise.

        The round is spent as soon as the message is well formed and the aggregator's, whatever
        becomes of it; of the plan's `max_rounds` only one that is decrypted.

        Args:
            message: the aggregator's SUM.

        Returns:
            VALUE, for the aggregator.

        Raises:
            DecodeError: if the bytes are malformed.
            RejectedSubmission: if the aggregator has not signed it, or the round is not above the
                last one. If there are more rounds than the plan allows, too few clients, or
                ciphertexts that no honest sum has.
        """
        plan = self.plan
        decoded = messages.decode(plan, message, Kind.SUM)
        names, body = messages.decode_names(plan, decoded)
        messages.check_signature(decoded, plan.receipt_key)
        number = decoded.round_number
        if number <= self.last_round:
            raise RejectedSubmission(
                f"round {number} is not above round {self.last_round}, and the key holder "
                "decrypts each round once: use a higher round number",
                code="round-number-used",
            )
        if plan.max_rounds and self.num_opened >= plan.max_rounds:
            raise RejectedSubmission(
                f"the key holder has decrypted all {plan.max_rounds} rounds of the plan: make new "
                "server keys with sefl.renew",
                code="rounds-spent",
            )
        problem = plan.check_clients(len(names))
        if problem:
            raise RejectedSubmission(f"the key holder does not decrypt the sum: {problem}")
        total = Ciphertexts.decode(plan.scheme, body, plan.ciphertexts)
        self.last_round = number
        masked = self._keys.decrypt(total)[: plan.num_values]
        self.num_opened += 1
        self._listed = {number: names}
        noisy = np.mod(masked.astype(np.int64) + noise(plan, self._draw), plan.scheme.modulus)
        digest = bytes(decoded.body[: len(plan.digest)])
        values = pack(plan, noisy.astype(np.uint64))
        return messages.encode(plan, Kind.VALUE, number, 0, digest, values, signing=self._signing)

    def listed(self, round_number: int) -> list[Named]:
        """The clients and digests of updates that the aggregator listed for `round_number`.

        Only the last aggregate has a list. A client compares it with its receipt: a signed receipt
        that is not listed convicts the aggregator, see `client.check_listed`.
        """
        return list(self._listed.get(round_number, []))

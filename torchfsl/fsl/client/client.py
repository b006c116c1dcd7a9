"""A client of a task: it starts rounds with fresh trees, or with those of its session."""

from __future__ import annotations

from collections.abc import Mapping

import numpy.typing as npt

from torchfsl.crypto.secret_holder import SecretHolder
from torchfsl.errors import ParameterError, expect_a
from torchfsl.fsl.client.fetch import Fetched, fetch
from torchfsl.fsl.client.round import ClientRound
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.transport import Endpoint, Transport, connected
from torchfsl.submodel.plan_fields import check_number


class Client(SecretHolder):
    """A participant of a task, bound to a plan and to the two servers.

    Args:
        plan: the public plan, equal at both servers.
        servers: the transport to both servers, or the pair of servers itself in one process.
        client_id: public number in [0, 2**64), authenticated by the transport.
        require: what this client demands of the plan; None for nothing, where it made the plan.
    """

    _instead = (
        "save its client_id and plan.to_json(), and make Client(plan, servers, client_id=...) "
        "where it goes on"
    )

    def __init__(
        self,
        plan: Plan,
        servers: Transport | tuple[Endpoint, Endpoint],
        *,
        client_id: int,
        require: ClientPolicy | None = None,
    ) -> None:
        """Nothing is sent yet.

        Raises:
            ParameterError: no plan, no two servers, `client_id` is no such number, or the plan is
                below a floor.
        """
        expect_a(
            Plan, plan, "plan", "pass the plan that both servers have, Client(plan, servers, ...)"
        )
        if require is not None:
            require.check(plan)
        self.plan = plan
        self.servers = connected(servers)
        self.client_id = check_number("client_id", client_id)
        self._session: Session | None = None

    def __repr__(self) -> str:
        return f"Client(client_id={self.client_id}, {self.plan!r})"

    def open_number(self) -> int:
        """Ask the servers for the number of the open round.

        Returns:
            The number of the open round.

        Raises:
            ProtocolError: if none is open.
            ParameterError: if the transport cannot ask.
        """
        if not hasattr(self.servers, "open_number"):
            kind = type(self.servers).__name__
            raise ParameterError(
                f"{kind} cannot ask the servers for the open round: pass the number of the round",
                code="round-number-missing",
            )
        return int(self.servers.open_number())

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> ClientRound:
        """Begin a round with fresh trees; uploads those of the retrieving segments, if any.

        Args:
            round_number: the open round.
            indices: for every retrieving segment, the rows wanted: distinct, increasing, at most
                k_max.

        Returns:
            The client in this round.

        Raises:
            ParameterError: bad indices; the servers have then been sent dummies throughout. Or the
                round number is not valid. Nothing has been sent then.
        """
        if self.plan.max_epochs > 1:
            raise ParameterError(
                "the plan has max_epochs above 1: call Client.open_session() in place of "
                "start_round()",
                code="session-needed",
            )
        round_number = check_number("round_number", round_number)
        trees = ClientTrees(self.plan, self.client_id, round_number)
        return ClientRound(self.servers, trees, round_number, indices or {})

    def fetch(self, rows: Mapping[str, npt.ArrayLike]) -> Fetched:
        """The model as it was applied last, without a round and without a report.

        Args:
            rows: for every retrieving segment, the rows wanted: distinct, increasing, at most
                k_max.

        Returns:
            The clear tensors as `ClientRound.download` gives them, and the rows as `retrieve` does.

        Raises:
            ParameterError: bad rows; the servers have then seen a usual fetch.
            RejectedSubmission: this client has fetched as often from this model as it may.
            ProtocolError: a server altered its answer, or they hold different models.
        """
        return fetch(self.servers, self.plan, self.client_id, rows)

    def continue_session(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike]
    ) -> ClientRound:
        """Begin a round in this client's own session; the first call opens it with `indices`.

        Args:
            round_number: number of the open round.
            indices: by retrieving segment, the rows of the session; only the first call reads them.

        Returns:
            The client in this round.
        """
        if self._session is None:
            self._session = self.open_session(indices=indices)
        return self._session.start_round(round_number)

    def open_session(self, *, indices: Mapping[str, npt.ArrayLike]) -> Session:
        """A fixed submodel for `plan.max_epochs` rounds at a time (U-DPF).

        Args:
            indices: for every tree segment, its fixed positions.

        Raises:
            ParameterError: the plan has no sessions.
        """
        if self.plan.max_epochs == 1:
            raise ParameterError(
                "max_epochs of the plan is 1, so it has no sessions: call start_round, or make the "
                "plan with max_epochs above 1",
                code="no-sessions",
            )
        return Session(self, indices)


class Session:
    """A client's fixed submodel: its trees go up once, then every round uploads hints only.

    After `plan.max_epochs` rounds the session draws fresh secrets and uploads new trees. Secrets
    stay in this object. A client that lost this object opens a new session. If a client is restored
    from an old copy, servers refuse its second report in any round. Every report has a fresh nonce.
    """

    def __init__(self, client: Client, indices: Mapping[str, npt.ArrayLike]) -> None:
        """Nothing is sent before the first round."""
        self._client, self._indices = client, dict(indices)
        self._trees: ClientTrees | None = None
        self._epochs = 0

    def __repr__(self) -> str:
        return f"Session(client={self._client.client_id}, epochs={self._epochs})"

    def start_round(self, round_number: int) -> ClientRound:
        """Begin a round; uploads the trees if there are none yet or they served long enough.

        If the upload fails the next round starts with fresh trees.

        Raises:
            ParameterError: the positions are wrong; dummies were sent, and will be in every round
                of these trees: the servers cannot tell. Open a new session with right ones.
        """
        round_number = check_number("round_number", round_number)
        trees = self._trees
        if trees is None or self._epochs == self._client.plan.max_epochs:
            trees = ClientTrees(self._client.plan, self._client.client_id, round_number)
            self._trees, self._epochs = None, 0
        try:
            return ClientRound(self._client.servers, trees, round_number, self._indices)
        except Exception as error:
            if error is not trees.wrong:
                trees = None
            raise
        finally:
            self._trees = trees
            self._epochs += trees is not None

"""A task as it is handed to a server: plan, nonce of its session, model, server optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.coin import Coins
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state import arrays
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array

_MODEL, _OPTIMIZER, _PAST = "model/", "optimizer/", "past/"


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """The spent part of an earlier task's privacy budget, with which a restored task goes on.

    Attributes:
        index: rounds in which a share may have left.
        clients: of every report that counts the number of its client, `uint64[n]`.
        places: of every report the index of its round, `int64[n]`, below `index`.
    """

    index: int
    clients: Array
    places: Array

    @classmethod
    def of_values(cls, index: object, values: Mapping[str, Array]) -> Past:
        """From the parts of an encoded task.

        Raises:
            DecodeError: they are no such counts.
        """
        clients, places = (values.get(_PAST + name) for name in ("clients", "places"))
        if type(index) is not int or clients is None or places is None:
            raise DecodeError("damaged data: the list of the clients' past reports is incomplete")
        kinds = clients.dtype == np.uint64, places.dtype == np.int64
        if not all(kinds) or clients.ndim != 1 or clients.shape != places.shape:
            raise DecodeError("damaged data: a past report lacks its client or its round")
        if index < 0 or (len(places) and not 0 <= places.min() <= places.max() < index):
            raise DecodeError(
                "the list of past reports has a report of a round that has not run (rounds so far: "
                f"{max(index, 0)})"
            )
        return cls(index, clients, places)

    def values(self) -> dict[str, Array]:
        """Inverse of `of_values`, without the index."""
        return {f"{_PAST}clients": self.clients, f"{_PAST}places": self.places}

    def reports(self) -> list[tuple[int, int]]:
        """Client and index of the round of every report."""
        return list(zip(self.clients.tolist(), self.places.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Task:
    """What both servers must be given alike.

    Attributes:
        plan: its session number must be `Authorities.session(nonce)`.
        nonce: 16 random bytes.
        optimizer: on the aggregate.
        source: see `ServerModel`.
        reduce: see `ServerModel`.
        coins: of both servers, which make the plan's hash seed; empty if one party chose it.
        past: the spent part of the budget, of 0 rounds if the plan counts them otherwise; None in a
            task that begins.
    """

    plan: Plan
    nonce: bytes
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    source: Literal["delta", "gradient"] = "delta"
    reduce: Literal["mean", "sum"] = "mean"
    coins: Coins | tuple[()] = ()
    past: Past | None = None

    def settings(self) -> dict[str, Any]:
        """The task as JSON values, without `past`, which servers keep by report."""
        return {
            "plan": self.plan.to_json(),
            "nonce": self.nonce.hex(),
            "optimizer": dataclasses.asdict(self.optimizer),
            "source": self.source,
            "reduce": self.reduce,
            "coins": [coin.hex() for coin in self.coins],
        }

    @classmethod
    def from_settings(cls, fields: Mapping[str, Any]) -> Task:
        """Inverse of `settings`, whose result `fields` is.

        Raises:
            DecodeError: if a field is missing or wrong.
        """
        try:
            return cls(
                Plan.from_json(fields["plan"]),
                bytes.fromhex(fields["nonce"]),
                OptimizerSettings(**fields["optimizer"]),
                fields["source"],
                fields["reduce"],
                decode_coins(fields["coins"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"not a valid task: {error}") from error

    def check(self, authorities: Authorities, floors: ClientPolicy | None = None) -> None:
        """Refuse a task for other servers, or one below the floors of this one.

        Args:
            authorities: the certificate authorities that this server trusts.
            floors: what this server demands of the plan; None checks only the session.

        Raises:
            ParameterError: if the task is for other servers, or below a floor.
        """
        if len(self.nonce) != 16 or authorities.session(self.nonce) != self.plan.session:
            raise ParameterError(
                "the plan's session is not bound to these two servers' authorities: give all "
                "parties the same ca-server-0.pem and ca-server-1.pem",
                code="wrong-authorities",
            )
        if floors is not None:
            floors.check(self.plan, coins=self.coins, authorities=authorities.keys)

    def new_model(self, state: Mapping[str, Array], moments: Mapping[str, Array]) -> ServerModel:
        """A server's model from arrays.

        Args:
            state: by name the tensors of the model.
            moments: by name the optimizer's state; empty for a new optimizer.

        Raises:
            DecodeError: if the moments are not those of such an optimizer on these tensors.
        """
        chosen = self.optimizer
        optimizer = chosen.resume(moments, state) if moments else chosen.build()
        return ServerModel(state, optimizer, source=self.source, reduce=self.reduce)


def decode_coins(given: list[str]) -> Coins | tuple[()]:
    """Coins as a task's settings hold them; none, or one of each server.

    Raises:
        ValueError: it is no such list.
    """
    if not given:
        return ()
    first, second = given
    return bytes.fromhex(first), bytes.fromhex(second)


def bind_plan(
    plan: Plan,
    authorities: Authorities,
    nonce: bytes,
    server_keys: tuple[str, ...] = (),
    audit: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan for these two servers.

    Its session number names both, and clients seal to their keys. Running servers take no plan
    without their keys: see `Owner.bind`.

    Args:
        plan: for any servers.
        authorities: certificate authorities of these two.
        nonce: 16 bytes of this task.
        server_keys: public keys in hex, of server 0 and of server 1.
        audit: fields of an audit, if they change.
    """
    session = authorities.session(nonce)
    return dataclasses.replace(plan, session=session, server_keys=server_keys, **(audit or {}))


def encode_task(
    task: Task, state: Mapping[str, Array], moments: Mapping[str, Array] | None = None
) -> bytes:
    """A task and its initial model for the servers; with the optimizer's state, if it goes on."""
    values = {_MODEL + name: value for name, value in state.items()}
    values |= {_OPTIMIZER + name: value for name, value in (moments or {}).items()}
    if task.past is None:
        return arrays.encode(values, task.settings())
    return arrays.encode(values | task.past.values(), task.settings() | {"past": task.past.index})


def decode_task(data: bytes) -> tuple[Task, ServerModel]:
    """Inverse of `encode_task`.

    Raises:
        DecodeError, ParameterError: if the data are not a task, or the model does not fit the plan.
    """
    values, settings = arrays.decode(data)
    task = Task.from_settings(settings)
    if "past" in settings:
        past = Past.of_values(settings["past"], values)
        task = dataclasses.replace(task, past=past)
    model = task.new_model(_under(_MODEL, values), _under(_OPTIMIZER, values))
    model.check(task.plan)
    return task, model


def not_replaced(party: int, version: int, consents: bool) -> str:
    """Why a server keeps its task with this model `version`; `consents`: the coordinator agrees.

    A live task was restored that has opened no round since.
    """
    remedy = (
        'both operators set replace = "owner" and send SIGHUP, then the coordinator starts with '
        "replace=True or --replace"
    )
    if consents:
        remedy = 'its operator sets replace = "owner" and sends SIGHUP'
    if not version:
        return (
            f"server {party} holds a task restored from a backup, and this plan is another one. "
            "To go on with the restored model, start with the settings of its plan: max_rounds is "
            f"what `torchfsl restore` printed. To give it up, {remedy}"
        )
    return (
        f"server {party} holds another task, with model version {version}. To replace it, {remedy}"
    )


def rounds_spent(opened: int, most: int) -> str:
    """That all rounds of a plan are spent, with the remedy; empty while some are left."""
    if not 0 < most <= opened:
        return ""
    return (
        f"all max_rounds = {most} rounds of the plan are spent, so the task is finished: for more, "
        'both operators set replace = "owner" and the coordinator starts another task with '
        "replace=True"
    )


def encode_model(model: ServerModel, version: int) -> bytes:
    """A model version with its optimizer's state."""
    values = {_MODEL + name: value for name, value in model.state.items()}
    values |= {_OPTIMIZER + name: value for name, value in model.optimizer.state().items()}
    return arrays.encode(values, {"version": version, "digest": model.digest().hex()})


def decode_model(task: Task, data: bytes) -> ServerModel:
    """Inverse of `encode_model`.

    Raises:
        DecodeError: damaged, or not of this task.
    """
    values, meta = arrays.decode(data)
    model = task.new_model(_under(_MODEL, values), _under(_OPTIMIZER, values))
    if model.digest().hex() != meta.get("digest"):
        raise DecodeError("the stored model is damaged: its digest does not fit")
    return model


def _under(prefix: str, values: Mapping[str, Array]) -> dict[str, Array]:
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}

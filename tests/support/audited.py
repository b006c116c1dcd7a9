"""Plans with an audit, the keys of their parties, and rounds of them in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.federation import Wire, make_state, submit
from torchfsl.crypto.signing import SignKey
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.audit.replay import Auditor
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.evaluation import LocalEvaluator, MakeEvaluator
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import Update

SIGN_KEYS = tuple(
    SignKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(1, 5)
)
"""Of server 0, server 1, and their auditors."""
KEYS = tuple(key.public.hex() for key in SIGN_KEYS)


def audited(plan: Plan) -> Plan:
    """The plan, which proves norms, with an audit."""
    return dataclasses.replace(plan, audit="open", audit_keys=KEYS[:2], auditors=KEYS[2:])


def audited_servers(
    plan: Plan,
    kinds: tuple[type[Server], type[Server]] = (Server, Server),
    evaluator: MakeEvaluator = LocalEvaluator,
) -> tuple[Server, Server]:
    """Both servers with equal models and the keys of the plan."""
    state = make_state(plan)
    one, two = (
        kind(
            party,
            plan=plan,
            model=ServerModel(state),
            sign_key=SIGN_KEYS[party],
            evaluator=evaluator,
        )
        for party, kind in enumerate(kinds)
    )
    return one, two


def auditors(plan: Plan) -> tuple[Auditor, Auditor]:
    """Both auditors."""
    return Auditor(plan, 0, SIGN_KEYS[2]), Auditor(plan, 1, SIGN_KEYS[3])


def reported(
    servers: tuple[Server, Server],
    number: int,
    updates: dict[int, Update],
    members: dict[int, Client] | None = None,
) -> tuple[Server, Server]:
    """The servers in a round in which these clients have reported; `members` go on in sessions."""
    begin_round(servers, number)
    plan, wire = servers[0].plan, Wire(servers)
    for client, update in updates.items():
        if plan.max_epochs == 1:
            submit(wire, client, number, update)
            continue
        member = (members or {}).get(client) or Client(plan, wire, client_id=client)
        if members is not None:
            members[client] = member
        wanted = {s.name: update[s.name].positions for s in plan.early}
        member.continue_session(number, indices=wanted).submit(update)
    return servers


def until_verified(servers: tuple[Server, Server]) -> None:
    """Close the round and go through its steps up to the commitment."""
    one, two = servers
    lists = one.close_round(), two.close_round()
    folds = one.agree(lists[1]), two.agree(lists[0])
    one.verify(folds[1])
    two.verify(folds[0])


def shown_by(server: Server, lie: Callable[[Server], None] = lambda _: None) -> bytes:
    """The transcript of a server that commits now; `lie` comes between."""
    said = server.commit()
    lie(server)
    return b"".join(transcript.parts(server, said))

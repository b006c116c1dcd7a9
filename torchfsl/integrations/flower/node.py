"""Settings that a client takes from its own SuperNode: certificates, policy, its number.

    flower-supernode ... --node-config 'torchfsl-tls="/etc/torchfsl" torchfsl-name="client-17"'

| setting | value | default |
|---|---|---|
| `torchfsl-tls` | folder of this client's key, certificate and the three authorities | none |
| `torchfsl-name` | file name of the certificate there, without ending | the only `client-*.pem` |
| `torchfsl-servers` | `URL0,URL1` as seen from this node | the URLs in the Message |
| `torchfsl-require` | policy file with minimum requirements for the plan | the default policy |

A Message never says which certificates to trust. Without `torchfsl-tls` the node belongs to a
simulation, whose servers the strategy runs on this machine (`servers="local"`). The files of these
servers lie in a folder of this user, which is named after the run. The client's number is the
node's `partition-id`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from flwr.app import Context

from torchfsl.errors import ParameterError
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.integrations.flower.records import Call
from torchfsl.service.client.remote import Connection, connect
from torchfsl.service.net.addresses import user_path
from torchfsl.service.net.channels import TlsFiles

URLS_FILE = "servers"
"""In the folder of local servers: their URLs."""


def local_folder(run_id: int) -> Path:
    """The folder for the files of the run's local servers; only this user may enter it."""
    return Path(tempfile.gettempdir()) / f"torchfsl-flower-{os.getuid()}-{run_id}"


def connect_as(context: Context, call: Call) -> Connection:
    """Connect to both servers with this node's own certificate; the number is the certificate's.

    Raises:
        ParameterError: settings are missing or wrong, or the plan is below a floor.
        NotReady: the servers are not there.
    """
    config = context.node_config
    folder = config.get("torchfsl-tls")
    if folder is None:
        return _connect_here(context, call)
    files = _files(user_path(str(folder)), config.get("torchfsl-name"))
    own = config.get("torchfsl-servers")
    servers = tuple(str(own).split(",")) if own else call.servers
    if len(servers) != 2:
        raise ParameterError(
            "the strategy runs its servers on its own machine, which only simulations allow: pass "
            "the strategy servers=[URL0, URL1], or start this node with --node-config "
            "'torchfsl-servers=\"URL0,URL1\"'"
        )
    policy = config.get("torchfsl-require")
    require = None if policy is None else user_path(str(policy))
    return connect(servers, files, files.identity().number, require=require)


def _files(folder: Path, name: object) -> TlsFiles:
    if name is not None:
        return TlsFiles.in_folder(folder, str(name))
    names = sorted(path.stem for path in folder.glob("client-*.pem"))
    if len(names) != 1:
        raise ParameterError(
            f"{folder} has the certificates of {len(names)} clients, expected 1: name the "
            "certificate of this node with --node-config 'torchfsl-name=\"client-17\"'"
        )
    return TlsFiles.in_folder(folder, names[0])


def _connect_here(context: Context, call: Call) -> Connection:
    folder = local_folder(context.run_id)
    number = context.node_config.get("partition-id")
    if call.servers or type(number) is not int or not is_private(folder):
        raise ParameterError(
            "this node has no certificate: start its SuperNode with --node-config "
            "'torchfsl-tls=\"FOLDER\"', the folder of this client's files"
        )
    servers = (folder / URLS_FILE).read_text().split()
    files = TlsFiles.in_folder(folder / "certs", f"client-{number}")
    return connect(servers, files, number, require=ClientPolicy(min_clients=1))


def is_private(folder: Path) -> bool:
    """Whether `folder` is a folder of this user that no other user may enter."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return mine and stat.S_IMODE(status.st_mode) & 0o077 == 0

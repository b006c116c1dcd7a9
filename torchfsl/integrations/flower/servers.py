"""The two servers as the strategy sees them: it is the coordinator of their task."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.flower.node import URLS_FILE, is_private, local_folder
from torchfsl.service.client.owner import Owner
from torchfsl.service.local import LoopbackServers
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array

log = logging.getLogger("flwr.torchfsl")  # shown where Flower shows its own lines

_SPARE_SECONDS = 60.0
"""For which a round stays open beyond the strategy's time-out."""


class TaskServers:
    """Both servers, with a task while `running`.

    Args:
        servers: URLs of server 0 and 1, or `local`: two processes of this machine for the time of
            the run, with development certificates. Their one folder holds all keys: simulations
            only.
        tls: the coordinator's files; none for `local`.
        auditors: public keys in hex of the auditors of server 0 and of server 1; none for `local`.

    Attributes:
        urls: as Messages name them: empty for `local`, whose clients look into the folder.
    """

    def __init__(
        self,
        servers: Literal["local"] | Sequence[str],
        tls: Path | TlsFiles | None,
        auditors: tuple[str, ...] = (),
    ) -> None:
        """Nothing runs, nothing is sent.

        Raises:
            ParameterError: URLs without certificates, or `local` with some or with auditors.
        """
        self._local = isinstance(servers, str)
        if isinstance(servers, str) and servers != "local":
            raise ParameterError(f"servers is {servers!r}: pass [URL0, URL1], or 'local'")
        self.urls = () if self._local else tuple(servers)
        if len(self.urls) != (0 if self._local else 2) or (tls is None) is not self._local:
            raise ParameterError(
                f"servers={servers!r} {'without' if tls is None else 'with'} tls= cannot be used: "
                "pass servers=[URL0, URL1] and tls= with the folder of the coordinator's "
                "certificate, or servers='local' without tls= in a simulation"
            )
        if self._local and auditors:
            raise ParameterError(
                f"servers='local' does not run auditors, but the plan or auditors= has "
                f"{len(auditors)} auditors: pass servers=[URL0, URL1] and tls=, or a plan with "
                "audit='none'",
                code="audit-conditions",
            )
        self._tls, self._auditors = tls, auditors

    @contextlib.contextmanager
    def running(self, run_id: int) -> Iterator[None]:
        """Connect as the coordinator; `local` servers are started before and stopped after."""
        with contextlib.ExitStack() as stack:
            urls, tls = self.urls, self._tls
            if self._local:
                local = stack.enter_context(_local_servers(run_id))
                urls, tls = tuple(local.urls), local.tls
            self._folder = tls
            assert tls is not None
            self._owner = stack.enter_context(contextlib.closing(Owner(urls, tls)))
            yield

    def set_up(
        self,
        plan: Plan,
        state: Mapping[str, Array],
        optimizer: OptimizerSettings,
        source: Literal["delta", "gradient"],
        *,
        replace: bool,
    ) -> Plan:
        """Give both servers a task; returns its plan, which names them."""
        self._task = self._owner.bind(
            plan, optimizer=optimizer, source=source, auditors=self._auditors
        )
        self._owner.set_up(self._task, state, replace=replace)
        return self._task.plan

    def admit(self, nodes: int) -> None:
        """Local clients 0 to `nodes` - 1 get certificates; others bring their own."""
        if self._local:
            assert isinstance(self._folder, Path)
            make_development_certificates(self._folder, range(nodes))

    def open(self, number: int, timeout: float) -> None:
        """Open a round for longer than the strategy waits."""
        self._owner.open_round(number, seconds=timeout + _SPARE_SECONDS)

    def close(self, number: int) -> tuple[Opened, ServerModel]:
        """Close the round; its sums, and the model that both servers hold now.

        Raises:
            ProtocolError: it ended unopened; the model is as before.
        """
        self._owner.close_round(number)
        opened, of = self._owner.result()
        assert of == number
        return opened, self._owner.model(self._task)


@contextlib.contextmanager
def _local_servers(run_id: int) -> Iterator[LoopbackServers]:
    folder = local_folder(run_id)
    folder.mkdir(mode=0o700)
    try:
        if not is_private(folder):
            raise ParameterError(
                f"another user owns {folder} or may read it: find out who made this folder, "
                "remove it, and run again"
            )
        with LoopbackServers(folder, clients=0) as servers:
            servers.start()
            log.info("both torchfsl servers run on this machine, which is for simulation only")
            (folder / URLS_FILE).write_text("\n".join(servers.urls))
            yield servers
    finally:
        shutil.rmtree(folder, ignore_errors=True)

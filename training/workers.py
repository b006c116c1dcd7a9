"""Clients of a round side by side, in separate processes.

A worker holds the torch side of the experiment, made from the same settings. It plays the clients
that it receives with the very lines of the trainer (`clients.Clients`). Its participants are calls
to the trainer's process, which holds servers, audit and residuals. The worker that plays a client,
and the time, change nothing. Sums do not depend on the order of updates, and a client starts from
its downloads, its residual and its seeds. All data in the pipes come from this program's own
children on this machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import numpy.typing as npt
import torch

from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.submodel.aggregation import Receipt, RoundSession
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.update import Update
from torchfsl.types import Array, Indices
from training.attached import attach
from training.checkpoint import residual_arrays, residual_of
from training.clients import Clients, Job
from training.config import Config
from training.interrupt import unheard
from training.section_checks import ConfigError
from training.tasks.build import build_task

_CALLS: Final = ("download", "retrieve", "submit", "abort", "receipt")
"""Of a session, by a worker."""
_TOLD: Final = (ConfigError, ParameterError, ProtocolError, FileNotFoundError, ValueError)
"""Errors that the command says in a line; the first that fits."""
_ENDED: Final = (
    "a worker process ended early, perhaps because memory ran out (each worker needs memory for a "
    "model and its data): lower workers"
)


class Workers:
    """Processes that train clients; close when the run ends.

    Args:
        config: settings; `workers` is how many there are.
        plan: the public plan.
    """

    def __init__(self, config: Config, plan: SubmodelPlan) -> None:
        context = multiprocessing.get_context("spawn")  # threads of torch and kernels do not fork
        self._processes, self._connections = [], []
        for _ in range(config.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(config, plan, theirs), daemon=True)
            with unheard():  # the trainer hears Ctrl-C, and closes the pipe
                process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def run(self, number: int, jobs: Iterable[Job], done: Callable[[int], None]) -> None:
        """Play a round's clients; calls `done` with the number of values cut at each client.

        Raises:
            ConfigError: a worker has ended.
            ConfigError, ParameterError, ProtocolError, FileNotFoundError, ValueError: what a
                client's training raised; a note has the worker's traceback.
            RuntimeError: a client's training raised another error; has the worker's traceback.
            Exception: what the aggregation raised.
        """
        idle, busy, coming = list(self._connections), {}, iter(jobs)
        while True:
            while idle and (job := next(coming, None)) is not None:
                connection = idle.pop()
                busy[connection] = job
                client, owed = job.participant.client_id, residual_arrays(job.residual)
                _tell(connection, (number, client, job.drops_out, owed))
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                connection = ready
                job = busy[connection]
                name, arguments = _heard(connection)
                if name == "done":
                    clipped, owed = arguments
                    job.residual.load_state_dict(residual_of(owed).state_dict())
                    done(clipped)
                    idle.append(connection)
                    del busy[connection]
                elif name == "failed":
                    raise job.error or _error_of(*arguments)
                else:
                    _tell(connection, _answered(job, number, name, arguments))

    def close(self) -> None:
        """End them."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join()


def _error_of(kind: str | None, text: str, trace: str) -> Exception:
    """The error of a worker's client, in its own class if that is one of `_TOLD`."""
    for told in _TOLD:
        if told.__name__ == kind:
            error = told(text)
            error.add_note(f"in a worker:\n{trace}")
            return error
    return RuntimeError(f"in a worker:\n{trace}")


def _tell(connection: Connection, value: tuple[Any, ...]) -> None:
    try:
        connection.send(value)
    except OSError as error:
        raise ConfigError(_ENDED) from error


def _heard(connection: Connection) -> tuple[str, tuple[Any, ...]]:
    try:
        name, arguments = connection.recv()
    except (EOFError, OSError) as error:
        raise ConfigError(_ENDED) from error
    return name, arguments


def _answered(job: Job, number: int, name: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether a call of a worker's client succeeded, and its result or its error."""
    try:
        if name == "start_round":
            job.session = job.participant.start_round(number, indices=arguments[0])
            return True, None
        assert name in _CALLS, name
        return True, getattr(job.session, name)(*arguments)
    except Exception as error:
        job.error = error
        return False, error


# --- in a worker ----------------------------------------------------------------------------------


class _Client:
    """A `Participant` and its `RoundSession`, both in the trainer's process."""

    def __init__(self, connection: Connection, plan: SubmodelPlan, client: int) -> None:
        self.plan, self.client_id, self._connection = plan, client, connection

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        self._ask("start_round", indices)
        return self

    def download(self) -> Mapping[str, Array]:
        found: dict[str, Array] = self._ask("download")
        return found

    def retrieve(self) -> Mapping[str, tuple[Indices, Array]]:
        found: dict[str, tuple[Indices, Array]] = self._ask("retrieve")
        return found

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        assert weight == 1, "no experiment weighs clients"
        receipt: Receipt = self._ask("submit", update)
        return receipt

    def abort(self) -> Receipt:
        receipt: Receipt = self._ask("abort")
        return receipt

    def receipt(self) -> Receipt:
        receipt: Receipt = self._ask("receipt")
        return receipt

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        good, value = self._connection.recv()
        if not good:
            raise value
        return value


def _work(config: Config, plan: SubmodelPlan, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a thread, `unheard` could not see to it
    torch.set_num_threads(config.torch_threads or config.threads or 1)
    try:
        task = build_task(config)
        clients = Clients(config, task, attach(config, task))
        while True:
            number, client, drops_out, owed = connection.recv()
            residual, participant = residual_of(owed), _Client(connection, plan, client)
            clipped = clients.run(number, participant, residual, drops_out=drops_out)
            connection.send(("done", (clipped, residual_arrays(residual))))
    except EOFError:  # the trainer has ended
        return
    except Exception as error:
        kind = next((k for k in _TOLD if isinstance(error, k)), None)
        name = None if kind is None else kind.__name__
        with contextlib.suppress(OSError):
            connection.send(("failed", (name, str(error), traceback.format_exc())))

"""The `torchfsl` command: serve, certs, status, close, abandon, doctor."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchfsl.errors import FslError, ParameterError
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.version import __version__

_DESCRIPTION = """\
Federated submodel learning by two servers that do not collude.

Two organisations run one server each. Clients send point-function keys; each server sees random
bytes, and only the sum over a round's clients is ever opened, once. The servers' state survives
crashes: what was acknowledged counts, once.
"""

_EPILOG = """\
try it on one machine
  torchfsl certs certs --clients 0-999
  torchfsl serve --party 0 --listen 127.0.0.1:7000 --peer https://127.0.0.1:7001 \\
                 --state state0 --tls certs
  torchfsl serve --party 1 --listen 127.0.0.1:7001 --peer https://127.0.0.1:7000 \\
                 --state state1 --tls certs
  python -m training din --servers https://127.0.0.1:7000,https://127.0.0.1:7001 --tls certs

docs/operations.md is the operator's manual.
"""

_SERVE = """\
Run server 0 or server 1. Server 0 drives the rounds, server 1 follows; otherwise they are equal.
The server waits for a task (plan and model), which the owner's program hands to both servers, and
goes on with whatever is in the state folder. Stop it with SIGTERM; kill it if you must.

Every option can be given in a TOML file instead (--config), options win:

  party = 0
  listen = "0.0.0.0:7000"
  peer = "https://fsl.other.example:7000"
  state = "/var/lib/torchfsl"
  tls-cert = "/etc/torchfsl/server-0.pem"
  tls-key = "/etc/torchfsl/server-0.key"
  tls-server-ca-0 = "/etc/torchfsl/ca-server-0.pem"
  tls-server-ca-1 = "/etc/torchfsl/ca-server-1.pem"
  tls-clients-ca = "/etc/torchfsl/ca-clients.pem"
  metrics = "127.0.0.1:9100"
  min-clients = 100                  # refuse plans that open sums over fewer reports

  [limits]                           # fields of torchfsl.service.server.intake.Limits
  bytes_in_flight = 268435456
  [storage]                          # fields of torchfsl.service.server.storage.NodeSettings
  reserve_bytes = 268435456
"""

_CERTS = """\
Make keys and certificates for development: one authority for each server and one for clients, so
that neither operator can pose as the other. Existing files are kept; run it again to add clients.
In use, each organisation keeps its authority and keys to itself and hands out certificates.
"""

_CLOSE = """\
Close the open round now, as its owner.
Both servers finish it: the sum over its reports is opened if there are enough of them.
"""

_ABANDON = """\
End the running round unopened, as its owner.
Nothing of it is opened, and its number is used up. Refused once a share may have left server 0.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 a check failed, 2 bad usage."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except FslError as error:
        parser.exit(2, f"torchfsl: {error}\n")
    except ModuleNotFoundError as error:
        parser.exit(2, f"torchfsl: {error}; install torchfsl with its service extra\n")
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "torchfsl", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw
    )
    version = f"torchfsl {__version__}, wire version {WIRE_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve", help="run a server", description=_SERVE, formatter_class=raw
    )
    _add_serve_options(serve)
    serve.set_defaults(run=_serve)

    certs = commands.add_parser(
        "certs", help="make development certificates", description=_CERTS, formatter_class=raw
    )
    certs.add_argument("folder", type=Path, help="where the files go")
    certs.add_argument("--clients", default="", metavar="A-B,C", help="client numbers, as 0-99,200")
    certs.add_argument("--days", type=int, default=30, help="validity (default 30)")
    certs.set_defaults(run=_certs)

    status = commands.add_parser(
        "status", help="show the rounds in a state folder, or two running servers"
    )
    status.add_argument("--state", type=Path, metavar="DIR", help="a server's state folder")
    status.add_argument("--servers", metavar="URL0,URL1", help="running servers")
    status.add_argument("--tls", type=Path, metavar="DIR", help="certificates, for --servers")
    status.add_argument(
        "--as", dest="name", default="owner", help="owner, client-N (default owner)"
    )
    status.add_argument("--rounds", type=int, default=10, help="rounds to show (default 10)")
    status.set_defaults(run=_status)

    for name, text in (("close", _CLOSE), ("abandon", _ABANDON)):
        end = commands.add_parser(
            name, help=text.splitlines()[0].rstrip("."), description=text, formatter_class=raw
        )
        end.add_argument("--servers", metavar="URL0,URL1", required=True, help="running servers")
        end.add_argument(
            "--tls", type=Path, metavar="DIR", required=True, help="with the owner's certificate"
        )
        end.set_defaults(run=_close if name == "close" else _abandon)
    end.add_argument("--reason", default="the owner abandoned it", help="shown in the status")

    doctor = commands.add_parser(
        "doctor", help="check this machine: backend, processor, AES rate, torch, certificates"
    )
    doctor.add_argument("--tls", type=Path, metavar="DIR", help="certificates to look at")
    doctor.set_defaults(run=_doctor)
    return parser


_SERVE_OPTIONS: tuple[tuple[str, str, type[Any], str], ...] = (
    ("party", "0|1", int, "which of the two servers this is"),
    ("listen", "HOST:PORT", str, "address for clients and the other server"),
    ("peer", "URL", str, "the other server, https://HOST:PORT"),
    ("state", "DIR", Path, "folder of the durable state, made when missing"),
    ("tls", "DIR", Path, "folder made by `torchfsl certs`, instead of the five files below"),
    ("tls-cert", "FILE", Path, "this server's certificate"),
    ("tls-key", "FILE", Path, "its private key"),
    ("tls-server-ca-0", "FILE", Path, "authority of server 0"),
    ("tls-server-ca-1", "FILE", Path, "authority of server 1"),
    ("tls-clients-ca", "FILE", Path, "authority of clients and owner"),
    ("metrics", "HOST:PORT", str, "where to answer /metrics and /health; none by default"),
    ("min-clients", "N", int, "refuse plans that open sums over fewer reports (default 2)"),
    ("log-level", "LEVEL", str, "debug, info, warning or error (default info)"),
)


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="settings, see above")
    for name, metavar, kind, text in _SERVE_OPTIONS:
        parser.add_argument(f"--{name}", metavar=metavar, type=kind, help=text)


def _serve(options: argparse.Namespace) -> int:
    from torchfsl.service.server.observe import log_to_stderr
    from torchfsl.service.server.process import ServerProcess, serve

    settings, level = _serve_settings(options)
    log_to_stderr(level)

    def ready(process: ServerProcess) -> None:
        print(f"ready port={process.port} metrics={process.metrics_port}", flush=True)

    asyncio.run(serve(settings, ready=ready))
    return 0


def _serve_settings(options: argparse.Namespace) -> tuple[Any, str]:
    """File, then options.

    Raises:
        ParameterError: something is missing or wrong.
    """
    from torchfsl.service.net.channels import TlsFiles
    from torchfsl.service.server.intake import Limits
    from torchfsl.service.server.process import ServeSettings
    from torchfsl.service.server.storage import NodeSettings

    given = _read_toml(options.config) if options.config is not None else {}
    limits, storage = given.pop("limits", {}), given.pop("storage", {})
    kinds = {name: kind for name, _, kind, _ in _SERVE_OPTIONS}
    unknown = set(given) - set(kinds)
    if unknown:
        raise ParameterError(f"unknown settings {sorted(unknown)}; known: {sorted(kinds)}")
    for name, kind in kinds.items():
        option = getattr(options, name.replace("-", "_"))
        if option is not None:
            given[name] = option
        elif name in given:
            given[name] = kind(given[name])
    for name in ("party", "listen", "peer", "state"):
        if name not in given:
            raise ParameterError(f"--{name} is missing; see torchfsl serve --help")
    party = given["party"]
    if party not in (0, 1):
        raise ParameterError(f"party is {party}; the two servers are 0 and 1")
    if "tls" in given:
        files = TlsFiles.in_folder(given["tls"], f"server-{party}")
    else:
        names = ("tls-cert", "tls-key", "tls-server-ca-0", "tls-server-ca-1", "tls-clients-ca")
        missing = [name for name in names if name not in given]
        if missing:
            raise ParameterError(f"--tls DIR, or --{missing[0]} and its companions, are missing")
        cert, key, first, second, clients = (given[name] for name in names)
        files = TlsFiles(cert, key, (first, second), clients)
    if "min-clients" in given:
        if given["min-clients"] < 1:
            raise ParameterError(f"--min-clients is {given['min-clients']}: it is at least 1")
        storage = {"min_clients": given["min-clients"], **storage}
    settings = ServeSettings(
        party, given["listen"], given["peer"], given["state"], files, given.get("metrics", ""),
        _section(NodeSettings, storage, "storage"), _section(Limits, limits, "limits"),
    )  # fmt: skip
    return settings, given.get("log-level", "info")


def _section(kind: type[Any], values: Any, name: str) -> Any:
    known = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(values, dict) or not set(values) <= set(known):
        raise ParameterError(f"[{name}] has the settings {sorted(known)} and no others")
    if not all(type(value) in (int, float) and value > 0 for value in values.values()):
        raise ParameterError(f"the settings in [{name}] are positive numbers")
    return kind(**values)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ParameterError(f"cannot read the settings in {path}: {error}") from error


def _certs(options: argparse.Namespace) -> int:
    from torchfsl.service.net.certificates import make_development_certificates

    made = make_development_certificates(
        options.folder, client_numbers(options.clients), days=options.days
    )
    print(f"{len(made)} certificates made in {options.folder}, valid for {options.days} days")
    print("for development only: one folder holds the keys of all parties")
    return 0


def client_numbers(text: str) -> list[int]:
    """`0-9,20` as numbers.

    Raises:
        ParameterError: it is not of that form, or a range ends below its start.
    """
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ParameterError(f"--clients {text!r}: write numbers and ranges, as 0-99,200")
        if int(last or first) < int(first):
            raise ParameterError(
                f"--clients {text!r}: the range {part} ends below its start: write {last}-{first}"
            )
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _status(options: argparse.Namespace) -> int:
    from torchfsl.service import reporting

    if (options.state is None) == (options.servers is None):
        raise ParameterError("give --state DIR or --servers URL0,URL1")
    if options.state is not None:
        return reporting.show_state(options.state, options.rounds)
    if options.tls is None:
        raise ParameterError("--servers needs --tls, the folder of certificates")
    _log_waiting()
    return reporting.show_servers(options.servers.split(","), options.tls, options.name)


def _close(options: argparse.Namespace) -> int:
    with _owner(options, seconds=3600) as owner:
        number = owner.running_round()
        row = owner.close_round(number)
        print(f"round {number} is applied: {row['accepted']} of {row['reports']} reports")
    return 0


def _abandon(options: argparse.Namespace) -> int:
    with _owner(options, seconds=60) as owner:
        number = owner.running_round()
        owner.abandon_round(number, options.reason)
        print(f"round {number} ended unopened")
    return 0


def _owner(options: argparse.Namespace, *, seconds: float) -> Any:
    from torchfsl.service.client.links import RetryPolicy
    from torchfsl.service.client.owner import Owner

    _log_waiting()
    policy = RetryPolicy(attempt_seconds=seconds, total_seconds=seconds)
    return contextlib.closing(Owner(options.servers.split(","), options.tls, policy=policy))


def _log_waiting() -> None:
    """Say on standard error when a server gives no answer and is asked again."""
    logging.basicConfig(format="torchfsl: %(message)s", level=logging.WARNING)


def _doctor(options: argparse.Namespace) -> int:
    from torchfsl.service import reporting

    return reporting.show_machine(options.tls)


if __name__ == "__main__":
    sys.exit(main())

"""Options of `torchfsl serve`, its TOML file, and the settings made of both."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchfsl.errors import ParameterError
from torchfsl.faces import nearest
from torchfsl.service.net.addresses import split_address, user_path
from torchfsl.service.server.logs import LEVELS, set_level

if TYPE_CHECKING:
    from torchfsl.fsl.floors import ClientPolicy
    from torchfsl.service.net.channels import TlsFiles
    from torchfsl.service.server.engines import EngineSettings
    from torchfsl.service.server.process import ServerProcess, ServeSettings

log = logging.getLogger("torchfsl.service.serving")

DESCRIPTION = """\
Run server 0 or server 1. Server 0 drives the rounds, server 1 follows; otherwise they are equal.
The server waits for a task (plan and model), which the coordinator's program sends to both, and
continues from the state folder. Stop the server with SIGTERM; SIGKILL does not damage the state.
At SIGHUP the server reads log-level and replace in the file again, also the authorities, the deny
list and the issuers of tokens. It logs what it read, and which changed settings need a restart.

The server ends with status 74 if its state cannot be read or written (a full disk, no descriptors).
A supervisor starts it again, and it continues. It ends with status 65 if the state must not be used
(damaged, gone, or an older copy): see the page 'Incidents'. Status 2 is wrong usage.

A TOML file (--config) can set every option. An option of the command line replaces its value:

  party = 0
  listen = "0.0.0.0:7000"
  peer = "https://fsl.other.example:7000"
  state = "/var/lib/torchfsl/state"
  tls-cert = "/etc/torchfsl/server-0.pem"
  tls-key = "/etc/torchfsl/server-0.key"
  tls-server-ca-0 = "/etc/torchfsl/ca-server-0.pem"
  tls-server-ca-1 = "/etc/torchfsl/ca-server-1.pem"
  tls-clients-ca = "/etc/torchfsl/ca-clients.pem"
  deny = "/etc/torchfsl/deny"        # clients and coordinators that may not call
  metrics = "127.0.0.1:9100"         # also /livez, /readyz and /health
  grpc-health = "127.0.0.1:9101"     # grpc.health.v1.Health, without TLS
  max-fetches = 16                   # most fetches of one client from one model
  min-clients = 100                  # least reports in a sum that a plan may open

  engine = "ray://10.0.0.5:10001"    # evaluate on a cluster of Ray (see the page
                                     # 'One server over many machines')
  shards = 4

  replace = "nobody"                 # or "owner": who may replace a task that has a model

  [floors]                           # minimum requirements of a plan
  max_rounds = 1000
  lanes = ["none", "count"]
  [limits]                           # of connections, calls and bytes
  bytes_in_flight = 268435456
  [storage]                          # of the state folder
  reserve_bytes = 268435456
  [web]                              # needs torchfsl[web]: clients by HTTPS
                                     # (see the page 'Apps and web pages')
  listen = "0.0.0.0:7443"
  certificate = "/etc/torchfsl/web.pem"
  key = "/etc/torchfsl/web.key"
  admission = "/etc/torchfsl/admission.toml"
  origins = ["https://app.example"]
"""

_OPTIONS: tuple[tuple[str, str, Callable[[Any], Any], str], ...] = (
    ("party", "0|1", int, "number of this server"),
    ("listen", "HOST:PORT", str, "address for clients and the other server"),
    ("peer", "URL", str, "URL of the other server, https://HOST:PORT"),
    ("state", "DIR", user_path, "state folder, made if it is missing"),
    (
        "witness",
        "FILE",
        user_path,
        "file of the rollback counter, which detects older copies of the state folder; outside "
        "this folder, never copied back (default: DIR.witness)",
    ),
    ("tls", "DIR", user_path, "folder made by `torchfsl certs`, instead of the five files below"),
    ("tls-cert", "FILE", user_path, "certificate of this server"),
    ("tls-key", "FILE", user_path, "private key of this server"),
    ("tls-server-ca-0", "FILE", user_path, "certificate authority of server 0"),
    ("tls-server-ca-1", "FILE", user_path, "certificate authority of server 1"),
    ("tls-clients-ca", "FILE", user_path, "certificate authority of clients and coordinator"),
    ("tls-auditor-ca-0", "FILE", user_path, "certificate authority of server 0's auditor, if any"),
    ("tls-auditor-ca-1", "FILE", user_path, "certificate authority of server 1's auditor, if any"),
    ("replace", "owner|nobody", str, "who may replace a task that has a model (default: nobody)"),
    ("deny", "FILE", user_path, "deny list (see the page 'Certificates')"),
    ("metrics", "HOST:PORT", str, "address of /metrics, /livez and /readyz (default: none)"),
    ("grpc-health", "HOST:PORT", str, "address of gRPC health checks (default: none)"),
    ("min-clients", "N", int, "least reports in a sum that a plan may open (default: 2)"),
    ("max-fetches", "N", int, "most fetches of one client from one model (default: 16)"),
    ("engine", "URL", str, "engine that evaluates, as ray://HOST:PORT (default: this process)"),
    ("shards", "N", int, "parts of the evaluation at the engine (default: 1)"),
    ("engine-insecure", "", bool, "permission for an engine without token and TLS"),
    ("log-level", "LEVEL", str, "debug, info, warning or error (default: info)"),
)


REPLACING = ("owner", "nobody")
"""Values of --replace."""
_AUDITORS = ("tls-auditor-ca-0", "tls-auditor-ca-1")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `torchfsl serve`."""
    text = "file of settings, see above"
    parser.add_argument("--config", type=user_path, metavar="FILE.toml", help=text)
    for name, metavar, kind, text in _OPTIONS:
        if kind is bool:
            parser.add_argument(f"--{name}", action="store_const", const=True, help=text)
            continue
        parser.add_argument(f"--{name}", metavar=metavar, type=kind, help=text)


def read_settings(options: argparse.Namespace) -> tuple[ServeSettings, str]:
    """File, then options: what the process is made of, and the level of its log.

    Raises:
        ParameterError: something is missing or wrong.
    """
    from torchfsl.service.server.intake import Limits
    from torchfsl.service.server.process import ServeSettings
    from torchfsl.service.server.storage import NodeSettings
    from torchfsl.service.server.web_settings import WebSettings

    given, limits, storage, floors, web = _read_given(options)
    for name in ("party", "listen", "peer", "state"):
        if name not in given:
            raise ParameterError(
                f"--{name} is missing: give it, or set {name} in the file of --config"
            )
    if given["party"] not in (0, 1):
        raise ParameterError(f"party is {given['party']}: choose 0 or 1")
    level = given.get("log-level", "info")
    if level not in LEVELS:
        raise ParameterError(f"log-level is {level!r}: choose one of {', '.join(LEVELS)}")
    files = _tls_files(given)
    for name in ("min-clients", "max-fetches", "shards"):
        if given.get(name, 1) < 1:
            raise ParameterError(f"--{name} is {given[name]}: choose 1 or more")
    node = _section(NodeSettings, storage, "storage")
    if given.get("replace", "nobody") not in REPLACING:
        choices = " or ".join(map(repr, REPLACING))
        raise ParameterError(f"replace is {given['replace']!r}: write {choices}")
    may_replace = given.get("replace") == "owner"
    most = given.get("max-fetches", node.max_fetches)
    node = dataclasses.replace(
        node, floors=_floors(floors, given), max_fetches=most, may_replace=may_replace
    )
    settings = ServeSettings(
        given["party"], given["listen"], given["peer"], given["state"], files,
        given.get("metrics", ""), given.get("grpc-health", ""), node,
        _section(Limits, limits, "limits"), given.get("witness"), given.get("deny"),
        _engine(given), None if web is None else WebSettings.from_mapping(web),
    )  # fmt: skip
    return settings, level


REREAD = ("log-level", "replace")
"""Settings that SIGHUP takes from the file. It also reads the files that others name."""


def named(options: argparse.Namespace) -> dict[str, Any]:
    """The given values of all settings and sections; raises as `read_settings`."""
    given, *sections = _read_given(options)
    names = ("[limits]", "[storage]", "[floors]", "[web]")
    return given | dict(zip(names, sections, strict=True))


def reread(options: argparse.Namespace, start: Mapping[str, Any], process: ServerProcess) -> None:
    """Take what a running server takes, and log in one line what that is and what needs a restart.

    Args:
        options: of the command.
        start: what `named` gave when the server started.
        process: the server.
    """
    files = process.reread()
    try:
        settings, level = read_settings(options)
        now = named(options)
    except ParameterError as error:
        log.error("the settings stay as they were: %s", error)
        return
    may_replace = settings.node.may_replace
    process.permit_replace(may_replace)
    set_level(level)
    names = sorted(n for n in {*start, *now} - {*REREAD} if start.get(n) != now.get(n))
    taken = [f"log-level = {level}", f"replace = {REPLACING[not may_replace]}", *files]
    needed = f"restart the server for {', '.join(names)}" if names else "nothing needs a restart"
    log.log(LEVELS[level], "read again: %s; %s", ", ".join(taken), needed)


def read_file(path: Path) -> ServeSettings:
    """The settings in a file alone; raises as `read_settings`."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_settings(parser.parse_args(["--config", str(path)]))[0]


def servers_in(path: Path) -> tuple[list[str], TlsFiles]:
    """Both servers' URLs and the own files by a settings file; raises as `read_settings`."""
    settings = read_file(path)
    return urls_of(settings), settings.tls


def urls_of(settings: ServeSettings) -> list[str]:
    """Both servers, as one of them reaches them."""
    host, port = split_address(settings.listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (is compared)
    own = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return [own, settings.peer] if settings.party == 0 else [settings.peer, own]


def _read_given(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Any, Any, dict[str, Any], Any]:
    """The given values of `_OPTIONS`, each of its type, and the file's four sections."""
    given = _read_toml(options.config) if options.config is not None else {}
    limits, storage = given.pop("limits", {}), given.pop("storage", {})
    floors, web = given.pop("floors", {}), given.pop("web", None)
    if not isinstance(floors, dict):
        raise ParameterError(f"floors = {floors!r}: write it as a section, [floors]")
    kinds = {name: kind for name, _, kind, _ in _OPTIONS}
    for key in sorted(set(given) - set(kinds)):
        hint = _nearest(key, sorted({*kinds, "limits", "storage", "floors", "web"}))
        if place := _place(key):
            hint = f"{hint} Or {place}" if "did you mean" in hint else place
        raise ParameterError(f"unknown setting or section {key} in the file: {hint}")
    for section, values in (("floors", floors), ("web", web)):
        for key in sorted(values if isinstance(values, dict) else ()):
            if hint := _place(key, section):
                raise ParameterError(f"unknown setting {key} in [{section}]: {hint}")
    for name, kind in kinds.items():
        option = getattr(options, name.replace("-", "_"))
        if option is not None:
            given[name] = option
        elif name in given:
            given[name] = _of_kind(name, given[name], kind)
    return given, limits, storage, floors, web


def _of_kind(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    """A setting of the file; raises ParameterError if it is of another type."""
    wanted = kind if kind in (int, bool) else str
    if type(value) is not wanted:
        words: dict[object, str] = {
            int: "a whole number, without quotes",
            bool: "true or false, without quotes",
        }
        word = words.get(kind, "text in quotes")
        raise ParameterError(f"{name} = {value!r} in the settings file: expected {word}")
    return kind(value)


def _tls_files(given: Mapping[str, Any]) -> TlsFiles:
    from torchfsl.service.net.channels import TlsFiles

    names = ("tls-cert", "tls-key", "tls-server-ca-0", "tls-server-ca-1", "tls-clients-ca")
    if "tls" in given:
        if twice := [name for name in names if name in given]:
            raise ParameterError(
                f"tls names the folder of all keys and certificates: remove {twice[0]} from the "
                "settings"
            )
        return TlsFiles.in_folder(given["tls"], f"server-{given['party']}")
    missing = [name for name in names if name not in given]
    if missing:
        raise ParameterError(
            f"--{missing[0]} is missing: give all {len(names)} files, or --tls DIR"
        )
    cert, key, first, second, clients = (given[name] for name in names)
    auditors = tuple(given[name] for name in _AUDITORS if name in given)
    if len(auditors) == 1:
        raise ParameterError(f"{' and '.join(_AUDITORS)}: give both, or none")
    return TlsFiles(cert, key, (first, second), clients, auditors)


def _engine(given: Mapping[str, Any]) -> EngineSettings:
    from torchfsl.service.server.engines import EngineSettings

    for name in ("shards", "engine-insecure"):
        if name in given and "engine" not in given:
            raise ParameterError(f"--{name} needs --engine: give --engine URL")
    return EngineSettings(
        given.get("engine", ""), given.get("shards", 1), given.get("engine-insecure", False)
    )


def _floors(section: Mapping[str, Any], given: Mapping[str, Any]) -> ClientPolicy:
    """The section's, and `min-clients`; where both name a number of clients, both hold."""
    from torchfsl.fsl.floors import ClientPolicy

    try:
        floors = ClientPolicy.from_mapping(section)
    except ParameterError as error:
        raise ParameterError(f"[floors]: {error}") from None
    least = given.get("min-clients", floors.min_clients)
    if "min_clients" in section:
        least = max(least, floors.min_clients)
    return dataclasses.replace(floors, min_clients=least)


def _place(key: str, section: str = "") -> str:
    """How to move a setting that stands in this section of the file; empty if it may be there."""
    known = _section_fields()
    if key in known.get(section, ()):
        return ""
    if section and key in {name for name, _, _, _ in _OPTIONS}:
        return f"move the line of {key} above the first [section] of the file"
    fit = [other for other, names in known.items() if key in names]
    return f"move the line of {key} into the section [{fit[0]}]" if fit else ""


def _section_fields() -> dict[str, dict[str, Any]]:
    """By section of the file its settings, with defaults; those of [web] have none."""
    from torchfsl.fsl.floors import ClientPolicy
    from torchfsl.service.server.intake import Limits
    from torchfsl.service.server.storage import NodeSettings
    from torchfsl.service.server.web_settings import WebSettings

    kinds = {"limits": Limits, "storage": NodeSettings, "floors": ClientPolicy, "web": WebSettings}
    return {
        name: {
            field.name: field.default
            for field in dataclasses.fields(kind)
            if name not in ("limits", "storage") or field.type in ("int", "float")
        }
        for name, kind in kinds.items()
    }


def sections_help() -> str:
    """The settings of the sections that have defaults, each with its own, as lines of TOML."""
    lines = ["", "settings of the sections in the file, with their defaults:"]
    for section, known in _section_fields().items():
        if section != "web":
            lines += [f"  [{section}]", *(f"  {k} = {json.dumps(v)}" for k, v in known.items())]
    return "\n".join((*lines, ""))


def _nearest(unknown: str, known: Sequence[str]) -> str:
    near = nearest(unknown, known)
    return f"did you mean {near[0]}?" if near else f"choose among {', '.join(known)}"


def _section(kind: type[Any], values: Any, name: str) -> Any:
    numbers = (field for field in dataclasses.fields(kind) if field.type in ("int", "float"))
    known = {field.name: field for field in numbers}
    if not isinstance(values, dict):
        raise ParameterError(f"{name} = {values!r}: write it as a section, [{name}]")
    for key in sorted(set(values) - set(known)):
        hint = _place(key, name) or _nearest(key, sorted(known))
        raise ParameterError(f"unknown setting {key} in [{name}]: {hint}")
    for key, value in values.items():
        if type(value) not in (int, float) or value <= 0:
            raise ParameterError(
                f"{key} = {value!r} in [{name}]: write a positive number, without quotes or unit"
            )
        if known[key].type == "int" and type(value) is not int:
            raise ParameterError(f"{key} = {value} in [{name}]: write a whole number")
    return kind(**values)


def _read_toml(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise ParameterError(
            f"cannot read the settings in {path} ({error.strerror}): correct the path"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        remedy = "correct this line (write text in quotes)"
        if "-----BEGIN" in text or isinstance(error, UnicodeDecodeError):
            remedy = "this is not a settings file, so name yours, such as serve.toml"
        raise ParameterError(f"cannot read the settings in {path} ({error}): {remedy}") from error

"""The `torchfsl` command: servers, auditors, certificates, tokens, rounds, backups, doctor."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torchfsl.errors import Error, ParameterError
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service import estimating, serving
from torchfsl.service.net.addresses import user_path
from torchfsl.service.net.text import Plain, printable, printable_lines, say
from torchfsl.version import __version__

Run = Callable[[argparse.Namespace], int]
_RAW = argparse.RawDescriptionHelpFormatter
_DESCRIPTION = """\
Federated submodel learning by two servers that do not collude.

Two organisations run one server each. Clients send keys of distributed point functions (DPF). Each
server receives random bytes, and the servers open only the sum over a round's clients, once. The
state of the servers survives crashes: each acknowledged report counts once.
"""

_EPILOG = """\
try it on one machine
  torchfsl certs certs --clients 0-999
  torchfsl serve --party 0 --listen 127.0.0.1:7000 --peer https://127.0.0.1:7001 \\
                 --state state0 --tls certs
  torchfsl serve --party 1 --listen 127.0.0.1:7001 --peer https://127.0.0.1:7000 \\
                 --state state1 --tls certs
  python -m training din --servers https://127.0.0.1:7000,https://127.0.0.1:7001 --tls certs

The pages of the menu 'Operate' are the operator's manual.
"""

_CERTS = """\
Make keys and certificates for development: one authority for each server and one for clients, so
that neither operator can pose as the other. Existing files are kept; run the command again to add
clients. In production each organisation keeps its authority and its keys to itself, and gives
certificates to others.
"""

_AUDITOR = """\
Run the auditor of server 0 or server 1. It calls both servers and opens no port. The folder of
--tls holds auditor-N.pem, its key, auditor-N-sign.key and the authorities. An auditor sees all that
its server sees: it must collude with neither server (see the page 'Audit the servers').
It ends with status 74 if its folder cannot be read or written (a full disk): start it again.
"""

_AUDIT = """\
Replay a transcript that an auditor kept as evidence of a lie of its server.
Exit status 0: the server passes; 3: the server lied, with the step; 4: the transcript cannot be
judged.
"""

_ADMIT = """\
Issue admission tokens for the HTTPS door: one line for server 0, one for server 1.
With --new, make the issuer's key first and print its entry for the admission files of both
operators. A login service calls torchfsl.service.Issuer instead (see the page
'Apps and web pages').
"""

_CLOSE = """\
Close the open round now, as its coordinator.
Both servers finish it: the sum over its reports is opened if there are enough of them.
"""

_CLOSE_SECONDS = 3600
"""How long `torchfsl close` waits."""

_ABANDON = """\
End the running round unopened, as its coordinator.
Nothing of it is opened, and its number is used up. Refused once a share may have left server 0.
"""

_BACKUP = """\
Write the model of a state folder to a file, with the optimizer's state; the server may be running.
The file is not a copy of the folder. It does not contain messages of a round, so that no round can
be opened a second time. `torchfsl restore` makes a new task from the file.
"""

_RESTORE = """\
Set up a new task at both servers that continues with the model of a backup, as the coordinator.
The task has a new session and begins with round 0. The rounds that the old task has opened are
subtracted from max_rounds of the plan. A task that continues is replaced only with --replace.
"""

_DOCTOR = """\
Check this machine and, if settings of a server are given, whether the server would work with them:
keys and certificates, addresses, the state folder, open files, the other server. The command takes
the options of serve, or --tls DIR alone for a folder of `torchfsl certs`. With --servers it takes
the options of auditor, and checks the auditor and its disk. A coordinator uses `torchfsl status`.
Exit status 1 if a check failed.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the status: 0 done, 1 a check failed, 2 bad usage."""
    parser = make_parser()
    try:
        options = parser.parse_args(arguments)
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what fails is said in our own words
        return int(options.run(options))
    except Error as error:
        parser.exit(2, printable_lines(f"torchfsl: {error}\n"))
    except ModuleNotFoundError as error:
        parser.exit(2, f"torchfsl: {error}: run `pip install 'torchfsl[service]'`\n")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    parser = argparse.ArgumentParser(
        "torchfsl", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_RAW
    )
    version = f"torchfsl {__version__}, wire version {WIRE_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "run a server"
    serve = _add(commands, "serve", _serve, text, serving.DESCRIPTION, allow_abbrev=False)
    serving.add_options(serve)
    serve.format_help = lambda whole=serve.format_help: whole() + serving.sections_help()
    _add_certs(commands)
    _add_status(commands)
    _add_ends(commands)
    _add_backups(commands)
    _add_audits(commands)
    _add_admit(commands)
    text = "check this machine, and the settings of a server before it is started"
    doctor = _add(commands, "doctor", _doctor, text, _DOCTOR, allow_abbrev=False)
    serving.add_options(doctor)
    doctor.add_argument(
        "--servers",
        metavar="URL0,URL1",
        help="URLs of server 0 and server 1, to check an auditor",
    )
    estimating.add_command(commands)
    return parser


def _add(commands: Any, name: str, run: Run, text: str, description: str, **more: Any) -> Any:
    """A command that calls `run` with its options."""
    more |= {"help": text, "description": description, "formatter_class": _RAW}
    command = commands.add_parser(name, **more)
    command.set_defaults(run=run)
    return command


def _add_certs(commands: Any) -> None:
    certs = _add(commands, "certs", _certs, "make development certificates", _CERTS)
    certs.add_argument("folder", type=user_path, help="folder for the files")
    text = "numbers of the clients, as 0-99,200 (default: none)"
    certs.add_argument("--clients", default="", metavar="A-B,C", help=text)
    certs.add_argument("--days", type=int, default=30, help="validity in days (default: 30)")
    text = "also keys and certificates for the auditors of both servers"
    certs.add_argument("--auditors", action="store_true", help=text)


def _add_status(commands: Any) -> None:
    status = commands.add_parser(
        "status", help="show the rounds in a state folder, or the state of two running servers"
    )
    status.add_argument("--state", type=user_path, metavar="DIR", help="state folder of a server")
    status.add_argument("--servers", metavar="URL0,URL1", help="URLs of the running servers")
    text = "folder of certificates, for --servers"
    status.add_argument("--tls", type=user_path, metavar="DIR", help=text)
    text = "certificate for --servers: owner, server-N or client-N (default: owner)"
    status.add_argument("--as", dest="name", default="owner", help=text)
    text = "settings of a server, which name both servers"
    status.add_argument("--config", type=user_path, metavar="FILE.toml", help=text)
    text = "most rounds to show, with --state (default: 10)"
    status.add_argument("--rounds", type=int, default=10, help=text)
    text = "time between two outputs, in seconds (default: 2); Ctrl-C ends the command"
    status.add_argument("--watch", type=float, nargs="?", const=2.0, metavar="SECONDS", help=text)
    status.set_defaults(run=_status)


def _add_ends(commands: Any) -> None:
    """The commands that end a round: close and abandon."""
    for name, text in (("close", _CLOSE), ("abandon", _ABANDON)):
        run = _close if name == "close" else _abandon
        end = _add(commands, name, run, text.splitlines()[0].rstrip("."), text)
        _add_servers(end)
    text = "reason that `torchfsl status` shows (default: the coordinator abandoned it)"
    end.add_argument("--reason", default="the coordinator abandoned it", help=text)


def _add_servers(command: Any) -> None:
    """The servers of a command that the coordinator gives."""
    text = "URLs of server 0 and server 1"
    command.add_argument("--servers", metavar="URL0,URL1", required=True, help=text)
    text = "folder of your key and certificate, and of the authorities"
    command.add_argument("--tls", type=user_path, metavar="DIR", required=True, help=text)


def _add_backups(commands: Any) -> None:
    """Of models: backup and restore."""
    backup = _add(commands, "backup", _backup, "write a server's model to a file", _BACKUP)
    text = "file for the backup; an older file is replaced in one step"
    backup.add_argument("file", type=user_path, help=text)
    backup.add_argument(
        "--state", type=user_path, metavar="DIR", required=True, help="state folder of a server"
    )
    restore = _add(commands, "restore", _restore, "set up a new task from a backup", _RESTORE)
    restore.add_argument("file", type=user_path, help="file that `torchfsl backup` wrote")
    _add_servers(restore)
    text = "also replace a task that continues, if both operators permit it"
    restore.add_argument("--replace", action="store_true", help=text)


def _add_audits(commands: Any) -> None:
    """Of auditors: auditor and audit."""
    auditor = _add(commands, "auditor", _auditor, "run the auditor of a server", _AUDITOR)
    text = "number of the server that it audits"
    auditor.add_argument("--party", type=int, choices=(0, 1), required=True, help=text)
    _add_servers(auditor)
    text = "folder for keys, verdicts and evidence"
    auditor.add_argument("--state", type=user_path, metavar="DIR", required=True, help=text)
    audit = _add(commands, "audit", _audit, "replay a transcript that was kept", _AUDIT)
    audit.add_argument("transcript", type=user_path, help="file named/*.tfsa of an auditor")
    for name, text in (("records", "file verdicts/*.json"), ("key", "file named/*.key")):
        text += " with the name of the transcript"
        audit.add_argument(f"--{name}", type=user_path, metavar="FILE", required=True, help=text)


def _add_admit(commands: Any) -> None:
    admit = _add(commands, "admit", _admit, "issue admission tokens", _ADMIT)
    admit.add_argument(
        "--key", type=user_path, metavar="FILE", required=True, help="private key of the issuer"
    )
    admit.add_argument("--issuer", metavar="NAME", required=True, help="name of the issuer")
    text = "client numbers of a new issuer, whose key the command makes"
    admit.add_argument("--new", metavar="A-B", help=text)
    admit.add_argument("--client", type=int, metavar="N", help="number of the client")
    text = "RFC 7638 thumbprint of the client's key"
    admit.add_argument("--jkt", metavar="THUMBPRINT", help=text)
    admit.add_argument("--task", metavar="HEX", help="session of the plan, 32 hex digits")
    text = "rounds in which the client may participate, at most 100"
    admit.add_argument("--rounds", metavar="A-B", help=text)
    text = "validity in seconds, at most 3600 (default: 600)"
    admit.add_argument("--seconds", type=int, default=600, help=text)


def _serve(options: argparse.Namespace) -> int:
    from torchfsl.service.server.failures import EXIT_STATE_FAILED, EXIT_STATE_REFUSED
    from torchfsl.service.server.logs import json_on_stderr
    from torchfsl.service.server.process import ServerProcess, serve
    from torchfsl.service.state.ledger import LedgerError

    os.umask(0o077)  # whatever the process writes is this user's alone
    settings, level = serving.read_settings(options)
    start = serving.named(options)

    def ready(process: ServerProcess) -> None:
        web = f" web={process.web_port}" if settings.web is not None else ""
        print(f"ready port={process.port} metrics={process.metrics_port}{web}", flush=True)

    try:
        with json_on_stderr(level):
            reread = functools.partial(serving.reread, options, start)
            asyncio.run(serve(settings, ready=ready, reread=reread))
    except LedgerError as error:
        print(printable_lines(f"torchfsl: {error}"), file=sys.stderr)
        return EXIT_STATE_REFUSED
    except (OSError, sqlite3.Error) as error:
        where = settings.state
        what = f"the state in {where} cannot be read or written: {error}"
        remedy = "make room or repair the disk, then start the server again"
        print(f"torchfsl: {what}: {remedy}", file=sys.stderr)
        return EXIT_STATE_FAILED
    return 0


def _certs(options: argparse.Namespace) -> int:
    from torchfsl.service.net.certificates import client_numbers, make_development_certificates

    if options.days < 1:
        raise ParameterError(f"--days is {options.days}: give at least 1")
    made = make_development_certificates(
        options.folder, client_numbers(options.clients), days=options.days,
        auditors=options.auditors,
    )  # fmt: skip
    if not made:
        print(f"all certificates in {options.folder} exist already: nothing changed")
        return 0
    count = f"{len(made)} certificate{'s' * (len(made) > 1)}"
    days = f"{options.days} day{'s' * (options.days > 1)}"
    print(f"{count} made in {options.folder}, valid for {days}")
    print("for development only: one folder holds the keys of all parties")
    return 0


def _admit(options: argparse.Namespace) -> int:
    from torchfsl.service.net.certificates import make_sign_key
    from torchfsl.service.net.channels import read_file
    from torchfsl.service.net.tokens import Issuer, check_name

    if options.new is not None:
        first, last = _two_numbers("--new", options.new)
        check_name(options.issuer)
        if options.key.suffix == ".pub":
            raise ParameterError(
                f"--key is {options.key}, but .pub is for the public key: give --key issuer.key"
            )
        try:
            os.close(os.open(options.key, os.O_CREAT | os.O_EXCL, 0o600))  # follows no link
        except FileExistsError:
            raise ParameterError(
                f"expected a new file in --key, but {options.key} exists: give another file"
            ) from None
        except OSError as error:
            raise ParameterError(
                f"cannot write {options.key} ({error.strerror}): correct the path of --key"
            ) from error
        key = make_sign_key(options.key)
        print(f'[[issuer]]\nname = "{options.issuer}"\nkey = "{key}"')
        print(f"numbers = [[{first}, {last}]]\nshare = 0.5\ncounts = 1")
        return 0
    needed = ("client", "jkt", "task", "rounds")
    if missing := [name for name in needed if getattr(options, name) is None]:
        wanted = ", ".join(f"--{name}" for name in needed)
        raise ParameterError(f"--{missing[0]} is missing: a token needs {wanted}")
    issuer = Issuer(options.issuer, read_file(options.key))
    rounds = _two_numbers("--rounds", options.rounds)
    print(*issuer.admit(options.client, options.jkt, task=options.task, rounds=rounds,
                        seconds=options.seconds), sep="\n")  # fmt: skip
    return 0


def _two_numbers(option: str, text: str) -> tuple[int, int]:
    """`A-B` as numbers; raises ParameterError for other text."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ParameterError(f"{option} is {text!r}: write the first and the last number, as 1-100")
    return int(first), int(last)


def _auditor(options: argparse.Namespace) -> int:
    from torchfsl.service.auditor import AuditorProcess
    from torchfsl.service.net.channels import TlsFiles
    from torchfsl.service.server.failures import EXIT_STATE_FAILED

    os.umask(0o077)
    handler = logging.StreamHandler()
    handler.setFormatter(Plain("torchfsl: %(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    files = TlsFiles.in_folder(options.tls, f"auditor-{options.party}")
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    try:
        process = AuditorProcess(options.party, options.servers.split(","), files, options.state)
        print(f"ready key={process.key.public.hex()}", flush=True)
        with contextlib.closing(process):
            process.run(lambda: not ends)
    except OSError as error:
        where = options.state
        what = f"the folder {where} cannot be read or written: {error}"
        remedy = "make room or repair the disk, then start the auditor again"
        print(f"torchfsl: {what}: {remedy}", file=sys.stderr)
        return EXIT_STATE_FAILED
    return 0


def _audit(options: argparse.Namespace) -> int:
    from torchfsl.service.auditor import audit_file

    status, told = audit_file(options.transcript, options.records, options.key)
    say(printable(told))
    return status


def _status(options: argparse.Namespace) -> int:
    from torchfsl.service import reporting
    from torchfsl.service.net.channels import TlsFiles
    from torchfsl.service.reporting import watch

    given = [way for way in (options.state, options.servers, options.config) if way is not None]
    if len(given) != 1:
        raise ParameterError(
            "give exactly one of --state DIR, --servers URL0,URL1 and --config serve.toml, got "
            f"{len(given)} of them"
        )
    if options.servers is not None and options.tls is None:
        raise ParameterError("--servers needs the folder of certificates: give --tls DIR")
    if options.watch is not None and not options.watch > 0:
        raise ParameterError(f"--watch is {options.watch}: give a number of seconds above 0")

    def show() -> int:
        if options.state is not None:
            return reporting.show_state(options.state, options.rounds)
        if options.config is not None:
            urls, files = serving.servers_in(options.config)
        else:
            urls, files = options.servers.split(","), TlsFiles.in_folder(options.tls, options.name)
        return reporting.show_servers(urls, files, 10.0 if options.watch is None else 2.0)

    if options.state is None:
        _log_waiting()
    return show() if options.watch is None else watch(show, options.watch)


def _close(options: argparse.Namespace) -> int:
    with _owner(options, seconds=_CLOSE_SECONDS) as owner:
        number = owner.running_round()
        say(f"closing round {number}: waiting at most {_CLOSE_SECONDS} s for both servers")
        logging.getLogger("torchfsl.service.owner").setLevel(logging.INFO)
        row = owner.close_round(number)
        counts = f"complete reports {row['reports']}, in the sum {row['accepted']}"
        print(f"round {number} is applied: {counts}")
    return 0


def _abandon(options: argparse.Namespace) -> int:
    with _owner(options, seconds=60) as owner:
        number = owner.running_round()
        why = owner.abandon_round(number, options.reason)["reason"]
        earlier = "" if why.startswith(printable(options.reason)) else " before"
        say(f"round {number} ended unopened{earlier}: {printable(why)}")
    return 0


def _backup(options: argparse.Namespace) -> int:
    from torchfsl.service.backup import Backup

    backup = Backup.of_state(options.state)
    backup.write(options.file)
    size = options.file.stat().st_size / 1e6
    print(f"model {backup.version} {backup.model.digest().hex()} in {options.file}, {size:.2f} MB")
    if backup.halted:
        why = printable(backup.halted)
        say(f"this server is HALTED, so the other server may have another model: {why}")
    return int(bool(backup.halted))


def _restore(options: argparse.Namespace) -> int:
    from torchfsl.service.backup import Backup, restore

    backup = Backup.read(options.file)
    with _owner(options, seconds=60) as owner:
        before = [owner.links.info(party)["plan_digest"] for party in (0, 1)]
        task = restore(owner, backup, replace=options.replace)
    print(f"model {backup.model.digest().hex()} is at both servers")
    print(f"under the new plan {task.plan.digest.hex()}")
    if task.plan.max_rounds:
        print(f"whose max_rounds is {task.plan.max_rounds}")
    for party, old in enumerate(before):
        print(f"server {party} had " + (f"plan {old}, which is replaced" if old else "no task"))
    if (past := task.past) is not None and past.index:
        print(
            f"its budget goes on: rounds spent {past.index} of {task.plan.max_rounds}, "
            f"reports that count {len(past.places)}"
        )
    return 0


def _owner(options: argparse.Namespace, *, seconds: float) -> Any:
    from torchfsl.service.client.links import RetryPolicy
    from torchfsl.service.client.owner import Owner

    _log_waiting()
    policy = RetryPolicy(attempt_seconds=seconds, total_seconds=seconds)
    return contextlib.closing(Owner(options.servers.split(","), options.tls, policy=policy))


def _log_waiting() -> None:
    """Say on standard error when a server gives no answer and is asked again."""
    handler = logging.StreamHandler()
    handler.setFormatter(Plain("torchfsl: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def _doctor(options: argparse.Namespace) -> int:
    from torchfsl.service import doctor

    return doctor.examine(options)


if __name__ == "__main__":
    sys.exit(main())

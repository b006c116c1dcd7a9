"""What `torchfsl doctor` looks at: this machine, and whether a server would work with settings."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from torchfsl.errors import Error, ParameterError
from torchfsl.fsl.plan.proof_shape import row_trees
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.kernels.backends import backend
from torchfsl.service import machine, serving
from torchfsl.service.net.addresses import bound_socket
from torchfsl.service.net.certificates import file_name
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Identity, Role, days_left, in_days, load_certificate
from torchfsl.service.net.issuers import Issuers
from torchfsl.service.net.text import say
from torchfsl.service.net.trust import checked_seal, ends_of, read_deny_list
from torchfsl.service.state_checks import (
    check_budget,
    check_folder,
    check_task,
    free_space,
    is_running,
    plan_in,
)
from torchfsl.version import __version__

if TYPE_CHECKING:
    from torchfsl.crypto.signing import SignKey
    from torchfsl.fsl.plan.plan import Plan
    from torchfsl.service.client.links import Links
    from torchfsl.service.server.process import ServeSettings
    from torchfsl.service.server.web_settings import WebSettings

_SOON_DAYS = 14
_PACKAGES = "numpy cryptography grpcio grpcio-health-checking prometheus-client"


class Report:
    """Prints findings; each line begins with ok, note or FAILED.

    Attributes:
        failed: something is wrong.
    """

    def __init__(self) -> None:
        self.failed = False

    def check(self, what: str, look: Callable[[], str]) -> None:
        """Print what `look` says, or its complaint."""
        try:
            say(f"ok      {what}: {look()}")
        except (Error, OSError) as error:
            self.failed = True
            say(f"FAILED  {what}: {error}")

    def note(self, text: str) -> None:
        """Something to know."""
        say(f"note    {text}")


def examine(options: argparse.Namespace) -> int:
    """Look at the machine, and at the settings if some are given; 1 if something is wrong."""
    report = Report()
    _machine(report)
    if options.servers is not None:
        _auditor(report, options)
    elif options.config is not None or options.party is not None:
        try:
            settings, _ = serving.read_settings(options)
        except Error as error:
            say(f"FAILED  settings: {error}")
            return 1
        _server(report, settings)
    elif options.tls is not None:
        _folder(report, options.tls)
    else:
        report.note("no settings given: --config serve.toml, or the options of torchfsl serve")
    return int(report.failed)


def _machine(report: Report) -> None:
    print(f"torchfsl {__version__}, wire version {WIRE_VERSION}")
    print(f"python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors")
    print(f"backend: {backend()}")
    if backend() == "portable":
        report.note(
            "the portable backend is many times slower: install the wheel of this machine, or "
            "reinstall where there is a C++20 compiler, with TORCHFSL_NATIVE=on"
        )
    print("processor features: " + (", ".join(machine.features()) or "unknown"))
    print(f"AES-128: {machine.aes_rate() / 1e6:.0f} million blocks a second (one thread, OpenSSL)")
    for package in _PACKAGES.split():
        try:
            print(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{package}: missing; install torchfsl[service]")
            report.failed = True
    if importlib.util.find_spec("torch") is None:
        print("torch: not installed (a server does not need it)")
    else:
        print(f"torch {importlib.metadata.version('torch')} (a server does not load it)")


def _server(report: Report, settings: ServeSettings) -> None:
    """What `torchfsl serve` would find, before it does."""
    from torchfsl.service.server import door, engines

    files, party = settings.tls, settings.party
    report.check("certificate and key", lambda: _party(files, Identity(Role.SERVER, party)))
    report.check("sealing certificate and key", lambda: _plan_seal(settings))
    if settings.node.floors.auditors or files.auditor_authorities:
        report.check("audit", lambda: _audit(settings))
    for path in (files.key, files.seal_certificate.with_suffix(".key")):
        report.check(f"mode of {path.name}", lambda path=path: _mode(path))  # type: ignore[misc]
    for path in (*files.server_authorities, files.clients_authority):
        report.check(f"authority {path.name}", lambda path=path: _validity(path))  # type: ignore[misc]
    report.check("first of these files to expire", lambda: _first_of(files))
    for name in ("listen", "metrics", "grpc_health"):
        if address := getattr(settings, name):
            what = name.replace("_", "-")
            report.check(what, lambda a=address: _address(a, settings.state))  # type: ignore[misc]
    if settings.web is not None:
        _web(report, settings.web, settings.state)
        if settings.deny is None:
            report.note("web: no deny list, so no token can be refused before it expires")
    if settings.deny is not None:
        report.check("deny list", lambda: f"entries: {len(read_deny_list(settings.deny))}")
    report.check("state", lambda: check_folder(settings))
    if (settings.state / "state.sqlite").exists():
        report.check("task", lambda: check_task(settings.state))
        report.check("privacy budget", lambda: check_budget(settings.state))
    wanted = settings.limits.connections * (1 if settings.web is None else 2)
    report.check("open files", lambda: _open_files(door.file_limit(), wanted, report))
    if settings.engine.url:
        report.check("engine", lambda: engines.examine(settings.engine, files, party))
    report.check(f"server {1 - party}", lambda: _peer(settings))
    if settings.web is not None:
        _issuers(report, settings, settings.web)


def _auditor(report: Report, options: argparse.Namespace) -> None:
    """What `torchfsl auditor` would find with the same options."""
    if options.party not in (0, 1) or options.tls is None or options.state is None:
        report.failed = True
        needed = "an auditor needs --party 0 or 1, --servers, --tls and --state"
        say(f"FAILED  settings: {needed}. A coordinator runs `torchfsl status`")
        return
    party, folder, urls = options.party, options.state, options.servers.split(",")
    name = f"auditor-{party}"
    files = TlsFiles.in_folder(options.tls, name)
    report.check("certificate and key", lambda: _party(files, Identity(Role.AUDITOR, party)))
    report.check("key for signatures", lambda: _pass_key(files).public.hex())
    for path in (files.key, options.tls / f"{name}-sign.key"):
        report.check(f"mode of {path.name}", lambda path=path: _mode(path))  # type: ignore[misc]
    report.check("state", lambda: f"{folder}, {free_space(folder)[1] / 1e9:.1f} GB free")
    for server in (0, 1):
        report.check(f"server {server}", lambda s=server: _answers(urls, files, s))  # type: ignore[misc]
    report.check("disk", lambda: _room(urls, files, party, folder))


def _pass_key(files: TlsFiles) -> SignKey:
    """The key by which an auditor signs."""
    if (pair := files.sign_pair()) is None:
        raise ParameterError(
            f"the auditor's key for signatures, auditor-N-sign.key, is not next to "
            f"{files.certificate}: for a trial, `torchfsl certs DIR --auditors` makes keys"
        )
    return pair[0]


def _room(urls: list[str], files: TlsFiles, party: int, folder: Path) -> str:
    """Whether an auditor's disk has room for the task that its server has."""
    from torchfsl.service.auditor import names_auditor, plan_of, room

    with _linked(urls, files) as links:
        if not links.info(party)["plan_digest"]:
            return "no task yet: ask again once there is one"
        plan = plan_of(links.links[party])
    if not names_auditor(plan, party, _pass_key(files)):
        return f"the task of server {party} does not name this auditor, which needs no space then"
    free, needed = room(free_space(folder)[0], plan)
    if free < needed:
        raise ParameterError(
            f"the task needs {needed:,} free bytes for {folder}, got {free:,}: free space on this "
            "disk"
        )
    return f"the task needs {needed:,} bytes at most"


def _web(report: Report, web: WebSettings, state: Path) -> None:
    """Check what the HTTPS door of the server with this state needs."""

    def installed() -> str:
        web.check_installed()
        return f"h11 {importlib.metadata.version('h11')}"

    def certificate() -> str:
        web.context()
        return _validity(web.certificate)

    report.check("web: package", installed)
    report.check("web: certificate and key", certificate)
    report.check(f"web: mode of {web.key.name}", lambda: _mode(web.key))
    report.check("web: listen", lambda: _address(web.listen, state))
    report.check("web: admission", lambda: f"issuers: {len(Issuers(web.admission).listed())}")
    if not web.origins:
        report.note("web: no origins, so pages in browsers may not call")


def _issuers(report: Report, settings: ServeSettings, web: WebSettings) -> None:
    """Whether both operators admit the same clients, and whether one issuer can open a row."""
    from torchfsl.service.net.calls import NotReady

    peer = 1 - settings.party
    with contextlib.suppress(Error):  # which earlier lines have told
        issuers = Issuers(web.admission)
        own = issuers.digest()

        def equal() -> str:
            try:
                with _linked(serving.urls_of(settings), settings.tls) as links:
                    other = links.info(peer).get("issuers", "none")
            except NotReady:
                return f"digest {own}, not compared"
            if other != own:
                raise ParameterError(
                    f"expected equal issuers at both servers, got digest {own} here and {other} at "
                    f"server {peer}: make both admission files equal"
                )
            return f"digest {own}, as at server {peer}"

        report.check("web: issuers", equal)
        plan = plan_in(settings.state)
        for one in issuers.listed():
            if plan is not None and _opens_rows(plan, one.most):
                what = f"counts of {one.name} is {one.most}, min_contributors is "
                what += f"{plan.min_contributors}: a thief of its key can open rows of one client"
                report.note(f"web: {what}")


def _opens_rows(plan: Plan, counts: int) -> bool:
    """Whether so many lying clients can fill the others that `min_contributors` wants in a row."""
    lies = counts * max(map(row_trees, plan.with_trees), default=1)
    others = plan.min_contributors - 1
    return 0 < others <= (others * counts if plan.proofs == "none" else lies)


def _folder(report: Report, tls: Path) -> None:
    """A folder of `torchfsl certs`: every certificate in it, with its key."""
    parties = [Identity(Role.SERVER, 0), Identity(Role.SERVER, 1), Identity(Role.OWNER)]
    numbers = sorted(
        int(path.stem.removeprefix("client-"))
        for path in tls.glob("client-*.pem")
        if path.stem.removeprefix("client-").isdecimal()
    )
    parties += [Identity(Role.CLIENT, number) for number in numbers]
    there = [one for one in parties if (tls / f"{file_name(one)}.pem").exists()]
    for one in there:
        files = TlsFiles.in_folder(tls, file_name(one))
        if one.role is not Role.CLIENT:
            report.check(file_name(one), lambda f=files, o=one: _party(f, o))  # type: ignore[misc]
        if one.role is Role.SERVER:
            seal = f"{file_name(one)}-seal"
            report.check(seal, lambda f=files, o=one: _seal(f, o.number))  # type: ignore[misc]
    if numbers:
        whose = f"clients: {len(numbers)}, {numbers[0]} to {numbers[-1]}"
        report.check(whose, lambda: _clients(tls, numbers))
    for path in sorted(tls.glob("ca-*.pem")):
        report.check(path.stem, lambda path=path: _validity(path))  # type: ignore[misc]
    report.check("keys", lambda: _modes(tls))
    if not there:
        report.failed = True
        print(f"FAILED  no certificates in {tls}: `torchfsl certs {tls}` makes development ones")


def _clients(tls: Path, numbers: list[int]) -> str:
    """Check the clients' certificates; when the first of them expires."""
    files = []
    for number in numbers:
        client = Identity(Role.CLIENT, number)
        one = TlsFiles.in_folder(tls, file_name(client))
        _party(one, client)
        files.append(one.certificate)
    first = _first_to_expire(files)
    return f"the earliest certificate, {first.name}, {_validity(first)}"


def _first_to_expire(files: Iterable[Path]) -> Path:
    return min(files, key=lambda path: load_certificate(path.read_bytes()).not_valid_after_utc)


def _party(files: TlsFiles, wanted: Identity) -> str:
    """Key and certificate are a pair, from the right authority, for this party, in date."""
    files.pair()
    found = files.identity()
    if found != wanted:
        raise ParameterError(
            f"expected the certificate of {wanted} in {files.certificate}, got that of {found}: "
            f"put the certificate of {wanted} there",
            code="wrong-certificate",
        )
    return f"{wanted.uri}, {_validity(files.certificate)}"


def _seal(files: TlsFiles, party: int) -> str:
    checked_seal(files, party)
    return _validity(files.seal_certificate)


def _plan_seal(settings: ServeSettings) -> str:
    """Also whether the plan in the state folder names the sealing key."""
    told = _seal(settings.tls, settings.party)
    plan, path = plan_in(settings.state), settings.tls.seal_certificate.with_suffix(".key")
    if plan is not None and plan.server_keys:
        named, own = plan.server_keys[settings.party], checked_seal(settings.tls, settings.party)[0]
        if own.hex() != named:
            raise ParameterError(
                f"{path} has the key {own.hex()[:16]}, and the task's plan names the sealing key "
                f"{named[:16]}: put back the plan's key and its certificate, or start another task",
                code="wrong-server-key",
            )
    return told


def _first_of(files: TlsFiles) -> str:
    """The file of `torchfsl_certificate_seconds_left`."""
    path, end = min(ends_of(files).items(), key=lambda item: item[1])
    return f"{path}, in {in_days(end - time.time())} days (torchfsl_certificate_seconds_left)"


def _audit(settings: ServeSettings) -> str:
    """Check a certified key for signatures, the auditors' authorities, and their pinned keys."""
    files, party = settings.tls, settings.party
    signing = files.sign_pair()
    if signing is None or files.authorities().sign_key(party, signing[1]) != signing[0].public:
        raise ParameterError(
            f"expected server-{party}-sign.pem and its key in the folder of {files.certificate}: "
            "for a trial, `torchfsl certs DIR --auditors` makes them"
        )
    if not (settings.node.floors.auditors and files.auditor_authorities):
        raise ParameterError(
            "an audit needs tls-auditor-ca-0, tls-auditor-ca-1, and auditors in [floors]: give all "
            "of these settings"
        )
    left = [_validity(path) for path in files.auditor_authorities]
    return f"two auditors pinned, authorities {left[0]} and {left[1]}"


def _validity(path: Path) -> str:
    try:
        left = days_left(path.read_bytes(), path)
    except OSError as error:
        raise ParameterError(
            f"cannot read {path}: {error.strerror}. Correct the path, or make the file readable"
        ) from error
    soon = ", RENEW IT SOON" if left <= _SOON_DAYS else ""
    return f"expires in {left} day{'s' * (left != 1)}{soon}"


def _mode(path: Path) -> str:
    if path.stat().st_mode & 0o077:
        raise ParameterError(f"others can read {path}: run `chmod 600 {path}`")
    return "nobody else can read it"


def _modes(tls: Path) -> str:
    keys = sorted(tls.glob("*.key"))
    if not keys:
        raise ParameterError(f"no keys in {tls}: name the folder that torchfsl certs made")
    for path in keys:
        _mode(path)
    return "nobody else can read them"


def _address(address: str, state: Path) -> str:
    try:
        bound_socket(address).close()
    except ParameterError as error:
        if "in use" not in str(error):
            raise
        if is_running(state):
            return f"{address} is in use while the server with the state in {state} runs"
        raise ParameterError(
            f"{address} is in use by another program, and no server with the state in {state} "
            "runs: stop that program (`ss -ltnp` names it), or choose another address",
            code="address-in-use",
        ) from None
    return f"{address} is free"


def _open_files(limit: int, wanted: int, report: Report) -> str:
    from torchfsl.service.server import door

    fit = door.connections_for(limit, wanted)
    if fit < wanted:
        needed = door.files_for(wanted)
        report.note(f"{wanted} connections need a limit of {needed} open files, LimitNOFILE=")
    return f"limit {limit}, enough for {fit} connections"


def _peer(settings: ServeSettings) -> str:
    from torchfsl.service.server.process import check_addresses

    check_addresses(settings)
    return _answers(serving.urls_of(settings), settings.tls, 1 - settings.party)


def _answers(urls: list[str], files: TlsFiles, server: int) -> str:
    from torchfsl.service.net.calls import NotReady

    try:
        with _linked(urls, files) as links:
            info = links.info(server)
    except NotReady as error:
        why = str(error).removeprefix(f"server {server}: ")  # the line names it
        told = f"no answer at {urls[server]}, start it or correct its address: "
        told = told if "refused" in why else ""
        raise NotReady(told + why) from None
    return f"answers at {urls[server]}, torchfsl {info['library']}"


def _linked(urls: list[str], files: TlsFiles) -> contextlib.closing[Links]:
    """Both servers, asked for a few seconds."""
    from torchfsl.service.client.links import Links, RetryPolicy

    policy = RetryPolicy(attempt_seconds=5, total_seconds=5)
    return contextlib.closing(Links(urls, files, policy))

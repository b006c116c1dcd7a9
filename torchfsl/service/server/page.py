"""The status page: one server for people who look, as HTML without scripts. Numbers, no names.

It shows this server, and what the other one says of itself, to whoever reaches the metrics port: so
it holds counts of clients, never which ones, and only text that is escaped. A browser
fetches it again every few seconds.
"""

from __future__ import annotations

import asyncio
import datetime
import html
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torchfsl.errors import Error
from torchfsl.service.net import calls
from torchfsl.service.net.answers import INFO_BYTES, decode_info
from torchfsl.service.net.text import printable
from torchfsl.service.server.logs import Problem, RecentProblems, without_clients
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.station import Station
from torchfsl.service.state.ledger import RoundRow
from torchfsl.service.state.steps import StoredState
from torchfsl.service.task import rounds_spent

_ROUNDS: Final = 10
_ASK_SECONDS: Final = 2.0
"""How long either server may take to report its state, and how long that report counts."""


class Overview:
    """The status page of a running server. Made in its event loop, asked from other threads.

    Args:
        `station`: the server.
        link: to the other one.
        observer: counts calls and bytes.
    """

    def __init__(self, station: Station, link: PeerLink, observer: Observer) -> None:
        """Begin to keep what the log warns of."""
        self._station, self._link, self._observer = station, link, observer
        self._loop = asyncio.get_running_loop()
        self._asking = asyncio.Lock()
        self._told: tuple[float, list[Mapping[str, Any] | str]] = (-_ASK_SECONDS, [])
        self._problems = RecentProblems()
        logging.getLogger("torchfsl").addHandler(self._problems)

    def close(self) -> None:
        """Keep nothing more of the log."""
        logging.getLogger("torchfsl").removeHandler(self._problems)

    def page(self) -> bytes:
        """The page as it is now."""
        asking = asyncio.run_coroutine_threadsafe(self._infos(), self._loop)
        try:
            infos = asking.result(timeout=5 * _ASK_SECONDS)
        except TimeoutError:
            infos = ["this server does not answer in time"] * 2
        ledger = self._station.node.storage.ledger
        view = View(
            infos=infos,
            party=self._station.node.party,
            rounds=ledger.rounds("ORDER BY number DESC LIMIT ?", _ROUNDS),
            traffic=self._traffic(),
            problems=self._problems.newest(),
            budget=self._budget(),
            audits=self._station.node.storage.audits.alerts,
        )
        return render(view).encode()

    async def _infos(self) -> list[Mapping[str, Any] | str]:
        """What both say, at most `_ASK_SECONDS` old: who reloads does not load the servers."""
        async with self._asking:
            if self._loop.time() - self._told[0] >= _ASK_SECONDS:
                own, other = await asyncio.gather(self._own(), self._other())
                infos = [own, other] if self._station.node.party == 0 else [other, own]
                self._told = (self._loop.time(), infos)
            return self._told[1]

    async def _own(self) -> Mapping[str, Any] | str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await self._station.info()
        except TimeoutError:
            return "this server is busy: a step of the round takes long"

    async def _other(self) -> Mapping[str, Any] | str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                answer = await self._link.call("Info", calls.encode_request(), limit=INFO_BYTES)
            return decode_info(answer)
        except TimeoutError:
            return f"no answer in {_ASK_SECONDS:.0f} seconds"
        except Error as error:
            return str(error)

    def _budget(self) -> Mapping[str, float]:
        """Spent parts of a plan with noise, which participation limits need; else empty."""
        node = self._station.node
        plan = node.task.plan if node.task else None
        if plan is None or not plan.noise_sigma:
            return {}
        refused = self._observer.participations_refused
        return {
            "rounds whose share may have left": node.storage.rounds_opened,
            "rounds that the plan opens at most": plan.max_rounds,
            "reports that count": sum(node.server.participation.counts.values()),
            "past rounds whose noise is lost": node.storage.noise.lost,
            **{f"calls refused as {code}": count for code, count in refused.items()},
        }

    def _traffic(self) -> dict[str, Counter[str]]:
        """By door: bytes by direction, calls by status."""
        doors: dict[str, Counter[str]] = {"grpc": Counter()}
        names = ["torchfsl_bytes_total", "torchfsl_calls_total"]
        for family in self._observer.registry.restricted_registry(names).collect():
            for sample in family.samples:
                if sample.name in names:
                    key = sample.labels.get("direction") or sample.labels["code"]
                    totals = doors.setdefault(sample.labels["door"], Counter())
                    totals[key] += sample.value  # type: ignore[assignment]
        return doors


REFRESH_SECONDS: Final = 5

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62em; margin: 1.5em auto; padding: 0 1em;
       color: #1b1f24; background: #fff; }
h1 { font-size: 1.35em; } h2 { font-size: 1.1em; margin-top: 1.6em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #d8dee4;
         vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; }
#state { padding: .5em .8em; border-radius: .3em; background: #dafbe1; }
#state.bad { background: #ffd8d3; } #state.wait { background: #fff3c4; }
code { font-size: .9em; } footer { margin-top: 2em; color: #57606a; }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117; } th, td { border-color: #30363d; }
  #state { background: #12371d; } #state.bad { background: #5c1a16; }
  #state.wait { background: #4a3b00; } footer { color: #9198a1; } }
"""


@dataclass(frozen=True, slots=True)
class View:
    """The contents of the page.

    Attributes:
        infos: what server 0 and server 1 say of themselves, or why one cannot be asked.
        party: whose page it is.
        rounds: the last ones, newest first.
        traffic: since the start, by door: bytes `received` and `sent`, and calls by status.
        problems: the last ones, newest first.
        budget: of the plan's privacy, what is spent; empty where it has none.
        audits: alerts of audited rounds and findings, by why.
    """

    infos: Sequence[Mapping[str, Any] | str]
    party: int
    rounds: Sequence[RoundRow]
    traffic: Mapping[str, Counter[str]]
    problems: Sequence[Problem]
    budget: Mapping[str, float] = field(default_factory=dict)
    audits: Mapping[str, float] = field(default_factory=dict)


def render(view: View) -> str:
    """The page."""
    kind, state = _state(view)
    parts = [
        f"<h1>torchfsl server {view.party}</h1>",
        f'<p id="state" class="{kind}">{_text(state)}</p>',
        "<h2>Both servers</h2>",
        _servers(view.infos),
        f'<p id="models">{_text(_models(view.infos))}</p>',
        "<h2>Rounds</h2>",
        _rounds(view),
        "<h2>Traffic of this server since its start</h2>",
        _traffic(view),
        *_counts("Noise and participation at this server", "budget", view.budget),
        *_counts("Alerts of audits", "audits", {w: n for w, n in view.audits.items() if n}),
        "<h2>Last problems of this server</h2>",
        _problems(view.problems),
        f"<footer>{_clock(time.time())}; updated every {REFRESH_SECONDS} seconds. Numbers for "
        'programs: <a href="metrics">metrics</a>.</footer>',
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>torchfsl server {view.party}: {_text(state)}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def _state(view: View) -> tuple[str, str]:
    """How bad it is, as a class of the style, and why."""
    own = view.infos[view.party]
    if isinstance(own, str):
        return "wait", own
    for info in (own, view.infos[1 - view.party]):
        if isinstance(info, str):
            return "wait", f"the other server does not answer: {info}"
        if info["halted"]:
            return "bad", f"server {info['party']} is halted: {info['halted']}"
        if info.get("unready"):
            return "bad", f"server {info['party']} is not ready: {info['unready']}"
        if info["stalled"]:
            return "wait", f"server {info['party']} is {info['stalled']}"
    if not own["plan_digest"]:
        return "wait", "no task yet: the coordinator has to start one"
    if own["state"] == StoredState.UNOPENED:
        return "wait", f"round {own['round']} ended unopened: {own.get('reason', '')}"
    told = rounds_spent(own.get("rounds_opened", 0), own.get("max_rounds", 0))
    state = f"round {own['round']} is {own['state']}" if own["state"] else "no round yet"
    return "good", f"{state}, {told}" if told else state


def _servers(infos: Sequence[Mapping[str, Any] | str]) -> str:
    rows: list[tuple[str, ...]] = []
    for what, name in (
        ("library", "library"), ("wire version", "wire_version"), ("plan", "plan_digest"),
        ("round", "round"), ("state", "state"), ("complete reports", "complete"),
        ("reports in the sum", "accepted"), ("issuers of tokens", "issuers"), ("why", "reason"),
        ("waits for", "stalled"), ("halted", "halted"),
    ):  # fmt: skip
        rows.append((what, *(_field(info, name) for info in infos)))
    for what, name in (("model version", "version"), ("model digest", "digest")):
        models = [info if isinstance(info, str) else info["model"] for info in infos]
        rows.append((what, *(_field(model, name) for model in models)))
    return _table("servers", ("", "server 0", "server 1"), rows)


def _field(info: Mapping[str, Any] | str, name: str) -> str:
    if isinstance(info, str):
        return "no answer"
    value = info.get(name, "")
    return "none" if value in ("", -1) else str(value)


def _models(infos: Sequence[Mapping[str, Any] | str]) -> str:
    models = [info["model"] for info in infos if not isinstance(info, str)]
    if len(models) < 2 or not all(models):
        return "The models of the servers cannot be compared now."
    if models[0] == models[1]:
        return "Both servers hold the same model."
    if models[0]["version"] != models[1]["version"]:
        return "One model is a version older: one server applies a round shortly after the other."
    return "The servers hold DIFFERENT models of one version."


def _rounds(view: View) -> str:
    own = view.infos[view.party]
    rows = []
    for row in view.rounds:
        ended = row.ended_at if row.ended_at is not None else time.time()
        is_open = not isinstance(own, str) and own["open"] and own["round"] == row.number
        reports = int(own["complete"]) if is_open else row.reports  # type: ignore[index]
        rows.append((
            str(row.number), str(row.state), f"{reports:,}", f"{row.accepted:,}",
            _megabytes(row.bytes), f"{ended - row.opened_at:,.1f}", row.why,
        ))  # fmt: skip
    head = ("round", "state", "complete reports", "in the sum", "MB", "seconds", "why")
    return _table("rounds", head, rows, numbers={0, 2, 3, 4, 5})


def _traffic(view: View) -> str:
    rows = []
    for door, totals in view.traffic.items():
        where = "" if door == "grpc" else " by HTTPS"
        rows += [(f"MB {way}{where}", _megabytes(totals[way])) for way in ("received", "sent")]
        calls = sorted(code for code in totals if code not in ("received", "sent"))
        rows += [(f"calls answered {code}{where}", f"{totals[code]:,.0f}") for code in calls]
    return _table("traffic", ("", ""), rows, numbers={1})


def _counts(head: str, name: str, counts: Mapping[str, float]) -> list[str]:
    if not counts:
        return []
    rows = [(what, f"{count:,.0f}") for what, count in counts.items()]
    return [f"<h2>{head}</h2>", _table(name, ("", ""), rows, numbers={1})]


def _problems(problems: Sequence[Problem]) -> str:
    if not problems:
        return '<p id="problems">None since the start.</p>'
    rows = [(_clock(one.time), one.level, one.text) for one in problems]
    return _table("problems", ("when", "", ""), rows)


def _table(
    name: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> str:
    right = set(numbers)

    def line(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="n"' if at in right else "" for at in range(len(cells)))
        inner = (f"<{tag}{m}>{_text(c)}</{tag}>" for m, c in zip(marks, cells, strict=True))
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<table id="{name}">{line("th", head)}{body}</table>'


def _text(text: str) -> str:
    return html.escape(printable(without_clients(text)))


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.2f}"


def _clock(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

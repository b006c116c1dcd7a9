"""Writes the tables of docs/service-results.md from `docs/results/service-*.json`.

    python -m scripts.generate.service_tables            # writes them
    python -m scripts.generate.service_tables --check    # fails if they are stale

A result that is run anew needs only its JSON file. Runs of `service-supervised.json` are added up,
and the newest run of `service-load-quiet.json` counts.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from scripts.checks.fault_kinds import CLIENT_KINDS, KINDS, PERSON
from scripts.generate.writing import CHECK, between, write
from scripts.program import ROOT, Found, Options, program

PAGE: Final = ROOT / "docs" / "service-results.md"
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
FAULTS: Final = "python -m scripts.checks.faults"
RUNS: Final = {
    "script": ("chaos", f"{FAULTS} --faults 300 --batch 14 --json FILE"),
    "noise": ("noise", f"{FAULTS} --noise --faults 60 --batch 12 --json FILE"),
    "loop": ("supervised", f"{FAULTS} --under loop --faults 56 --json FILE"),
    "systemd": ("booted", f"{FAULTS} --under systemd --root FOLDER --faults 28 --json FILE"),
}
"""By column: the file, and the command that makes it today."""
STATES: Final = (
    "opening", "open", "closed", "agreed", "verified", "slot written", "aggregated", "committed",
    "opened", "between rounds",
)  # fmt: skip
WRONG: Final = (
    "wrong_sums", "lost_reports", "steps_changed", "unexplained", "wedged", "wrongly_accepted",
    "needed_a_person", "noise_left", "noise_lost", "draws_shared",
)  # fmt: skip
DONE: Final = {
    "kill": "SIGKILL to a server",
    "kill both": "SIGKILL to both at once",
    "kill client": "SIGKILL to a client",
    "kill client, report acknowledged": "the same, its report is stored",
    "freeze": "SIGSTOP for a second",
    "freeze, then kill": "SIGSTOP for a second, then SIGKILL",
    "disk full": "every byte of the disk is used",
    "disk full, then kill": "the same, then killed and started without room",
    "no descriptors": "the server cannot open files",
    "writes refused": "every write fails",
    "read-only at the start": "killed; its disk is read-only at the start",
    "rollback of one": "an older copy of its folder",
    "rollback of both": "older copies of both folders",
    "ledger damaged": "all pages except the first are zeros",
    "ledger gone": "`state.sqlite` and its log are deleted",
    "model damaged": "one bit of the current model",
    "report log damaged": "one bit of an acknowledged report",
}


def stored(name: str) -> Found:
    """One of the results; of several runs under a supervisor, their sum."""
    path = ROOT / "docs" / "results" / f"service-{name}.json"
    found: Found = json.loads(path.read_text(encoding="utf-8"))
    if name != "supervised":
        return found
    runs = found["runs"]
    total: Found = {key: sum(run[key] for run in runs) for key in TOTALS}
    for key in ("faults", "states_hit", "by_person"):
        total[key] = sum((Counter(run[key]) for run in runs), Counter())
    total["statuses"] = {
        kind: sum((Counter(run["statuses"].get(kind, {})) for run in runs), Counter())
        for kind in KINDS
    }
    total["seconds"] = {k: max(run["seconds"].get(k, 0.0) for run in runs) for k in KINDS}
    wrong = {key: [one for run in runs for one in run.get(key, [])] for key in WRONG}
    return {**total, **wrong, "machine": found["machine"], "date": found["date"]}


TOTALS: Final = ("rounds", "rounds_opened", "reports_accepted")


def table(head: str, rows: list[list[Any]]) -> list[str]:
    """A table of Markdown, with an empty line after it."""
    lines = [head, "|" + " --- |" * (head.count("|") - 1)]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def runs_table(runs: dict[str, Found]) -> list[str]:
    """Each run, with its size and everything that went wrong."""
    rows = []
    for name, run in runs.items():
        wrong = sum(len(run.get(key, [])) for key in WRONG)
        where = f"{run['machine']}, {run['date']}"
        counts = (sum(run["faults"].values()), *(run[key] for key in TOTALS), wrong)
        rows.append([name, f"`{RUNS[name][1]}`", where, *counts])
    return table("| run | command | machine, date | faults | rounds | opened | reports in sums | "
                 "violations |", rows)  # fmt: skip


def ends(run: Found, kind: str) -> str:
    """Faults of a kind, and with which statuses servers ended except by the kill itself."""
    if kind not in run["faults"]:
        return ""
    statuses = run["statuses"].get(kind, {})
    own = [f"{statuses[one]} x {one}" for one in ("74", "65", "2") if statuses.get(one)]
    return ", ".join([f"**{run['faults'][kind]}**", *own])


def longest(run: Found, kind: str) -> str:
    """Most seconds until both servers were ready again."""
    return f"{run['seconds'][kind]:.1f}" if kind in run["faults"] and kind in run["seconds"] else ""


def faults_table(runs: dict[str, Found]) -> list[str]:
    """What each fault leads to, in each run."""
    rows = []
    for kind in KINDS:
        back = "the client comes again" if kind in CLIENT_KINDS else "without help"
        back = "the newest state is put back" if kind in PERSON else back
        seconds = [longest(runs[name], kind) for name in ("loop", "systemd")]
        rows.append([kind, DONE[kind], *(ends(run, kind) for run in runs.values()), back, *seconds])
    head = f"| fault | what the script does | {' | '.join(runs)} | recovery | seconds, loop | "
    return table(head + "seconds, systemd |", rows)


def states_table(runs: dict[str, Found]) -> list[str]:
    """In which state of a round faults came."""
    rows = []
    for name, run in runs.items():
        hit: Counter[str] = Counter()
        for key, count in run["states_hit"].items():
            hit[key.rpartition(": ")[2]] += count
        assert set(hit) <= set(STATES), hit
        rows.append([name, *(hit[state] or "" for state in STATES)])
    return table(f"| run | {' | '.join(STATES)} |", rows)


def flood_rows() -> list[list[Any]]:
    """Floods, kills, many rounds, polls and fuzzing."""
    flood, kills, growth = stored("flood"), stored("crash"), stored("growth")
    probes, fuzz = stored("probes"), stored("fuzz")
    rows: list[list[Any]] = []
    for phase in flood["phases"]:
        summed = f"{phase['in_the_sum']} of {flood['clients']} honest clients in the sum after"
        files = f"at most {phase['most_files_open']} of {flood['files']:,} files open"
        also = f"{summed} {phase['seconds']} s; {files}"
        name = f"flood in phase {phase['phase']}: connections made"
        rows.append([name, f"{phase['connections_made']:,}", also])
    clients = kills["kills"]["client in an open round, report acknowledged"]
    memory = [one["memory"] / 1e6 for server in growth["notes"] for one in server]
    note, grown = growth["notes"][0][-1], max(growth["folder_bytes_a_round"])
    wrong = sum(len(kills.get(key, [])) for key in WRONG)
    polls = sum(probes["polls"].values())
    rows += [
        ["kills only, of servers and clients", sum(kills["kills"].values()),
         f"{clients} of clients whose report was stored; {kills['rounds']} rounds, "
         f"{kills['reports_accepted']} reports in sums, {wrong} violations"],
        [f"{growth['rounds']} rounds of {growth['clients']} clients: memory of a server",
         f"{min(memory):.0f} to {max(memory):.0f} MB",
         f"{note['threads']} threads, {note['files']} open files; the folder grows by at most "
         f"{grown} bytes per round"],
        ["polls of `/livez`, `/readyz`, `/health` during rounds", f"{polls:,}",
         "all returned 200" if probes["ok"] else "some failed"],
        ["fuzzing: executions", f"{fuzz['executions']:,}",
         f"{len(fuzz['by_decoder'])} decoders, {len(fuzz['failures'])} failures"],
    ]  # fmt: skip
    return rows


def load_rows() -> list[list[Any]]:
    """The newest run of the load."""
    run: Found = stored("load-quiet")["runs"][-1]
    ms = {key: f"{1e3 * run[f'{key}_cpu_seconds'] / run['clients']:.0f} ms"
          for key in ("servers", "event_loops", "evaluation", "load_generator")}  # fmt: skip
    up, down = (f"{run[f'{way}_bytes_per_client'] / 1e3:.0f} kB" for way in ("upload", "download"))
    return [
        ["load: clients per second", f"{run['clients_per_second']:.1f}",
         f"{run['accepted']:,} of {run['clients']:,} reports in the sum, {len(run['errors'])} "
         f"errors; {up} up and {down} down per client"],
        ["load: processor time per client, both servers", ms["servers"],
         f"event loops {ms['event_loops']}, bare evaluation {ms['evaluation']}; load generator "
         f"{ms['load_generator']} in addition"],
        ["load: transport and storage", f"{100 * run['transport_and_storage_share']:.1f} %",
         "of the servers' processor time; the aim is 30 %"],
        ["load: peak memory of a server", f"{run['server_peak_anonymous_bytes'] / 1e6:.0f} MB",
         f"{run['server_peak_resident_bytes'] / 1e6:.0f} MB with mapped report files"],
    ]  # fmt: skip


def render() -> str:
    """All tables."""
    runs = {name: stored(file) for name, (file, _) in RUNS.items()}
    lines = ["### Runs", "", *runs_table(runs), "### Faults and outcomes", "", *faults_table(runs)]
    lines += ["### States of the round", "", *states_table(runs)]
    others = table("| measurement | figure | also |", [*flood_rows(), *load_rows()])
    lines += ["### Floods, growth and load", "", *others]
    return "\n".join(lines)


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check."""
    page = PAGE.read_text(encoding="utf-8")
    return write(options, PAGE, between(page, BEGIN, END, render()))

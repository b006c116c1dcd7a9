"""Many rounds of two servers: neither memory nor open files may grow.

    python -m scripts.checks.growth --json FILE    # 400 rounds of 4 clients

Each server's resident memory, open files and threads, and the bytes of its state folder, are noted
every `--every` rounds. Exit status 1 if the most memory in the last quarter of the rounds is above
that in the second quarter by more than `--slack`, or if the fewest open files or threads then are
three more than the most before: a connection or a thread of a pool comes and goes. The ledger keeps
a row for every round, so the folder grows by some bytes a round; that is printed and no failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scripts.checks.outcome import report
from scripts.checks.probes import ordinary_rounds
from torchfsl.service.local import LoopbackServers


def noted(servers: LoopbackServers, number: int) -> list[dict[str, int]]:
    """Of each server after a round: memory in bytes, open files, threads, bytes of its folder."""
    found = []
    for party in (0, 1):
        process = servers.processes[party]
        assert process is not None
        proc = Path(f"/proc/{process.pid}")
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        files = [path.stat() for path in servers.state(party).rglob("*") if path.is_file()]
        found.append({
            "round": number,
            "memory": int(fields["VmRSS"].split()[0]) << 10,
            "files": len(list((proc / "fd").iterdir())),
            "threads": int(fields["Threads"]),
            "folder": sum(one.st_blocks * 512 for one in files),
        })  # fmt: skip
    return found


def within(notes: list[dict[str, int]], name: str, first: float, last: float) -> list[int]:
    """The values within a part of the rounds."""
    rounds = notes[-1]["round"]
    return [n[name] for n in notes if first * rounds < n["round"] <= last * rounds]


def grown(notes: list[dict[str, int]], slack: float) -> list[str]:
    """What grew from the second quarter to the last."""
    found = []
    for name in ("memory", "files", "threads"):
        before, after = max(within(notes, name, 0.25, 0.5)), within(notes, name, 0.75, 1.0)
        if max(after) > before * (1 + slack) if name == "memory" else min(after) >= before + 3:
            found.append(f"{name} from {before} to {max(after)}")
    return found


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rounds."""
    notes: list[list[dict[str, int]]] = [[], []]
    with LoopbackServers(folder, clients=options.clients) as servers:
        servers.start()
        for number in ordinary_rounds(servers, options.rounds, options.clients):
            if number % options.every == 0:
                for kept, one in zip(notes, noted(servers, number), strict=True):
                    kept.append(one)
    growth = [grown(kept, options.slack) for kept in notes]
    return {
        "rounds": options.rounds, "clients": options.clients, "grown": growth,
        "folder_bytes_a_round": [
            round((kept[-1]["folder"] - kept[0]["folder"]) / (kept[-1]["round"] - kept[0]["round"]))
            for kept in notes
        ],
        "notes": notes, "ok": not any(growth),
    }  # fmt: skip


def main() -> int:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--slack", type=float, default=0.03, help="share of memory")
    return report(parser, run)


if __name__ == "__main__":
    sys.exit(main())

"""docs/systems.md: the systems of the papers side by side, their figures from results/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scripts.reproduction.markdown import missing, size, stamp, table
from scripts.reproduction.privhfl_cells import BASE, QUERIES, read_cells
from scripts.reproduction.results import read_result
from training.privhfl.settings import TaskName

TARGET = Path("docs") / "systems.md"

OPENING = """# Which system for whom

torchfsl is federated submodel learning (`fsl`): two servers, private rows. Beside it stand the systems
of three other papers, each for a trust that `fsl` does not have or a task that it cannot do. This page
compares them, and the usual yardsticks, on equal terms. It is made by `scripts/reproduce report` from
the figures of `scripts/reproduce systems`, `systems-cifar10`, `privhfl-accuracy` and `privhfl-secure`; nothing of all this is audited.

| | `fsl` | `dense` | `sesa` | `sefl` | `privhfl` | SecAgg+ | `plain` |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

ROWS: tuple[tuple[str, ...], ...] = (
    (
        "for",
        "large tables of which a client needs few rows; two servers",
        "any one model, two servers",
        "one server; clients of different sizes train parts of one model",
        "clients that talk to one server; a second one, the key holder, whose work does not grow with their number",
        "clients with different models, which no one else may see",
        "any one model, one server",
        "no secrets",
    ),
    (
        "servers; who must not collude",
        "2; not with each other",
        "2; not with each other",
        "1; with at most T clients",
        "2 unlike servers, aggregator and key holder; not with each other",
        "1; with no client at all",
        "1; with fewer clients than the threshold",
        "1; nobody is kept out",
    ),
    (
        "a server learns",
        "plan, who takes part, the sum",
        "the same",
        "the same, and each client's width",
        "aggregator: who participates, and the sum. The sum is exact by default and has the key holder's noise if the plan sets `noise_sigma`. Key holder: who participates, uniform numbers",
        "networks' layers, how many queries; neither pictures, weights nor answers",
        "the sum",
        "everything",
    ),
    (
        "a client learns",
        "the next model (its rows)",
        "the next model",
        "the next model; relayed bytes of others, sealed",
        "the next model",
        "for each query the sum of all answers",
        "the next model",
        "the next model",
    ),
    (
        "a malicious server can",
        "steer the sum, and so read samples in later sums; refuse clients",
        "steer the sum, and so read samples in later sums; refuse clients",
        "learn more: it is trusted to follow the protocol",
        "aggregator: have one client's update opened in place of the sum, once a round; key holder: spoil the sum",
        "learn more: it is trusted to follow the protocol",
        "depends on the version; Flower's is trusted to follow",
        "do anything",
    ),
    (
        "a malicious client can",
        "change one leaf a bin; the rest is refused",
        "add anything, unseen",
        "add anything, unseen",
        "shift the sum within the range, or spoil it, unseen",
        "answer nonsense; extract models by many queries, as from any service",
        "add anything, unseen",
        "add anything, seen",
    ),
    (
        "collusion that breaks it",
        "both servers",
        "both servers",
        "server and more than T clients",
        "both servers",
        "server and one client: that client's pictures or model; all answering clients but one, with who asks: that "
        "one's answers",
        "server and the threshold's clients",
        "-",
    ),
    (
        "dropouts",
        "any number, down to `min_clients`",
        "any number, down to `min_clients`",
        "as many as planned",
        "any number, down to `min_clients`",
        "an answering client that stops is left out, down to two",
        "down to the threshold",
        "any number",
    ),
    (
        "models",
        "any; pays with embeddings or top-k blocks",
        "any",
        "networks cut into shards",
        "any; every parameter is sent",
        "convolutions, linear layers, ReLU, pooling; medium-sized",
        "any",
        "any",
    ),
)


def write() -> None:
    """Write docs/systems.md."""
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET}")


def render() -> str:
    """The page."""
    head = OPENING + "\n".join("| " + " | ".join(row) + " |" for row in ROWS) + "\n"
    return head + "\n## The same task\n\n" + _same_task() + "\n" + READING


READING = """## What follows

- **One model for all, two servers that do not collude: `fsl`**, or `dense` where every parameter is trained
  anyway, as here. What `fsl` saves on models with large tables is in [RESULTS.md](../RESULTS.md).
- **One server only:** SecAgg+ for equal clients; `sesa` where clients train parts of different size and
  the parts shall stay hidden.
- **Clients that can talk to one server only, and a key holder apart: `sefl`.** `dense` asks for the same two
  parties not to collude, takes a quarter of the bytes and hides reports from a malicious one of them.
- **Models that must stay apart, for their shapes or their owners: `privhfl`.** It pays for that: clients
  that may share one model reach a higher accuracy with a small part of the bytes. A client's gain is
  that of asking a few others, and some client may lose.
"""


RESULT: dict[TaskName, str] = {"mnist": "systems", "cifar10": "systems-cifar10"}
"""By task the file of its figures, and the command that makes them."""

_SETTING: dict[TaskName, str] = {
    "mnist": "MNIST: {clients} clients with {private} samples each, the same {test:,} test pictures. Those with one "
    "model train an MLP of {parameters:,} parameters for {rounds} rounds, all clients all of it; one seed gives all of "
    "them the same model, bit for bit, every round exact. `privhfl`: clients with their own MLP, CNN or ResNet, "
    "one iteration of the protocol; accuracy is the mean of their models and of all seeds. Time is that of "
    "training, every party's part and the check of every sum; of `privhfl` without the baselines' training. SecAgg+ "
    "sums the same updates, so that its accuracy is `plain`'s.\n\n",
    "cifar10": "CIFAR-10: {clients} clients with {private:,} samples each, the central 24 x 24 pixels. Those with one "
    "model train a CNN of {parameters:,} parameters for {rounds} rounds; `privhfl`: VGG-7, ResNet-8 and ResNet-10 of 7 "
    "to 45 thousand parameters. The rest as above.\n\n",
}


def _same_task() -> str:
    ending = (
        "![Accuracy against bytes](../results/systems.png)\n\nAn embedding model of 3.6 million parameters, where "
        "`fsl` is at home, is in RESULTS.md under *Others on the same model*.\n"
    )
    return "\n".join([_of_task("mnist"), _of_task("cifar10"), ending])


def _of_task(task: TaskName) -> str:
    figures = read_result(RESULT[task])
    if not figures:
        return missing(RESULT[task])
    rounds = figures["rounds"]
    rows = [_shared(f"`{name}`", run, rounds) for name, run in figures["runs"].items()]
    if (flower := figures["secagg_plus"]) is not None:
        plain = figures["runs"]["plain"]
        run = {
            **plain,
            "upload_bytes": flower["upload_bytes"],
            "download_bytes": 4 * figures["parameters"],
            "cpu_seconds": plain["cpu_seconds"] + rounds * flower["cpu_seconds"],
        }
        rows.append(_shared("SecAgg+ (Flower 1.41)", run, rounds))
    rows += _alone(task) + [point[1] for point in privhfl_points(task)]
    head = (
        "",
        "accuracy",
        "bytes a client, up and down, whole run",
        "processor time of all parties, whole run",
    )
    return (
        _SETTING[task].format(**figures, test=BASE[task].test)
        + table(head, rows)
        + "\n\n"
        + stamp(figures)
    )


def _shared(name: str, run: dict[str, Any], rounds: int) -> tuple[str, ...]:
    sent = rounds * (run["upload_bytes"] + run["download_bytes"])
    return name, f"{100 * run['curve'][-1][1]:.1f}", _size(sent), f"{run['cpu_seconds']:.0f} s"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else size(num_bytes)


def _alone(task: TaskName) -> list[tuple[str, ...]]:
    cell = dict(read_cells()).get(f"{task}-secure")
    if cell is None:
        return []
    baseline = np.mean([run["baseline"] for run in cell["seeds"].values()])
    return [("own samples alone, what `privhfl` starts from", f"{100 * baseline:.1f}", "0", "-")]


def privhfl_points(task: TaskName) -> list[tuple[float, tuple[str, ...], float]]:
    """By B: bytes a client, a row of the table, accuracy. Bytes of B are those measured, in proportion."""
    cells = dict(read_cells())
    secure = cells.get(f"{task}-secure")
    if secure is None:
        return []
    runs = list(secure["seeds"].values())
    settings, asked = BASE[task], sum(run["predictions"] for run in runs)
    each = sum(sum(run["bytes"].values()) for run in runs) / asked
    spent = sum(sum(run["cpu_seconds"].values()) for run in runs) / asked
    points = []
    for number in QUERIES[task]:
        own = number == settings.queries
        cell = cells.get(f"{task}-secure" if own else f"{task}-mixup-{number}")
        if cell is None:
            continue
        accuracy = float(np.mean([run["accuracy"] for run in cell["seeds"].values()]))
        predictions = number * settings.answering
        how = "" if own else " (answers in the clear; bytes and seconds in proportion)"
        row = (
            f"`privhfl`, {number:,} queries a client{how}",
            f"{100 * accuracy:.1f}",
            _size(each * predictions),
            f"{spent * predictions * settings.clients:.0f} s",
        )
        points.append((each * predictions, row, accuracy))
    return points

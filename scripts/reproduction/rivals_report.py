"""The sections of RESULTS.md on rivals: rounds to an AUC, SecEmb, random blocks."""

from __future__ import annotations

from scripts.reproduction.markdown import missing, seconds, size, stamp, table
from scripts.reproduction.results import read_result
from scripts.reproduction.rivals import TARGETS, rounds_to

_NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedsubavg": 'FedSubAvg (`server.mean = "trained"`)',
    "fedadam": "FedAdam",
    "preset": "`deepfm` as it is: a gradient a client, lazy Adam",
}


def rounds() -> str:
    """Rounds to an AUC."""
    figures = read_result("rivals")
    title = "### FedSubAvg, FedAvg, FedProx, FedAdam: rounds to an AUC\n\n"
    if not figures:
        return title + missing("rivals --data DATA")
    rows = []
    for name, run in figures["algorithms"].items():
        reached = [rounds_to(run["curve"], target) for target in TARGETS]
        tried = ", ".join(
            f"{label}: {auc:.3f}" if auc else f"{label}: diverged"
            for label, auc in run["validation_auc"].items()
        )
        rows.append((
            _NAMES[name], run["chosen"], *(r or f"not in {figures['rounds']}" for r in reached),
            f"{run['curve'][-1][1]:.3f}", tried or "-",
        ))  # fmt: skip
    popular = next(iter(figures["algorithms"].values()))["popularity_auc"]
    head = ("algorithm", "rates chosen", *(f"AUC {target:.2f}" for target in TARGETS),
            f"AUC after {figures['rounds']}", f"validation AUC in {figures['trial_rounds']} rounds")  # fmt: skip
    return (
        title + f"Amazon Beauty, preset `{figures['preset']}`, {figures['clients_per_round']} users a "
        f"round, evaluated every {figures['every']} rounds, summed in the clear on the quantised updates, "
        f"**one seed**. The first four take {figures['epochs']} full-batch steps of SGD at each client, so that FedProx's term has "
        "a distance to pull back from. Rates were chosen on the validation split from few candidates (last "
        "column); the largest that did not diverge won for clients, so FedAvg may do better in between. FedSubAvg divides "
        "by those who trained a row in the round, not by an estimate over all clients as its paper has it. Popularity alone has "
        f"AUC {popular:.3f}. Bytes of a client and round are equal in all rows but for FedSubAvg's count lane.\n\n"
        + table(head, rows) + "\n\n" + stamp(figures)
    )  # fmt: skip


def secemb() -> str:
    """SecEmb's shapes."""
    figures = read_result("secemb")
    title = "### SecEmb's shapes\n\n"
    if not figures:
        return title + missing("secemb")
    rows = [
        (
            row["data"], f"{row['items']:,}", row["rows"], f"{row['published_upload_mb']} MB",
            size(row["bare"]["upload_bytes"]), size(row["checked"]["upload_bytes"]),
            seconds(row["checked"]["client_seconds"]), seconds(row["checked"]["server_seconds"]),
        )
        for row in figures["rows"]
    ]  # fmt: skip
    head = ("data", "items", "rows a user", "SecEmb, upload", "ours, no checks", "ours, checks",
            "client", "a server, a client")  # fmt: skip
    return (
        title + "SecEmb (Mai, Ding, Lyu, Du, Pang, ICML 2025, proceedings.mlr.press/v267/mai25a.html) retrieves and "
        "aggregates rows by point functions, too, for servers and clients that follow the protocol. Its column is the "
        "upload of its matrix factorisation, 64 values of 32 bits a row, as a public summary of the paper states it: the paper's own tables were not at "
        "hand. Nor was the number of rows a user sends; the numbers here give each stated upload by the paper's formula. "
        "It states no seconds that could be set beside ours (a user's up to 70 times less than with every row in shares). "
        "Ours are values of 32 bits in a first round, without the retrieval, which goes through the same trees; seconds on a shared machine.\n\n"
        + table(head, rows) + "\n\n" + stamp(figures)
    )  # fmt: skip


def blocks() -> str:
    """Random blocks beside the largest."""
    figures = read_result("preamble")
    title = "### Random blocks beside the largest ones\n\n"
    if not figures:
        return title + missing("preamble --data DATA")
    names = {
        "dense": "everything (dense shares)",
        "topk": "largest blocks, the rest kept (error feedback)",
        "topk-dropped": "largest blocks, the rest dropped",
        "sample": "`BlockSample`: drawn in secret",
    }
    noise = figures["noise"]
    of = {"dense": noise["topk"], "topk": noise["topk"], "topk-dropped": noise["topk"],
          "sample": noise["drawn_in_secret"]}  # fmt: skip
    rows = [
        (
            names[name],
            f"{100 * run['accuracy']:.1f} %",
            size(run["upload_bytes"]),
            f"{of[name]:.2f}",
        )
        for name, run in figures["ways"].items()
    ]
    head = ("sent", f"accuracy after {figures['rounds']} rounds", "upload", "noise")
    return (
        title + f"TREC at {figures['clients']} clients, a small TextCNN in blocks of {figures['block']} values, of which "
        f"{noise['chosen']:,} of {noise['blocks']:,} are sent; one seed, rounds summed in the clear. PREAMBLE (Asi, Feldman, Keller, Rothblum, "
        "Talwar 2025) draws blocks at random for private sums. *Noise*: standard deviation of each server's on every value "
        f"for epsilon {noise['epsilon']:g}, delta {noise['delta']:g} over these rounds, as a multiple of the norm of a client's whole change; "
        "computed, not trained with. Drawn in public the blocks would need "
        f"{noise['drawn_in_public']:.2f}: scaling makes them longer, the secret draw gives that back ([why](docs/privacy.md#blocks-drawn-in-secret)).\n\n"
        + table(head, rows) + "\n\n" + stamp(figures)
    )  # fmt: skip

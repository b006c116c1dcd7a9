"""The section of RESULTS.md on clients that send a thousand times their update."""

from __future__ import annotations

from typing import Any

from scripts.reproduction.markdown import missing, size, stamp, table
from scripts.reproduction.results import read_result


def section() -> str:
    """Text and table."""
    figures = read_result("liars")
    title = "### DIN among clients that lie\n\n"
    if not figures:
        return title + missing("liars")
    honest, without, factors = figures["honest"], figures["without_liars"], figures["by_factor"]
    main = next(iter(factors))
    rows = [_row("no liars", honest), _row("the liars stay away", without)]
    for factor, runs in factors.items():
        rows.append(_row(f"times {factor}, no proofs", runs["off"]))
        rows.append(_row(f'times {factor}, `proofs = "norm"`', runs["on"]))
    on = factors[main]["on"]
    gap = abs(on["auc"] - honest["auc"])
    same = (
        "with the same model, bit for bit"
        if figures["model_of_the_others"]
        else "but for last bits of gradients, which differ between processes"
    )
    head = ("clients", "rounds", "AUC", "AUC, mean of models", "lies added up", "exact rounds",
            "up, a client and round")  # fmt: skip
    share, first = figures["share"], figures["first_rounds"]
    return (
        title + f"`{figures['preset']}` on Amazon Beauty, {figures['clients_per_round']} users a round, "
        f"of whom {100 * share:.0f} %, drawn anew each round, send their update times a factor, cut at the "
        "ends of the ring, beside an honest proof about their true update, the best that is known. Clients "
        f"keep a norm of {figures['l2_norm']:g}. Liars' reports pass through both servers; the two runs "
        "without liars are summed in the clear on the same quantised updates. *Exact* counts the rounds that "
        "opened the sum of the clients that do not lie. With proofs all lies were refused, and the AUC is "
        f"{gap:.4f} from that of the run without liars; the run ends as the one from which the same clients "
        f"stay away, {same}. Over the first {first} rounds honest clients with proofs, and honest ones among "
        "liars, have the models of the runs in the clear, bit for bit. Ranking by popularity gives "
        f"{honest['popularity_auc']:.3f}. {figures['rounds']} rounds are not the end of training: the "
        "preset's are 600. One seed.\n\n" + table(head, rows) + "\n\n" + stamp(figures)
    )  # fmt: skip


def _row(name: str, run: dict[str, Any]) -> tuple[Any, ...]:
    lies = f"{run['lies_added']} of {run['lies']}" if run["lies"] else "-"
    up = "-" if run["upload_bytes"] < 1e5 else size(run["upload_bytes"])
    exact = f"{run['exact_rounds']} of {run['rounds']}"
    return name, run["rounds"], f"{run['auc']:.4f}", f"{run['mean_auc']:.4f}", lies, exact, up

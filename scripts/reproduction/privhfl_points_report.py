"""Where the PrivHFL paper is wrong or unsafe, and what here checks each point."""

from __future__ import annotations

from scripts.reproduction.markdown import table

POINTS: tuple[tuple[str, str], ...] = (
    (
        "Theorem 3 is false: what the querying party sees of a ReLU, r y, is not uniform. It is 0 where y is, y divides "
        "it, and gcds of several maskings give y up to its sign; whoever asks one picture three times computes the first layer's "
        "weights",
        "`scripts/attacks/published_relu.py` and `tests/privhfl/test_published.py` recover 16 of 16 channels from the "
        "published protocol; `secure` sends the querying party one message a batch, the sum: "
        "`tests/security/test_querying_views.py`",
    ),
    (
        "r 'random in the ring' loses the sign: it survives only while abs(y) r < 2^63",
        "enforced in the published mode: `tests/privhfl/test_published.py`; no such product in `secure`: "
        "`tests/privhfl/test_gates.py`, to the ends of its range",
    ),
    (
        "truncating shares locally goes wrong with a chance of abs(y) / 2^63 a value, several activations of every query of "
        "VGG-7",
        "truncation is part of the gate, exact up to a unit: `tests/privhfl/test_gates.py`, and bit for bit against the "
        "integers in the clear: `tests/privhfl/test_end_to_end.py`, `exact` of every secure run",
    ),
    (
        "ReLU multiplies two shared values, for which the paper has no protocol",
        "no such product here; `tests/privhfl/test_gates.py`",
    ),
    (
        "Diffie-Hellman through the server is open to the server in the middle",
        "keys are those of the plan's clients, handed over directly in this process; "
        "`tests/privhfl/test_draws.py`",
    ),
    (
        "the mask of the weights must be new for every pair and model: used again it shows the server the difference",
        "`tests/privhfl/test_draws.py`",
    ),
    (
        "the server with any one client breaks everything; all answering parties but one, with the querying party, learn "
        "the last one's logits; with one answering party aggregation hides nothing; queries remain black-box extraction",
        "fewer than `min_answering` (two) are refused: `tests/privhfl/test_parties.py`; the rest holds for any such "
        "protocol and stands in SECURITY.md and docs/systems.md",
    ),
    (
        "text against tables: '233.6-269.3 x less communication' leaves out ResNet-8's 287.9 x; '3.23 %' of Tiny ImageNet "
        "is 28.46 - 26.23 = 2.23; 'about 10 %' holds for SVHN (+10.2), not for CIFAR-10 (+7.9) and Tiny ImageNet (+6.2); "
        "'1.5 x' of CryptGPU is 1.24 to 1.56",
        "`tests/scripts/test_privhfl_report.py` computes them from the tables",
    ),
    (
        "50 clients x 49 answers x 10,000 queries are 24.5 million predictions, 16 days of a GPU at table 2's rate: table 1 "
        "can hardly have been run under the protocol, and the paper does not say. 66.6 MB a query for 1000 queries in 56 s "
        "are 9.5 Gbit/s, and no network is named",
        "the same test; ours are run by the protocol where the table above says so",
    ),
    (
        "the control is missing that trains on the same mixup pictures and asks nobody",
        "`local`, `mixlocal` and `selfmix` above; `tests/training/test_privhfl.py`",
    ),
)


def points() -> str:
    """The table."""
    rows = [(number, *point) for number, point in enumerate(POINTS, start=1)]
    return table(("", "the paper", "checked here by"), rows) + "\n"

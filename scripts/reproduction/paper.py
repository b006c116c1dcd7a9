"""Figures printed in the FSL paper (`CREDIT`), section 7 unless said otherwise.

Nothing here is measured by this project.
"""

from __future__ import annotations

from typing import Final

CREDIT: Final = (
    "Jamie Cui, Cen Chen, Tiandi Ye and Li Wang, "
    '"Practical and Light-weight Secure Aggregation for Federated Submodel Learning"'
)
"""Who wrote the first paper, and its title."""

ACCURACY: Final = {
    "mnist": {5: 97.36, 10: 97.40, 20: 97.43, 40: 97.45, 60: 97.47, 80: 97.47, 100: 97.47},
    "cifar10": {5: 58.79, 10: 59.15, 20: 59.46, 40: 59.58, 60: 59.62, 80: 59.67, 100: 59.57},
    "trec": {5: 88.87, 10: 89.20, 20: 89.20, 40: 89.47, 60: 89.60, 80: 89.60, 100: 89.60},
}
"""Table 7: test accuracy in percent by percentage of the weights that a client sends."""

ACCURACY_DEVIATION: Final = {
    "mnist": {5: 0.12, 10: 0.13, 20: 0.13, 40: 0.13, 60: 0.13, 80: 0.13, 100: 0.13},
    "cifar10": {5: 1.17, 10: 1.17, 20: 1.09, 40: 1.05, 60: 1.02, 80: 1.12, 100: 1.10},
    "trec": {5: 0.50, 10: 0.87, 20: 0.20, 40: 0.70, 60: 0.87, 80: 0.87, 100: 0.87},
}
"""Table 7: standard deviation over three runs."""

ROUNDS: Final = {"mnist": 6000, "cifar10": 5000, "trec": 500}
"""Section 7.3: communication rounds of the accuracy runs."""

MEGA_ELEMENTS: Final = {
    0.0125: (84.73, 0.76),
    0.1: (88.60, 0.87),
    1: (89.67, 0.23),
    10: (89.73, 0.31),
}
"""Table 8: accuracy on TREC and its deviation by percentage of the word table's rows."""

SCALE_FACTOR: Final = {10: 1.25, 15: 1.25, 20: 1.27, 25: 1.28}
"""Table 3: bins an item by log2 of the number of weights."""

MAX_BIN: Final = {
    1: {10: 324, 15: 315, 20: 336, 25: 366},
    10: {10: 45, 15: 54, 20: 66, 25: 78},
    30: {10: 27, 15: 36, 20: 39, 25: 48},
    50: {10: 21, 15: 24, 20: 30, 25: 36},
    70: {10: 18, 15: 21, 20: 27, 25: 30},
}
"""Table 4: largest bin of simple hashing by percentage, then log2 of the number of weights."""

COMPUTATION: Final = {
    (10, 10): (0.028, 0.012, 0.023),
    (10, 20): (0.045, 0.015, 0.018),
    (10, 30): (0.056, 7.532, 0.018),
    (15, 10): (0.838, 0.253, 0.018),
    (15, 20): (1.129, 0.124, 0.179),
    (15, 30): (1.707, 0.197, 0.172),
    (20, 10): (22.806, 7.532, 0.018),
    (20, 20): (37.018, 0.98, 1.844),
    (20, 30): (55.918, 1.732, 2.257),
}
"""Table 5, by (log2 m, percent): seconds of key generation, evaluation, aggregation; 64 cores."""

SWAPPED: Final = {(10, 30): "evaluation", (15, 10): "aggregation", (20, 10): "aggregation"}
"""Cells of Table 5 that cannot be right: evaluating 2^10 weights does not take 7.5 s, and adding
2^20 does not take what 2^10 takes. They stand beside ours and are not compared."""

COMMUNICATION: Final = {
    (10, 1): 0.002,
    (10, 5): 0.009,
    (10, 10): 0.019,
    (15, 1): 0.063,
    (15, 5): 0.317,
    (15, 10): 0.633,
    (20, 1): 2.028,
    (20, 5): 10.14,
    (20, 10): 20.28,
}
"""Table 6, by (log2 m, percent): upload in MiB at l = 128."""

RATE: Final = 12.68
"""Section 6: upload of the basic protocol over that of a dense vector, times k/m."""

TREC: Final = {"test": (753, 500), "train": (8256, 5452), "train per client": (3365, 1363)}
"""Table 9: words and samples; four clients."""

DIN: Final = {
    "parameters": 3_617_023,
    "embedding": 3_552_696,
    "items_per_client": 301,
    "categories_per_client": 117,
    "upload_mb": 2.38,
    "comparator_mb": 1.76,
    "client_seconds": 3.0,
    "server_seconds": 60.0,
}
"""Section 7.5. 2.38 MB are 1.4 of embedding and 0.98 of the other layers, at l = 128."""

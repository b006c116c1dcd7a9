"""Figures printed in the FSL paper, section 7 unless said otherwise.

Cheng et al., "Towards Secure and Practical Federated Submodel Learning". Nothing here is measured
by this project.
"""

from __future__ import annotations

from typing import Final

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

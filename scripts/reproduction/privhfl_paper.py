"""Figures printed in the PrivHFL paper ("Practical and Private Heterogeneous Federated Learning").

Nothing here is measured by this project. The copy of the paper that we have shows captions only for
its figures, so that of these there are claims and no numbers.
"""

from __future__ import annotations

from typing import Final

FRACTIONS: Final = (0.6, 0.8, 1.0)
BASELINE: Final = {"SVHN": 75.46, "CIFAR-10": 56.66, "Tiny ImageNet": 22.26}
ACCURACY: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "SVHN": {
        "private": (79.43, 79.56, 80.29),
        "2500": (80.09, 80.32, 81.69),
        "5000": (83.32, 83.52, 83.82),
        "7500": (84.54, 84.78, 85.12),
        "10000": (84.58, 84.97, 85.62),
    },
    "CIFAR-10": {
        "private": (60.82, 61.01, 61.49),
        "2500": (62.87, 63.05, 63.23),
        "5000": (63.04, 63.44, 63.69),
        "7500": (62.97, 63.64, 63.88),
        "10000": (63.79, 63.82, 64.56),
    },
    "Tiny ImageNet": {
        "private": (24.89, 25.11, 25.23),
        "2500": (25.82, 26.03, 26.23),
        "5000": (26.22, 26.46, 26.75),
        "7500": (27.14, 27.54, 27.75),
        "10000": (27.67, 28.19, 28.46),
    },
}
"""Table 1, per cent: queries of private data, then mixup by B; by C."""

BATCHES: Final = {
    ("CIFAR-10", "share"): (5.08, 7.16, 11.32),
    ("CIFAR-10", "VGG-7"): (55.97, 133.52, 271.89),
    ("CIFAR-10", "ResNet-8"): (87.71, 206.20, 428.54),
    ("CIFAR-10", "ResNet-10"): (106.46, 256.39, 512.88),
    ("CIFAR-10", "aggregate"): (0.09, 0.12, 0.30),
    ("Tiny ImageNet", "share"): (9.87, 18.78, None),
    ("Tiny ImageNet", "ResNet-14"): (737.43, 1778.69, None),
    ("Tiny ImageNet", "ResNet-16"): (962.51, 2356.33, None),
    ("Tiny ImageNet", "ResNet-18"): (1075.13, 2537.49, None),
    ("Tiny ImageNet", "aggregate"): (0.18, 0.32, None),
}
"""Table 2, seconds on a GPU for 1000, 2500 and 5000 queries, one answering party."""

PREDICTION: Final = {
    "CryptFlow2, OT": ((39.22, 15562.9), (39.35, 21261.6), (55.76, 28517.6)),
    "CryptFlow2, HE": ((48.70, 651.51), (56.21, 1110.39), (97.46, 1395.18)),
    "CryptGPU": ((1.61, 144.51), (2.02, 131.39), (2.79, 221.57)),
    "the paper, CPU": ((1.03, 66.61), (1.63, 73.85), (2.00, 105.88)),
    "the paper, GPU": ((0.35, 66.61), (0.36, 73.85), (0.53, 105.88)),
}
"""Table 3, one CIFAR-10 prediction: seconds and MB of VGG-7, ResNet-8, ResNet-10."""

MNIST: Final = {
    "CNet1 (squares instead of ReLU)": (
        (0.07, 17.75), (0.14, 17.56), (0.25, 17.62), (0.49, 17.77), (0.99, 17.67)),
    "CNet2 (ReLU)": (
        (0.07, 48.83), (0.15, 70.14), (0.26, 112.42), (0.51, 201.42), (1.01, 369.51)),
    "MLP": ((0.05, 65.01), (0.06, 86.37), (0.10, 129.81), (0.16, 216.61), (0.29, 391.13)),
}  # fmt: skip
"""Table 4, seconds of a batch of 128 to 2048 pictures: the paper's protocol, HE-Transformer."""

LAMBDA: Final = {
    0.1: 61.93, 0.2: 61.82, 0.3: 61.42, 0.4: 61.37, 0.5: 61.38, 0.6: 61.35, 0.7: 61.80, 0.8: 61.53,
    0.9: 61.73,
}  # fmt: skip
"""Table 5, per cent on CIFAR-10 by the one coefficient of mixup."""

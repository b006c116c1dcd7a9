"""The two image networks of McMahan et al. (AISTATS 2017).

Shape legend
    B = images, C = channels, H, W = height and width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResponseNorm(nn.Module):
    """Local response normalisation over `size` neighbouring channels.

    The function of `nn.LocalResponseNorm` for beta = 3/4 and odd sizes, as a 1x1 convolution with
    a band of ones: several times as fast on CPUs.

    Args:
        size: channels in a neighbourhood, odd.
        alpha: weight of the mean square over a neighbourhood.
        k: added to it.

    Attributes:
        channels: int64 `[C]`, where the maps are some of a wider layer's: their numbers there, by
            which they are neighbours. None: all of them.
    """

    def __init__(self, size: int, *, alpha: float, k: float) -> None:
        super().__init__()
        self.size, self.alpha, self.k = size, alpha, k
        self.channels: Tensor | None = None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the normalised maps, `[B, C, H, W]`."""
        numbers_C = torch.arange(x_BCHW.shape[1]) if self.channels is None else self.channels
        near_CC = (numbers_C[:, None] - numbers_C).abs() <= self.size // 2
        band_CC = near_CC.to(x_BCHW)
        weights = (band_CC * (self.alpha / self.size))[:, :, None, None]
        root = torch.rsqrt(self.k + functional.conv2d(x_BCHW * x_BCHW, weights))
        return x_BCHW * (root * root.sqrt())


class Conv(nn.Conv2d):
    """A convolution that leaves its maps channels-last: CPUs pool those several times as fast."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the maps, `[B, C, H, W]`."""
        maps: Tensor = super().forward(x_BCHW)
        return maps.contiguous(memory_format=torch.channels_last)


class MnistCNN(nn.Module):
    """Two 5x5 convolutions (32 and 64 maps), each with 2x2 pooling, and 512 hidden units.

    Has 1,663,370 parameters for ten classes, the figure that the paper gives.
    """

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            Conv(1, 32, 5, padding=2),
            nn.MaxPool2d(2),  # before ReLU: the same function, on a quarter of the values
            nn.ReLU(),
            Conv(32, 64, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, classes)
        )

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits `[B, classes]` of images `[B, 1, 28, 28]`."""
        logits: Tensor = self.classifier(self.features(images_BCHW))
        return logits


class CifarCNN(nn.Module):
    """Two 5x5 convolutions of 64 maps, then 384 and 192 hidden units, on 24x24 crops.

    The paper takes the network of the TensorFlow CIFAR-10 tutorial and only says that it has
    about 10^6 parameters; this one has 1,068,298. Local response normalisation follows each
    convolution, as there.
    """

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.MaxPool2d(3, stride=2, padding=1),  # before ReLU, as in MnistCNN
            nn.ReLU(),
            ResponseNorm(9, alpha=0.009, k=1.0),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            ResponseNorm(9, alpha=0.009, k=1.0),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * 6 * 6, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, classes),
        )

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits `[B, classes]` of images `[B, 3, 24, 24]`."""
        images_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)  # faster on CPUs
        logits: Tensor = self.classifier(self.features(images_BCHW))
        return logits

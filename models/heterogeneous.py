"""Unlike networks for clients that learn from each other's answers (PrivHFL).

Each consists of convolutions, linear layers, BatchNorm, ReLU, max and average pooling, additions
and flattening alone: what can be evaluated on private images. All have `features`, whose output is
flat, and a linear `classifier` behind it.

The paper names VGG-7, ResNet-8 and ResNet-10 and gives their layers but no widths; with `width=64`
these have 1.19, 0.63 and 4.98 million parameters on images of 32 x 32. Its three networks of MNIST
are those of table 4, all small; ours are an MLP, a CNN and a ResNet, so that clients differ.

Shape legend
    B = images, C = channels, H, W = height and width
"""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """Flat features and a linear layer.

    Args:
        features: ends with flat values `[B, values]`.
        values: of one image.
        classes: number of classes.
    """

    def __init__(self, features: nn.Sequential, values: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Linear(values, classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits `[B, classes]`."""
        logits: Tensor = self.classifier(self.features(images_BCHW))
        return logits


class Residual(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a 1 x 1 convolution if shapes change.

    Args:
        before: channels of the input.
        after: channels of the output.
        stride: stride of the first convolution and of the shortcut.
    """

    def __init__(self, before: int, after: int, *, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(before, after, stride=stride), nn.ReLU(), *_conv(after, after)
        )
        self.shortcut: nn.Module | None = None
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )
        self.relu = nn.ReLU()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the maps `[B, after, H / stride, W / stride]`."""
        beside = x_BCHW if self.shortcut is None else self.shortcut(x_BCHW)
        out: Tensor = self.relu(self.body(x_BCHW) + beside)
        return out


class VGG7(Classifier):
    """Six 3 x 3 convolutions of w, w, 2w, 2w, 4w, 4w maps in three stages, one linear layer.

    A stage ends with 2 x 2 pooling before its ReLU: the same function on a quarter of the values.

    Args:
        width: w.
        size: side of the images, a multiple of 8.
        channels: of the images.
        classes: number of classes.
    """

    def __init__(
        self, *, width: int = 64, size: int = 32, channels: int = 3, classes: int = 10
    ) -> None:
        layers: list[nn.Module] = []
        before = channels
        for maps in (width, 2 * width, 4 * width):
            layers += [*_conv(before, maps), nn.ReLU(), *_conv(maps, maps)]
            layers += [nn.MaxPool2d(2), nn.ReLU()]
            before = maps
        features = nn.Sequential(*layers, nn.Flatten())
        super().__init__(features, before * (size // 8) ** 2, classes)


class ResNet(Classifier):
    """A convolution, residual blocks of w, 2w, 4w, ... maps that halve the side, a linear layer.

    The linear layer sees every position of the last maps ("neurons of the last layer is increased",
    the paper says of ResNet-8).

    Args:
        blocks: number of residual blocks.
        width: w.
        size: side of the images, a multiple of `2 ** (blocks - 1)`.
        channels: of the images.
        classes: number of classes.
        pool: side of average pooling before the linear layer; 1 for none.
    """

    def __init__(
        self,
        *,
        blocks: int,
        width: int = 64,
        size: int = 32,
        channels: int = 3,
        classes: int = 10,
        pool: int = 1,
    ) -> None:
        layers: list[nn.Module] = [*_conv(channels, width), nn.ReLU()]
        for number in range(blocks):
            before, after = width << max(number - 1, 0), width << number
            layers.append(Residual(before, after, stride=2 if number else 1))
        if pool > 1:
            layers.append(nn.AvgPool2d(pool))
        features = nn.Sequential(*layers, nn.Flatten())
        side = (size >> (blocks - 1)) // pool
        super().__init__(features, (width << (blocks - 1)) * side**2, classes)


def resnet8(**sizes: int) -> ResNet:
    """ResNet-8 without its last block, as the paper has it: a convolution and two blocks."""
    return ResNet(blocks=2, **sizes)


def resnet10(**sizes: int) -> ResNet:
    """ResNet-10: a convolution and four blocks."""
    return ResNet(blocks=4, **sizes)


def resnet_of_pairs(pairs: tuple[int, ...], *, size: int = 64, classes: int = 200) -> Classifier:
    """A convolution of 64 maps, four stages of so many residual blocks, average pooling.

    Two blocks in each stage are ResNet-18's layers; the paper's ResNet-14 and ResNet-16 have two
    and one block fewer. It does not say in which stages.

    Args:
        pairs: residual blocks by stage, each of two convolutions.
        size: side of the images, a multiple of 8.
        classes: number of classes.
    """
    layers: list[nn.Module] = [*_conv(3, 64), nn.ReLU()]
    before = 64
    for stage, count in enumerate(pairs):
        for number in range(count):
            after = 64 << stage
            layers.append(Residual(before, after, stride=2 if stage and not number else 1))
            before = after
    features = nn.Sequential(*layers, nn.AvgPool2d(size >> (len(pairs) - 1)), nn.Flatten())
    return Classifier(features, before, classes)


class MnistMLP(Classifier):
    """Two hidden layers of 128 and 64 units: 109,386 parameters."""

    def __init__(self, *, classes: int = 10) -> None:
        layers = (nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        super().__init__(nn.Sequential(*layers), 64, classes)


class SmallCNN(Classifier):
    """Two 5 x 5 convolutions of stride 2 with 8 and 16 maps: 11,298 parameters on 28 x 28."""

    def __init__(self, *, classes: int = 10) -> None:
        layers = (*_conv(1, 8, kernel=5, stride=2), nn.ReLU(),
                  *_conv(8, 16, kernel=5, stride=2), nn.ReLU(), nn.Flatten())  # fmt: skip
        super().__init__(nn.Sequential(*layers), 16 * 7 * 7, classes)


class SmallResNet(Classifier):
    """A strided convolution, two residual blocks of 8 and 16 maps, average pooling."""

    def __init__(self, *, classes: int = 10) -> None:
        layers = (*_conv(1, 8, stride=2), nn.ReLU(), Residual(8, 8), Residual(8, 16, stride=2),
                  nn.AvgPool2d(7), nn.Flatten())  # fmt: skip
        super().__init__(nn.Sequential(*layers), 16, classes)


def _conv(before: int, after: int, *, kernel: int = 3, stride: int = 1) -> tuple[nn.Module, ...]:
    """A convolution that keeps the side, up to its stride, and BatchNorm."""
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(after)

"""The maps of layers without their biases, on reals or on ring elements.

torch convolves integers slowly. On ring elements the kernels therefore compute a convolution as a
product: the weights times a matrix whose columns are the windows of all samples.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.privhfl.graph import Node
from torchfsl.privhfl.ring_tensors import Ring, word_of


def apply_linear(node: Node, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A linear layer's map without bias: `[B, *node.shape]`, contiguous on ring elements.

    Args:
        node: `linear` or `conv`.
        weight: of the node's weight shape; reals, or ring elements as `int32` or `int64`.
        x: `[B, *input]`, of the same dtype.
    """
    if x.is_floating_point():
        if node.op == "linear":
            return x @ weight.T
        return functional.conv2d(x, weight, None, node.stride, node.padding, 1, node.groups)
    if node.op == "linear":
        return _product(weight, x.T).T.contiguous()
    outputs = [
        _product(w.flatten(1), _columns(node, part))
        for w, part in zip(weight.chunk(node.groups), x.chunk(node.groups, 1), strict=True)
    ]
    channels = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return channels.reshape(len(channels), len(x), *node.shape[1:]).transpose(0, 1).contiguous()


def _columns(node: Node, x: torch.Tensor) -> torch.Tensor:
    """The values under the kernel, `[channels * height * width, B * positions]`."""
    high, wide = node.weight_shape[2:]
    (down, right), (above, beside) = node.stride, node.padding
    padded = functional.pad(x, (beside, beside, above, above)) if above or beside else x
    cut = padded.unfold(2, high, down).unfold(3, wide, right)  # [B, C, H, W, high, wide]
    return cut.permute(1, 4, 5, 0, 2, 3).reshape(x.shape[1] * high * wide, -1)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left [R, C]` times `right [C, D]` in the ring."""
    word = word_of(left.dtype)
    factors = (factor.contiguous().numpy().view(word) for factor in (left, right))
    product = kernels().ring_multiply(*factors, num_threads())
    return torch.from_numpy(product.view(word.name[1:]))


def windows(node: Node, x: torch.Tensor) -> torch.Tensor:
    """The values that a pooling combines: `[window size, B, *shape]`."""
    high, wide = node.window
    cut = _cut(node, x)
    return torch.stack([cut[..., i, j] for i in range(high) for j in range(wide)])


def apply_shape(node: Node, x: torch.Tensor) -> torch.Tensor:
    """`sum` and `flatten`, which every party computes alone, on reals or on ring elements."""
    if node.op == "flatten":
        return x.reshape(len(x), *node.shape)
    return _cut(node, x).sum((4, 5), dtype=x.dtype)


def _cut(node: Node, x: torch.Tensor) -> torch.Tensor:
    """Views of a pooling's windows, `[B, *shape, high, wide]`."""
    (high, wide), (down, right) = node.window, node.stride
    return x.unfold(2, high, down).unfold(3, wide, right)


def with_bias(node: Node, bias: torch.Tensor) -> torch.Tensor:
    """The bias in the form in which it is added to a batch of outputs."""
    return bias.reshape(-1, *(1,) * (len(node.shape) - 1))


def lifted(ring: Ring, wire: torch.Tensor) -> torch.Tensor:
    """A wire with the fractional bits of a product: times 2**f_w in the ring."""
    return wire << ring.weight_frac_bits

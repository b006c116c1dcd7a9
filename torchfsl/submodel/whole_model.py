"""The whole model as bytes: every tensor in plan order, little-endian, nothing between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchfsl.submodel.framing import Kind, Message
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import tensor_spans
from torchfsl.types import Array


def model_bytes(plan: SubmodelPlan) -> int:
    """How many bytes that makes."""
    return sum(t.numel * t.item_bytes for s in plan.segments for t in s.tensors)


def encode_model(plan: SubmodelPlan, state: Mapping[str, Array]) -> list[bytes]:
    """The bytes in pieces, one a tensor."""
    pieces = []
    for segment in plan.segments:
        for tensor in segment.tensors:
            value = np.ascontiguousarray(state[tensor.name])
            pieces.append(value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes())
    return pieces


def decode_model(plan: SubmodelPlan, message: Message[Kind]) -> dict[str, Array]:
    """By name every tensor of the plan, of a message whose length has been checked."""
    tensors: dict[str, Array] = {}
    start = 0
    for segment in plan.segments:
        for tensor, _ in tensor_spans(segment):
            stop = start + tensor.numel * tensor.item_bytes
            dtype = np.dtype(tensor.dtype).newbyteorder("<")
            values = np.frombuffer(bytes(message.body[start:stop]), dtype=dtype)
            tensors[tensor.name] = values.reshape(tensor.shape).astype(tensor.dtype)
            start = stop
    return tensors

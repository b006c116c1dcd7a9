"""VGG-7 by CrypTen, two parties: what a general library for secret shares takes for one query.

CrypTen 0.4.1 does not import on torch 2.13, which has dropped a module that its converter of ONNX
files wants; a stub in its place lets its arithmetic run. Its multiplication triples come from a
provider in one of the two parties and are not counted. Skipped where it is not installed:

    pip install --no-deps crypten==0.4.1 omegaconf antlr4-python3-runtime==4.9.3
    pip install --no-deps onnx ml_dtypes
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import sys
import time
import types
from typing import Any

import torch
from torch import nn

import models


def run_crypten() -> dict[str, Any] | None:
    """Seconds and bytes of a query and party; None, with a line, where there is no CrypTen."""
    if importlib.util.find_spec("crypten") is None:
        print("crypten is not installed: this baseline is skipped")
        return None
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parties = [context.Process(target=_party, args=(rank, port, results)) for rank in (0, 1)]
    for party in parties:
        party.start()
    found = sorted(
        (results.get(timeout=600) for _ in parties), key=lambda result: int(result["rank"])
    )
    for party in parties:
        party.join()
    figures = {
        "seconds_a_party": [result["cpu_s"] for result in found],
        "MB_a_party": [result["bytes"] / 1e6 for result in found],
        "rounds": found[0]["rounds"],
        "wall_s": max(result["wall_s"] for result in found),
        "max_error": found[0]["error"],
    }
    print(
        "crypten   vgg7, batch 1, two parties: " + ", ".join(f"{k} {v}" for k, v in figures.items())
    )
    return figures


def _party(rank: int, port: int, results: Any) -> None:
    """One of both parties: party 0 has the image, party 1 the network."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        RENDEZVOUS="env://", DISTRIBUTED_BACKEND="gloo",
    )  # fmt: skip
    stub = types.ModuleType("crypten.nn.onnx_converter")
    stub.from_onnx = stub.from_pytorch = stub.from_tensorflow = None  # type: ignore[attr-defined]
    stub.TF_AND_TF2ONNX = False  # type: ignore[attr-defined]
    sys.modules["crypten.nn.onnx_converter"] = stub
    import crypten  # type: ignore[import-not-found]

    crypten.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = models.VGG7().eval()
    image = torch.rand(1, 3, 32, 32)
    crypten.config.cfg.communicator.verbose = True
    crypten.reset_communication_stats()
    cpu, wall = time.process_time(), time.perf_counter()
    logits = _predict(crypten, module, crypten.cryptensor(image, src=0))
    plain = logits.get_plain_text()
    stats = crypten.comm.get().get_communication_stats()
    with torch.no_grad():
        error = float((plain - module(image)).abs().max())
    results.put(
        {
            "rank": rank, "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall,
            "bytes": stats["bytes"], "rounds": stats["rounds"], "error": error,
        }
    )  # fmt: skip


def _predict(crypten: Any, module: nn.Module, x: Any) -> Any:
    """The network's layers on shares; batch norm goes into the convolution before it."""
    layers = [*module.features, module.classifier]  # type: ignore[union-attr, misc]
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, nn.Conv2d):
            assert isinstance(following, nn.BatchNorm2d)
            fused = torch.nn.utils.fusion.fuse_conv_bn_eval(layer, following)
            weight = crypten.cryptensor(fused.weight.detach(), src=1)
            assert fused.bias is not None
            bias = crypten.cryptensor(fused.bias.detach().reshape(-1, 1, 1), src=1)
            x = x.conv2d(weight, padding=1) + bias
        elif isinstance(layer, nn.ReLU):
            x = x.relu()
        elif isinstance(layer, nn.MaxPool2d):
            x = x.max_pool2d(2)
        elif isinstance(layer, nn.Flatten):
            x = x.flatten(1)
        elif isinstance(layer, nn.Linear):
            weight = crypten.cryptensor(layer.weight.detach(), src=1)
            x = x.matmul(weight.t()) + crypten.cryptensor(layer.bias.detach(), src=1)
    return x

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of one rank on NCCL with each way of summing gradients; prints one JSON
object. bench/gpu/run.py runs it.

    bench/gpu/hook.py [--runs 20]

One rank's gradients are sums already: what a step takes longer than DDP's own is what a hook costs.
Weights and data are random; the models have the shapes of VGG19 and of BERT-base (uncased).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import addend.torch

CODECS = ("exact", "quant:bits=4", "cast:bf16")


class Bert(torch.nn.Module):
    """Embeddings, twelve layers, and a head over the table of words."""

    def __init__(self, words: int = 30522, width: int = 768) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.places = torch.nn.Embedding(512, width)
        layer = torch.nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.bias = torch.nn.Parameter(torch.zeros(words))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.words(rows) + self.places.weight[: rows.shape[1]]
        return torch.nn.functional.linear(self.layers(x), self.words.weight, self.bias)


class Vgg(torch.nn.Module):
    """Sixteen convolutions and three layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        before = 3
        for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [torch.nn.Conv2d(before, width, 3, padding=1), torch.nn.ReLU()]
                before = width
            layers.append(torch.nn.MaxPool2d(2))
        layers += [torch.nn.Flatten(), torch.nn.Linear(512 * 49, 4096), torch.nn.ReLU()]
        layers += [torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1000)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


def inputs(name: str) -> torch.Tensor:
    if name == "BERT-base":
        return torch.randint(0, 30522, (8, 128), device="cuda")
    return torch.randn(16, 3, 224, 224, device="cuda")


def time_steps(name: str, make: Callable[[Any], Any], runs: int) -> float:
    """Median of a forward and backward pass, ms."""
    torch.manual_seed(1)
    bare: torch.nn.Module = Bert() if name == "BERT-base" else Vgg()
    model = DistributedDataParallel(bare.cuda(), device_ids=[0], gradient_as_bucket_view=True)
    handle = make(model)
    given = inputs(name)
    times: list[float] = []
    for run in range(10 + runs):
        model.zero_grad()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        model(given).float().square().mean().backward()
        end.record()
        torch.cuda.synchronize()
        if run >= 10:
            times.append(start.elapsed_time(end))
    if handle is not None:
        handle.close()
    return round(statistics.median(times), 3)


def fp16(model: Any) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def power_sgd(model: Any) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = "file://" + os.path.join(folder, "rendezvous")
        dist.init_process_group("nccl", init_method=where, rank=0, world_size=1)
        ways: dict[str, Callable[[Any], Any]] = {
            "DDP": lambda model: None,
            "fp16 hook": fp16,
            "PowerSGD hook, rank 1": power_sgd,
        }
        for codec in CODECS:
            ways[codec] = functools.partial(addend.torch.attach, codec=codec)
        result: dict[str, dict[str, float]] = {}
        for name in ("BERT-base", "VGG19"):
            result[name] = {}
            for way, make in ways.items():
                result[name][way] = time_steps(name, make, options.runs)
                print(name, way, result[name][way], file=sys.stderr, flush=True)
        addend.torch.close_all()
        dist.destroy_process_group()
    print(json.dumps(result))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of one rank on NCCL with each way of summing gradients; prints one JSON
object. bench/gpu/run.py runs it.

    bench/gpu/hook.py [--runs 20]

One rank's gradients are sums already: what a step takes longer than DDP's own is what a hook costs.
The models are those of models.py.
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
from models import Shape
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import addend.torch

CODECS = ("exact", "quant:bits=4", "cast:bf16")


def time_steps(name: str, make: Callable[[Any], Any], runs: int) -> dict[str, float]:
    """Median and least of a forward and backward pass, ms."""
    torch.manual_seed(1)
    shape = Shape(small=False)
    bare = shape.build(name).cuda()
    model = DistributedDataParallel(bare, device_ids=[0], gradient_as_bucket_view=True)
    handle = make(model)
    given = [one.cuda() for one in shape.batch(name, bare, 1)]
    times: list[float] = []
    for run in range(10 + runs):
        model.zero_grad()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        model(*given).backward()
        end.record()
        torch.cuda.synchronize()
        if run >= 10:
            times.append(start.elapsed_time(end))
    if handle is not None:
        handle.close()
    return {"median": round(statistics.median(times), 3), "least": round(min(times), 3)}


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
        ways["DDP, last"] = ways["DDP"]  # hosts drift: what is added is told from both
        result: dict[str, dict[str, dict[str, float]]] = {}
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

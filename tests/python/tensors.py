# SPDX-License-Identifier: Apache-2.0
"""Tensors that ranks of tests add, and what torch itself makes of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from addend.reducer import Reducer
from addend.torch import Link

LOSSLESS = (
    "dense",
    "exact",
    "exact:mode=packed",
    "exact:mode=two-level",
    "exact:mode=bloom,density=0.01",
    "exact:mode=gather",
    "exact:mode=sketch",
    "exact:values=reproducible",
    "exact:mode=sketch,values=reproducible",
)
LOSSY = (
    "quant",
    "quant:bits=8",
    "quant:bits=2,feedback=float",
    "quant:bits=4,carrier=levels",
    "quant:bits=8,down=4",
)
HALVES = (torch.bfloat16, torch.float16)
PLAIN = (torch.float64, torch.int64, torch.int32)  # no codec takes them

FREE_STEPS = Link(latency_us=0.0, gbit_per_s=1e-6)  # bytes decide
DEAR_STEPS = Link(latency_us=1e12)  # network steps decide


def seeded(rank: int, name: object) -> Any:
    return torch.Generator().manual_seed(sum(str(name).encode()) * 64 + rank)


def integers(
    rank: int, shape: tuple[int, ...], dtype: Any = torch.float32, dense: bool = False
) -> Any:
    """Small multiples of 4, so that sums and means of 4 ranks need no rounding; mostly zeros."""
    random = seeded(rank, shape)
    values = 4 * torch.randint(-3, 4, shape, generator=random)
    if not dense:
        values = values * (torch.rand(shape, generator=random) < 0.1)
    return values.to(dtype)


def torchs_sum(tensor: Any, op: str = "sum", group: Any = None) -> Any:
    """What torch's own all_reduce gives."""
    out = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=group)
    return out / dist.get_world_size(group) if op == "mean" else out


def believe_in(link: Link) -> None:
    """What groups measure from now on, whose first call is still to come."""
    Reducer.measure_link = lambda *_: link  # type: ignore[method-assign]

# SPDX-License-Identifier: Apache-2.0
"""Many steps as users make them, with nothing said that has a default: memory, threads and
descriptors stay as they are after warm-up. ADDEND_SOAK_STEPS (1000) steps are watched."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
import test_torch_aggregator
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch

running = test_torch_aggregator.running  # a server
SLOW = addend.torch.Link(50.0, 1.0)

STEPS = int(os.environ.get("ADDEND_SOAK_STEPS", "1000"))
WARM_UP = 150
# What an allocator may take for itself; a message that is kept at every step is tens of times that.
MOST_GROWTH = 2 << 20
SIZES = [1, 3, 64, 1000, 4097, 20_000, 65_536, 150_001]


class Usage(NamedTuple):
    resident: int  # bytes
    threads: int
    descriptors: int


def usage(pid: int) -> Usage:
    folder = Path("/proc") / str(pid)
    pages = int((folder / "statm").read_text().split()[1])
    counts = (len(os.listdir(folder / what)) for what in ("task", "fd"))
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), *counts)


def check_flat(name: str, step: Callable[[int], None], *pids: int, warm_up: int = WARM_UP) -> None:
    """Nothing grows in this process and in others."""
    pids = (os.getpid(), *pids)
    for number in range(warm_up):
        step(number)
    before = [usage(pid) for pid in pids]
    for number in range(warm_up, warm_up + STEPS):
        step(number)
    for pid, old, new in zip(pids, before, map(usage, pids)):
        print(f"{name}: process {pid} was {old}, is {new}")
        assert new.resident - old.resident < MOST_GROWTH, (name, old, new)
        assert new.threads <= old.threads, (name, old, new)
        assert new.descriptors <= old.descriptors, (name, old, new)


class Table(nn.Sequential):
    """Rows that are looked up: gradients are mostly zeros, or sparse."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__(nn.Embedding(500, 16, sparse=sparse))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        rows = (batch[0] * 100).abs().long() % 500
        output: torch.Tensor = self[0](rows)
        return output


class Layers(nn.Sequential):
    """Dense gradients."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 20))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last, self.table = Layers(), nn.Linear(20, 16), Table()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.last(self.layers(batch)), self.table(batch)])


def train(
    rank: int, module: nn.Module, codec: str = "exact", **options: Any
) -> tuple[Callable[[int], None], Any]:
    """A step of training, and its handle."""
    torch.manual_seed(0)
    model = DistributedDataParallel(module)
    handle = addend.torch.attach(model, codec, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)

    def step(number: int) -> None:
        batch = torch.randn(4 + number % 5, 64, generator=generator)
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        model(batch).square().mean().backward()
        optimizer.step()

    return step, handle


def sum_up(number: int, **options: Any) -> None:
    """A call of all_reduce: sizes, codecs and ways of waiting change with the number."""
    tensor = torch.zeros(SIZES[number % len(SIZES)])
    tensor[:: 1 + number % 40] = 1.0
    codec = "quant:bits=4" if number % 3 == 0 else "exact"
    found = addend.torch.all_reduce(
        tensor, "mean", codec=codec, async_op=number % 4 == 0, **options
    )
    if number % 4 == 0:
        found.wait()


def soak(rank: int, world: int) -> None:
    # One kind at a time: what one leaves behind another may take away.
    for kind, module, codec, modes in (
        ("dense", Layers(), "exact", ["dense"]),
        ("quant", Layers(), "quant:bits=4,feedback=float", ["quant"]),
        ("mostly zeros", Table(), "exact:mode=packed", ["packed"]),
        ("sparse", Table(sparse=True), "exact", ["gather", "union"]),
    ):
        step, handle = train(rank, module, codec)
        check_flat(kind, step)
        metrics = handle.metrics()
        assert sum(metrics.get(f"mode/{mode}", 0) for mode in modes) > STEPS, (kind, metrics)
        handle.close()
    check_flat("all_reduce", sum_up)


def soak_slow(rank: int, world: int) -> None:
    """Dense sums that the backend adds."""
    step, handle = train(rank, Layers(), link=SLOW)

    def encodes(number: int) -> bool:
        before = handle.metrics()["time/encode_s"]
        step(number)
        return bool(handle.metrics()["time/encode_s"] > before)

    # This process grows by 2 MB in the first 2000 steps, 1.4 of them as with DDP alone, and by 0.1
    # in the next 4000.
    check_flat("dense over a slow link", step, warm_up=2000)
    # One step in many is encoded, to look for zeros, and never two in a row by now.
    first, second = encodes(0), encodes(1)
    assert not (first and second)
    assert handle.metrics()["mode/dense"] > STEPS
    handle.close()


def soak_adaptive(rank: int, world: int) -> None:
    # How many windows there are by default depends on how long steps take.
    for codec, least in (("adaptive", 1), ("adaptive:window=25,window_s=0", STEPS / 100)):
        step, handle = train(rank, Both(), codec)
        check_flat(codec, step)
        assert handle.metrics()["adaptive/windows"] >= least
        handle.close()


@pytest.mark.parametrize("body", [soak, soak_slow, soak_adaptive])
@pytest.mark.parametrize("world", [2, 4])
def test_steps_leave_nothing_behind(world: int, body: Callable[[int, int], None]) -> None:
    run_ranks(world, body, timeout_s=300 + STEPS / 5)


def soak_with_a_server(rank: int, world: int, pid: int, address: str, key: str) -> None:
    os.environ["ADDEND_KEY_FILE"] = key
    overrides = {"layers.*": "quant:bits=4,feedback=float", "table.*": "exact:mode=packed"}
    step, handle = train(rank, Both(), overrides=overrides, aggregator=address)
    watched = [pid] if rank == 0 else []
    check_flat("training over a server", step, *watched)
    handle.close()
    check_flat("all_reduce over a server", partial(sum_up, aggregator=address), *watched)


@pytest.mark.parametrize("world", [2, 4])
def test_steps_over_a_server_leave_nothing_behind(
    world: int, running: tuple[Any, str, str]
) -> None:
    process, address, key = running
    run_ranks(world, soak_with_a_server, process.pid, address, key, timeout_s=300 + STEPS / 5)

# SPDX-License-Identifier: Apache-2.0
"""One training run, as one worker sees it, with what the report needs to know about it."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from demo import hooks
from demo.models import MODELS, Batch
from demo.server import KEY

BASELINE = "ddp"  # DistributedDataParallel as it comes, without addend
# Runs are short, so the controller looks at shorter windows than it does by default.
ADAPTIVE, ADAPTIVE_WINDOWS = "adaptive", "window=10,window_s=0"
PROBES = 12  # batches of a run that are also computed without communication
PROGRESS_SECONDS = 0.2

Emit = Callable[..., None]


@dataclass(frozen=True)
class Run:
    model: str
    codec: str  # BASELINE, one of hooks.NAMES, ADAPTIVE with options or none, or a codec spec
    steps: int
    seed: int


@dataclass(frozen=True)
class Group:
    """This worker's place among the workers."""

    worker: int
    world: int
    folder: Path  # of the data sets
    sent_bytes: Path | None  # the kernel's counter for this worker's link
    server: str | None = None  # address of the one that sums what codecs send

    def aggregator(self) -> addend.Aggregator | None:
        if self.server is None:
            return None
        return addend.Aggregator(self.server, key_file=str(self.folder / KEY))

    def sent(self) -> int:
        return int(self.sent_bytes.read_text()) if self.sent_bytes else 0


def train(run: Run, group: Group, emit: Emit) -> None:
    model = MODELS[run.model]
    torch.manual_seed(run.seed)
    module = model.build()
    ddp = DistributedDataParallel(module, **hooks.ddp_options(run.codec))
    optimizer = model.optimizer(module)
    batches = model.batches(group.folder, group.worker, group.world, run.seed)
    with _compression(ddp, run, group, optimizer) as said:
        trainer = Trainer(ddp, optimizer, group)
        trainer.go(run, batches, emit)
        done = {**trainer.results(), **said(), "digest": digest(module)}
    if group.worker == 0:
        done["score"] = model.score(module, group.folder)
    done["parameters"] = sum(p.numel() for p in module.parameters())
    emit(event="done", **done)


def is_adaptive(codec: str) -> bool:
    return codec.partition(":")[0] == ADAPTIVE


@contextlib.contextmanager
def _compression(
    ddp: DistributedDataParallel, run: Run, group: Group, optimizer: torch.optim.Optimizer
) -> Iterator[Callable[[], dict[str, Any]]]:
    """What a run's compression says of itself at its end."""
    if run.codec == BASELINE:
        yield lambda: {"metrics": {}}
        return
    if run.codec in hooks.NAMES:
        metrics = hooks.register(ddp, run.codec)
        yield lambda: {"metrics": metrics()}
        return
    named: dict[str, Any] = {"seed": run.seed, "aggregator": group.aggregator()}
    if not is_adaptive(run.codec):
        handle = addend.torch.attach(ddp, codec=run.codec, **named)
    else:
        codec = f"{ADAPTIVE}:{ADAPTIVE_WINDOWS}" if run.codec == ADAPTIVE else run.codec
        handle = addend.torch.attach(ddp, codec=codec, optimizer=optimizer, **named)

    def said() -> dict[str, Any]:
        decided = {"decisions": handle.decisions()} if is_adaptive(run.codec) else {}
        return {"metrics": handle.metrics(), **decided}

    try:
        yield said
    finally:
        handle.close()


class Trainer:
    """The training loop and its stopwatch."""

    def __init__(
        self, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, group: Group
    ) -> None:
        self.ddp, self.optimizer, self.group = ddp, optimizer, group
        self.losses: list[float] = []
        self.step_s: list[float] = []
        self.together_s: list[float] = []  # forward and backward of each step
        self.alone_s: list[float] = []  # of some batches, without communication
        self.link_bytes: list[int] = []

    def go(self, run: Run, batches: Iterator[Batch], emit: Emit) -> None:
        told = time.perf_counter()
        probed = probe_steps(run.steps)
        for step in range(run.steps):
            batch = next(batches)
            if step in probed:
                self._alone(batch)
            self._step(batch)
            if self.group.worker == 0 and time.perf_counter() - told > PROGRESS_SECONDS:
                told = time.perf_counter()
                emit(event="step", step=step + 1, loss=self.losses[-1], seconds=self.step_s[-1])

    def results(self) -> dict[str, Any]:
        return {
            "losses": self.losses,
            "step_s": self.step_s,
            "together_s": self.together_s,
            "alone_s": self.alone_s,
            "link_bytes": self.link_bytes if self.group.sent_bytes else None,
        }

    def _alone(self, batch: Batch) -> None:
        """Forward and backward while nobody communicates. Leaves the module unchanged."""
        dist.barrier()
        begin = time.perf_counter()
        with self.ddp.no_sync():
            self.ddp(*batch).backward()
        self.alone_s.append(time.perf_counter() - begin)
        self.optimizer.zero_grad()
        dist.barrier()

    def _step(self, batch: Batch) -> None:
        sent = self.group.sent()
        begin = time.perf_counter()
        loss = self.ddp(*batch)
        loss.backward()
        self.together_s.append(time.perf_counter() - begin)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_s.append(time.perf_counter() - begin)
        self.losses.append(loss.item())
        self.link_bytes.append(self.group.sent() - sent)


def probe_steps(steps: int) -> set[int]:
    """Spread over the run, past its first steps, in which DDP and codecs settle."""
    first = min(warm_up(steps), steps - 1)
    count = min(PROBES, steps - first)
    return {first + (steps - first) * i // count for i in range(count)}


def warm_up(steps: int) -> int:
    """How many steps at the start are left out of medians."""
    return min(5, steps // 2)


def digest(module: nn.Module) -> str:
    """Equal on two workers if and only if all their parameters are, bit for bit."""
    sha = hashlib.sha256()
    for parameter in module.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()

# SPDX-License-Identifier: Apache-2.0
"""Small models, their data, and training runs that can be compared; all of it inside ranks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEED = 20
ROWS = 3000
MANY_BUCKETS = {"bucket_cap_mb": 0.01}  # of the models below, after DDP's first step


def generator(*numbers: int) -> torch.Generator:
    """Random numbers that depend on these alone: on rank and step, not on what ran before."""
    text = repr((SEED, *numbers)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    return torch.Generator().manual_seed(seed)


class Recommender(nn.Module):
    """An embedding whose gradient is mostly zeros, and layers whose gradient is not."""

    def __init__(self, sparse: bool = False, depth: int = 2, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 16, sparse=sparse)
        sizes = [16] + depth * [width]
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(sizes, sizes[1:])),
            nn.Linear(width, 1),
        )

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(self.embedding(items).sum(1))
        return output


def recommender_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    items = torch.randint(ROWS, (16, 3), generator=generator(rank, step))
    wanted = 2.0 + torch.cos(items.sum(1, keepdim=True) / 100.0)
    loss: torch.Tensor = ((model(items) - wanted) ** 2).mean()
    return loss


class MixedTypes(nn.Module):
    """Layers of several types, so buckets of several types from the first step on."""

    def __init__(self, *types: torch.dtype) -> None:
        super().__init__()
        self.types = types
        self.layers = nn.ModuleList(nn.Linear(12, 12, dtype=dtype) for dtype in types)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dtype, layer in zip(self.types, self.layers):
            x = torch.tanh(layer(x.to(dtype)))
        return x


def mixed_types_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(6, 12, generator=generator(rank, step))
    loss: torch.Tensor = ((model(x) - 0.5) ** 2).mean()
    return loss


Loss = Callable[[nn.Module, int, int], torch.Tensor]


@dataclass
class Run:
    """What a training run left behind."""

    losses: list[float]
    parameters: dict[str, torch.Tensor]
    metrics: dict[str, float] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=list)  # of each step, as the hook saw them


@dataclass
class Trainer:
    """A DDP model, its optimizer and its handle (None: plain DDP)."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    handle: Any
    loss: Loss
    group: Any = None
    losses: list[float] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = digest(self.parameters())

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.module.named_parameters())

    def run(self, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            self.optimizer.zero_grad()
            loss = self.loss(self.model, dist.get_rank(self.group), step)
            loss.backward()
            self.optimizer.step()
            self.note(loss)

    def note(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())
        if self.handle is not None:
            self.buckets.append(int(self.handle.metrics()["hook_calls"]) - sum(self.buckets))

    def result(self) -> Run:
        parameters = {name: p.detach().clone() for name, p in self.parameters().items()}
        assert digest(parameters) != self._start, "nothing was learnt"
        assert_replicas(parameters, self.group)
        metrics = self.handle.metrics() if self.handle is not None else {}
        return Run(self.losses, parameters, metrics, self.buckets)


def trainer(
    make: Callable[[], nn.Module],
    loss: Loss,
    codec: str | None,
    ddp: Mapping[str, Any] | None = None,
    attach: Mapping[str, Any] | None = None,
) -> Trainer:
    """codec: None for plain DDP, else what `attach` gets ("" for its default)."""
    import addend.torch

    torch.manual_seed(SEED)
    options = dict(ddp or {})
    model = DistributedDataParallel(make(), **options)
    handle = None
    if codec is not None:
        named: dict[str, Any] = dict(attach or {})
        if codec:  # for embedding tables, too
            named = {**named, "codec": codec}
            named["overrides"] = {**named.get("overrides", {}), "*": codec}
        handle = addend.torch.attach(model, **named)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Trainer(model, optimizer, handle, loss, options.get("process_group"))


def fit(
    make: Callable[[], nn.Module],
    loss: Loss,
    codec: str | None,
    steps: int = 6,
    ddp: Mapping[str, Any] | None = None,
    attach: Mapping[str, Any] | None = None,
) -> Run:
    """Trains from the same start on the same data, whatever the codec."""
    made = trainer(make, loss, codec, ddp, attach)
    made.run(0, steps)
    result = made.result()
    if made.handle is not None:
        made.handle.close()
    return result


def digest(parameters: Mapping[str, torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for name, parameter in parameters.items():
        whole.update(name.encode())
        whole.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def assert_replicas(parameters: Mapping[str, torch.Tensor], group: Any = None) -> None:
    """All ranks hold the same bits. Collective."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, digest(parameters), group=group)
    assert len(set(everyone)) == 1, f"replicas differ: {everyone}"


def assert_same_bits(run: Run, other: Run) -> None:
    assert run.losses == other.losses
    for name, value in other.parameters.items():
        assert torch.equal(run.parameters[name], value), name


def assert_close(run: Run, plain: Run, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    """Equal to float rounding over the whole run."""
    assert run.losses == pytest.approx(plain.losses, rel=rtol, abs=atol)
    for name, value in plain.parameters.items():
        torch.testing.assert_close(run.parameters[name], value, rtol=rtol, atol=atol, msg=name)


def assert_lossless(run: Run, plain: Run) -> None:
    """Two ranks add the same two numbers as plain DDP does; more add in another order."""
    if dist.get_world_size() == 2:
        assert_same_bits(run, plain)
    else:
        assert_close(run, plain)


class Lines(logging.Handler):
    """The lines that a logger wrote."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def take(self) -> str:
        text = "\n".join(self.lines)
        self.lines.clear()
        return text

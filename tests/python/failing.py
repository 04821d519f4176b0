# SPDX-License-Identifier: Apache-2.0
"""What tests of failures share: models, calls that must fail, and ways to break a rank."""

from __future__ import annotations

import copy
import inspect
import threading
import time
from pathlib import Path
from typing import Any, Callable, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from addend import Codec
from addend.pipeline import Pipeline
from addend.rows import RowCodec
from addend.torch import _collectives

DEADLINE_S = 3.0
# Asking ranks that do not answer takes two seconds, the rest is for a busy machine.
GRACE_S = 20.0


def fail_at(run: Callable[[], Any]) -> tuple[str, float]:
    """What a call that must fail says, and how long it took to."""
    begin = time.monotonic()
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    raise AssertionError("it did not fail")


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("addend")]


def engine_of(group: Any = None) -> Any:
    """What sums the calls of all_reduce on a group."""
    return _collectives._contexts[dist.group.WORLD if group is None else group].engine


def await_news(idle: Any) -> None:
    """A handle, say, of an idle rank, which is told by another that it gave up."""
    while idle.failure is None:
        time.sleep(0.01)


class TwoBuckets(nn.Module):
    """Two layers too large for one bucket of 1 MB; the last layer's gradient comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 520)
        self.last = nn.Linear(520, 516)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(inputs))
        return out


def attach_two_buckets(
    deadline_s: float = 60.0, views: bool = False, left: bool = False
) -> tuple[DistributedDataParallel, Any]:
    """`left`: sums are left to the backend, because no codec takes the elements."""
    torch.manual_seed(0)
    made = TwoBuckets().double() if left else TwoBuckets()
    model = DistributedDataParallel(made, bucket_cap_mb=1, gradient_as_bucket_view=views)
    return model, addend.torch.attach(model, codec="exact:mode=packed", deadline=deadline_s)


def one_step(model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)
    dtype = next(model.parameters()).dtype
    model(torch.full((2, 512), 1.0 + dist.get_rank(), dtype=dtype)).sum().backward()


def whole_gradients(model: DistributedDataParallel) -> bool:
    """Whether each gradient is either this rank's own or the mean, and nothing in between."""
    failed = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    alone = copy.deepcopy(model.module)
    one_step(alone)
    whole = True
    for gradient, p in zip(failed, alone.parameters()):
        mean = p.grad.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if gradient is not None:  # backward may have ended before
            own = torch.equal(gradient, p.grad)
            whole &= own or torch.allclose(gradient, mean, rtol=1e-6)
    return whole


def break_copies(error: Exception) -> None:
    """The hook of this rank has no memory for a copy of a gradient from now on."""
    clone = torch.Tensor.clone

    def breaking(tensor: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        if Path(inspect.stack()[1].filename).name == "_hook.py":
            raise error
        return clone(tensor, *args, **how)

    torch.Tensor.clone = breaking  # type: ignore[assignment]


def break_codecs(error: Exception) -> None:
    """This rank makes no codec from now on."""

    def breaking(*_args: Any, **_how: Any) -> NoReturn:
        raise error

    Codec.__init__ = RowCodec.__init__ = breaking  # type: ignore[method-assign]


def break_jobs(stage: str, number: int, error: Exception) -> None:
    """The `number`-th job of this rank from now on is not taken, fails when it is encoded, or when
    it ends and its codec is asked what it did."""
    run, record = Pipeline.run, Codec.record
    jobs = 0
    broken: set[Codec] = set()

    def fail() -> NoReturn:
        raise error

    def breaking(pipeline: Pipeline, parts: Any, *args: Any, **how: Any) -> Any:
        nonlocal jobs
        jobs += 1
        if jobs == number and stage == "submit":
            fail()
        if jobs == number and stage == "encode":
            how["prepare"] = fail
        elif jobs == number:
            broken.update(parts.codecs)
        return run(pipeline, parts, *args, **how)

    def recording(codec: Codec) -> bytes:
        return fail() if codec in broken else record(codec)

    Pipeline.run, Codec.record = breaking, recording  # type: ignore[assignment, method-assign]

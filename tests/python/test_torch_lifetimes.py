# SPDX-License-Identifier: Apache-2.0
"""Models and groups that go without a word: threads and descriptors go with them, jobs end."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

import addend
import addend.torch
from addend.torch import _collectives, _engine, _group
from addend.torch._coder import Coder
from addend.torch._rollcall import RollCall
from addend.torch._worker import Worker

PATIENCE_S = 60.0  # for what should take no time, on a busy machine


# ---- what is in flight


def worker_of(group: Any) -> Worker:
    return _collectives._contexts[group].worker


def destroy_under_way(rank: int, world: int, referred: bool) -> str:
    """Rank 0 ends its groups while it waits for rank 1, which does not come. `referred`: it keeps
    the group, so that nothing but the deadline ends the wait."""
    addend.torch.all_reduce(torch.ones(8))
    worker = worker_of(dist.group.WORLD)
    group = dist.group.WORLD if referred else None
    dist.barrier()
    if rank == 1:
        return ""
    if group is not None:
        worker.deadline_s = 0.3
    tensor = torch.ones(100_000)
    pending = addend.torch.all_reduce(tensor, async_op=True)
    dist.destroy_process_group()
    with pytest.raises(addend.Error) as caught:
        pending.wait(PATIENCE_S)
    assert torch.equal(tensor, torch.ones(100_000))
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_deadline_ends_sums_of_a_group_that_is_no_more() -> None:
    error, _ = run_ranks(2, destroy_under_way, True)
    assert "Timeout: rank 0 of 2, step 2" in error
    assert "no answer within 0.3 s" in error


FAULTS: list[tuple[Any, str]] = [
    (Worker, "_explain"),
    (RollCall, "abort"),
    (_engine.Engine, "abandon"),
    (_group, "abort"),
    (Coder, "cancel"),
]


def wait_in_vain(group: Any, asynchronous: bool) -> str:
    """The error of a sum that the other rank does not come to."""
    tensor = torch.ones(1000)

    def call() -> None:
        found = addend.torch.all_reduce(tensor, group=group, async_op=asynchronous)
        if asynchronous:
            found.wait(PATIENCE_S)

    with pytest.raises(addend.Error) as caught:
        call()
    assert torch.equal(tensor, torch.ones(1000))
    return str(caught.value)


def fail_in_failing(rank: int, world: int) -> None:
    """Failures on rank 0 whose handling fails too."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("and a second fault")

    for owner, method in FAULTS:
        for asynchronous in (False, True):
            group = dist.new_group([0, 1])
            addend.torch.all_reduce(torch.ones(8), group=group)
            dist.barrier()
            if rank == 0:
                worker_of(group).deadline_s = 0.2
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(owner, method, fail)
                    error = wait_in_vain(group, asynchronous)
                assert "no answer within 0.2 s" in error, method
                assert wait_in_vain(group, asynchronous) == error  # and every later one
            dist.barrier()


def test_a_failure_in_failing_ends_jobs_all_the_same() -> None:
    run_ranks(2, fail_in_failing)

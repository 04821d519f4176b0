# SPDX-License-Identifier: Apache-2.0
"""Models and groups that go without a word: threads and descriptors go with them, jobs end."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
import torch.distributed as dist
from failing import own_threads
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
from addend.pipeline import Pipeline
from addend.torch import _group
from addend.torch._engine import Engine
from addend.torch._peers import Peers

PATIENCE_S = 60.0  # for what should take no time, on a busy machine


class Held(NamedTuple):
    """What this process holds."""

    threads: int
    descriptors: int


def held() -> Held:
    gc.collect()
    return Held(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))


def check_back_to(most: Held) -> None:
    """Nothing beyond `most` is held, as soon as threads that close have ended."""
    until = time.monotonic() + PATIENCE_S
    while (now := held()).threads > most.threads or now.descriptors > most.descriptors:
        assert time.monotonic() < until, f"{now} is more than {most}"
        time.sleep(0.01)


def attach_and_step() -> tuple[DistributedDataParallel, Any]:
    model = DistributedDataParallel(nn.Linear(64, 32))
    handle = addend.torch.attach(model)
    model(torch.ones(2, 64)).sum().backward()
    return model, handle


def begin_again(rank: int, world: int, folder: Path, number: int) -> None:
    """A new default group after the last one."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / str(number)}", rank=rank, world_size=world
    )


def drop_models(rank: int, world: int) -> None:
    before = held()
    for _ in range(6):
        model, handle = attach_and_step()
        assert held() > before
        del model, handle
        check_back_to(before)
        dist.barrier()
    model, handle = attach_and_step()
    del model  # a handle alone keeps its figures
    check_back_to(before)
    assert handle.metrics()["hook_calls"] == 1
    assert threading.enumerate() == [threading.main_thread()]


def test_a_model_that_goes_gives_everything_back() -> None:
    run_ranks(2, drop_models)


def replace_groups(rank: int, world: int, folder: Path) -> None:
    least: Held | None = None
    for number in range(6):
        addend.torch.all_reduce(torch.ones(1000))
        dist.barrier()  # nobody hears of an end while it waits for a sum
        dist.destroy_process_group()
        if least is None:
            while threading.active_count() > 1:  # what torch leaves behind is no concern of ours
                time.sleep(0.01)
            least = held()
        check_back_to(least)
        begin_again(rank, world, folder, number)


def test_a_group_that_is_made_again_gives_everything_back(tmp_path: Path) -> None:
    run_ranks(2, replace_groups, tmp_path)


def keep_models_of_old_groups(rank: int, world: int, folder: Path) -> None:
    kept = []
    for number in range(3):
        kept.append(attach_and_step())
        assert own_threads() == ["addend-peers"]
        dist.barrier()
        dist.destroy_process_group()
        begin_again(rank, world, folder, number)


def test_engines_of_a_destroyed_group_end_with_the_next_though_their_model_lives(
    tmp_path: Path,
) -> None:
    run_ranks(2, keep_models_of_old_groups, tmp_path)


# ---- what is in flight


def destroy_under_way(rank: int, world: int, referred: bool) -> str:
    """Rank 0 ends its groups while it waits for rank 1, which does not come. `referred`: it keeps
    the group, so that nothing but the deadline ends the wait."""
    addend.torch.all_reduce(torch.ones(8), deadline=0.3 if referred else None)
    group = dist.group.WORLD if referred else None
    dist.barrier()
    if rank == 1:
        return ""
    tensor = torch.ones(100_000)
    pending = addend.torch.all_reduce(tensor, async_op=True)
    dist.destroy_process_group()
    with pytest.raises(addend.Error) as caught:
        pending.wait(PATIENCE_S)
    assert torch.equal(tensor, torch.ones(100_000))
    assert (group is None) != referred
    return f"{type(caught.value).__name__}: {caught.value}"


def test_sums_in_flight_end_with_their_group() -> None:
    error, _ = run_ranks(2, destroy_under_way, False)
    assert "Unavailable: rank 0 of 2, step 2" in error
    assert "the process group was destroyed with buckets in flight" in error


def test_a_deadline_ends_sums_of_a_group_that_is_no_more() -> None:
    error, _ = run_ranks(2, destroy_under_way, True)
    assert "Timeout: rank 0 of 2, step 2" in error
    assert "the deadline passed; still waited for ranks: 1" in error


FAULTS: list[tuple[Any, str]] = [
    (Engine, "_explain"),
    (Peers, "abort"),
    (Pipeline, "stop"),
    (_group, "abort"),
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
            addend.torch.all_reduce(torch.ones(8), group=group, deadline=0.5)
            dist.barrier()
            if rank == 0:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(owner, method, fail)
                    error = wait_in_vain(group, asynchronous)
                assert "the deadline passed" in error, method
                assert wait_in_vain(group, asynchronous) == error  # and every later one
            dist.barrier()


def test_a_failure_in_failing_ends_jobs_all_the_same() -> None:
    run_ranks(2, fail_in_failing)

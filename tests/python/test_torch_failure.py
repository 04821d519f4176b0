# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late, slow, broken, interrupted or forked: what they and the others then say."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from failing import (
    DEADLINE_S,
    GRACE_S,
    TwoBuckets,
    attach_two_buckets,
    await_news,
    break_codecs,
    break_jobs,
    fail_at,
    one_step,
    whole_gradients,
)
from ranks import Ranks, notes, run_ranks
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
from addend.torch import _collectives
from addend.torch._bucket import Plan
from addend.torch._peers import Place


def threads() -> list[str]:
    """The library's own, by their names."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if name.startswith("addend")]


def attach_and_close(rank: int, world: int) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    before = held()
    for _ in range(3):
        model, handle = attach_two_buckets()
        one_step(model)
        assert held() > before
        handle.close()
        with pytest.raises(addend.Unavailable, match="closed"):
            one_step(model)
        dist.barrier()
    assert held() == before


def test_closing_gives_everything_back() -> None:
    run_ranks(2, attach_and_close)


def break_encoding(rank: int, world: int, way: str) -> str:
    """Rank 1 cannot encode: its second bucket, or its tensor."""
    if way == "backward":
        model, _ = attach_two_buckets()
        run = functools.partial(one_step, model)
    else:
        run = functools.partial(addend.torch.all_reduce, torch.ones(1000), deadline=60.0)
    for _ in range(2):
        run()
    dist.barrier()  # else a rank may hear of the failure before it has ended the call before
    if rank == 1:
        break_jobs("encode", 2 if way == "backward" else 1, addend.Capacity("no room for 7 apples"))
    error = fail_at(run)[0]
    assert way != "backward" or whole_gradients(model)
    return error


@pytest.mark.parametrize(
    ("way", "place"), [("backward", "step 2, bucket 1"), ("all_reduce", "step 3, bucket 0")]
)
def test_a_rank_that_cannot_encode_tells_the_others_why(way: str, place: str) -> None:
    errors = run_ranks(3, break_encoding, way)
    assert "Capacity: rank 1 of 3, " + place in errors[1]
    assert "gave up" not in errors[1]
    for error in (errors[0], errors[2]):
        assert "rank 1 gave up: rank 1 of 3, " + place in error
    assert all("no room for 7 apples" in error for error in errors)


def meet_a_bug(rank: int, world: int, stage: str, error: Exception) -> list[str]:
    """An exception on one rank: its last bucket is not taken, or cannot be encoded or decoded; or
    there is no memory for the codecs of new buckets. What it had it gives back all the same."""
    model, handle = attach_two_buckets()
    for _ in range(2):
        one_step(model)
    if stage == "codecs":
        handle.load_state_dict(handle.state_dict())
    dist.barrier()
    if rank == 1 and stage == "codecs":
        break_codecs(error)
    elif rank == 1:
        break_jobs(stage, 2, error)
    elif stage == "end":
        one_step(model)  # all that rank 1 had to give was there
        await_news(handle)
    said = fail_at(lambda: one_step(model))[0]
    assert whole_gradients(model)
    assert threads()
    handle.close()
    assert not threads()
    return [said, str(handle.failure)]


BUG, NO_MEMORY = IndexError("off by one"), addend.OutOfMemory("off by one")


@pytest.mark.parametrize(
    ("stage", "error"),
    [("encode", BUG), ("end", BUG), ("submit", BUG), ("submit", NO_MEMORY), ("codecs", NO_MEMORY)],
)
def test_a_bug_on_one_rank_is_not_blamed_on_the_others(stage: str, error: Exception) -> None:
    everyone = run_ranks(3, meet_a_bug, stage, error)
    for said, failure in everyone:
        assert failure in said
        assert "off by one" in failure
        assert "late" not in failure
    assert ("(every rank answers)" in everyone[1][1]) == (error is BUG)
    assert "rank 1 gave up" in everyone[0][1]


def fail_before_a_sum(rank: int, world: int, sparse: bool) -> str:
    """Rank 1 has no memory for the codecs of a tensor that is new."""
    for _ in range(2):
        addend.torch.all_reduce(torch.ones(1000), deadline=60.0)
    dist.barrier()
    if rank == 1:
        break_codecs(addend.OutOfMemory("no room for 7 apples"))
    tensor = torch.eye(100).to_sparse() if sparse else torch.ones(2000)
    return fail_at(lambda: addend.torch.all_reduce(tensor))[0]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_rank_without_memory_for_codecs_tells_the_others(sparse: bool) -> None:
    errors = run_ranks(2, fail_before_a_sum, sparse)
    assert "OutOfMemory: rank 1 of 2, step 3, bucket 0" in errors[1]
    assert "rank 1 gave up: rank 1 of 2, step 3, bucket 0" in errors[0]
    assert all("no room for 7 apples" in error for error in errors)


class Scaler:
    """What rank 1 cannot ask for in the third step."""

    def __init__(self, rank: int) -> None:
        self.rank, self.asked = rank, 0

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        self.asked += 1
        if self.rank == 1 and self.asked == 3:
            raise IndexError("off by one")
        return 1.0


def begin_no_step(rank: int, world: int) -> str:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoBuckets(), bucket_cap_mb=1)
    addend.torch.attach(model, deadline=60.0, scaler=Scaler(rank))
    for _ in range(2):
        one_step(model)
    return fail_at(lambda: one_step(model))[0]


def test_a_rank_that_cannot_begin_a_step_tells_the_others() -> None:
    errors = run_ranks(2, begin_no_step)
    assert "rank 1 of 2, step 2, bucket 0" in errors[1]
    assert "rank 1 gave up: rank 1 of 2, step 2, bucket 0" in errors[0]
    assert all("off by one" in error for error in errors)


def wait_for_the_late(rank: int, world: int, left: bool) -> list[str]:
    model, handle = attach_two_buckets(DEADLINE_S, left=left)
    one_step(model)
    one_step(model)
    one_step(model)
    if rank == 1:
        await_news(handle)
    error, seconds = fail_at(lambda: one_step(model))
    assert rank == 1 or DEADLINE_S < seconds < DEADLINE_S + GRACE_S
    return [error, str(handle.failure)]


@pytest.mark.parametrize(("left", "rounds"), [(False, 2), (True, 1)])
def test_a_rank_that_is_alive_but_does_not_come_is_late_and_told(left: bool, rounds: int) -> None:
    """In rounds of the mesh, and in sums that are left to the backend."""
    errors = run_ranks(2, wait_for_the_late, left)
    where, late = "step 3, bucket [01], round 1", f"late, at step 2, bucket 1, round {rounds} "
    assert re.match(f"^rank 0 of 2, {where}: rank 1 is {late}", errors[0][1])
    assert errors[0][1] in errors[0][0]
    assert errors[1][1].endswith(": rank 0 gave up: " + errors[0][1])


def be_slow(rank: int, world: int) -> float:
    model, _ = attach_two_buckets(20.0)
    one_step(model)
    notes().set(f"ready/{rank}", "")
    notes().wait(["stopped"])
    begin = time.monotonic()
    for _ in range(3):
        one_step(model)
    return time.monotonic() - begin


def test_a_slow_rank_is_no_error() -> None:
    with Ranks(3, be_slow) as ranks:
        ranks.notes.wait([f"ready/{rank}" for rank in range(3)])
        ranks.send_signal(1, signal.SIGSTOP)
        ranks.notes.set("stopped", "")
        time.sleep(2.0)  # the slowness itself
        ranks.send_signal(1, signal.SIGCONT)
        assert min(ranks.values()[::2]) > 1.5


def use_after_fork(rank: int, world: int) -> list[str]:
    """What a forked child of each rank says; the rank itself must go on unharmed."""
    model, handle = attach_two_buckets()
    for _ in range(2):
        one_step(model)
    addend.torch.all_reduce(torch.ones(10))
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        attempts = (
            lambda: one_step(model),
            lambda: addend.torch.all_reduce(torch.ones(10)),
            lambda: handle.state_dict(),
        )
        said = [fail_at(attempt)[0].splitlines()[0] for attempt in attempts]
        handle.close()  # nothing of these may touch the parent's connections, nor hang
        addend.torch.close_all()
        os.write(send, "\n".join(said).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        said = pipe.read().splitlines()
    os.waitpid(child, 0)
    one_step(model)
    total = torch.ones(10)
    addend.torch.all_reduce(total)
    assert total.tolist() == [world] * 10
    return said


def test_use_in_a_forked_child_is_refused_by_name() -> None:
    for said in run_ranks(2, use_after_fork):
        assert len(said) == 3
        assert all("forked child" in line for line in said)


def interrupt(rank: int, world: int) -> tuple[str, str]:
    """Ctrl-C on rank 1 in the middle of a blocking all_reduce that the others have not joined."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what shells start with &
    tensor = torch.ones(1000)
    addend.torch.all_reduce(tensor, deadline=60.0)
    before = tensor.clone()
    if rank == 1:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            addend.torch.all_reduce(tensor)
        notes().set("interrupted", "")
    notes().wait(["interrupted"])
    said = fail_at(lambda: addend.torch.all_reduce(tensor))[0]
    assert torch.equal(tensor, before)
    return said, ""


def test_an_interrupted_rank_does_not_leave_the_others_waiting() -> None:
    errors = [said for said, _ in run_ranks(2, interrupt)]
    assert "rank 0 of 2" in errors[0]
    assert "rank 1 gave up" in errors[0]
    assert all("KeyboardInterrupt" in error for error in errors)


def share_a_group(rank: int, world: int) -> list[str]:
    """Several threads have calls under way when a rank is lost: all of them end."""
    addend.torch.all_reduce(torch.zeros(1), deadline=60.0)
    if rank == 1:
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL)
    pending = [addend.torch.all_reduce(torch.ones(100), async_op=True) for _ in range(3)]
    errors = [fail_at(one.wait)[0] for one in pending]
    return [*errors, fail_at(lambda: addend.torch.all_reduce(torch.ones(100)))[0]]


def test_all_that_is_under_way_or_comes_later_ends_with_the_first_error() -> None:
    with Ranks(3, share_a_group) as ranks:
        for rank in (0, 2):
            outcome = ranks.outcome(rank)
            assert not outcome.error, outcome.error
            assert len(set(outcome.value)) == 1
            assert "rank 1 is dead" in outcome.value[0]


def close_with_a_sum_under_way(rank: int, world: int) -> list[str]:
    addend.torch.all_reduce(torch.zeros(1))
    engine = _collectives._context(None, None).engine
    order: list[str] = []
    if rank == 0:
        await_news(engine)
        return [str(engine.failure)]

    def noting(what: str, original: Any) -> Any:
        def noted(*args: Any) -> None:
            order.append(what)
            original(*args)

        return noted

    pipeline: Any = engine._pipeline
    engine.peers.abort = noting("told", engine.peers.abort)  # type: ignore[method-assign]
    pipeline.stop = noting("cut off", pipeline.stop)
    pending = addend.torch.all_reduce(torch.ones(100), async_op=True)
    engine.close()
    assert "closed with buckets in flight" in fail_at(pending.wait)[0]
    return order


def test_a_rank_that_closes_with_a_sum_under_way_says_so_before_its_connections_go() -> None:
    """Else the others notice first, ask, and hear that every rank is well."""
    first, order = run_ranks(2, close_with_a_sum_under_way)
    assert order == ["told", "cut off"]
    assert "rank 1 gave up: rank 1 of 2, step 2" in first[0]
    assert "closed with buckets in flight" in first[0]


def close_when_told(rank: int, world: int) -> str:
    """Whoever waits for a sum may close before the thread that told it has gone on."""
    addend.torch.all_reduce(torch.zeros(1))
    engine = _collectives._context(None, None).engine
    told, go_on = threading.Event(), threading.Event()

    def done(_: Any) -> None:
        told.set()
        go_on.wait()

    engine.agree(Place(1, 1), Plan("nothing"), done, lambda error: None)
    told.wait()
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine.closed:
        time.sleep(0.001)
    go_on.set()
    closing.join()
    return str(engine.failure)


def test_a_sum_that_is_there_is_not_in_flight() -> None:
    assert run_ranks(2, close_when_told) == ["None", "None"]


# ---- sums left to the backend


class Overlooked:
    """A sum that never ends: Gloo may overlook a connection that is cut while it writes."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return torch.futures.Future()


def fail_beside_left_sums(rank: int, world: int, views: bool) -> list[str]:
    """Rank 1 cannot hand over its second bucket, and nothing but left sums is under way, of which
    rank 0's first one never ends."""
    model, handle = attach_two_buckets(views=views, left=True)
    for _ in range(3):
        one_step(model)
    assert handle.metrics()["fallback/dtype"] == 5  # in one bucket at first, then in two
    dist.barrier()
    sum_up, calls = dist.all_reduce, []

    def breaking(*args: Any, **named: Any) -> Any:
        calls.append(args)
        if rank == 1 and len(calls) == 2:
            raise RuntimeError("no room for 7 apples")
        work = sum_up(*args, **named)
        return Overlooked() if rank == 0 and len(calls) == 1 else work

    dist.all_reduce = breaking
    error = fail_at(lambda: one_step(model))[0]
    handle._engine.drain()  # what was under way ends soon, too
    assert not handle._engine._left
    dist.all_reduce = sum_up
    assert whole_gradients(model)
    return [error, str(handle.failure)]


@pytest.mark.parametrize("views", [False, True])
def test_a_rank_that_fails_beside_sums_left_to_the_backend_tells_the_others(views: bool) -> None:
    everyone = run_ranks(3, fail_beside_left_sums, views)
    place = "rank 1 of 3, step 3, bucket 1, round 1: no room for 7 apples"
    for rank, (error, failure) in enumerate(everyone):
        assert failure in error
        assert place in failure
        assert ("rank 1 gave up" in failure) == (rank != 1)


def overtaken(rank: int, world: int) -> str:
    """As soon as a step's last future is set, the next step may run, and end."""
    engine = _collectives._context(None, None).engine
    errors: list[Exception] = []

    def done(_: Any) -> None:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        engine.leave(torch.ones(3), Place(2, 1), lambda: None, future)
        future.wait()

    engine.agree(Place(1, 1), Plan("nothing"), done, errors.append)
    engine.drain()
    assert not errors, errors
    return str(engine._where())


def test_a_rank_is_where_its_latest_sum_was() -> None:
    assert run_ranks(1, overtaken) == ["step 2, bucket 1, round 1"]

# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, stopped, late or broken, at every place: what others then say and do."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from addend.mesh import Mesh, Trip
from addend.torch._rollcall import Place
from addend.torch._worker import Job
from addend.torch._works import Wait
from ranks import Ranks, notes, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
from addend.torch import Link, _collectives, _engine, _group
from addend.torch._hook import start

DEADLINE_S = 3.0
# Asking ranks that do not answer takes two seconds, the rest is for a busy machine. The group's own
# timeout comes 30 seconds after the deadline.
GRACE_S = 20.0


# ---- what ranks do


@dataclass(frozen=True)
class Case:
    """`number`: the collective of the step before which the victim is hit; 0: before the step."""

    codec: str
    step: int
    number: int
    round: int  # where the survivors are then
    signal: signal.Signals
    way: str
    world: int
    victim: int
    views: bool = False
    mesh: bool = False  # then `number` is that of a round: 1 for the header

    def __str__(self) -> str:
        counted = "mesh" if self.mesh else "collective"
        what = f"{self.signal.name}-{self.codec}-step{self.step}-{counted}{self.number}"
        views = "-views" if self.views else ""
        return f"{what}-{self.way}{views}-rank{self.victim}of{self.world}"


SPECS = {
    "dense": "dense",
    "exact": "exact:mode=two-level",
    "quant": "quant:bits=4",
    "sparse": "exact",
}
# By these, rounds go in one exchange; or as the backend's own sums, where it has none in two steps.
ONE_STEP = Link(latency_us=1e6, gbit_per_s=1e3)
TWO_STEPS = Link(latency_us=1e-3, gbit_per_s=1e-3)
LINKS = {"dense": TWO_STEPS, "exact": ONE_STEP, "quant": TWO_STEPS, "sparse": TWO_STEPS}


def link_of(case: Case) -> Link:
    return ONE_STEP if case.mesh else LINKS[case.codec]


class Training:
    """Backward passes of a model whose gradients are all in one bucket."""

    def __init__(self, case: Case, rank: int, deadline_s: float) -> None:
        torch.manual_seed(0)
        self._rank = rank
        self._net = nn.Embedding(500, 7, sparse=case.codec == "sparse")
        self._alone = copy.deepcopy(self._net)
        self._model = DistributedDataParallel(self._net, gradient_as_bucket_view=case.views)
        self.handle = addend.torch.attach(
            self._model,
            overrides={"*": SPECS[case.codec]},  # a codec would spare tables
            link=link_of(case),
            deadline=deadline_s,
        )
        self.worker = self.handle._worker
        self.first_step = 0

    def _backward(self, model: nn.Module, step: int) -> None:
        model.zero_grad(set_to_none=True)
        rows = torch.arange(10) * 3  # the same on all ranks, so that a union pays
        model(rows).mul(self._rank + step + 1).sin().sum().backward()

    def run(self, step: int) -> None:
        self._backward(self._model, step)

    def untouched(self, step: int) -> bool:
        """Whether gradients are, bit for bit, those of this rank alone."""
        self._backward(self._alone, step)
        pairs = zip(self._net.parameters(), self._alone.parameters())
        return all(_equal(p.grad, alone.grad) for p, alone in pairs)

    def close(self) -> None:
        self.handle.close()


class Summing:
    """Calls of all_reduce. One call beforehand makes the group, so steps count from 2."""

    def __init__(self, case: Case, rank: int, deadline_s: float) -> None:
        self._rank, self._codec, self._sparse = rank, SPECS[case.codec], case.codec == "sparse"
        addend.torch.all_reduce(torch.zeros(1), deadline=deadline_s)
        self.worker = _collectives._contexts[dist.group.WORLD].worker
        self.worker.engine.link = link_of(case)
        self.first_step = 2

    def _make(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * self._rank + step)
        rows, values = torch.arange(10)[None] * 3, torch.randn(10, 7, generator=generator)
        made = torch.sparse_coo_tensor(rows, values, (500, 7))
        return made if self._sparse else made.to_dense()

    def run(self, step: int) -> None:
        self._tensor = self._make(step)
        addend.torch.all_reduce(self._tensor, codec=self._codec)

    def untouched(self, step: int) -> bool:
        return _equal(self._tensor, self._make(step))

    def close(self) -> None:
        self.worker.close()


WAYS: dict[str, Callable[..., Any]] = {"backward": Training, "all_reduce": Summing}


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.is_sparse:
        return b.is_sparse and _equal(a.to_dense(), b.to_dense())
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


COLLECTIVES = ("all_reduce", "all_to_all_single", "all_gather", "all_gather_into_tensor")


class Trap:
    """Calls `act()` before this rank issues its `number`-th collective of a step."""

    def __init__(self, worker: Any, step: int, number: int, act: Callable[[], None]) -> None:
        self._worker, self._step, self._number, self._act = worker, step, number, act
        self._job: Any = None
        self._issued = 0
        worker.submit = self._seeing_jobs(worker.submit)
        worker.call = self._seeing_jobs(worker.call)
        for name in COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, self._counting(getattr(dist, name)))

    def _seeing_jobs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(job: Any) -> None:
            self._job = job
            original(job)

        return wrapped

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            ours = named.get("group") is self._worker.engine.group
            if ours and self._job is not None and self._job.place.step == self._step:
                self._issued += 1
                if self._issued == self._number:
                    self._act()
            return original(*args, **named)

        return wrapped


# Bytes between those of a codec's round before and those of this round.
LESS_THAN_ROUND = {("exact", 2): 20, ("exact", 3): 200, ("quant", 2): 100}


class MeshTrap:
    """Calls `act()` before this rank sends a round of a step over the mesh; 1: the first message.

    Rounds run in native code. So that this rank can be hit between two of them, its later rounds
    are too large for the mesh by its own judgment, come back to Python, and go there all the same.
    """

    def __init__(self, worker: Any, case: Case, step: int, act: Callable[[], None]) -> None:
        self._case, self._act, self._engine = case, act, worker.engine
        for name in ("submit", "run_claimed"):
            setattr(worker, name, self._seeing_jobs(getattr(worker, name), step))

    def _seeing_jobs(self, original: Callable[..., Any], step: int) -> Callable[..., Any]:
        def wrapped(job: Any) -> None:
            if job.place.step == step:
                self._set()
            original(job)

        return wrapped

    def _set(self) -> None:
        if self._case.number == 1:
            for kind, name in ((Trip, "run"), (Mesh, "start")):
                setattr(kind, name, self._acting_once(getattr(kind, name)))
            return
        engine, most = self._engine, LESS_THAN_ROUND[self._case.codec, self._case.number]
        type(engine).exchange_bytes = property(lambda _: most)
        engine.reduce = self._acting_once(engine._reduce_by_exchange)

    def _acting_once(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            act, self._act = self._act, lambda: None
            act()
            return original(*args, **named)

        return wrapped


@dataclass
class Fate:
    """How a step ended for one rank."""

    error: str
    seconds: float
    first: str = ""  # the failure as the worker has it
    later: str | None = None  # what the next call says
    untouched: bool = False
    threads: list[str] = field(default_factory=list)  # ours that outlive closing


def fail_at(run: Callable[[], None]) -> tuple[str, float]:
    begin = time.monotonic()
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    raise AssertionError("the step did not fail")


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("addend")]


def meet_fate(rank: int, world: int, case: Case, deadline_s: float) -> Fate:
    training = WAYS[case.way](case, rank, deadline_s)

    def suffer() -> None:
        # To this thread, for it must not go on until another thread has taken the signal.
        signal.pthread_kill(threading.get_ident(), case.signal)

    assert (training.worker.engine.mesh is not None) == case.mesh
    if rank == case.victim and case.number > 0:
        step = training.first_step + case.step
        if case.mesh:
            MeshTrap(training.worker, case, step, suffer)
        else:
            Trap(training.worker, step, case.number, suffer)
    for step in range(case.step):
        training.run(step)
    if rank == case.victim and case.number == 0:
        suffer()
    last = case.step
    if rank == case.victim and case.mesh:
        # What the others had sent lies in its sockets: it may have all it needs for this step.
        with contextlib.suppress(Exception):
            training.run(last)
            last += 1
    fate = Fate(*fail_at(lambda: training.run(last)))
    fate.untouched = training.untouched(last)
    notes().set(f"failed/{rank}", "")
    notes().wait(["over"])  # a stopped rank has gone on: that must not change anything here
    fate.untouched = fate.untouched and training.untouched(last)
    failure = training.worker.failure
    assert isinstance(failure, addend.Error)
    fate.first = str(failure)
    if case.step > 0 or case.way != "backward":  # before, DDP has collectives of its own to do
        fate.later = fail_at(lambda: training.run(last))[0]
    training.close()
    fate.threads = own_threads()
    return fate


# ---- killed or stopped, at each place


GROUP_PLACES = {
    "dense": [(2, 1, 0), (2, 2, 1)],
    "exact": [(2, 0, 0), (2, 1, 0), (2, 2, 1), (2, 3, 2), (2, 4, 3)],
    "quant": [(2, 0, 0), (2, 1, 0), (2, 2, 1), (2, 3, 2), (2, 4, 2)],
    "sparse": [(0, 1, 0), (0, 2, 1), (2, 1, 0), (2, 2, 2)],
}
MESH_PLACES = {
    "exact": [(2, 0, 0), (2, 1, 0), (2, 2, 2), (2, 3, 3)],
    "quant": [(2, 1, 0), (2, 2, 2)],
    "sparse": [(0, 1, 0), (2, 1, 0)],
}


def _cases(places: dict[str, list[tuple[int, int, int]]], mesh: bool) -> Iterator[Case]:
    """Every place of every codec, killed and stopped; the rest takes turns."""
    turn = 0
    for codec, hit in places.items():
        for step, number, round_ in hit:
            for i, kind in enumerate((signal.SIGKILL, signal.SIGSTOP)):
                way = "backward" if codec == "dense" else ("backward", "all_reduce")[(turn + i) % 2]
                world = 3 + turn // 2 % 2
                victim = 0 if (turn // 3 + i) % 2 else world - 1 - turn % 2
                views = way == "backward" and codec != "sparse" and (turn + i) % 4 < 2
                yield Case(codec, step, number, round_, kind, way, world, victim, views, mesh)
            turn += 1


CASES = [*_cases(GROUP_PLACES, False), *_cases(MESH_PLACES, True)]


@dataclass
class Story:
    survivors: list[Fate]
    victim: Fate | None


def await_failure(ranks: Ranks, expected: list[int]) -> None:
    """Waits until these ranks' steps have failed; fails with their stacks if that takes long."""
    try:
        ranks.notes.wait([f"failed/{rank}" for rank in expected], timedelta(seconds=30))
    except RuntimeError:
        ranks.values()
        raise


def tell(case: Case) -> Story:
    # Killed ranks must be noticed long before the deadline.
    deadline_s = DEADLINE_S if case.signal == signal.SIGSTOP else 60.0
    others = [rank for rank in range(case.world) if rank != case.victim]
    env = {"ADDEND_MESH": "on" if case.mesh else "off"}
    with Ranks(case.world, meet_fate, case, deadline_s, env=env) as ranks:
        await_failure(ranks, others)
        if case.signal == signal.SIGSTOP:
            ranks.send_signal(case.victim, signal.SIGCONT)
            await_failure(ranks, [case.victim])
        ranks.notes.set("over", "")
        outcomes = [ranks.outcome(rank) for rank in range(case.world)]
        if case.signal == signal.SIGKILL:
            assert outcomes[case.victim].error.startswith("exit code -9")
        wrong = "\n".join(o.error for o in outcomes if o.error and o.rank != case.victim)
        assert not wrong, wrong
    return Story([outcomes[rank].value for rank in others], outcomes[case.victim].value)


@pytest.fixture(scope="module")
def stories(request: pytest.FixtureRequest) -> Iterator[dict[Any, Future[Any]]]:
    """Of all cases that tests ask for, several at a time: most of them wait most of the time."""
    chosen = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {spec.params["case"] for spec in chosen if spec and "case" in spec.params}
    with ThreadPoolExecutor(4) as pool:
        told = {case: pool.submit(tell, case) for case in CASES if case in wanted}
        left = {name: pool.submit(leave, name) for name in LEAVING if name in wanted}
        yield {**told, **left}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_survivors_name_the_rank_and_the_place_and_keep_their_gradients(
    case: Case, stories: dict[Any, Future[Any]]
) -> None:
    story: Story = stories[case].result()
    first_step = 0 if case.way == "backward" else 2
    places = [Place(first_step + case.step, 0, case.round)]
    if case.round == 0 and case.step > 0 and case.codec != "sparse":
        # Once ranks have agreed on a layout, the header and the first round travel together.
        places.append(Place(first_step + case.step, 0, 1))
    killed = case.signal == signal.SIGKILL
    verdict = "dead (nobody listens)" if killed else "stuck (no answer)"
    for fate in story.survivors:
        assert any(f"of {case.world}, {place}: " in fate.error for place in places), fate.error
        assert f"rank {case.victim} is {verdict}" in fate.error
        assert len(re.findall(r"is (?:dead|stuck) ", fate.error)) == 1, fate.error
        assert fate.seconds < (0.0 if killed else DEADLINE_S) + GRACE_S
        assert killed or fate.seconds > DEADLINE_S
        assert fate.untouched
        assert fate.first in fate.error
        assert fate.later is None or fate.first in fate.later
        assert fate.threads == []
    if story.victim is not None:  # it went on when all others had given up
        assert re.search(r"rank \d (failed|gave up|is dead)", story.victim.error)
        assert story.victim.untouched
        assert story.victim.threads == []


def test_cases_cover_every_combination_that_is_promised() -> None:
    for codec in ("exact", "quant", "sparse"):
        mine = [case for case in CASES if case.codec == codec]
        assert {case.round for case in mine} >= {0, 1, 2}
        for kind in (signal.SIGKILL, signal.SIGSTOP):
            of_kind = [case for case in mine if case.signal == kind]
            assert {case.way for case in of_kind} == set(WAYS)
            assert {case.world for case in of_kind} == {3, 4}
            assert {case.victim == 0 for case in of_kind} == {True, False}
    for codec in ("dense", "exact", "quant"):
        by_view = {case.views for case in CASES if case.codec == codec and case.way == "backward"}
        assert by_view == {True, False}


# ---- other ways to fail


def attach_and_close(rank: int, world: int) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(_group._connections())

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


class TwoBuckets(nn.Module):
    """Two layers too large for one bucket of 1 MB; the last layer's gradient comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 520)
        self.last = nn.Linear(520, 516)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(inputs))


def attach_two_buckets(deadline_s: float = 60.0) -> tuple[DistributedDataParallel, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoBuckets(), bucket_cap_mb=1)
    return model, addend.torch.attach(model, codec="exact:mode=packed", deadline=deadline_s)


def one_step(model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)
    model(torch.full((2, 512), 1.0 + dist.get_rank())).sum().backward()


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


def await_news(worker: Any) -> None:
    """An idle rank is told by another that it gave up."""
    while worker.failure is None:
        time.sleep(0.01)


def break_codecs(method: str, number: int, error: Exception) -> None:
    """From now on, the `number`-th call of a method of all codecs of this rank fails."""
    calls = 0

    def breaking(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                raise error
            return original(*args, **named)

        return wrapped

    setattr(addend.Codec, method, breaking(getattr(addend.Codec, method)))
    if method == "begin":  # over a mesh it is called by native code
        Trip.begin = breaking(Trip.begin)  # type: ignore[method-assign]


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
        number = 2 if way == "backward" else 1
        break_codecs("begin", number, addend.Capacity("no room for 7 apples"))
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


def meet_a_bug(rank: int, world: int, method: str) -> list[str]:
    """An exception that is none of ours, on one rank, in encoding or decoding its last bucket."""
    model, handle = attach_two_buckets()
    for _ in range(2):
        one_step(model)
    dist.barrier()
    if rank == 1:
        break_codecs(method, 2, IndexError("off by one"))
    else:
        if method == "finish":
            one_step(model)  # all that rank 1 had to give was there
        await_news(handle._worker)
    error = fail_at(lambda: one_step(model))[0]
    assert whole_gradients(model)
    return [error, str(handle.failure)]


@pytest.mark.parametrize("method", ["begin", "finish"])
def test_a_bug_on_one_rank_is_not_blamed_on_the_others(method: str) -> None:
    everyone = run_ranks(3, meet_a_bug, method)
    for error, failure in everyone:
        assert failure in error
        assert "off by one" in failure
        assert "late" not in failure
    assert "(every rank answers)" in everyone[1][1]
    assert "rank 1 gave up" in everyone[0][1]


def wait_for_the_late(rank: int, world: int) -> list[str]:
    model, handle = attach_two_buckets(DEADLINE_S)
    one_step(model)
    one_step(model)
    if rank == 1:
        await_news(handle._worker)
    error, seconds = fail_at(lambda: one_step(model))
    assert rank == 1 or DEADLINE_S < seconds < DEADLINE_S + GRACE_S
    return [error, str(handle.failure)]


def test_a_rank_that_is_alive_but_does_not_come_is_late_and_told() -> None:
    errors = run_ranks(2, wait_for_the_late)
    late = (
        r"^rank 0 of 2, step 2, bucket 0, round [01]: rank 1 is late, at step 1, bucket 1, round 2"
    )
    assert re.match(late, errors[0][1])
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


# ---- the order in which jobs run and end


class Later:
    """A collective that ends when the test says so."""

    def __init__(self) -> None:
        self._future: torch.futures.Future[None] = torch.futures.Future()

    def end(self) -> None:
        self._future.set_result(None)

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def wait(self, *_: Any) -> None:
        self._future.wait()

    def get_future(self) -> Any:
        return self._future


class Scripted(Job):
    """Yields the waits it was given and writes down what happens to it."""

    def __init__(self, name: str, diary: list[str], waits: list[Wait]) -> None:
        super().__init__(Place())
        self._name, self._diary, self._waits = name, diary, waits
        self.over = threading.Event()
        self.issued_all = threading.Event()

    def steps(self) -> Iterator[Wait]:
        self._diary.append(f"{self._name} starts")
        for wait in self._waits:
            if wait.final:
                self.issued_all.set()
            yield wait
        self.issued_all.set()

    def succeed(self) -> None:
        self._diary.append(f"{self._name} ends")
        self.over.set()

    def fail(self, error: Exception) -> None:
        self._diary.append(f"{self._name} fails")
        self.over.set()


def run_scripts(rank: int, world: int) -> None:
    worker = start(dist.group.WORLD, 60.0, torch.device("cpu"))
    diary: list[str] = []
    slow = Later()
    first = Scripted("first", diary, [Wait([slow], final=True)])
    second = Scripted("second", diary, [])
    worker.submit(first)
    assert first.issued_all.wait(60)
    worker.submit(second)
    assert second.issued_all.wait(60)  # it ran while the first one's last collective travels
    third = Scripted("third", diary, [])
    caller = threading.Thread(target=worker.call, args=(third,))
    caller.start()  # not inline, for there is something under way
    assert third.issued_all.wait(60)
    slow.end()
    assert third.over.wait(60)
    caller.join()
    assert diary[-3:] == ["first ends", "second ends", "third ends"]

    class Broken(Scripted):
        def steps(self) -> Iterator[Wait]:
            yield from super().steps()
            raise addend.Capacity("too much")

        def fail(self, error: Exception) -> None:
            super().fail(error)
            raise RuntimeError("and it cannot even be told")

    diary.clear()
    never = Later()
    jobs = [
        Scripted("tail", diary, [Wait([never], final=True)]),
        Broken("broken", diary, []),
        Scripted("queued", diary, [Wait([never])]),
    ]
    worker.submit(jobs[0])
    assert jobs[0].issued_all.wait(60)
    for job in jobs[1:]:
        worker.submit(job)
    for job in jobs:
        assert job.over.wait(60)
    assert {line for line in diary if "fails" in line} == {
        "tail fails",
        "broken fails",
        "queued fails",
    }
    worker.drain()
    with pytest.raises(addend.Capacity, match="too much"):
        worker.submit(jobs[0])
    with pytest.raises(addend.Capacity, match="too much"):
        worker.call(jobs[0])
    worker.close()


def test_jobs_end_in_order_and_fail_together() -> None:
    run_ranks(1, run_scripts)


# ---- leaving: interpreters that end by themselves


def leave_a_stuck_rank(rank: int, model: nn.Module) -> None:
    """The others have collectives in flight with a rank that will never answer."""
    if rank == 1:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    one_step(model)


def leave_half_of_a_message(rank: int, model: nn.Module) -> None:
    """The same with more in flight than the kernel holds, to a rank that had begun to read."""
    engine = _collectives._contexts[dist.group.WORLD].worker.engine
    engine.link = ONE_STEP
    _engine._EXCHANGE_MOST_BYTES = 1 << 40
    for fd in _group._connections_of[engine.group]:
        with _group._borrowed(fd) as (connection, _):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    if rank == 1:
        send = dist.all_to_all_single

        def stop_within(out: torch.Tensor, *args: Any, **named: Any) -> Any:
            out.fill_(255)
            work = send(out, *args, **named)
            while out.numel() > 1 << 20:
                if out[0] != 255:
                    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return work

        dist.all_to_all_single = stop_within
    addend.torch.all_reduce(torch.ones(8 << 20), codec="dense")


def leave_with_buckets_in_flight(rank: int, model: nn.Module) -> None:
    """Rank 1 fails inside backward, when its first bucket waits for the others."""
    if rank == 1:

        def fail(_: torch.Tensor) -> None:
            notes().set("in flight", "")
            raise ValueError("a user's mistake")

        model.module.first.weight.register_hook(fail)
    else:
        notes().wait(["in flight"])
    one_step(model)


def leave_without_waiting(rank: int, model: nn.Module) -> None:
    """Rank 1 ends with a sum pending that the others never joined."""
    if rank == 1:
        addend.torch.all_reduce(torch.ones(100), async_op=True)
        return
    await_news(_collectives._contexts[dist.group.WORLD].worker)
    addend.torch.all_reduce(torch.ones(100))


def leave_early(rank: int, model: nn.Module) -> None:
    """Rank 1 ends between two steps."""
    if rank == 0:
        one_step(model)


# What happens, and how each rank ends: exit code and what it says. Nobody calls close.
LEAVING: dict[str, tuple[Callable[..., None], list[tuple[int | None, str]]]] = {
    "a stuck rank": (leave_a_stuck_rank, [(1, "rank 1 is stuck"), (None, "")]),
    "half of a message": (leave_half_of_a_message, [(1, "rank 1 is stuck"), (None, "")]),
    "with buckets in flight": (
        leave_with_buckets_in_flight,
        [(1, "rank 1 gave up: rank 1 of 2, step 2, bucket 0"), (1, "a user's mistake")],
    ),
    "without waiting": (leave_without_waiting, [(1, "rank 1 gave up"), (0, "")]),
    "early": (leave_early, [(1, "rank 1 is dead"), (0, "")]),
}


def act_and_leave(rank: int, world: int, name: str) -> None:
    # Nothing may have to wait for the group's own timeout.
    make_twin = _group.make_twin
    _group.make_twin = lambda group, _, device_type: make_twin(group, 600.0, device_type)
    model, _ = attach_two_buckets(DEADLINE_S)
    addend.torch.all_reduce(torch.zeros(100), deadline=DEADLINE_S)
    for _ in range(2):
        one_step(model)
    code, said = 0, ""
    try:
        LEAVING[name][0](rank, model)
    except Exception as error:
        code, said = 1, str(error)
    notes().set(f"leaving/{rank}", said)
    # As at the end of a program: a process of multiprocessing would skip all that can hang.
    ctypes.pythonapi.Py_Exit(code)


@dataclass
class Departure:
    """How an interpreter ended, and how long that took from its last act on."""

    end: str
    said: str
    seconds: float


def leave(name: str) -> list[Departure | None]:
    endings = LEAVING[name][1]
    env = {"ADDEND_MESH": "off" if name == "half of a message" else "on"}  # of the backend's
    with (
        Ranks(len(endings), act_and_leave, name, timeout_s=120.0, env=env) as ranks,
        ThreadPoolExecutor(len(endings)) as pool,
    ):

        def watch(rank: int) -> Departure | None:
            if endings[rank][0] is None:
                return None
            said = ranks.notes.get(f"leaving/{rank}").decode()
            begin = time.monotonic()
            end = ranks.outcome(rank).error
            return Departure(end, said, time.monotonic() - begin)

        return list(pool.map(watch, range(len(endings))))


@pytest.mark.parametrize("case", LEAVING)
def test_a_process_ends_by_itself_soon_and_with_its_own_exit_code(
    case: str, stories: dict[Any, Future[Any]]
) -> None:
    departures: list[Departure | None] = stories[case].result()
    for departure, (code, words) in zip(departures, LEAVING[case][1]):
        if departure is None:
            continue
        assert departure.end == f"exit code {code}\n"
        assert words in departure.said
        assert departure.seconds < 60.0

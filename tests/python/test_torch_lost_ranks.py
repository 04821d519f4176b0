# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped, at every place: what the others then say and do."""

from __future__ import annotations

import copy
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from failing import DEADLINE_S, GRACE_S, engine_of, fail_at, own_threads
from ranks import Ranks, notes
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from wiretap import Wiretap

import addend
import addend.torch
from addend.reducer import Reducer
from addend.torch import Link

# ---- what ranks do


@dataclass(frozen=True)
class Case:
    """`number`: what the victim is about to send when it is hit; 0: before the step."""

    via: str  # mesh: its rounds are counted; group, left: the backend's collectives
    codec: str
    step: int
    number: int
    round: int  # where the survivors are then
    signal: signal.Signals
    way: str
    world: int
    victim: int
    views: bool = False

    def __str__(self) -> str:
        what = f"{self.signal.name}-{self.codec}-step{self.step}-{self.via}{self.number}"
        views = "-views" if self.views else ""
        return f"{what}-{self.way}{views}-rank{self.victim}of{self.world}"


SPECS = {
    "dense": "dense",
    "double": "dense",  # in float64, which no codec takes
    "exact": "exact:mode=two-level",
    "quant": "quant:bits=4",
    "sparse": "exact",
}
# By these, rounds of a mesh go in one exchange or in two steps.
ONE_STEP = Link(latency_us=1e6, gbit_per_s=1e3)
TWO_STEPS = Link(latency_us=1e-3, gbit_per_s=1e-3)
FAST = Link(latency_us=1e-3, gbit_per_s=10.0)
SLOW = Link(latency_us=50, gbit_per_s=1.0)  # here the hook leaves dense sums to the backend
LINKS = {"double": FAST, "exact": ONE_STEP, "quant": TWO_STEPS, "sparse": TWO_STEPS}


def link_of(case: Case) -> Link:
    return LINKS.get(case.codec, SLOW if case.via == "left" else FAST)


class Training:
    """Backward passes of a model whose gradients are all in one bucket."""

    def __init__(self, case: Case, rank: int, deadline_s: float) -> None:
        torch.manual_seed(0)
        self._rank = rank
        self._net = nn.Embedding(500, 7, sparse=case.codec == "sparse")
        if case.codec == "double":
            self._net.double()
        self._alone = copy.deepcopy(self._net)
        self._model = DistributedDataParallel(self._net, gradient_as_bucket_view=case.views)
        self.handle = addend.torch.attach(
            self._model,
            overrides={"*": SPECS[case.codec]},  # a codec would spare tables
            link=link_of(case),
            deadline=deadline_s,
        )
        self.engine = self.handle._engine
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
        self._double = case.codec == "double"
        Reducer.measure_link = lambda *_: link_of(case)  # type: ignore[method-assign]
        addend.torch.all_reduce(torch.zeros(1), deadline=deadline_s)
        self.engine = engine_of()
        self.first_step = 2

    def _make(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * self._rank + step)
        rows, values = torch.arange(10)[None] * 3, torch.randn(10, 7, generator=generator)
        made = torch.sparse_coo_tensor(rows, values.double() if self._double else values, (500, 7))
        return made if self._sparse else made.to_dense()

    def run(self, step: int) -> None:
        self._tensor = self._make(step)
        addend.torch.all_reduce(self._tensor, codec=self._codec)

    def untouched(self, step: int) -> bool:
        return _equal(self._tensor, self._make(step))

    def close(self) -> None:
        self.engine.close()


WAYS: dict[str, Callable[..., Any]] = {"backward": Training, "all_reduce": Summing}


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.is_sparse:
        return b.is_sparse and _equal(a.to_dense(), b.to_dense())
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


COLLECTIVES = ("all_reduce", "all_to_all_single", "all_gather", "all_gather_into_tensor")


def on_step(engine: Any, step: int, act: Callable[[], None]) -> None:
    """Calls `act()` when a gradient of the step comes."""

    def seeing(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            if any(getattr(one, "step", None) == step for one in args):
                act()
            return original(*args, **named)

        return wrapped

    engine.run, engine.leave = seeing(engine.run), seeing(engine.leave)


class Trap:
    """Calls `act()` before this rank issues its `number`-th collective from `arm` on."""

    def __init__(self, group: Any, number: int, act: Callable[[], None]) -> None:
        self._group, self._number, self._act = group, number, act
        self._armed = False
        self._issued = 0
        for name in COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, self._counting(getattr(dist, name)))

    def arm(self) -> None:
        self._armed = True

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            if self._armed and named.get("group") is self._group:
                self._issued += 1
                if self._issued == self._number:
                    self._act()
            return original(*args, **named)

        return wrapped


@dataclass
class Fate:
    """How a step ended for one rank."""

    error: str
    seconds: float
    first: str = ""  # the failure as the engine has it
    later: str | None = None  # what the next call says
    untouched: bool = False
    threads: list[str] = field(default_factory=list)  # ours that outlive closing


def meet_fate(rank: int, world: int, case: Case, deadline_s: float) -> Fate:
    def suffer() -> None:
        # To this thread, for it must not go on until another thread has taken the signal.
        signal.pthread_kill(threading.get_ident(), case.signal)

    hit = rank == case.victim and case.number > 0
    trap: Any = Wiretap(case.number, suffer) if hit and case.via == "mesh" else None
    training = WAYS[case.way](case, rank, deadline_s)
    assert training.engine.way == ("group" if case.via == "group" else "mesh")
    if hit and trap is None:
        trap = Trap(training.engine._groups[-1], case.number, suffer)
    if hit:
        on_step(training.engine, training.first_step + case.step, trap.arm)
    for step in range(case.step):
        training.run(step)
    dist.barrier()  # all of these steps' messages have arrived
    if rank == case.victim and case.number == 0:
        suffer()
    last = case.step

    def run_last() -> None:
        nonlocal last
        training.run(last)
        if rank == case.victim:
            # What the others had sent lay in its sockets: it had all it needed for this step.
            last += 1
            training.run(last)

    fate = Fate(*fail_at(run_last))
    fate.untouched = training.untouched(last)
    notes().set(f"failed/{rank}", "")
    notes().wait(["over"])  # a stopped rank has gone on: that must not change anything here
    fate.untouched = fate.untouched and training.untouched(last)
    failure = training.engine.failure
    assert isinstance(failure, addend.Error)
    fate.first = str(failure)
    if case.step > 0 or case.way != "backward":  # before, DDP has collectives of its own to do
        fate.later = fail_at(lambda: training.run(last))[0]
    training.close()
    fate.threads = own_threads()
    return fate


# ---- killed or stopped, at each place


# By way and codec: step, number, round. The agreement is the first collective of a group's; over a
# mesh it travels with the first round.
PLACES = {
    ("group", "dense"): [(2, 1, 1), (2, 2, 1)],
    ("group", "exact"): [(2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 4, 2), (2, 5, 3)],
    ("group", "quant"): [(2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 3, 2), (2, 4, 2)],
    ("group", "sparse"): [(0, 1, 1), (0, 2, 1), (2, 1, 1), (2, 2, 1)],
    ("mesh", "exact"): [(2, 0, 1), (2, 1, 1), (2, 2, 2), (2, 3, 3)],
    ("mesh", "quant"): [(2, 1, 1), (2, 2, 2)],
    ("mesh", "sparse"): [(0, 1, 1), (2, 1, 1), (2, 2, 2)],
    ("mesh", "dense"): [(2, 1, 1)],
    ("left", "dense"): [(2, 0, 1), (2, 1, 1)],
    ("left", "double"): [(2, 0, 1), (2, 1, 1), (2, 1, 1)],
}


def _cases() -> Iterator[Case]:
    """Every place of every codec, killed and stopped; the rest takes turns."""
    turn = 0
    for (via, codec), hit in PLACES.items():
        for step, number, round_ in hit:
            for i, kind in enumerate((signal.SIGKILL, signal.SIGSTOP)):
                way = "backward" if codec == "dense" else ("backward", "all_reduce")[(turn + i) % 2]
                world = 3 + turn // 2 % 2
                victim = 0 if (turn // 3 + i) % 2 else world - 1 - turn % 2
                views = way == "backward" and codec != "sparse" and (turn + i) % 4 < 2
                yield Case(via, codec, step, number, round_, kind, way, world, victim, views)
            turn += 1


CASES = [*_cases()]


@dataclass
class Story:
    survivors: list[Fate]
    victim: Fate | None


def await_failure(ranks: Ranks, expected: list[int]) -> None:
    """Waits until these ranks' steps have failed; fails with their stacks if that takes long."""
    try:
        ranks.notes.wait([f"failed/{rank}" for rank in expected])
    except RuntimeError:
        ranks.values()
        raise


def tell(case: Case) -> Story:
    # Killed ranks must be noticed long before the deadline.
    deadline_s = DEADLINE_S if case.signal == signal.SIGSTOP else 60.0
    others = [rank for rank in range(case.world) if rank != case.victim]
    env = {"ADDEND_MESH": "off" if case.via == "group" else "on"}
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
        yield {case: pool.submit(tell, case) for case in CASES if case in wanted}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_survivors_name_the_rank_and_the_place_and_keep_their_gradients(
    case: Case, stories: dict[Any, Future[Any]]
) -> None:
    story: Story = stories[case].result()
    first_step = 0 if case.way == "backward" else 2
    place = f"step {first_step + case.step}, bucket 0, round {case.round}"
    killed = case.signal == signal.SIGKILL
    verdict = "dead (nobody listens)" if killed else "stuck (no answer)"
    for fate in story.survivors:
        assert f"of {case.world}, {place}: " in fate.error, fate.error
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
        assert {case.round for case in mine} >= {1, 2}
        for kind in (signal.SIGKILL, signal.SIGSTOP):
            of_kind = [case for case in mine if case.signal == kind]
            assert {case.way for case in of_kind} == set(WAYS)
            assert {case.world for case in of_kind} == {3, 4}
            assert {case.victim == 0 for case in of_kind} == {True, False}
    for via, codec in PLACES:
        mine = [case for case in CASES if (case.via, case.codec) == (via, codec)]
        by_view = {case.views for case in mine if case.way == "backward"}
        assert by_view == {True, False} or codec == "sparse" or via == "mesh"

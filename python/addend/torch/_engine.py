# SPDX-License-Identifier: Apache-2.0
"""One rank's end of a group: what sums its gradients, and what is said when that fails.

Gradients are submitted to the native pipeline, whose reducer is direct connections between all
ranks where they can be made, the process group where not, or where it adds planes of a device, or
an aggregation server with one of these to fall back on. Plain sums may be left to the backend, on a
group of our own.

A failure ends everything under way, on all ranks, with one error that says where, who and why:

   pipeline, backend -- error --> fail: ask the others, tell the others, stop --> every job fails
   another rank gives up -------> fail: it told us already
   close -----------------------> stop
"""

from __future__ import annotations

import _thread
import atexit
import collections
import contextlib
import os
import re
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from addend import Codec, Error, InvalidArgument, Mismatch, Timeout, Unavailable, Unsupported
from addend.pipeline import Outcome, Part, Parts, Pipeline
from addend.reducer import Link, Reducer
from addend.torch import _group, _log
from addend.torch._bucket import DTYPES, Plan, side_stream
from addend.torch._group import Group
from addend.torch._group_sums import is_timeout
from addend.torch._launches import Launches
from addend.torch._peers import Peers, Place, describe

GROUP_GONE = "the process group was destroyed"
_SLICE_S = 0.5  # how long a wait goes without looking at signals
_CLOSE_S = 5.0  # for what is under way to end
QUESTIONS = 1 << 20  # places of what ranks ask each other between gradients have such buckets
_TOLD_S = 2.0  # for a rank that cannot go on to say why
_SLOW_GBIT_PER_S = 3.0  # measured: docs/decisions/0135-slow-links-have-the-backends-sums.md
_CANNOT = "whether all can go on"
# What all ranks must share of a job, beside what native code compares.
_CLAIMS = (b"step", b"bucket", b"layout (parameter names, sizes, types, codecs)", b"loss scale")


_Sum = torch.futures.Future[torch.Tensor]


class Way(NamedTuple):
    """How planes go."""

    name: str  # mesh, group or server
    group: Group | None = None  # that they have to themselves
    takes_devices: bool = False  # those of a device as they are


def can_encode_on(device: torch.device, spec: str = "dense", dtype: str = "float32") -> bool:
    """Whether this codec runs on the device: libaddend_cuda.so is there, and has it."""
    if device.type != "cuda":
        return False
    try:
        with torch.cuda.device(device):
            stream = side_stream(device).cuda_stream
            made = Codec(
                spec, dtype=dtype, count=1, world=1, worker=0, device="cuda", stream=stream
            )
    except Unsupported as error:
        _log.INIT.info("%s runs on the CPU: %s", spec, error)
        return False
    made.close()
    return True


class Engine:
    """What jobs on one group share. `deadline_s`: how long one may wait for the other ranks."""

    def __init__(
        self,
        group: Group,
        device: torch.device,
        reducer: Reducer,
        peers: Peers,
        link: Link,
        deadline_s: float,
        way: Way,
        on_device: bool,
        threads: int = 0,
    ) -> None:
        """`group`: of our own for plain sums, its tensors on `device`. `on_device`: the reducer
        takes planes of codecs that run where CUDA tensors are."""
        self.on_device = on_device
        self._groups = [group] if way.group is None else [group, way.group]
        on_backend = way.takes_devices and way.group is not None
        self.planes_stay = on_device and way.takes_devices  # where they are encoded
        self.launches = Launches(tuple(self._groups)) if on_backend else None
        self.group, self.device, self.peers, self.link = group, device, peers, link
        self.world, self.rank, self.way = peers.world, peers.rank, way.name
        self.quorum, self.deadline_s = reducer.quorum, deadline_s
        self.failure: Error | None = None
        self._reducer = reducer
        self._pipeline: Pipeline | None = Pipeline(reducer, deadline_s, threads, _CLAIMS)
        self._nothing = Codec("dense", dtype="float32", count=1, world=self.world, worker=self.rank)
        self._zero = torch.zeros(1)
        self._pid = os.getpid()
        self._submitting = threading.Lock()
        self._failing = threading.RLock()
        self._told = threading.Event()  # that another rank gave up
        self._aborted: str | None = None
        self._stop: str | None = None  # why it takes no more jobs, once it is closed
        self._closed = threading.Event()
        self._idle = threading.Condition()
        # Under its lock:
        self._places: collections.deque[Place] = collections.deque()  # of the pipeline's jobs
        self._ended = 0  # of them
        self._ending = 0  # of them, the one whose caller is being told, if there is one
        self._left: dict[Place, _Sum] = {}  # left to the backend, in the order of calls
        self._at_backend = 0  # of them, those that it has not ended, even if a failure has
        self._last = Place()
        peers.where = self._where
        peers.on_abort(self._abort_from)
        _open_engines.add(self)

    # ---- callers' threads

    @property
    def repeats(self) -> bool:
        """Whether a job may have to begin again, so that gradients must be kept."""
        return self.quorum > 0

    def encodes_on_device(self, specs: set[str], dtype: str, device: torch.device) -> bool:
        """Whether all of these codecs run where such a tensor is; the same on all ranks."""
        if not self.on_device or device.type != "cuda":
            return False
        return all(can_encode_on(device, spec, dtype) for spec in specs)

    def make_codec(
        self,
        spec: str,
        like: torch.Tensor,
        count: int,
        there: bool = False,
        scale: float = 1.0,
        **named: Any,
    ) -> Codec:
        """This rank's codec for elements of such a tensor. `there`: it runs where that is."""
        return Codec(
            spec,
            dtype=DTYPES[like.dtype],
            count=count,
            world=self.world,
            worker=self.rank,
            # A device's tensor that the CPU encodes gets its scale when it is back.
            scale=scale if there or like.device.type == "cpu" else 1.0,
            latency_us=self.link.latency_us,
            gbit_per_s=self.link.gbit_per_s,
            gathers=self.way == "mesh",
            # Ranks and servers add narrow sums; devices do not, wherever the others are. Nor does a
            # switch, where `quant` of PyTorch needs carrier=levels in any case.
            narrows=not self.on_device,
            device="cuda" if there else "cpu",
            stream=side_stream(like.device).cuda_stream if there else 0,
            **named,
        )

    def leaves(self, tensor: torch.Tensor) -> bool:
        """Whether plain sums of such tensors are better left to the backend: it has links between
        devices. The host's are quicker over the mesh, but for slow links: there nothing is gained
        by adding faster, and threads of ours wait for cores that backward has. Not halves: not
        every backend of the host takes them."""
        # Where planes go through the backend, too, both would be in each other's way.
        if self.way != "mesh" or tensor.device.type != self.device.type:
            return False
        slow = self.link.gbit_per_s < _SLOW_GBIT_PER_S
        return self.device.type != "cpu" or (slow and tensor.dtype == torch.float32)

    def run(
        self,
        place: Place,
        plan: Plan,
        parts: Parts,
        done: Callable[[Outcome], None],
        failed: Callable[[Exception], None],
        *,
        here: bool = False,
        loss_scale: float = 1.0,
        ready: tuple[int, int] | None = None,
        **how: Any,
    ) -> None:
        """Submits a gradient. `done` or `failed` is called once: with `here` perhaps in this
        thread, otherwise in one of the pipeline's. `ready`, `how`: see Pipeline.run."""
        if self.planes_stay:
            ready = None  # streams order everything, and a host that asks takes time from backward
        claims = (place.step, place.bucket, plan.layout, _bits_of(loss_scale))

        def ended(outcome: Outcome) -> None:
            self._end(outcome, plan, done, failed)

        with self._submitting:
            pipeline = self._pipeline
            if pipeline is None:
                raise Unavailable("this addend handle is closed")
            with self._idle:
                self._places.append(place)
            try:
                outcome = pipeline.run(parts, claims, ended, here=here, ready=ready, **how)
            except Exception as error:  # it was not taken
                with self._idle:
                    self._places.pop()
                if self._stop is not None:
                    raise
                raise self.fail(error, place) from error
            except BaseException as interrupt:  # the others would wait for this rank
                self.fail(interrupt, self._where())
                raise
            if outcome is not None:  # before the codec has another bucket
                ended(outcome)

    def telling(self, place: Place) -> Telling:
        """Of what fails inside, on this rank alone, the others are told: they would wait for it."""
        self.check_open()
        return Telling(self, place)

    def agree(
        self,
        place: Place,
        plan: Plan,
        done: Callable[[Outcome], None],
        failed: Callable[[Exception], None],
        **named: Any,
    ) -> None:
        """Like `run`, of nothing: `done` is called in the order of jobs once all ranks have been
        seen to be here with the same plan."""
        parts = Parts(Part(self._nothing, self._zero.data_ptr()))
        self.run(place, plan, parts, done, failed, **named)

    def agree_now(self, place: Place, plan: Plan) -> None:
        """As `agree`, and waits until all ranks have been seen."""
        self.sum_now(place, plan, self._nothing, self._zero)

    def sum_now(self, place: Place, plan: Plan, codec: Codec, tensor: torch.Tensor) -> None:
        """Sums a tensor on the CPU by a codec of its own, and waits for it."""
        self.sum_soon(place, plan, codec, tensor)()

    def sum_soon(
        self, place: Place, plan: Plan, codec: Codec, tensor: torch.Tensor
    ) -> Callable[[], None]:
        """The same; it is waited for by a call of what is returned."""
        ended = threading.Event()
        errors: list[Exception] = []

        def failed(error: Exception) -> None:
            errors.append(error)
            ended.set()

        def wait() -> None:
            try:
                ended.wait()
            except KeyboardInterrupt as interrupt:  # the others would wait for this rank
                self.fail(interrupt, place)
                raise
            if errors:
                raise errors[0]

        def done(_: Outcome) -> None:
            ended.set()

        done.kept = tensor  # type: ignore[attr-defined]  # until it has ended, whoever waits
        parts = Parts(Part(codec, tensor.data_ptr()))
        self.run(place, plan, parts, done, failed)
        return wait

    def leave(
        self, tensor: torch.Tensor, place: Place, done: Callable[[], None], future: _Sum
    ) -> None:
        """The backend's own sum, in place; all ranks leave the same ones, in one order. `future`
        gets it, after `done`, or why there is none."""
        place = place._replace(round=1)
        with self._idle:
            self.check_open()  # what ends them all comes after that is known
            self._left[place] = future
            self._at_backend += 1
        try:
            there = tensor if tensor.device.type == self.device.type else tensor.to(self.device)
            work = dist.all_reduce(there, group=self.group, async_op=True)
        except Exception as error:
            self._fail_left(error, place)
            return

        def end(ended: torch.futures.Future[Any]) -> None:
            try:
                ended.value()
                if place in self._left:  # a failure may have ended it before
                    if there is not tensor:
                        tensor.copy_(there)
                    done()
            except Exception as error:
                self._fail_left(error, place)
            else:
                self._end_left(place, tensor)

        work.get_future().add_done_callback(end)

    def _end_left(
        self, place: Place, ended: torch.Tensor | Error, *, by_backend: bool = True
    ) -> None:
        with self._idle:
            self._at_backend -= 1 if by_backend else 0
            future = self._left.pop(place, None)
            self._last = max(self._last, place)  # a backend may end them in any order
            self._idle.notify_all()
        if future is None:
            return
        if isinstance(ended, torch.Tensor):
            future.set_result(ended)
        else:
            future.set_exception(ended)  # type: ignore[arg-type]  # torch's stubs are wrong

    def _fail_left(self, error: Exception, place: Place) -> None:
        self._end_left(place, self.fail(error, place))

    def drain(self) -> None:
        """Blocks until every job so far has ended."""
        self._check_process()
        self._wait_idle(None)

    def _wait_idle(self, timeout_s: float | None) -> bool:
        """With a timeout also for what nobody waits for any more, but the backend still does."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._idle:
            while self._places or (self._at_backend if timeout_s is not None else self._left):
                if until is None and self.failure is not None:
                    until = time.monotonic() + _CLOSE_S
                if until is not None and time.monotonic() > until:
                    return False
                self._idle.wait(_SLICE_S)
        return True

    @property
    def closed(self) -> bool:
        return self._stop is not None

    def check_open(self) -> None:
        self._check_process()
        if self.failure is not None:
            raise self.failure
        if self._stop is not None:
            raise Unavailable("this addend handle is closed")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Unavailable("addend does not run in a forked child; start processes with spawn")

    def close(self, why: str = "closed") -> None:
        """Gives everything back. What is in flight fails, with `why` in its error."""
        if os.getpid() != self._pid:
            return  # nothing of it lives here, and its locks may be held by threads that do not
        with self._idle:
            first, self._stop = self._stop is None, self._stop or why
            busy = len(self._places) > self._ending or bool(self._left)
            asking = not self._left and all(place.bucket >= QUESTIONS for place in self._places)
        if not first:  # another thread does it
            self._closed.wait(_CLOSE_S)
            return
        if busy and asking and self.failure is None:  # all ranks do, so answers come soon
            busy = not self._wait_idle(_CLOSE_S)
        pipeline = self._pipeline
        assert pipeline is not None
        if busy and self.failure is None:
            self.fail(Unavailable("closed"), self._where())  # others are told before they notice
        idle = self._wait_idle(_CLOSE_S)
        self.peers.close()  # before connections go: who asks because of that must find nobody
        if idle:
            self._pipeline = None
            pipeline.close()
            self._reducer.close()
            for group in self._groups:
                _group.destroy(group)
            self._groups, self.group = [], None
        _open_engines.discard(self)
        self._closed.set()

    def close_with(self, owner: object, why: str) -> None:
        """Closes when nobody refers to `owner` any more."""
        # That may be found in the middle of anything, in a thread that holds any lock: all that is
        # safe then is to start a bare thread.
        finalizer = weakref.finalize(owner, _thread.start_new_thread, _close_apart, (self, why))
        finalizer.atexit = False  # there `close_all` does it

    def __hash__(self) -> int:
        return id(self)

    # ---- the end of jobs

    def _end(
        self,
        outcome: Outcome,
        plan: Plan,
        done: Callable[[Outcome], None],
        failed: Callable[[Exception], None],
    ) -> None:
        with self._idle:
            place = self._places[0]._replace(round=self._rounds(outcome.ticket))
            self._ending = 1
        try:
            error: Exception | None = outcome.error
            if error is None:
                done(outcome)
            elif "differ in layout" in str(error):
                error = Mismatch(f"{error}; here: {plan.describe()}")
        except Exception as bug:  # the others would wait for this rank
            error = bug
        if error is not None:
            with _going_on("ending a job"):
                failed(self.fail(error, place))
        with self._idle:
            self._last = max(self._last, place)  # a plain sum of the next step may have ended first
            self._places.popleft()
            self._ended += 1
            self._ending = 0
            self._idle.notify_all()

    def _rounds(self, ticket: int) -> int:
        """How many of a job's rounds were started, if it is the one that is waited for."""
        pipeline = self._pipeline
        at, rounds = pipeline.position if pipeline is not None else (-1, 0)
        return rounds if at == ticket else 0

    def _where(self) -> Place:
        """For other ranks that ask, in another thread."""
        pipeline = self._pipeline
        if pipeline is None:
            return self._last
        ticket, rounds = pipeline.position
        with self._idle:
            at = ticket - self._ended
            if 0 <= at < len(self._places):
                return self._places[at]._replace(round=rounds)
            if self._places:
                return self._places[0]
            return next(iter(self._left), self._last)

    # ---- failure

    def _abort_from(self, rank: int, text: str) -> None:
        if self._aborted is None:
            self._aborted = f"rank {rank} gave up: {text}"
        self._told.set()
        self.fail(Unavailable(self._aborted), self._where())

    def fail(self, error: BaseException, place: Place) -> Error:
        """Ends everything with one error that says where, who and why, and tells the peers. Returns
        the first one's."""
        if isinstance(error, Mismatch) and _CANNOT in str(error):
            self._told.wait(_TOLD_S)  # by the one that cannot
        with self._failing:
            if self.failure is not None:
                return self.failure
            failure: Error = Unavailable(_cause(error))
            try:
                with _going_on("asking who failed"):
                    failure, listeners = self._explain(error, place)
                    _log.FAULT.error("%s", failure)
                    self.peers.fail(str(failure))
                    self.peers.abort(listeners, str(failure))
            finally:  # an interrupt may come meanwhile
                self.failure = failure
                self._cut_off(failure)
            return failure

    def _cut_off(self, failure: Error) -> None:
        with _going_on("ending rounds under way"):
            if self._pipeline is not None:
                self._pipeline.stop(failure)
        for group in self._groups:
            with _going_on("cutting connections"):
                _group.abort(group, self.device)
        # A backend may overlook that, and end them by its timeout only.
        with self._idle:
            left = list(self._left)
        for place in left:
            self._end_left(place, failure, by_backend=False)

    def _explain(self, error: BaseException, place: Place) -> tuple[Error, list[int]]:
        """What to raise, and the ranks that do not know yet."""
        where = f"rank {self.rank} of {self.world}, {place}"
        cause = _cause(error)
        others = [rank for rank in range(self.world) if rank != self.rank]
        if self._aborted is not None:
            return Unavailable(f"{where}: {self._aborted}"), []
        if isinstance(error, Mismatch):
            return Mismatch(f"{where}: {cause}"), []
        if isinstance(error, Error) and not isinstance(error, (Timeout, Unavailable)):
            return type(error)(f"{where}: {cause}"), others
        if self._stop is not None:  # a backend would say that it was cut off
            return Unavailable(f"{where}: {self._stop} with buckets in flight"), others
        late = isinstance(error, Timeout) or is_timeout(error)
        answers = self.peers.ask_all()
        if self._aborted is not None:  # meanwhile; and who said so may be gone by now
            return Unavailable(f"{where}: {self._aborted}"), []
        culprits = describe(answers, place if late else None)
        said = f"{culprits} ({cause})" if culprits else f"{cause} (every rank answers)"
        kind = Timeout if late else Unavailable
        return kind(f"{where}: {said}"), [a.rank for a in answers if a.verdict == "working"]


class Telling(NamedTuple):
    """See Engine.telling. A generator would take longer, and this is part of every hook."""

    engine: Engine
    place: Place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Those two follow from what all have, so all of them say it.
        if not isinstance(error, Exception) or isinstance(error, (InvalidArgument, Unsupported)):
            return
        if self.engine.closed:
            return
        failure = self.engine.fail(error, self.place)
        if failure is not error:
            raise failure from error  # no memory, say


def value_of(future: _Sum) -> torch.Tensor:
    """For `then`: DDP takes an exception that a future holds for the tensor, and raises one that a
    callback raises."""
    return future.value()


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """What goes wrong inside is said, and no more: what comes next must be done all the same."""
    try:
        yield
    except Exception:
        _log.FAULT.exception("%s failed, after another failure", what)


def _cause(error: BaseException) -> str:
    """What happened, in a line, less places in sources and submissions, and a backend's advice."""
    line = next(iter(str(error).strip().splitlines()), repr(error))
    line = re.sub(r"^(\[[^]]*:\d+\] |bucket \d+ \(submission \d+\): )", "", line)
    if "differ in loss scale" in line:
        line = re.sub(r"(?<=has |ave )\d+", lambda found: str(_float_of(int(found[0]))), line)
    return re.sub(r"\bworker(s?)\b", r"rank\1", line.partition(". This is typically")[0])


def _bits_of(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def _float_of(bits: int) -> float:
    return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])


# ---- ends

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_apart(engine: Engine, why: str) -> None:
    # Bare threads that call Python's threading leave an entry there for good.
    threading.Thread(target=engine.close, args=(why,), name="addend-closing", daemon=True).start()


def close_orphans() -> None:
    """Ends engines whose group was destroyed while something still refers to its owner."""
    for engine in list(_open_engines):
        if not _group.is_known(engine.group):
            engine.close(GROUP_GONE)


def close_all() -> None:
    """Ends every engine's threads; also runs at interpreter exit."""
    for engine in list(_open_engines):
        engine.close()


atexit.register(close_all)

# SPDX-License-Identifier: Apache-2.0
"""The one thread of a group that issues collectives.

Jobs run in submission order. A job is a generator of Waits; only the job in front issues
collectives, and the next one starts when the front job's last collective is issued, not when it is
done. So the order of issue is the same on all ranks whatever their timing, while one job's sums
travel the thread encodes the next and decodes the one before.
"""

from __future__ import annotations

import _thread
import atexit
import collections
import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from addend import Error, Mismatch, Unavailable
from addend import Timeout as AddendTimeout
from addend.torch import _group, _log
from addend.torch._engine import Engine
from addend.torch._header import Greeter
from addend.torch._rollcall import Place, RollCall, describe
from addend.torch._works import HaulWork, MeshWork, Steps, Wait

_SLICE_S = 0.5  # how long a blocked wait goes without looking at the deadline
_MOMENT = _group.seconds(10e-3)  # without looking for aborts, either
_POLL_S = 50e-6
GROUP_GONE = "the process group was destroyed"
_CLOSE_S = 5.0  # for a thread to end
_SETTLE_S = 2.0  # for collectives that were cut off, or that all ranks take part in


class Job:
    """One bucket's way through the worker."""

    def __init__(self, place: Place) -> None:
        self.place = place  # the job moves it on with every round
        self.started = 0.0
        self.prepared = False

    def can_start(self) -> bool:
        """False while it needs something that a job before it still uses."""
        return True

    def prepare(self) -> None:
        """What may run before the job is in front: no collectives."""

    def dash(self) -> bool:
        """Only in a thread that waits for the job, before `steps`: goes as far as it can without
        looking left or right. True: there is nothing left to do."""
        return False

    def steps(self) -> Steps:
        raise NotImplementedError

    def succeed(self) -> None:
        """Called once, after the last step."""

    def fail(self, error: Exception) -> None:
        """Called once, instead of succeed."""


class _Running:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps = job.steps()
        self.wait = Wait([])
        job.started = time.monotonic()

    def advance(self) -> bool:
        """Runs to the next wait; False at the end. Raises what a collective raised."""
        for work in self.wait.works:
            work.wait()
        found = next(self.steps, None)
        self.wait = found if found is not None else Wait([], final=True)
        return found is not None


class Worker:
    """Runs jobs over an engine. `deadline_s`: how long one job may wait for its peers."""

    def __init__(self, engine: Engine, rollcall: RollCall, deadline_s: float) -> None:
        self.engine, self.rollcall, self.deadline_s = engine, rollcall, deadline_s
        self.greeter = Greeter(engine)
        self.failure: Error | None = None
        self._pid = os.getpid()
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # for the thread: there is something to do
        self._idle = threading.Condition(lock)  # for drain: nothing is under way
        # Under the condition's lock:
        self._queue: collections.deque[Job] = collections.deque()
        self._busy = 0  # jobs submitted and not ended
        self._drains = 0  # threads that wait for `_idle`
        self._inline = False  # a caller's thread runs the only job there is
        self._at_mesh = False  # a thread waits for the mesh, and for its bell
        self._stop: str | None = None  # why it takes no more jobs, once it is closed
        self._aborted: str | None = None
        # Of the thread:
        self._front: _Running | None = None
        self._tails: collections.deque[_Running] = collections.deque()  # all theirs is issued
        self._at: Job | None = None  # for which it is doing something
        self._last = Place()  # of the job that ended last
        rollcall.where = self._where
        rollcall.on_abort(self._abort_from)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="addend-worker", daemon=True)
        self._thread.start()
        _open_workers.add(self)

    # ---- callers' threads

    def submit(self, job: Job) -> None:
        self._check_process()
        with self._changed:
            if self.failure is not None:
                raise self.failure
            if self._stop is not None:
                raise Unavailable("this addend handle is closed")
            self._queue.append(job)
            self._busy += 1
            self._wake()

    def call(self, job: Job) -> None:
        """Like submit, but runs the job to its end in this thread if nothing else is under way:
        saves two thread hops. Either way the job itself knows how it ended."""
        if self.claim():
            self.run_claimed(job)
        else:
            self.submit(job)

    def claim(self) -> bool:
        """Whether this thread may run a job: then it must. False while others are under way."""
        self._check_process()
        with self._changed:
            ended = self.failure or self._aborted or self._stop
            if self._busy > 0 or self._inline or ended:
                return False
            self._inline = True
            self._busy = 1
            return True

    def drain(self) -> None:
        """Blocks until every job so far has ended."""
        self._check_process()
        with self._changed:
            self._drains += 1
            while self._busy > 0 and self._thread.is_alive():
                self._idle.wait(_SLICE_S)
            self._drains -= 1

    @property
    def closed(self) -> bool:
        return self._stop is not None

    def close(self, why: str = "closed") -> None:
        """Gives everything back. What is in flight fails, with `why` in its error."""
        if os.getpid() != self._pid:
            return  # nothing of it lives here, and its locks may be held by threads that do not
        with self._changed:
            first, self._stop = self._stop is None, self._stop or why
            self._wake()
        if not first:  # another thread does it
            self._closed.wait(_CLOSE_S)
            return
        self._thread.join(timeout=_CLOSE_S)
        self.rollcall.close()
        if not self._thread.is_alive() and not self._inline:
            self.engine.close()
            _group.destroy(self.engine.group)
            self.engine.group = None
        _open_workers.discard(self)
        self._closed.set()

    def close_with(self, owner: object, why: str) -> None:
        """Closes when nobody refers to `owner` any more."""
        # That may be found in the middle of anything, in a thread that holds any lock: all that is
        # safe then is to start a bare thread.
        finalizer = weakref.finalize(owner, _thread.start_new_thread, _close_apart, (self, why))
        finalizer.atexit = False  # there `close_all` does it

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Unavailable("addend does not run in a forked child; start processes with spawn")

    def __hash__(self) -> int:
        return id(self)

    # ---- the thread

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # whatever it is, nothing behind it can be in order
            self._fail(error, self._at, self._in_flight())

    def _turn(self) -> bool:
        """Does the next thing that can be done, or waits for one; False when all is over."""
        flying = self._in_flight()
        if flying:
            self._at = flying[0].job
        if self._tails and self._tails[0].wait.done():
            self._finish(self._tails[0])
            return True
        if self._front is not None and self._front.wait.done():
            self._advance(self._front)
            return True
        with self._changed:
            while self._inline:
                self._changed.wait()
            if self.failure is not None:
                return False
            if not flying:
                self._at = self._queue[0] if self._queue else None
            self._check_abort()
            if self._stop is not None and self._busy == 0:
                return False
            self._check_stop()
            job = self._queue[0] if self._queue and self._queue[0].can_start() else None
            if job is not None and self._front is None:
                self._front = _Running(job)
                self._queue.popleft()
                return True
        if job is not None and not job.prepared:
            self._at = job
            job.prepared = True
            job.prepare()
            return True
        self._block()
        return True

    def _in_flight(self) -> list[_Running]:
        return ([self._front] if self._front is not None else []) + list(self._tails)

    def _advance(self, running: _Running) -> None:
        """One leg of the front job."""
        self._at = running.job
        more = running.advance()
        if not more and not self._tails:
            self._end(running.job)
        elif running.wait.final:  # issues no more; ends after the jobs before it
            self._tails.append(running)
        else:
            return
        self._front = None

    def _finish(self, running: _Running) -> None:
        self._at = running.job
        if running.advance():
            raise Unavailable("a job went on after its last round")
        self._end(running.job)
        self._tails.popleft()

    def _where(self) -> Place:
        """For other ranks that ask, in another thread."""
        job = self._at
        return job.place if job is not None else self._last

    def _end(self, job: Job) -> None:
        self._last = job.place
        job.succeed()
        with self._changed:
            self._busy -= 1
            if self._busy == 0 and self._drains > 0:
                self._idle.notify_all()

    def _check_abort(self) -> None:
        if self._aborted is not None:
            raise Unavailable(self._aborted)

    def _check_stop(self) -> None:
        if self._stop is not None:
            raise Unavailable(f"{self._stop} with buckets in flight")

    def _check_deadline(self, job: Job) -> None:
        if time.monotonic() - job.started > self.deadline_s:
            self._at = job
            raise AddendTimeout(f"no answer within {self.deadline_s:g} s")

    def _block(self) -> None:
        """Sleeps until something may have changed."""
        flying = self._in_flight()
        for running in flying:
            self._check_deadline(running.job)
        if any(running.wait.polled for running in flying):
            time.sleep(_POLL_S)
            return
        for running in flying:
            running.wait.watch(self._notify)
        with self._changed:
            if self._aborted is not None or self._stop is not None:
                return
            # Those at the mesh are found done by waiting for them; asking may take a while.
            heads = flying[: 1 if self._front is None else 2]
            if any(not r.wait.on_mesh() and r.wait.done() for r in heads):
                return
            following = self._queue[0] if self._queue and self._queue[0].can_start() else None
            if following is not None and (self._front is None or not following.prepared):
                return
            oldest_first = [*self._tails, *([self._front] if self._front is not None else [])]
            works = [work for running in oldest_first for work in running.wait.on_mesh()]
            # Messages of the mesh move while somebody waits for one; hauls move by themselves, and
            # ring when they end.
            works.sort(key=lambda work: isinstance(work, HaulWork))
            if not works:
                self._changed.wait(_SLICE_S if flying else None)
                return
            work = works[0]
            self._at_mesh = True
        self._wait_at_mesh(work)

    def _wait_at_mesh(self, work: MeshWork) -> None:
        """`_at_mesh` is set: from then on a change rings the bell."""
        try:
            work.wait(_group.seconds(_SLICE_S))
        finally:
            with self._changed:
                self._at_mesh = False

    def _wake(self) -> None:
        """There is something new for the thread; under the lock."""
        self._changed.notify_all()
        if self._at_mesh and self.engine.mesh is not None:
            self.engine.mesh.ring()

    def _notify(self, _future: Any) -> None:
        with self._changed:
            self._wake()

    # ---- a job in the caller's thread

    def run_claimed(self, job: Job) -> None:
        """After `claim`."""
        running: _Running | None = None
        self._at = job
        try:
            if not job.dash():
                running = _Running(job)
                while running.advance():
                    for work in running.wait.works:
                        self._block_inline(job, work)
            self._end(job)
        except BaseException as error:  # an interrupt too leaves the others waiting for this rank
            self._fail(error, job, [running or _Running(job)])
            if not isinstance(error, Exception):
                raise
        finally:
            self._at = None
            with self._changed:
                self._inline = False
                if self._queue or self._stop or self._aborted:
                    self._changed.notify_all()  # else let the thread sleep: waking it costs us

    def _block_inline(self, job: Job, work: Any) -> None:
        if isinstance(work, MeshWork) and work.wait(_MOMENT):
            return  # nothing happened that others should be asked about
        slice_ = _group.seconds(_SLICE_S)
        while not work.is_completed():
            if isinstance(work, MeshWork):
                with self._changed:
                    self._at_mesh = True
                self._wait_at_mesh(work)
            else:
                with contextlib.suppress(RuntimeError):  # the slice ran out, or the work failed:
                    work.wait(slice_)  # then `advance` raises it
            self._check_abort()
            self._check_stop()
            self._check_deadline(job)

    # ---- failure

    def _abort_from(self, rank: int, text: str) -> None:
        with self._changed:
            if self._aborted is None:
                self._aborted = f"rank {rank} gave up: {text}"
            self._wake()

    def _fail(self, error: BaseException, at: Job | None, flying: list[_Running]) -> None:
        """Ends every job with one error that says where, who and why, and tells the peers. Jobs end
        whatever goes wrong here."""
        failure: Error = Unavailable(_cause(error))
        # The mesh has copies of what it sends, and what it receives is nobody's yet.
        by_itself = (w for r in flying for w in r.wait.works)
        works = [w for w in by_itself if isinstance(w, HaulWork) or not isinstance(w, MeshWork)]
        try:
            with _going_on("asking who failed"):
                failure, listeners = self._explain(error, self._last if at is None else at.place)
                _log.FAULT.error("%s", failure)
                self.rollcall.fail(str(failure))
                self.rollcall.abort(listeners, str(failure))
            if isinstance(error, Mismatch):  # all ranks see it, at the end of what is in flight
                _settled(works)
        finally:  # an interrupt may come meanwhile
            try:
                self._cut_off(works)
            finally:
                self._end_all(failure, flying)

    def _cut_off(self, works: list[Any]) -> None:
        """Afterwards nothing writes to gradients any more."""
        with _going_on("ending rounds under way"):
            self.engine.abandon()
        with _going_on("cutting connections"):
            _group.abort(self.engine.group, self.engine.device)
        _settled(works)

    def _end_all(self, failure: Error, flying: list[_Running]) -> None:
        with self._changed:
            self.failure = failure
            doomed = [running.job for running in flying] + list(self._queue)
            self._queue.clear()
            self._busy = 0
            self._changed.notify_all()
            self._idle.notify_all()
        for job in doomed:
            with _going_on("ending a job"):
                job.fail(failure)

    def _explain(self, error: BaseException, place: Place) -> tuple[Error, list[int]]:
        """What to raise, and the ranks that do not know yet."""
        where = f"rank {self.rollcall.rank} of {self.rollcall.world}, {place}"
        cause = _cause(error)
        others = [rank for rank in range(self.rollcall.world) if rank != self.rollcall.rank]
        if isinstance(error, Mismatch):
            return Mismatch(f"{where}: {cause}"), []
        if self._aborted is not None:
            return Unavailable(f"{where}: {self._aborted}"), []
        if isinstance(error, Error) and not isinstance(error, (AddendTimeout, Unavailable)):
            return type(error)(f"{where}: {cause}"), others
        if self._stop is not None:
            return Unavailable(f"{where}: {cause}"), others
        late = isinstance(error, AddendTimeout)
        answers = self.rollcall.ask_all()
        if self._aborted is not None:  # meanwhile; and who said so may be gone by now
            return Unavailable(f"{where}: {self._aborted}"), []
        culprits = describe(answers, place if late else None)
        said = f"{culprits} ({cause})" if culprits else f"{cause} (every rank answers)"
        kind = AddendTimeout if late else Unavailable
        return kind(f"{where}: {said}"), [a.rank for a in answers if a.verdict == "working"]


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """What goes wrong inside is said, and no more: what comes next must be done all the same."""
    try:
        yield
    except Exception:
        _log.FAULT.exception("%s failed, after another failure", what)


def _cause(error: BaseException) -> str:
    """What happened, in a line, less the place in a backend's source and its advice."""
    line = next(iter(str(error).strip().splitlines()), repr(error))
    return re.sub(r"^\[[^]]*:\d+\] ", "", line).partition(". This is typically")[0]


def _settled(works: Sequence[Any]) -> bool:
    """Waits a little for works to end, well or badly; whether all did."""
    until = time.monotonic() + _SETTLE_S
    while not all(_over(work) for work in works):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _over(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:
        return True


_open_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _close_apart(worker: Worker, why: str) -> None:
    # Bare threads that call Python's threading leave an entry there for good.
    threading.Thread(target=worker.close, args=(why,), name="addend-closing", daemon=True).start()


def close_orphans() -> None:
    """Ends workers whose group was destroyed while something still refers to its owner."""
    for worker in list(_open_workers):
        if not _group.is_known(worker.engine.group):
            worker.close(GROUP_GONE)


def close_all() -> None:
    """Ends every worker's thread; also runs at interpreter exit."""
    for worker in list(_open_workers):
        worker.close()


atexit.register(close_all)

# SPDX-License-Identifier: Apache-2.0
"""The codecs of one flat gradient, and the job that takes it through its rounds."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from addend import Changed, Codec, Plane, Round
from addend.mesh import Mesh, Trip, TripState
from addend.torch import _header
from addend.torch._engine import Engine
from addend.torch._header import ALIKE_BYTES, Greeter, Header
from addend.torch._meter import Meter
from addend.torch._rollcall import Place
from addend.torch._worker import Job
from addend.torch._works import MeshWork, Steps, Wait

DTYPES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


class Run(NamedTuple):
    """Consecutive elements with one codec."""

    begin: int
    codec: Codec
    elements: int


class Plan:
    """What all ranks must share about a gradient.

    `ordered`: gradients come in one order on all ranks by construction (DDP's buckets do; calls of
    users may not). Once a layout was seen to be shared, sums then need not wait for the header.
    """

    def __init__(self, description: str, ordered: bool = False) -> None:
        self.text = description
        self.layout = _header.digest(description)
        self.ordered = ordered
        self.agreed = False

    def describe(self) -> str:
        return self.text if len(self.text) < 400 else self.text[:400] + "..."


class Coder:
    """Steps the codecs of one gradient together: round k of all of them travels as one."""

    def __init__(self, runs: Sequence[Run], itemsize: int) -> None:
        self.runs = list(runs)
        self.busy = False
        self._itemsize = itemsize
        self._open: list[Run] = []
        self._trip: Trip | None = None
        self._backup: torch.Tensor | None = None

    def trip(self, mesh: Mesh | None) -> Trip | None:
        """The way over a mesh, of a gradient with one codec."""
        if self._trip is None and mesh is not None and len(self.runs) == 1:
            self._trip = Trip(mesh, self.runs[0].codec)
        return self._trip

    def plan(self) -> int:
        prints = [run.codec.fingerprint for run in self.runs]
        return prints[0] if len(prints) == 1 else _header.digest(" ".join(map(str, prints)))

    def dense_next(self) -> bool:
        """Whether the next step of all codecs is a plain sum."""
        return all(run.codec.next_mode == "dense" for run in self.runs)

    def begin(self, address: int, in_place: bool) -> list[Round]:
        self._open = list(self.runs)
        for run in self.runs:
            self.begin_run(run, address, in_place)
        return self.next_rounds()

    def begin_run(self, run: Run, address: int, in_place: bool) -> None:
        run.codec.begin(address + run.begin * self._itemsize, in_place=in_place)

    def set_missing(self, ranks: int) -> None:
        """The sums of this step are without these ranks: bit r is rank r."""
        for run in self.runs:
            run.codec.set_missing(ranks)

    def next_rounds(self) -> list[Round]:
        """The next round of every codec that has one; empty when all are done."""
        rounds, still = [], []
        for run in self._open:
            found = run.codec.next_round()
            if found is not None:
                rounds.append(found)
                still.append(run)
        self._open = still
        return rounds

    def finish(self, address: int) -> None:
        for run in self.runs:
            self.finish_run(run, address)

    def finish_run(self, run: Run, address: int) -> None:
        run.codec.finish(address + run.begin * self._itemsize)

    def backup(self, tensor: torch.Tensor, run: Run) -> None:
        """Remembers a run's elements until the next step."""
        if self._backup is None:
            self._backup = torch.empty_like(tensor)
        end = run.begin + run.elements
        self._backup[run.begin : end] = tensor[run.begin : end]

    def restore(self, tensor: torch.Tensor, run: Run) -> None:
        assert self._backup is not None
        end = run.begin + run.elements
        tensor[run.begin : end] = self._backup[run.begin : end]

    def cancel(self) -> None:
        if self._trip is not None:
            self._trip.cancel()
        for run in self.runs:
            run.codec.cancel()

    def count_into(self, meter: Meter) -> None:
        for run in self.runs:
            meter.bucket_done(run.codec.report(), run.elements)

    def close(self) -> None:
        if self._trip is not None:
            self._trip.close()
        for run in self.runs:
            run.codec.close()


class Memory:
    """Where codecs find a gradient: itself, or pinned host memory that stands for a device's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = self.result = tensor
        self.on_device = tensor.device.type != "cpu"
        self.address = tensor.data_ptr()
        if not self.on_device:
            return
        self._ready = torch.cuda.Event()
        self._ready.record()
        self.stream = _side_stream(tensor.device)
        self._host: torch.Tensor | None = None

    def fetch(self) -> None:
        """Makes the gradient readable at `address`."""
        if not self.on_device:
            return
        with self.order():
            self._host = torch.empty(self.tensor.shape, dtype=self.tensor.dtype, pin_memory=True)
            self._host.copy_(self.tensor, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        copied.synchronize()
        self.address = self._host.data_ptr()

    def store(self, scale: float) -> None:
        """Puts the sum, times `scale`, where the gradient was."""
        if self._host is None:
            return
        with self.order():
            self.tensor.copy_(self._host, non_blocking=True)
            if scale != 1.0:
                self.tensor.mul_(scale)

    @contextlib.contextmanager
    def order(self) -> Iterator[None]:
        """What a device does inside comes after the gradient and before `done`'s reader."""
        if not self.on_device:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self._ready)
            yield


_side_streams: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _side_streams:
        _side_streams[device] = torch.cuda.Stream(device=device, priority=-1)
    return _side_streams[device]


def _start_sum(engine: Engine, memory: Memory, tensor: torch.Tensor) -> Wait | None:
    """Starts the backend's own sum; None if all that is left is in the device's order."""
    with memory.order():
        works = engine.start_all_reduce(tensor)
        if memory.on_device and engine.device.type != "cpu":
            for work in works:
                work.wait()  # orders the stream; the host goes on
            return None
    return Wait(works, final=True)


class GradientJob(Job):
    """One gradient's step: the header, then whatever `_sum` does.

    `done(memory)` or `failed(error)` is called once, in the thread that runs the job.
    """

    def __init__(
        self,
        greeter: Greeter,
        meter: Meter,
        place: Place,
        tensor: torch.Tensor,
        plan: Plan,
        done: Callable[[Memory], None],
        failed: Callable[[Exception], None],
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(place)
        self._greeter, self._engine = greeter, greeter.engine
        self._meter, self._plan = meter, plan
        self._memory = Memory(tensor)
        self._done, self._failed = done, failed
        self._loss_scale = loss_scale

    def _open(self) -> int:
        """Settles what is to be done; returns the digest of it."""
        return 0

    def _encode(self) -> None:
        """What can be done before the sum; no collectives."""

    def _set_missing(self, ranks: int) -> None:
        """After `_encode`: the sums will be without these ranks."""

    def _sum(self) -> Steps:
        raise NotImplementedError

    def _begin_again(self) -> None:
        """Takes back what `_encode` and `_sum` did."""

    def _decode(self) -> None:
        """Writes the result. Until here the caller's gradient is untouched."""

    def steps(self) -> Steps:
        while True:
            try:
                yield from self._attempt()
                break
            except Changed:  # a rank came or went; all are told, and all begin again
                self._meter.count("repeated_buckets")
                self._begin_again()
        with self._meter.stage("decode", self.place.step, self.place.bucket):
            self._decode()

    def _attempt(self) -> Steps:
        digest = self._open()
        if self._engine.world > 1:
            yield from self._meet(digest)
        else:
            self._encode()
            yield from self._sum()

    def _header(self, digest: int) -> Header:
        place = self.place
        return Header(place.step, place.bucket, self._plan.layout, digest, self._loss_scale)

    def _meet(self, digest: int) -> Steps:
        """The first message, and the sum."""
        # Where sizes may differ nothing else travels before headers are compared: a backend that is
        # given sums of different sizes may end the process.
        greeting = self._greeter.greet(self._header(digest), (), self._plan.describe, [], [])
        sent = next(greeting)
        self._encode()
        self._set_missing(self._engine.missing)
        reduction = self._sum()
        first = next(reduction, None) if self._plan.agreed else None
        begin = time.perf_counter()
        yield sent
        yield from greeting
        end = time.perf_counter()
        self._meter.add_time("agree", begin, end, self.place.step, self.place.bucket)
        self._plan.agreed = self._plan.ordered
        if first is not None:
            yield first
        yield from reduction

    def succeed(self) -> None:
        self._done(self._memory)

    def fail(self, error: Exception) -> None:
        self._failed(error)


def _planes(rounds: Sequence[Round]) -> list[Plane]:
    return [plane for one in rounds for plane in one.planes]


class CodecJob(GradientJob):
    """The gradient travels as its codecs say."""

    _place: Place

    def __init__(
        self,
        *base: Any,
        coder: Coder,
        in_place: bool,
        device_scale: float = 1.0,
        by_piece: bool = False,
        **named: Any,
    ) -> None:
        """`by_piece`: the codecs are pieces of one large gradient that travel one by one."""
        self._trip: Trip | None = None
        super().__init__(*base, **named)
        self._coder, self._device_scale = coder, device_scale
        self._in_place = in_place and not self._engine.repeats
        self._by_piece = by_piece
        self._decoded: list[Run] = []
        self._rounds: list[Round] = []
        self._digest: int | None = None
        self._encoded = False
        self._stays = False  # the sum happens on the device
        self._finished = False  # the trip has decoded, too
        self._missing = 0

    def can_start(self) -> bool:
        return self._digest is not None or not self._coder.busy

    def prepare(self) -> None:
        self._open()
        self._encode()

    def take_over(self, trip: Trip, digest: int) -> None:
        """Goes on with a trip that is under way."""
        self._trip, self._digest, self._encoded = trip, digest, True
        self._coder.busy = True

    def _open(self) -> int:
        if self._digest is None:
            self._coder.busy = True
            self._digest = self._coder.plan()
            on_host = not self._by_piece and not self._memory.on_device
            if on_host and self._engine.exchange_bytes > 0:
                self._trip = self._coder.trip(self._engine.mesh)
            if self._trip is not None:
                self._trip.begin(
                    self._memory.address,
                    self._in_place,
                    self._greeter.pack(self._header(self._digest)),
                    ALIKE_BYTES,
                    self._engine.exchange_bytes,
                )
        return self._digest

    def _encode(self) -> None:
        if self._encoded:
            return
        self._encoded = True
        if self._trip is not None:
            with self._stage("encode"):
                self._trip.encode()
            return
        may_stay = self._memory.on_device and self._engine.sums_on_device
        self._stays = may_stay and self._coder.dense_next()
        with self._stage("encode"):
            if self._stays:
                with self._memory.order():
                    self._memory.tensor.mul_(self._device_scale)
            else:
                self._memory.fetch()
            if not self._by_piece or self._stays:
                self._rounds = self._coder.begin(
                    self._memory.address, in_place=self._in_place or self._stays
                )

    def _meet(self, digest: int) -> Steps:
        if self._trip is None:
            yield from super()._meet(digest)
        else:
            yield from self._travel(self._trip)

    def _travel(self, trip: Trip) -> Steps:
        """All rounds in native code, but for those that are too large for the mesh."""
        mesh = self._engine.mesh
        assert mesh is not None
        self._encode()
        state = TripState.WAITING

        def go_on(timeout_s: float) -> bool:
            nonlocal state
            state = trip.run(timeout_s)
            return state is not TripState.WAITING

        while state not in (TripState.SUMMED, TripState.DECODED):
            yield Wait([MeshWork(go_on)])
            if state is TripState.DIFFERENT:
                messages = [mesh.message(trip.exchange, rank) for rank in range(mesh.world)]
                _header.check(_header.unpack(messages), self._plan.describe)
            if state is TripState.LARGE:
                found = trip.round
                yield from self._timed(self._engine.reduce(found.planes, found.last))
                trip.reduced()
                if found.last:  # after the last round nothing may be waited for
                    go_on(0.0)
        for stage, begin, end in trip.spans():
            self._meter.add_time(stage, begin, end, self._place.step, self._place.bucket)
        self._finished = state is TripState.DECODED
        self._leave(trip)

    def _leave(self, trip: Trip) -> None:
        """From now on others may close the trip; whoever asks still learns where it ended."""
        self._place, self._trip = self._place._replace(round=trip.round_number), None

    @property
    def place(self) -> Place:
        trip = self._trip  # another thread may ask
        return self._place if trip is None else self._place._replace(round=trip.round_number)

    @place.setter
    def place(self, place: Place) -> None:
        self._place = place

    def _set_missing(self, ranks: int) -> None:
        self._missing = ranks
        if ranks and not self._by_piece:
            self._coder.set_missing(ranks)

    def _begin_again(self) -> None:
        self._take_back()
        self._encoded = False
        self.place = self.place._replace(round=0)

    def _take_back(self) -> None:
        for run in self._decoded:
            self._coder.restore(self._memory.tensor, run)
        self._decoded = []
        self._coder.cancel()

    def _sum(self) -> Steps:
        if self._stays:
            yield from self._timed(self._sum_on_device())
        elif self._by_piece:
            yield from self._sum_by_piece()
        rounds = self._rounds
        while rounds:
            self._next_place()
            if not self._stays:
                last = all(one.last for one in rounds)
                yield from self._timed(self._engine.reduce(_planes(rounds), last))
            with self._stage("encode"):
                rounds = self._coder.next_rounds()

    def _sum_by_piece(self) -> Steps:
        """Piece after piece, each one round behind the next: while one travels another is encoded.
        All last rounds are sent before one is waited for: encoding feeds the network, decoding does
        not. The order of issue depends on nothing but sums."""
        self._next_place()
        rounds: collections.deque[tuple[Steps, Wait]] = collections.deque()  # others will follow
        last_rounds: collections.deque[tuple[Steps, Wait]] = collections.deque()

        def go_on(steps: Steps) -> None:
            wait = next(steps, None)
            if wait is not None:
                queue = last_rounds if wait.final else rounds
                wait.final = False  # the piece issues no more, but the job does
                queue.append((steps, wait))

        def take(queue: collections.deque[tuple[Steps, Wait]], count: int) -> Steps:
            for _ in range(count):
                steps, wait = queue.popleft()
                begin = time.perf_counter()
                yield wait
                self._add_time("reduce", begin)
                go_on(steps)

        for run in self._coder.runs:
            older = len(rounds)
            go_on(self._piece(run))
            yield from take(rounds, older)
        while rounds:
            yield from take(rounds, len(rounds))
        yield from take(last_rounds, len(last_rounds))

    def _piece(self, run: Run) -> Steps:
        with self._stage("encode"):
            self._coder.begin_run(run, self._memory.address, in_place=False)
            run.codec.set_missing(self._missing)
        while True:
            with self._stage("encode"):
                found = run.codec.next_round()
            if found is None:
                break
            yield from self._engine.reduce(found.planes, found.last)
        with self._stage("decode"):
            # The pieces behind may fail yet, and the gradient must then be as it was.
            self._coder.backup(self._memory.tensor, run)
            self._decoded.append(run)
            self._coder.finish_run(run, self._memory.address)

    def _next_place(self) -> None:
        self.place = self.place._replace(round=self.place.round + 1)

    def _stage(self, name: str) -> Any:
        return self._meter.stage(name, self.place.step, self.place.bucket)

    def _add_time(self, name: str, begin: float) -> None:
        end = time.perf_counter()
        self._meter.add_time(name, begin, end, self.place.step, self.place.bucket)

    def _timed(self, steps: Steps) -> Steps:
        begin = time.perf_counter()
        yield from steps
        self._add_time("reduce", begin)

    def _sum_on_device(self) -> Steps:
        wait = _start_sum(self._engine, self._memory, self._memory.tensor)
        if wait is not None:
            yield wait

    def _decode(self) -> None:
        if not self._finished and (not self._by_piece or self._stays):
            self._coder.finish(self._memory.address)
        if self._memory.on_device and not self._stays:
            self._memory.store(self._device_scale)
        self._coder.busy = False
        self._coder.count_into(self._meter)

    def fail(self, error: Exception) -> None:
        if self._trip is not None:
            self._leave(self._trip)
        try:
            self._take_back()
        finally:  # whoever waits must be told all the same
            super().fail(error)


class PlainJob(GradientJob):
    """The gradient travels as it is: for element types that no codec takes."""

    def __init__(self, *base: Any, scale: float, in_place: bool, **named: Any) -> None:
        super().__init__(*base, **named)
        self._scale, self._in_place = scale, in_place
        self._sums = self._memory.tensor

    def _encode(self) -> None:
        with self._memory.order():
            if not self._in_place:
                self._sums = self._sums.clone()
            if self._scale != 1.0:
                self._sums.mul_(self._scale)

    def _sum(self) -> Steps:
        begin = time.perf_counter()
        self.place = self.place._replace(round=1)
        wait = _start_sum(self._engine, self._memory, self._sums)
        if wait is not None:
            yield wait
        end = time.perf_counter()
        self._meter.add_time("reduce", begin, end, self.place.step, self.place.bucket)

    def _decode(self) -> None:
        if not self._in_place:
            with self._memory.order():
                self._memory.tensor.copy_(self._sums)
        nbytes = self._sums.numel() * self._sums.element_size()
        self._meter.raw_bytes(nbytes, nbytes)

# SPDX-License-Identifier: Apache-2.0
"""A call's whole way in native code.

A gradient that is mostly zeros takes not much longer to read than Python takes for a job: its
objects, its generator, its waits. So a call whose rounds are small, by a thread that waits for it
and with nothing else under way, is encoded, summed and decoded in one native run. What does not end
there in a moment goes on as an ordinary job from where it came: late ranks, large rounds, failures.
"""

from __future__ import annotations

from typing import Callable

import torch

from addend.mesh import Trip, TripState
from addend.torch._coder import CodecJob, Coder, Memory, Plan
from addend.torch._header import ALIKE_BYTES, Header
from addend.torch._meter import Meter
from addend.torch._rollcall import Place
from addend.torch._worker import Job, Worker
from addend.torch._works import Steps

_MOMENT_S = 10e-3  # nobody looks for aborts and deadlines meanwhile
_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: False)


class Shortcut(Job):
    """Calls for contiguous tensors of one shape on the host, one at a time."""

    def __init__(self, worker: Worker, meter: Meter, plan: Plan, coder: Coder, trip: Trip) -> None:
        self._rest: CodecJob | None = None  # the ordinary job, if it came to that
        self._trip, self._ended = trip, True
        super().__init__(Place())
        self._worker, self._greeter, self._engine = worker, worker.greeter, worker.engine
        self._meter, self._plan, self._coder = meter, plan, coder
        self._codec, self._elements = coder.runs[0].codec, coder.runs[0].elements
        self._tensor: torch.Tensor | None = None
        self._digest: int | None = None  # of the plan, once the trip is under way
        self._errors: list[Exception] = []

    def call(self, tensor: torch.Tensor, step: int) -> bool:
        """Sums a tensor, or raises. False: nothing was done, since something else is under way, or
        since a profiler wants to see the stages."""
        if _profiled() or not self._worker.claim():
            return False
        # Afterwards another thread may have its turn: what is kept here is then its own.
        errors: list[Exception] = []
        self._tensor, self._digest, self._rest, self._errors = tensor, None, None, errors
        self._place, self._ended = Place(step), False
        self._worker.run_claimed(self)
        if errors:
            raise errors[0]
        return True

    def dash(self) -> bool:
        assert self._tensor is not None
        place = self._place
        digest = self._codec.fingerprint
        header = Header(place.step, place.bucket, self._plan.layout, digest)
        self._trip.begin(
            self._tensor.data_ptr(),
            False,
            self._greeter.pack(header),
            ALIKE_BYTES,
            self._engine.exchange_bytes,
            decode=True,
        )
        self._digest = digest
        if self._trip.run(_MOMENT_S) is not TripState.DECODED:
            return False
        self._meter.trip_done(self._trip.record(), self._codec.record(), place, self._elements)
        self._ended = True
        return True

    def steps(self) -> Steps:
        assert self._tensor is not None
        job = self._rest = CodecJob(
            self._greeter,
            self._meter,
            self._place,
            self._tensor.detach(),
            self._plan,
            _do_nothing,
            self._keep,
            coder=self._coder,
            in_place=False,
        )
        if self._digest is not None:
            job.take_over(self._trip, self._digest)
        yield from job.steps()

    @property
    def place(self) -> Place:
        rest = self._rest  # another thread may ask
        if rest is not None:
            return rest.place
        # What ended needs no round, and asking for it would cost the call as much as counting.
        place = self._place
        return place if self._ended else place._replace(round=self._trip.round_number)

    @place.setter
    def place(self, place: Place) -> None:
        self._place = place

    def succeed(self) -> None:
        self._tensor = self._rest = None

    def fail(self, error: Exception) -> None:
        if self._rest is not None:
            self._rest.fail(error)
            return
        try:
            self._coder.cancel()
        finally:
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        self._errors.append(error)
        self._tensor = None


def _do_nothing(memory: Memory) -> None:
    """The tensor is the sum already."""

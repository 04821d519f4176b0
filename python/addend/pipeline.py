# SPDX-License-Identifier: Apache-2.0
"""The native engine: encodes, sums and decodes gradients in the order of their submission."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from addend import _native
from addend._native import check, created, library
from addend.codec import Codec
from addend.errors import BY_STATUS, Error, Status, Unavailable
from addend.reducer import Reducer

STAGES = ("encode", "agree", "reduce", "decode")
_UNBOUNDED = 1 << 31
_SPAN_BYTES = ctypes.sizeof(_native.Span)
_PIECES, _IN_PLACE = 1, 2


class Part(NamedTuple):
    """A gradient, or a part of one, by its address, and who encodes it."""

    codec: Codec
    address: int


class Parts:
    """What is submitted together, as native code has it. Good for one submission after another, as
    long as the codecs are open and gradients stay where they are."""

    def __init__(self, *parts: Part) -> None:
        self.codecs = [part.codec for part in parts]
        self.native = (_native.Part * len(parts))(*((p.codec.handle, p.address) for p in parts))


class Outcome(NamedTuple):
    """How a bucket ended."""

    ticket: int
    error: Error | None
    record: bytes  # what `spans_of` reads; keeping it takes less time than reading it
    repeats: int  # how often it began again because workers came or went


def spans_of(record: bytes) -> Iterator[tuple[str, float, float]]:
    """(stage, begin, end) of what a bucket did, in seconds of the monotonic clock."""
    for span in (_native.Span * (len(record) // _SPAN_BYTES)).from_buffer_copy(record):
        yield STAGES[span.stage], span.begin_ns * 1e-9, span.end_ns * 1e-9


def _outcome_of(native: Any) -> Outcome:
    error = None
    if native.status != Status.OK:
        kind = BY_STATUS.get(native.status, Unavailable)
        error = kind((native.message or b"").decode(errors="replace"))
    count = native.span_count
    record = ctypes.string_at(native.spans, count * _SPAN_BYTES) if count else b""
    return Outcome(native.ticket, error, record, native.repeats)


class _Flying(NamedTuple):
    """What a bucket needs until it ends."""

    done: Callable[[Outcome], None]
    prepare: Callable[[], None] | None
    parts: Parts


class Pipeline:
    """Buckets in flight over a reducer, which it makes all calls on. Any thread, but one submitter
    at a time. It is closed, not collected: the threads that it has would not end. `threads` encode
    and decode one gradient; 0: this process's share of the host's cores, at most 4. `claims`: what
    each submission has a number for that must be the same on all workers, and how to call it."""

    def __init__(
        self, reducer: Reducer, deadline_s: float, threads: int = 0, claims: Sequence[bytes] = ()
    ) -> None:
        self._reducer = reducer
        reducer.stay_at_exit()
        options = _native.PipelineOptions()
        options.size = ctypes.sizeof(options)
        options.depth = _UNBOUNDED
        options.deadline_ns = max(int(deadline_s * 1e9), 1)
        options.threads = threads
        self._handle: int | None = created(library.pipeline_create_with, reducer.handle, options)
        self._flying: dict[int, _Flying] = {}
        self._numbers = itertools.count(1)
        self._done = _native.DoneFunction(self._call_done)
        self._prepare = _native.PrepareFunction(self._call_prepare)
        self._no_prepare = _native.PrepareFunction()
        # Filled in for each submission: native code has a copy when the call is over.
        self._claims = (_native.Claim * len(claims))(*((what, 0) for what in claims))
        self._submission = _native.Submission(
            size=ctypes.sizeof(_native.Submission),
            claims=self._claims,
            claim_count=len(claims),
            done=self._done,
        )
        self._ended, self._outcome = ctypes.c_int(), _native.Outcome()

    def run(
        self,
        parts: Parts,
        claims: Sequence[int],
        done: Callable[[Outcome], None],
        *,
        here: bool = False,
        pieces: bool = False,
        in_place: bool = False,
        prepare: Callable[[], None] | None = None,
        ready: tuple[int, int] | None = None,
    ) -> Outcome | None:
        """Submits. `done` is called in the thread that decodes, unless `here` is set and the bucket
        came to its end in this thread: then its outcome is returned. `prepare` is called in the
        thread that encodes, before gradients are read; not before a CUDA event is there, where
        `ready` names one and its device. Codecs are kept alive until the bucket has
        ended; gradients are the caller's to keep."""
        submission = self._submission
        submission.flags = (_PIECES if pieces else 0) | (_IN_PLACE if in_place else 0)
        submission.parts, submission.part_count = parts.native, len(parts.native)
        for value, claim in zip(claims, self._claims):
            claim.value = value
        submission.prepare = self._no_prepare if prepare is None else self._prepare
        submission.ready_event, submission.ready_device = ready or (None, 0)
        number = submission.context = next(self._numbers)
        self._flying[number] = _Flying(done, prepare, parts)
        run = library.pipeline_run if here else library.quick.pipeline_run
        try:
            check(run(self._handle, submission, here, self._ended, self._outcome))
        except Exception:  # it was not taken
            del self._flying[number]
            raise
        if not self._ended.value:
            return None
        del self._flying[number]
        return _outcome_of(self._outcome)

    def _call_done(self, number: int, outcome: Any) -> None:
        self._flying.pop(number).done(_outcome_of(outcome.contents))

    def _call_prepare(self, number: int) -> int:
        prepare = self._flying[number].prepare
        assert prepare is not None
        try:
            prepare()
        except BaseException as error:  # must not pass through C
            library.set_error(str(error).encode())
            return int(error.status if isinstance(error, Error) else Status.UNAVAILABLE)
        return int(Status.OK)

    def stop(self, error: Error) -> None:
        """Ends what is under way, and whatever comes later, with an error. Any thread."""
        library.pipeline_stop(self._handle, int(error.status), str(error).encode())

    @property
    def position(self) -> tuple[int, int]:
        """The ticket whose sums are waited for, and how many of its rounds were started."""
        ticket, rounds = ctypes.c_uint64(), ctypes.c_uint32()
        library.pipeline_position(self._handle, ctypes.byref(ticket), ctypes.byref(rounds))
        return ticket.value, rounds.value

    def close(self) -> None:
        """After `stop`, or when nothing is in flight: otherwise it waits for that."""
        handle, self._handle = self._handle, None
        library.pipeline_destroy(handle)

# SPDX-License-Identifier: Apache-2.0
"""A worker's end of one bucket: gradient to planes, summed planes to gradient."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Union

from addend import _native, report
from addend._native import check, created, library, read_bytes
from addend.errors import InvalidArgument
from addend.plane import Op, Plane, Round

DTYPES = ("float32", "bfloat16", "float16")  # in the order of addend_dtype
_OPS = tuple(Op)
_DEVICES = ("cpu", "cuda")  # in the order of their numbers

# Id and count, and rows of a matrix.
Segment = Union[tuple[int, int], tuple[int, int, int]]


class Codec:
    """Encodes and decodes one bucket, step after step; keep it, for it learns and keeps residuals.

    A step, with the reduction done by the caller::

        codec.begin(address)
        while (round := codec.next_round()) is not None:
            for plane in round.planes: all-reduce plane.data in place with the operation plane.op
        codec.finish(address)

    Gradients are addresses of `count` elements, so that numpy, torch and pinned memory all fit; the
    caller keeps them alive and unchanged between `begin` and `finish`. One thread at a time; the
    GIL is released in every call. All workers pass the same arguments but for `worker`.

    `scale`: the result is scale times the sum. `segments`: (id, count) of the parameters that make
    up the bucket, or (id, count, rows) of matrices; their residuals then survive a move to another
    bucket. `first_step`: the number of the first step. `latency_us`, `gbit_per_s`, `gathers` (the
    reducer is a mesh): hints about the network; they change the choice of mode, never the result.
    `narrows`: whoever adds has narrow sums and no worker is on a device, so that `quant` for 18
    workers or more, and of 1 to 3 bits, may use them.
    `device`: "cpu" or "cuda"; there addresses are device memory, and everything is enqueued on
    `stream` (a cudaStream_t as a number), so that calls return before it is done.
    """

    _soon: Any = library  # for what a hook asks; a device's plan may wait for its stream

    def __init__(
        self,
        spec: str,
        *,
        dtype: str,
        count: int,
        world: int,
        worker: int,
        seed: int = 0,
        bucket: int = 0,
        scale: float = 1.0,
        first_step: int = 0,
        segments: Sequence[Segment] = (),
        latency_us: float | None = None,
        gbit_per_s: float | None = None,
        gathers: bool = False,
        narrows: bool = False,
        device: str = "cpu",
        stream: int = 0,
    ) -> None:
        if device not in _DEVICES:
            raise InvalidArgument(f"device {device!r} is not one of {', '.join(_DEVICES)}")
        if dtype not in DTYPES:
            raise InvalidArgument(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        layout = _native.Layout()
        library.layout_init(layout, ctypes.sizeof(layout))
        layout.dtype = DTYPES.index(dtype)
        layout.count = _unsigned("count", count, 64)
        layout.world = _unsigned("world", world, 32)
        layout.worker = _unsigned("worker", worker, 32)
        layout.seed = _unsigned("seed", seed, 64)
        layout.bucket = _unsigned("bucket", bucket, 64)
        layout.scale = scale
        layout.first_step = _unsigned("first_step", first_step, 64)
        if segments:
            layout.segments = _segments(segments)
            layout.segment_count = len(segments)
            layout.segment_rows = _rows(segments)
        if latency_us is not None:
            layout.network_latency_us = latency_us
        if gbit_per_s is not None:
            layout.network_gbit_per_s = gbit_per_s
        layout.device, layout.stream = _DEVICES.index(device), stream
        layout.network_gathers = int(gathers)
        layout.network_narrows = int(narrows)
        if device == "cpu":
            self._soon = library.quick
        self._own(spec, created(library.codec_create, spec.encode(), layout))

    def _own(self, spec: str, handle: int) -> None:
        self.spec = spec
        self._handle: int | None = handle
        self._finalizer = weakref.finalize(self, library.codec_destroy, handle)
        # Made once: a step costs no allocation beyond the planes' descriptions.
        self._round = _native.Round()
        self._round_reference = ctypes.byref(self._round)
        self._report = _native.Report()
        self._report.size = ctypes.sizeof(self._report)
        self._report_reference = ctypes.byref(self._report)

    def begin(self, address: int, in_place: bool = False) -> None:
        """Starts a step. In place, planes may be the gradient itself (no copy for dense), which is
        then lost if the step fails."""
        start = library.codec_begin_in_place if in_place else library.codec_begin
        check(start(self._open(), address))

    def next_round(self) -> Round | None:
        """Encodes the next round, which must be reduced in place before the next call; None after
        the last."""
        check(library.codec_next_round(self._open(), self._round_reference))
        return round_from_native(self._round) if self._round.plane_count else None

    def finish(self, address: int) -> None:
        """Decodes the sum into the gradient at `address`; on failure nothing is written."""
        check(library.codec_finish(self._open(), address))

    def cancel(self) -> None:
        """Abandons a step; without one in progress it does nothing."""
        library.codec_cancel(self._open())

    def skip_step(self) -> None:
        """The next step's plan is dense (`next_mode`), and somebody else does it who adds gradients
        as they are: the codec goes on as if it had."""
        check(self._soon.codec_skip_step(self._open()))

    def set_missing(self, workers: int) -> None:
        """Between begin and finish: the sums are without these workers (bit w is worker w). The
        mean of the others stands for their gradients. One of them gets the others' sum, drops its
        gradient, and keeps the residual that it had. Unsupported for codecs that need every
        worker."""
        check(library.codec_set_missing(self._open(), _unsigned("workers", workers, 64)))

    @property
    def fingerprint(self) -> int:
        """Equal on all workers that may be summed, for the step that begins next or is going on."""
        return int(library.codec_fingerprint(self._open()))

    @property
    def next_mode(self) -> str:
        """The plan of that step, as a report says it (`mode`); equal on all workers."""
        return str(library.codec_next_mode(self._open()).decode())

    def is_next_dense(self) -> bool:
        """Whether that is a plain sum: asked for every bucket of every step."""
        return bool(self._soon.codec_next_mode(self._open()) == b"dense")

    @property
    def memory_bytes(self) -> int:
        """What the codec holds between steps."""
        return int(library.codec_memory_bytes(self._open()))

    def report(self) -> report.Report:
        """What the last finished step did."""
        check(library.codec_report(self._open(), self._report_reference))
        return report.from_native(self._report)

    def record(self) -> bytes:
        """What `report.from_record` reads later: keeping it takes less time than reading it."""
        check(library.quick.codec_report(self._open(), self._report_reference))
        return bytes(self._report)

    def save_state(self) -> bytes:
        """What a restarted worker needs to go on bit for bit; between steps only."""
        return read_bytes(library.codec_save_state, self._open())

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Takes over a state that a codec of the same plan and worker saved."""
        check(library.codec_load_state(self._open(), bytes(state), len(state)))

    def save_segment(self, index: int) -> bytes:
        """The state of one segment, for a codec that has it in whatever bucket."""
        return read_bytes(library.codec_save_segment, self._open(), _unsigned("index", index, 64))

    def load_segment(self, index: int, state: bytes) -> None:
        """Takes over the state of a segment with the same id, count and step."""
        number = _unsigned("index", index, 64)
        check(library.codec_load_segment(self._open(), number, bytes(state), len(state)))

    def read_residual(self, address: int) -> None:
        """Writes what error feedback keeps to `count` floats, in the gradient's coordinates: added
        to the next gradient, it is not lost without this codec. Unsupported for codecs that keep it
        on a device, in other coordinates."""
        check(library.codec_read_residual(self._open(), address))

    def scale_residual(self, factor: float) -> None:
        """Multiplies the residual, for a loss scale that changed; between steps only."""
        check(library.codec_scale_residual(self._open(), factor))

    def close(self) -> None:
        """Frees the codec; later calls but this one are InvalidArgument."""
        self._handle = None
        self._finalizer()

    def __enter__(self) -> Codec:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def handle(self) -> int:
        """For the C ABI."""
        return self._open()

    def _open(self) -> int:
        if self._handle is None:
            raise InvalidArgument("the codec is closed")
        return self._handle


def _unsigned(name: str, value: int, bits: int) -> int:
    # ctypes would take the value modulo 2^bits in silence.
    if not 0 <= value < 1 << bits:
        raise InvalidArgument(f"{name} = {value} is not in 0 .. 2^{bits} - 1")
    return value


def _segments(segments: Sequence[Segment]) -> Any:
    return (_native.Segment * len(segments))(
        *(
            _native.Segment(
                _unsigned("segment id", one[0], 64), _unsigned("segment count", one[1], 64)
            )
            for one in segments
        )
    )


def _rows(segments: Sequence[Segment]) -> Any:
    rows = (one[2] if len(one) > 2 else 0 for one in segments)
    return (ctypes.c_uint64 * len(segments))(*(_unsigned("segment rows", n, 64) for n in rows))


def round_from_native(native: _native.Round) -> Round:
    planes = [plane_of(native.planes[i]) for i in range(native.plane_count)]
    return Round(native.last != 0, planes)


def plane_of(native: _native.Plane, stream: int | None = None) -> Plane:
    op, lanes = _OPS[native.op], native.lanes
    return Plane(
        op,
        lanes,
        native.data or 0,
        native.table or 0,
        native.sums or 0,
        op.nbytes(lanes),
        op.sum_nbytes(lanes),
        stream,
    )

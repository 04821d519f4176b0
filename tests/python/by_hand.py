# SPDX-License-Identifier: Apache-2.0
"""Workers of one process, reduced with numpy alone: what `fold` does, said a second time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from addend import Codec, Op, Plane

LANES: dict[Op, Any] = {
    Op.SUM_F32: np.float32,
    Op.SUM_F16: np.float16,
    Op.SUM_I32: np.int32,
    Op.SUM_I64: np.int64,
    Op.SUM_U8: np.uint8,
    Op.SUM_U16: np.uint16,
    Op.OR_U64: np.uint64,
    Op.MAX_U32: np.uint32,
    Op.TABLE_SUM_U8: np.uint8,
    Op.TABLE_SUM_U16: np.uint16,
}


def at(address: int, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    """The memory at an address as an array."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype)


def looked_up(plane: Plane) -> np.ndarray[Any, Any]:
    """The levels that a table sum's indices stand for."""
    packed = at(plane.data, np.uint8, plane.nbytes)
    indices = np.stack([packed & 15, packed >> 4], axis=1).ravel()[: plane.lanes]
    return at(plane.table, LANES[plane.op], 16)[indices]


def reduce_planes(planes: Sequence[Plane]) -> None:
    """Leaves the sum over the workers in every one's plane."""
    op, lanes = planes[0].op, planes[0].lanes
    assert all((plane.op, plane.lanes) == (op, lanes) for plane in planes)
    if op == Op.SUM_BF16:
        _reduce_bf16([at(plane.data, np.uint16, lanes) for plane in planes])
        return
    if op.is_table_sum:
        ins = [looked_up(plane) for plane in planes]
        outs = [at(plane.sums, LANES[op], lanes) for plane in planes]
    else:
        ins = outs = [at(plane.data, LANES[op], lanes) for plane in planes]
    combine = {Op.OR_U64: np.bitwise_or, Op.MAX_U32: np.maximum}.get(op, np.add)
    total = ins[0].copy()
    for lane_values in ins[1:]:
        combine(total, lane_values, out=total)
    for out in outs:
        out[:] = total


def _reduce_bf16(planes: Sequence[np.ndarray[Any, Any]]) -> None:
    # Only used on sums that need no rounding, so cutting the low half off is exact.
    floats = [(plane.astype(np.uint32) << 16).view(np.float32) for plane in planes]
    total = np.sum(floats, axis=0, dtype=np.float32)
    for plane in planes:
        plane[:] = (total.view(np.uint32) >> 16).astype(np.uint16)


def rounds_of(codecs: Sequence[Codec]) -> Iterator[list[Any]]:
    """Each round of all workers, reduced after the caller has looked at it."""
    while True:
        rounds = [codec.next_round() for codec in codecs]
        if rounds[0] is None:
            assert rounds == [None] * len(codecs)
            return
        yield rounds
        for planes in zip(*(round.planes for round in rounds if round is not None)):
            reduce_planes(planes)


def all_reduce(codecs: Sequence[Codec], gradients: Sequence[np.ndarray[Any, Any]]) -> None:
    """One step, in the gradients' own memory."""
    for codec, gradient in zip(codecs, gradients):
        codec.begin(gradient.ctypes.data)
    for _ in rounds_of(codecs):
        pass
    for codec, gradient in zip(codecs, gradients):
        codec.finish(gradient.ctypes.data)


def workers(spec: str, world: int, count: int, **layout: Any) -> list[Codec]:
    """One codec a worker."""
    layout.setdefault("dtype", "float32")
    return [Codec(spec, count=count, world=world, worker=w, **layout) for w in range(world)]

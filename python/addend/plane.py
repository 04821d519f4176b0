# SPDX-License-Identifier: Apache-2.0
"""Planes, rounds, and what an adder does with them (docs/formats/planes.md)."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from typing import NamedTuple

from addend._native import check, library


class Op(enum.IntEnum):
    """One operation on one lane type; the numbers of `addend_op`."""

    SUM_F32 = 0
    SUM_BF16 = 1
    SUM_F16 = 2
    SUM_I32 = 3
    SUM_I64 = 4
    SUM_U8 = 5
    SUM_U16 = 6
    OR_U64 = 7
    MAX_U32 = 8
    TABLE_SUM_U8 = 9
    TABLE_SUM_U16 = 10
    NARROW_SUM_1_4 = 11
    NARROW_SUM_1_8 = 12
    NARROW_SUM_2_4 = 13
    NARROW_SUM_2_8 = 14
    NARROW_SUM_4_4 = 15
    NARROW_SUM_4_8 = 16
    NARROW_SUM_8_4 = 17
    NARROW_SUM_8_8 = 18
    NARROW_SUM_3_4 = 19
    NARROW_SUM_3_8 = 20

    @property
    def is_table_sum(self) -> bool:
        """Whether the plane holds indices and the sums are lanes of their own."""
        return self >= Op.TABLE_SUM_U8

    @property
    def is_narrow_sum(self) -> bool:
        """Whether the sums come back in few bits, and add up no further."""
        return self >= Op.NARROW_SUM_1_4

    @property
    def lane_align(self) -> int:
        """An adder may cut the plane at multiples of this many lanes."""
        return _GROUP_LANES if self.is_narrow_sum else 16

    def nbytes(self, lanes: int) -> int:
        """Bytes of `lanes` lanes on the way to the adder."""
        return (lanes * _LANE_BITS[self] + 7) // 8

    def sum_nbytes(self, lanes: int) -> int:
        """Bytes of the sum that comes back; differs from `nbytes` only for table sums."""
        if self.is_narrow_sum:
            groups = -(-lanes // _GROUP_LANES)
            return groups * _GROUP_HEADER_BYTES + (lanes * (4 if self % 2 else 8) + 7) // 8
        if self.is_table_sum:
            return lanes if self == Op.TABLE_SUM_U8 else 2 * lanes
        return self.nbytes(lanes)


_LANE_BITS = (32, 16, 16, 32, 64, 8, 16, 64, 32, 4, 4, 1, 1, 2, 2, 4, 4, 8, 8, 3, 3)
_GROUP_LANES = 512
_GROUP_HEADER_BYTES = 5


class Plane(NamedTuple):
    """Lanes at an address. They belong to the codec and are valid until its next call."""

    op: Op
    lanes: int
    data: int  # in: this worker's lanes; out: the sum over workers (table sums: indices, in only)
    table: int  # table sums: 16 entries of u8 or u16, or 0; else 0
    sums: int  # table sums: where the sums go; else 0
    nbytes: int  # of data
    sum_nbytes: int  # of sums for table sums, else of data
    stream: int | None = None  # in whose order a CUDA device's lanes are there; None: the host's


class Round(NamedTuple):
    """Planes that travel together."""

    last: bool  # certainly the last round of the step; False: there may be more
    planes: list[Plane]


def fold(op: Op, accumulator: int, lanes_in: int, lanes: int, stream: int | None = None) -> None:
    """accumulator (op)= lanes_in, lane by lane, at two addresses. Not for table sums. `stream`: of
    the CUDA device whose addresses they are, where it is enqueued."""
    if stream is None:
        check(library.fold(op, accumulator, lanes_in, lanes))
    else:
        check(library.fold_on_device(op, accumulator, lanes_in, lanes, stream))


def fold_tables(
    op: Op, sums: int, indices: Sequence[int], table: int, lanes: int, stream: int | None = None
) -> None:
    """sums = table[index i] of all workers, added up: their indices at these addresses. `stream` as
    above; there the sums must be zeros before.

    Indices begin in a byte's low bits. Narrow sums come out as they travel back.
    """
    sources = (ctypes.c_void_p * len(indices))(*indices)
    if stream is None:
        ctypes.memset(sums, 0, op.sum_nbytes(lanes))
        check(library.fold_tables(op, sums, sources, len(indices), table, lanes))
    else:
        check(library.fold_tables_on_device(op, sums, sources, len(indices), table, lanes, stream))

# SPDX-License-Identifier: Apache-2.0
"""Planes, rounds, and what an adder does with them (docs/formats/planes.md)."""

from __future__ import annotations

import enum
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

    @property
    def is_table_sum(self) -> bool:
        """Whether the plane holds 4-bit indices and the sums are lanes of their own."""
        return self >= Op.TABLE_SUM_U8

    def nbytes(self, lanes: int) -> int:
        """Bytes of `lanes` lanes on the way to the adder."""
        return (lanes * _LANE_BITS[self] + 7) // 8

    def sum_nbytes(self, lanes: int) -> int:
        """Bytes of the sum that comes back; differs from `nbytes` only for table sums."""
        if self.is_table_sum:
            return lanes if self == Op.TABLE_SUM_U8 else 2 * lanes
        return self.nbytes(lanes)


_LANE_BITS = (32, 16, 16, 32, 64, 8, 16, 64, 32, 4, 4)


class Plane(NamedTuple):
    """Lanes at an address. They belong to the codec and are valid until its next call."""

    op: Op
    lanes: int
    data: int  # in: this worker's lanes; out: the sum over workers (table sums: indices, in only)
    table: int  # table sums: 16 entries of u8 or u16; else 0
    sums: int  # table sums: where the sums go; else 0
    nbytes: int  # of data
    sum_nbytes: int  # of sums for table sums, else of data


class Round(NamedTuple):
    """Planes that travel together."""

    last: bool  # certainly the last round of the step; False: there may be more
    planes: list[Plane]


def fold(op: Op, accumulator: int, lanes_in: int, lanes: int) -> None:
    """accumulator (op)= lanes_in, lane by lane, at two addresses. Not for table sums."""
    check(library.fold(op, accumulator, lanes_in, lanes))


def fold_table(op: Op, accumulator: int, indices: int, table: int, lanes: int) -> None:
    """accumulator[i] += table[index i]: two 4-bit indices a byte, the even lane in the low half."""
    check(library.fold_table(op, accumulator, indices, table, lanes))

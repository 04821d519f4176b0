# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand import LANES

import addend
from addend import Op

PLAIN = [op for op in LANES if not op.is_table_sum]
TABLE = [op for op in LANES if op.is_table_sum]
NARROW = [op for op in Op if op.is_narrow_sum]


def lanes_of(op: Op, seed: int, count: int = 1001) -> np.ndarray[Any, Any]:
    # Up to 100, so that no u8 overflows and every f16 sum is exact.
    return np.random.default_rng(seed).integers(0, 100, count).astype(LANES[op])


@pytest.mark.parametrize("op", PLAIN)
def test_fold_combines_lane_by_lane(op: Op) -> None:
    accumulator, values = lanes_of(op, 1), lanes_of(op, 2)
    expected = {
        Op.OR_U64: np.bitwise_or,
        Op.MAX_U32: np.maximum,
    }.get(op, np.add)(accumulator, values)
    before = values.copy()
    addend.fold(op, accumulator.ctypes.data, values.ctypes.data, len(values))
    np.testing.assert_array_equal(accumulator, expected)
    np.testing.assert_array_equal(values, before)


def bf16(values: list[float]) -> np.ndarray[Any, Any]:
    """Of values that bfloat16 holds: the upper halves of their float32s."""
    return np.array(values, np.float32).view(np.uint16)[1::2].copy()


def test_fold_adds_bfloat16() -> None:
    accumulator, value = (bf16([x]) for x in (1.5, 2.25))
    addend.fold(Op.SUM_BF16, accumulator.ctypes.data, value.ctypes.data, 1)
    np.testing.assert_array_equal(accumulator, bf16([3.75]))


@pytest.mark.parametrize("op", TABLE)
def test_fold_tables_adds_what_all_workers_indices_stand_for(op: Op) -> None:
    table = np.arange(16).astype(LANES[op]) ** 2 // 4
    indices = np.random.default_rng(3).integers(0, 16, (3, 1001))
    pairs = np.pad(indices, ((0, 0), (0, 1))).astype(np.uint8).reshape(3, -1, 2)
    packed = pairs[:, :, 0] | pairs[:, :, 1] << 4
    sums = lanes_of(op, 4)
    addend.fold_tables(
        op, sums.ctypes.data, [each.ctypes.data for each in packed], table.ctypes.data, 1001
    )
    np.testing.assert_array_equal(sums, table[indices].sum(axis=0))


@pytest.mark.parametrize("op", NARROW)
def test_narrow_sums_that_fit_are_the_sums_less_their_base(op: Op) -> None:
    lanes, workers, bits = 1001, 3, op.nbytes(8)
    drawn = np.random.default_rng(5).integers(0, min(2**bits, 6), (workers, lanes), np.uint8)
    spread = np.unpackbits(drawn[:, :, None], axis=2, bitorder="little")[:, :, :bits]
    packed = np.packbits(spread.reshape(workers, -1), axis=1, bitorder="little")
    table, out = np.arange(16, dtype=np.uint8), np.zeros(op.sum_nbytes(lanes), np.uint8)
    sources = [each.ctypes.data for each in packed]
    addend.fold_tables(op, out.ctypes.data, sources, table.ctypes.data, lanes)
    stride = op.sum_nbytes(512)
    for begin, group in ((0, out[:stride]), (512, out[stride:])):
        sums = drawn[:, begin : begin + 512].sum(axis=0, dtype=np.uint16)
        base, step = group[:4].view(np.uint16)
        values = group[5:]
        if stride < 512:
            values = np.stack([values & 15, values >> 4], axis=1).reshape(-1)[: len(sums)]
        assert (base, step) == (sums.min(), 1)
        np.testing.assert_array_equal(base + values, sums)


def test_each_fold_refuses_the_operations_of_the_other() -> None:
    lanes = np.zeros(64, np.uint8)
    address = lanes.ctypes.data
    with pytest.raises(addend.InvalidArgument, match="not a plain plane operation"):
        addend.fold(Op.TABLE_SUM_U8, address, address, 1)
    with pytest.raises(addend.InvalidArgument, match="not a table sum"):
        addend.fold_tables(Op.SUM_U8, address, [address], address, 1)
    with pytest.raises(addend.InvalidArgument, match="null"):
        addend.fold(Op.SUM_U8, address, 0, 1)

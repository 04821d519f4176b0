# SPDX-License-Identifier: Apache-2.0
"""The codec of sparse tensors: rows by number, values beside them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from addend import _native
from addend._native import check, created, library
from addend.codec import Codec
from addend.errors import InvalidArgument

ELEMENTS = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int8", "uint8")


class RowSums(NamedTuple):
    """Different rows, ascending, and the sums of their values, by their addresses: the codec's
    memory, until it begins its next step."""

    rows: int
    sums: int
    length: int  # different rows


class RowGradient:
    """What a step of a row codec takes for a gradient: row numbers, in any order, and their values.
    The caller keeps it, and them, alive until the step has ended."""

    def __init__(self, rows: int, values: int, count: int) -> None:
        self._native = _native.RowGradient(rows, values, count)
        self.address = ctypes.addressof(self._native)


class RowCodec(Codec):
    """Sums rows of `width` elements, step after step. `tensor`: what the sum is of, by a number."""

    def __init__(
        self,
        spec: str,
        *,
        element: str,
        width: int,
        world: int,
        worker: int,
        seed: int = 0,
        tensor: int = 0,
        scale: float = 1.0,
        first_step: int = 0,
        latency_us: float | None = None,
        gbit_per_s: float | None = None,
    ) -> None:
        if element not in ELEMENTS:
            raise InvalidArgument(f"element {element!r} is not one of {', '.join(ELEMENTS)}")
        layout = _native.RowLayout()
        library.row_layout_init(layout, ctypes.sizeof(layout))
        layout.element, layout.width = ELEMENTS.index(element), width
        layout.world, layout.worker, layout.seed, layout.id = world, worker, seed, tensor
        layout.scale, layout.first_step = scale, first_step
        if latency_us is not None:
            layout.network_latency_us = latency_us
        if gbit_per_s is not None:
            layout.network_gbit_per_s = gbit_per_s
        self._own(spec, created(library.row_codec_create, spec.encode(), layout))

    def result(self) -> RowSums:
        """Of the last step."""
        rows, sums, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        check(
            library.row_codec_result(
                self.handle, ctypes.byref(rows), ctypes.byref(sums), ctypes.byref(count)
            )
        )
        return RowSums(rows.value or 0, sums.value or 0, count.value)

# SPDX-License-Identifier: Apache-2.0
"""What a codec would do to your gradients: all workers in this process, real codecs and sums."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from addend._arrays import Gradient, copy_all
from addend.codec import Codec
from addend.errors import InvalidArgument
from addend.plane import Plane, fold, fold_tables
from addend.report import Report


@dataclass(frozen=True)
class Simulation:
    """One simulated step. `print` it for a summary."""

    sum: Any  # what every worker gets (the mean for op="mean"), of the type of the input
    codec: str
    dtype: str
    reports: list[Report]  # one a worker
    nmse: float  # squared error of `sum` over the squared norm of the true sum, in float64

    @property
    def wire_bytes(self) -> int:
        """What one worker hands to the network."""
        return self.reports[0].wire_bytes

    @property
    def dense_bytes(self) -> int:
        """What one worker would hand over without a codec."""
        return self.reports[0].dense_bytes

    @property
    def ratio(self) -> float:
        """Dense bytes over bytes sent."""
        return self.reports[0].ratio

    def __str__(self) -> str:
        report = self.reports[0]
        fallback = "" if report.fallback == "none" else f", fallback {report.fallback}"
        return (
            f"{self.codec}: {len(self.reports)} workers, {self.dtype} of shape "
            f"{tuple(self.sum.shape)}, mode {report.mode}{fallback}\n"
            f"{self.wire_bytes} of {self.dense_bytes} bytes a worker (ratio {self.ratio:.3g}), "
            f"nmse {self.nmse:.2g}"
        )


class Simulator:
    """Workers that keep their codecs from step to step, as in training.

    `exact` then plans from what earlier sums showed, and `quant` with feedback keeps residuals. The
    first step fixes the number of workers, the shape and the type.
    """

    def __init__(self, codec: str = "exact", *, op: str = "sum", seed: int = 0) -> None:
        if op not in ("sum", "mean"):
            raise InvalidArgument(f"op {op!r} is not one of sum, mean")
        self.codec = codec
        self.op = op
        self.seed = seed
        self._codecs: list[Codec] = []
        self._form: tuple[int, tuple[int, ...], str] | None = None

    def step(self, arrays: Sequence[Any]) -> Simulation:
        """Sums one gradient a worker: numpy arrays or torch tensors, which stay as they are."""
        gradients = copy_all(arrays)
        self._fix(gradients)
        expected = _true_sum(gradients)
        if self.op == "mean":
            expected /= len(gradients)
        try:
            self._all_reduce([gradient.address for gradient in gradients])
        except BaseException:
            for codec in self._codecs:
                codec.cancel()
            raise
        return Simulation(
            sum=gradients[0].like_input(),
            codec=self.codec,
            dtype=gradients[0].dtype,
            reports=[codec.report() for codec in self._codecs],
            nmse=_nmse(gradients[0].as_float64(), expected),
        )

    def _fix(self, gradients: Sequence[Gradient]) -> None:
        first, world = gradients[0], len(gradients)
        form = (world, first.shape, first.dtype)
        if self._form is None:
            count = math.prod(first.shape)
            matrix = len(first.shape) > 1 and count > 0
            self._codecs = [
                Codec(
                    self.codec,
                    dtype=first.dtype,
                    count=count,
                    world=world,
                    worker=worker,
                    seed=self.seed,
                    scale=1.0 / world if self.op == "mean" else 1.0,
                    segments=[(0, count, first.shape[0])] if matrix else (),
                )
                for worker in range(world)
            ]
            self._form = form
        elif form != self._form:
            raise InvalidArgument(
                f"this simulator's steps have workers, shape and type {self._form}, not {form}"
            )

    def _all_reduce(self, addresses: list[int]) -> None:
        for codec, address in zip(self._codecs, addresses):
            codec.begin(address)
        while True:
            rounds = [codec.next_round() for codec in self._codecs]
            planes = [round.planes for round in rounds if round is not None]
            if not planes:
                break
            for same_plane in zip(*planes):
                add_planes(same_plane)
        for codec, address in zip(self._codecs, addresses):
            codec.finish(address)


def simulate(
    arrays: Sequence[Any], codec: str = "exact", *, op: str = "sum", seed: int = 0
) -> Simulation:
    """One step over `arrays`, one a worker; for several steps in a row, use a Simulator.

    float32, float16 and bfloat16 (torch, or numpy with ml_dtypes), of any shape.

    >>> import numpy as np, addend
    >>> print(addend.simulate([np.eye(1000, dtype=np.float32)] * 4))
    exact: 4 workers, float32 of shape (1000, 1000), mode packed
    129000 of 4000000 bytes a worker (ratio 31), nmse 0
    """
    return Simulator(codec, op=op, seed=seed).step(arrays)


def add_planes(planes: Sequence[Plane]) -> None:
    """Leaves the sum over workers, folded in their order, in every worker's plane."""
    first = planes[0]
    if first.op.is_table_sum:
        indices = [plane.data for plane in planes]
        fold_tables(first.op, first.sums, indices, first.table, first.lanes)
        for plane in planes[1:]:
            ctypes.memmove(plane.sums, first.sums, first.sum_nbytes)
        return
    for plane in planes[1:]:
        fold(plane.op, first.data, plane.data, plane.lanes)
    for plane in planes[1:]:
        ctypes.memmove(plane.data, first.data, first.nbytes)


def _true_sum(gradients: Sequence[Gradient]) -> Any:
    total = gradients[0].as_float64()
    with np.errstate(invalid="ignore"):  # infinities may cancel: the sum is NaN
        for gradient in gradients[1:]:
            total += gradient.as_float64()
    return total


def _nmse(got: Any, expected: Any) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.sum((got - expected) ** 2))
        energy = float(np.sum(expected**2))
    if error == 0:
        return 0.0
    return error / energy if energy != 0 else math.inf

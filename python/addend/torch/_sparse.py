# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse COO tensors.

Two ways, chosen from sizes that all ranks know, so alike on all of them:

* gather: rows and values of all ranks go to all ranks in one step, and are added in rank order;
* union: row numbers go to all ranks, values then travel packed in the order of the union, as a
  plain sum or through a codec. Bytes no longer grow with the number of ranks that share rows.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from addend import Codec, InvalidArgument, Plane, Unavailable
from addend.mesh import Bytes, Rows, aligned
from addend.plane import Op
from addend.torch import _header
from addend.torch._coder import DTYPES, Plan
from addend.torch._engine import Engine, tensor_at
from addend.torch._header import HEADER_BYTES, Greeter, Header, roomy
from addend.torch._meter import Meter
from addend.torch._rollcall import Place
from addend.torch._specs import keeps_residual
from addend.torch._worker import Job
from addend.torch._works import Steps, Wait

_SUM_OPS = {
    torch.float32: Op.SUM_F32,
    torch.bfloat16: Op.SUM_BF16,
    torch.float16: Op.SUM_F16,
}
_ROW_BYTES = 8


class SparseSums:
    """What successive sums of one tensor share: the size of the union, and codecs."""

    def __init__(self, engine: Engine, spec: str, name: str, seed: int = 0) -> None:
        if keeps_residual(spec):
            raise InvalidArgument(f"{name}: feedback needs dense gradients, this one is sparse")
        self.engine, self.spec, self.name, self.seed = engine, spec, name, seed
        self.step = 0  # of the sum under way
        # Lossless sums of floats need no codec once rows are merged.
        kind, _, options = spec.partition(":")
        self.plain = kind == "dense" or (kind == "exact" and "reproducible" not in options)
        self.plan = Plan("")
        self.busy = False  # a sum is under way, and what the next one does depends on it
        self._key: tuple[Any, ...] | None = None  # what the plan is for
        self.rows = Rows()
        self.most = 0  # rows of the rank that had most, last time
        self.union = 0  # rows of all ranks together, last time
        self._codec: Codec | None = None
        self._codec_for: tuple[int, int] | None = None  # its size and the step it does next

    def open(self, tensor: torch.Tensor, scale: float) -> None:
        """Makes a plan for this tensor's shape; a new shape begins anew."""
        key = (tensor.dtype, tensor.shape, tensor.sparse_dim(), scale)
        if self._key == key:
            return
        self._key = key
        self.plan = Plan(
            f"{self.name}: {tensor.dtype} {tuple(tensor.shape)}, sparse in {tensor.sparse_dim()}"
            f" dimensions, codec {self.spec}, times {scale:g}"
        )
        self.most = self.union = 0

    def gathers(self, most: int, values: torch.Tensor) -> bool:
        """Whether sending all values to all ranks is the cheaper way; `most`: any rank's rows."""
        if values.dtype not in _SUM_OPS:
            return True  # no plane has such lanes
        if not self.plain:
            return False
        row_bytes = values.shape[1] * values.element_size()
        world, link = self.engine.world, self.engine.link
        union = self.union or world * most
        gathered = (world - 1) * most * row_bytes
        summed = 2 * (world - 1) / world * union * row_bytes
        return (gathered - summed) * 8e-3 / link.gbit_per_s <= 2 * link.latency_us

    def codec(self, count: int, dtype: torch.dtype) -> Codec:
        """A codec for `count` packed values, the same on all ranks. What it draws depends on seed
        and step alone, so a restarted job goes on as if nothing had happened."""
        if self._codec is None or self._codec_for != (count, self.step):
            self._codec = Codec(
                self.spec,
                dtype=DTYPES[dtype],
                count=count,
                world=self.engine.world,
                worker=self.engine.rank,
                seed=self.seed,
                bucket=_header.digest(self.name),
                first_step=self.step,
                latency_us=self.engine.link.latency_us,
                gbit_per_s=self.engine.link.gbit_per_s,
            )
        self._codec_for = (count, self.step + 1)
        return self._codec


class _Part(NamedTuple):
    """One rank's rows, and the address of its values if they came along."""

    rows: Bytes
    values: int


def _length(rows: int, width: int) -> int:
    """Bytes of row numbers and values of `width` bytes each, as two pieces of a message."""
    return aligned(rows * _ROW_BYTES) + rows * width if width else rows * _ROW_BYTES


def _add_up(
    rows: Rows, parts: Sequence[_Part], values: Sequence[int], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The union's row numbers, and the sums of values: by part, their address or 0 for none."""
    different = rows.merge([part.rows for part in parts])
    merged = torch.empty(different, dtype=torch.int64)
    width = like.shape[1]
    op = _SUM_OPS.get(like.dtype)
    if op is not None:
        total = like.new_empty(different, width)
        rows.sum(op, width, values, merged.data_ptr(), total.data_ptr())
        return merged, total
    total = like.new_zeros(different, width)
    rows.sum(Op.SUM_F32, 0, values, merged.data_ptr(), 0)
    at = rows.places
    for part, address in zip(parts, values):
        count = part.rows.size // _ROW_BYTES
        if address and count and width:
            places = tensor_at(at, part.rows.size).view(torch.int64)
            piece = tensor_at(address, count * width * like.element_size()).view(like.dtype)
            total.index_add_(0, places, piece.view(-1, width))
        at += part.rows.size
    return merged, total


class SparseMemory:
    """The tensor given and, later, its sum. Device tensors are added on the host."""

    on_device = False

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = self.result = tensor

    @contextlib.contextmanager
    def order(self) -> Iterator[None]:
        yield


def _linear_rows(tensor: torch.Tensor) -> torch.Tensor:
    """One number per stored entry, in row-major order of the sparse dimensions."""
    indices = tensor._indices()
    rows = indices[0]
    for dim in range(1, indices.shape[0]):
        rows = rows * tensor.shape[dim] + indices[dim]
    return rows


def _indices_of(rows: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    out = []
    for size in reversed(shape):
        out.append(rows % size)
        rows = torch.div(rows, size, rounding_mode="floor")
    return torch.stack(out[::-1])


def _make_sparse(rows: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    dims = like.sparse_dim()
    indices = rows.unsqueeze(0) if dims == 1 else _indices_of(rows, tuple(like.shape[:dims]))
    values = values.view(rows.numel(), *like.shape[dims:])
    # Rows are sorted and unique; not every torch lets us say so at once.
    try:
        made = torch.sparse_coo_tensor(
            indices, values, like.shape, check_invariants=False, is_coalesced=True
        )
    except TypeError:
        made = torch.sparse_coo_tensor(indices, values, like.shape)._coalesced_(True)
    return made.to(like.device)


class SparseJob(Job):
    """One sum of a sparse tensor."""

    def __init__(
        self,
        greeter: Greeter,
        meter: Meter,
        place: Place,
        tensor: torch.Tensor,
        *,
        sums: SparseSums,
        scale: float,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(place)
        self._greeter, self._engine = greeter, greeter.engine
        self._meter, self._sums = meter, sums
        self._memory = SparseMemory(tensor)
        self._scale, self._loss_scale = scale, loss_scale
        self._done, self._failed = done, failed

    def can_start(self) -> bool:
        return not self._sums.busy

    def steps(self) -> Steps:
        begin = time.perf_counter()
        tensor, sums = self._memory.tensor, self._sums
        sums.busy = True
        host = tensor if tensor.device.type == "cpu" else tensor.cpu()
        rows = _linear_rows(host).contiguous()
        values = host._values().reshape(rows.numel(), math.prod(host.shape[host.sparse_dim() :]))
        values = values.contiguous()
        if self._scale != 1.0:
            values = values * self._scale
        self._meter.add_time("encode", begin, time.perf_counter(), *self._at())
        begin = time.perf_counter()
        sums.open(tensor, self._scale)
        sums.step = self.place.step
        parts: list[_Part] = []
        gathered = yield from self._meet(rows, values, parts)
        addresses = [part.values for part in parts]
        if not gathered:
            addresses = [0] * len(parts)
            addresses[self._engine.rank] = values.data_ptr()
        union, total = _add_up(sums.rows, parts, addresses, values)
        if not gathered and total.numel():
            yield from self._sum_packed(total)
        sums.union = union.numel()
        sums.busy = False
        self._memory.result = _make_sparse(union, total, tensor)
        self._meter.add_time("reduce", begin, time.perf_counter(), *self._at())
        self._meter.count("mode/gather" if gathered else "mode/union")
        self._meter.raw_bytes(0, tensor.numel() * values.element_size())

    def _at(self) -> tuple[int, int]:
        return self.place.step, self.place.bucket

    def _meet(
        self, rows: torch.Tensor, values: torch.Tensor, parts: list[_Part]
    ) -> Generator[Wait, None, bool]:
        """Every rank's rows, with the values behind them if that is the cheaper way: then True.
        Parts are for use before the next wait."""
        sums, plan = self._sums, self._sums.plan
        width = values.shape[1] * values.element_size()
        with_values = sums.gathers(sums.most, values)
        pieces = [Bytes(rows.data_ptr(), rows.numel() * _ROW_BYTES)]
        behind = Bytes(values.data_ptr(), rows.numel() * width)
        payload = [*pieces, behind] if with_values else pieces
        length = _length(rows.numel(), width * with_values)
        header = Header(
            *self._at(),
            plan.layout,
            int(with_values),
            self._loss_scale,
            rows.numel(),
            HEADER_BYTES + length,
        )
        headers: list[Header] = []
        messages: list[Bytes] = []
        yield from self._greeter.greet(header, payload, plan.describe, headers, messages)
        counts = [one.rows for one in headers]
        self.place = self.place._replace(round=1)
        sums.most = max(counts)
        begin = HEADER_BYTES
        if not messages:
            begin = 0
            with_values = sums.gathers(sums.most, values)
            payload = [*pieces, behind] if with_values else pieces
            room = _length(sums.most, width * with_values)
            yield from self._engine.exchange(payload, room, messages)
        self._meter.raw_bytes(rows.numel() * (_ROW_BYTES + width * with_values), 0)
        for rank, (message, count) in enumerate(zip(messages, counts)):
            if message.size < begin + _length(count, width * with_values):
                raise Unavailable(f"rank {rank} sent {message.size} bytes for {count} rows")
        parts += [
            _Part(
                Bytes(message.address + begin, count * _ROW_BYTES),
                message.address + begin + aligned(count * _ROW_BYTES),
            )
            for message, count in zip(messages, counts)
        ]
        return with_values

    def _sum_packed(self, total: torch.Tensor) -> Steps:
        """Sums values that lie in the order of the union."""
        if self._sums.plain:
            nbytes = total.numel() * total.element_size()
            plane = Plane(
                _SUM_OPS[total.dtype], total.numel(), total.data_ptr(), 0, 0, nbytes, nbytes
            )
            self.place = self.place._replace(round=2)
            yield from self._engine.reduce([plane], last=True)
            self._meter.raw_bytes(nbytes, 0)
            return
        padded = total.new_zeros(roomy(total.shape[0]) * total.shape[1])
        padded[: total.numel()] = total.view(-1)
        codec = self._sums.codec(padded.numel(), total.dtype)
        codec.begin(padded.data_ptr())
        while (found := codec.next_round()) is not None:
            self.place = self.place._replace(round=self.place.round + 1)
            yield from self._engine.reduce(found.planes, last=found.last)
        codec.finish(padded.data_ptr())
        total.copy_(padded[: total.numel()].view_as(total))
        self._meter.raw_bytes(codec.report().wire_bytes, 0)

    def succeed(self) -> None:
        self._done(self._memory)

    def fail(self, error: Exception) -> None:
        self._sums.busy = False
        self._failed(error)

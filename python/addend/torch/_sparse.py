# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse COO tensors: rows and values for the native row codec, and back."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from addend import InvalidArgument
from addend.pipeline import Outcome, Part, Parts
from addend.rows import ELEMENTS, RowCodec, RowGradient
from addend.torch._bucket import Plan, digest
from addend.torch._engine import Engine
from addend.torch._group_sums import tensor_at
from addend.torch._meter import Meter
from addend.torch._peers import Place
from addend.torch._specs import keeps_residual

_ELEMENTS = {getattr(torch, name): name for name in ELEMENTS}
_ROW_BYTES = 8


class SparseSums:
    """Successive sums of one tensor, whose codec remembers how many rows there were."""

    def __init__(self, engine: Engine, spec: str, name: str, seed: int = 0) -> None:
        if keeps_residual(spec):
            raise InvalidArgument(f"{name}: feedback needs dense gradients, this one is sparse")
        self._engine, self._spec, self._name, self._seed = engine, spec, name, seed
        self._key: tuple[Any, ...] | None = None  # what plan and codec are for
        self._plan = Plan("")
        self._codec: RowCodec | None = None

    def _open(self, tensor: torch.Tensor, width: int, scale: float, step: int) -> RowCodec:
        """A new shape begins anew."""
        key = (tensor.dtype, tensor.shape, tensor.sparse_dim(), scale)
        if self._codec is None or self._key != key:
            self._key = key
            self._plan = Plan(
                f"{self._name}: {tensor.dtype} {tuple(tensor.shape)}, sparse in"
                f" {tensor.sparse_dim()} dimensions, codec {self._spec}, times {scale:g}"
            )
            self._codec = RowCodec(
                self._spec,
                element=_ELEMENTS[tensor.dtype],
                width=width,
                world=self._engine.world,
                worker=self._engine.rank,
                seed=self._seed,
                tensor=digest(self._name),
                scale=scale,
                first_step=step,
                latency_us=self._engine.link.latency_us,
                gbit_per_s=self._engine.link.gbit_per_s,
            )
        return self._codec

    def run(
        self,
        place: Place,
        tensor: torch.Tensor,
        scale: float,
        meter: Meter,
        done: Callable[[torch.Tensor], None],
        failed: Callable[[Exception], None],
        **named: Any,
    ) -> None:
        """`done(sum)` or `failed(error)` is called once; `named`: see Engine.run."""
        host = tensor if tensor.device.type == "cpu" else tensor.cpu()
        rows = _linear_rows(host).contiguous()
        width = math.prod(host.shape[host.sparse_dim() :])
        values = host._values().reshape(rows.numel(), width).contiguous()
        codec = self._open(tensor, width, scale, place.step)
        gradient = RowGradient(rows.data_ptr(), values.data_ptr(), rows.numel())

        def ended(outcome: Outcome) -> None:
            found = codec.result()
            merged = tensor_at(found.rows, found.length * _ROW_BYTES).view(torch.int64).clone()
            nbytes = found.length * width * values.element_size()
            total = tensor_at(found.sums, nbytes).view(values.dtype).clone()
            meter.job_done(outcome.record, [(codec.record(), 0)], place, outcome.repeats)
            meter.raw_bytes(0, tensor.numel() * values.element_size())
            done(_make_sparse(merged, total, tensor))

        kept = (rows, values)  # until it has ended
        parts = Parts(Part(codec, gradient.address))
        ended.kept = gradient, kept  # type: ignore[attr-defined]
        self._engine.run(place, self._plan, parts, ended, failed, **named)


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

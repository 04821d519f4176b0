# SPDX-License-Identifier: Apache-2.0
"""Sums planes over a torch process group: for ranks that cannot connect to each other directly.

A plane is summed by the backend's own all-reduce where that has its operation; otherwise everyone
receives its segment from everyone (all-to-all), folds it, and sends the result to everyone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from addend import Op, Plane, Timeout, fold, fold_tables
from addend.torch import _group
from addend.torch._group import Group

_ALIGN = 64


def tensor_at(address: int, nbytes: int) -> torch.Tensor:
    """The bytes at an address as a tensor. The caller keeps the memory alive."""
    if nbytes == 0:  # torch refuses to look at nothing
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8)


class GroupSums:
    """One rank's end of a group that only its owner uses. One thread at a time."""

    def __init__(self, group: Group, device: torch.device) -> None:
        """`device`: where the backend wants its tensors. Collective."""
        self._group, self._device = group, device
        self.native = _group.probe(group, device)  # operations left to the backend
        self._world: int = dist.get_world_size(group)

    def reduce(self, planes: Sequence[Plane], timeout_s: float) -> None:
        """For addend.reducer.call_back. Every collective is waited for: none writes to planes after
        a failure, once the group is cut off."""
        try:
            self._reduce([plane for plane in planes if plane.lanes > 0])
        except RuntimeError as error:
            if is_timeout(error):
                raise Timeout(f"no answer within {timeout_s:g} s: {error}") from None
            raise

    def _reduce(self, planes: Sequence[Plane]) -> None:
        works = []
        for plane in planes:
            if plane.op in self.native:
                works.append(self._start_all_reduce(plane))
        scattered = [plane for plane in planes if plane.op not in self.native]
        if scattered:
            self._scatter(scattered)
        for work, lanes, plane in works:
            work.wait()
            target = tensor_at(plane.data, plane.nbytes)
            if lanes.data_ptr() != plane.data:
                target.copy_(lanes.view(torch.uint8)[: plane.nbytes])
            if plane.op is Op.MAX_U32:
                _flip(target)

    def _start_all_reduce(self, plane: Plane) -> tuple[Any, torch.Tensor, Plane]:
        dtype, width, name = _group.backend_view(plane.op)
        lanes = tensor_at(plane.data, plane.nbytes)
        if plane.op is Op.MAX_U32:
            _flip(lanes)
        if plane.nbytes % width:  # u8 and u16 lanes that do not fill a wide one
            padded = torch.zeros(-(-plane.nbytes // width) * width, dtype=torch.uint8)
            padded[: plane.nbytes] = lanes
            lanes = padded
        there = lanes.view(dtype).to(self._device)
        reduce_op = getattr(dist.ReduceOp, name)
        return dist.all_reduce(there, op=reduce_op, group=self._group, async_op=True), there, plane

    def _scatter(self, planes: Sequence[Plane]) -> None:
        # Segments in lanes, which begin on whole bytes, words and groups.
        world, rank_here = self._world, dist.get_rank(self._group)
        aligns = [plane.op.lane_align for plane in planes]
        shares = [-(-p.lanes // (align * world)) * align for p, align in zip(planes, aligns)]
        room_in = _places([p.op.nbytes(n) for p, n in zip(planes, shares)])
        room_out = _places([p.op.sum_nbytes(n) for p, n in zip(planes, shares)])
        send = torch.zeros(world, room_in[-1], dtype=torch.uint8)
        for plane, share, at in zip(planes, shares, room_in):
            lanes = tensor_at(plane.data, plane.nbytes)
            for rank, begin, length in _segments(plane.nbytes, plane.op.nbytes(share), world):
                send[rank, at : at + length] = lanes[begin : begin + length]
        there = send.view(-1).to(self._device)
        back = torch.empty_like(there)
        dist.all_to_all_single(back, there, group=self._group)
        received = back.cpu()
        summed = torch.empty(room_out[-1], dtype=torch.uint8)
        for plane, share, at_in, at_out in zip(planes, shares, room_in, room_out):
            pieces = [received.data_ptr() + r * room_in[-1] + at_in for r in range(world)]
            lanes_here = min(share, max(0, plane.lanes - rank_here * share))
            _fold_all(plane, pieces, lanes_here, summed.data_ptr() + at_out)
        gathered = torch.empty(world * room_out[-1], dtype=torch.uint8, device=self._device)
        _group.start_all_gather(self._group, gathered, summed.to(self._device)).wait()
        sums = gathered.cpu().view(world, -1)
        for plane, share, at in zip(planes, shares, room_out):
            address = plane.sums if plane.op.is_table_sum else plane.data
            lanes = tensor_at(address, plane.sum_nbytes)
            stride = plane.op.sum_nbytes(share)
            for rank, begin, length in _segments(plane.sum_nbytes, stride, world):
                lanes[begin : begin + length] = sums[rank, at : at + length]


def is_timeout(error: BaseException) -> bool:
    """Whether a backend's error says that it waited in vain."""
    return "timed out" in str(error).lower() or "timeout" in str(error).lower()


def _places(sizes: Sequence[int]) -> list[int]:
    """Where pieces of these sizes begin in one message, and its length at the end."""
    places = [0]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _ALIGN) * _ALIGN)
    return places


def _flip(lanes: torch.Tensor) -> None:
    lanes.view(torch.int32).bitwise_xor_(-(2**31))


def _fold_all(plane: Plane, pieces: Sequence[int], lanes: int, target: int) -> None:
    """target = pieces[0] (op) pieces[1] (op) ..., in this order: the same bits on every rank."""
    if plane.op.is_table_sum:
        fold_tables(plane.op, target, pieces, plane.table, lanes)
        return
    ctypes.memmove(target, pieces[0], plane.op.nbytes(lanes))
    for piece in pieces[1:]:
        fold(plane.op, target, piece, lanes)


def _segments(plane_bytes: int, share_bytes: int, world: int) -> list[tuple[int, int, int]]:
    """(rank, begin, length) of the segments that hold something."""
    return [
        (rank, rank * share_bytes, min(share_bytes, plane_bytes - rank * share_bytes))
        for rank in range(world)
        if plane_bytes > rank * share_bytes
    ]

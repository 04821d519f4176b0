# SPDX-License-Identifier: Apache-2.0
"""Sums planes over a torch process group: those of a device where its backend adds them, and those
of the host for ranks that cannot connect to each other directly.

A plane is summed by the backend's own all-reduce where that has its operation; otherwise everyone
receives its segment from everyone (all-to-all), folds it, and sends the result to everyone. Planes
of a device never leave it: collectives and folds are enqueued behind what wrote them.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from addend import Op, Plane, Timeout, fold, fold_tables
from addend.torch import _group
from addend.torch._group import Group

_ALIGN = 64


class _Memory:
    """A device's bytes at an address, for torch."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor_at(address: int, nbytes: int, device: torch.device | None = None) -> torch.Tensor:
    """The bytes at an address as a tensor. The caller keeps the memory alive."""
    if nbytes == 0:  # torch refuses to look at nothing
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device is not None and device.type != "cpu":
        return torch.as_tensor(_Memory(address, nbytes), device=device)
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
        """For addend.reducer.call_back. Every collective is waited for, those of a device by their
        stream: none writes to planes after a failure, once the group is cut off."""
        try:
            with self._order(planes):
                self._reduce([plane for plane in planes if plane.lanes > 0])
        except RuntimeError as error:
            if is_timeout(error):
                raise Timeout(f"no answer within {timeout_s:g} s: {error}") from None
            raise

    def _order(self, planes: Sequence[Plane]) -> contextlib.AbstractContextManager[Any]:
        """What is done inside to planes of a device is in the order of their stream."""
        stream = planes[0].stream if planes else None
        if stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=self._device))

    def _home(self, plane: Plane) -> torch.device:
        return torch.device("cpu") if plane.stream is None else self._device

    def _lanes(self, plane: Plane) -> torch.Tensor:
        return tensor_at(plane.data, plane.nbytes, self._home(plane))

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
            target = self._lanes(plane)
            if lanes.data_ptr() != plane.data:
                target.copy_(lanes.view(torch.uint8)[: plane.nbytes])
            if plane.op is Op.MAX_U32:
                _flip(target)

    def _start_all_reduce(self, plane: Plane) -> tuple[Any, torch.Tensor, Plane]:
        dtype, width, name = _group.backend_view(plane.op)
        lanes = self._lanes(plane)
        if plane.op is Op.MAX_U32:
            _flip(lanes)
        if plane.nbytes % width:  # u8 and u16 lanes that do not fill a wide one
            whole = -(-plane.nbytes // width) * width
            padded = torch.zeros(whole, dtype=torch.uint8, device=lanes.device)
            padded[: plane.nbytes] = lanes
            lanes = padded
        there = lanes.view(dtype).to(self._device)
        reduce_op = getattr(dist.ReduceOp, name)
        return dist.all_reduce(there, op=reduce_op, group=self._group, async_op=True), there, plane

    def _scatter(self, planes: Sequence[Plane]) -> None:
        # Segments in lanes, which begin on whole bytes, words and groups.
        world, rank_here = self._world, dist.get_rank(self._group)
        home = self._home(planes[0])
        aligns = [plane.op.lane_align for plane in planes]
        shares = [-(-p.lanes // (align * world)) * align for p, align in zip(planes, aligns)]
        room_in = _places([p.op.nbytes(n) for p, n in zip(planes, shares)])
        room_out = _places([p.op.sum_nbytes(n) for p, n in zip(planes, shares)])
        send = torch.zeros(world, room_in[-1], dtype=torch.uint8, device=home)
        for plane, share, at in zip(planes, shares, room_in):
            lanes = self._lanes(plane)
            for rank, begin, length in _segments(plane.nbytes, plane.op.nbytes(share), world):
                send[rank, at : at + length] = lanes[begin : begin + length]
        there = send.view(-1).to(self._device)
        back = torch.empty_like(there)
        dist.all_to_all_single(back, there, group=self._group)
        received = back.to(home).view(world, -1)
        summed = torch.zeros(room_out[-1], dtype=torch.uint8, device=home)
        for plane, share, at_in, at_out in zip(planes, shares, room_in, room_out):
            lanes_here = min(share, max(0, plane.lanes - rank_here * share))
            if lanes_here > 0:
                _fold_all(plane, list(received[:, at_in:]), lanes_here, summed[at_out:])
        gathered = torch.empty(world * room_out[-1], dtype=torch.uint8, device=self._device)
        _group.start_all_gather(self._group, gathered, summed.to(self._device)).wait()
        sums = gathered.to(home).view(world, -1)
        for plane, share, at in zip(planes, shares, room_out):
            address = plane.sums if plane.op.is_table_sum else plane.data
            lanes = tensor_at(address, plane.sum_nbytes, home)
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


def _fold_all(
    plane: Plane, pieces: Sequence[torch.Tensor], lanes: int, target: torch.Tensor
) -> None:
    """target = pieces[0] (op) pieces[1] (op) ..., in this order: the same bits on every rank.
    REQUIRES: zeros in target."""
    addresses = [piece.data_ptr() for piece in pieces]
    if plane.op.is_table_sum:
        fold_tables(plane.op, target.data_ptr(), addresses, plane.table, lanes, plane.stream)
        return
    nbytes = plane.op.nbytes(lanes)
    target[:nbytes] = pieces[0][:nbytes]
    for address in addresses[1:]:
        fold(plane.op, target.data_ptr(), address, lanes, plane.stream)


def _segments(plane_bytes: int, share_bytes: int, world: int) -> list[tuple[int, int, int]]:
    """(rank, begin, length) of the segments that hold something."""
    return [
        (rank, rank * share_bytes, min(share_bytes, plane_bytes - rank * share_bytes))
        for rank in range(world)
        if plane_bytes > rank * share_bytes
    ]

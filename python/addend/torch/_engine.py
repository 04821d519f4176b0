# SPDX-License-Identifier: Apache-2.0
"""Adds planes over a process group.

A round is done in one of three ways, chosen from sizes and the measured link, so alike everywhere:

* exchange: everyone sends its planes to everyone, everyone folds all of them in rank order. One
  network step; the way of small rounds.
* all-reduce: the backend's own, for operations it has.
* scatter: everyone receives its segment from everyone (all-to-all), folds it, and sends the result
  to everyone. The way of operations that the backend lacks (OR on NCCL, table sums everywhere).

Exchanges go over the mesh, direct connections between ranks, where the ranks could make them: a
backend hands every message from thread to thread, which costs more than the message itself.
Scatters of host memory then go through the hauler, which folds and answers without asking anybody.

What runs here is written as generators that yield `Wait`s, so that one thread can keep several
buckets in flight and still issue all collectives in one order.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar

import torch
import torch.distributed as dist

from addend import Aggregator, Changed, Op, Plane, ServiceReducer, fold, fold_table
from addend.mesh import Bytes, Hauler, Mesh, aligned
from addend.torch import _group, _jobs, _log
from addend.torch._group import Group
from addend.torch._rollcall import RollCall
from addend.torch._works import HaulWork, MeshWork, Staged, Steps, Wait, run

# Above this, an exchange's copies for every peer cost more than the steps they save.
_EXCHANGE_MOST_BYTES = 8 << 20
# What a device's own network moves faster than ours.
_DEVICE_MOST_BYTES = 64 << 10
# Every rank sends its small messages to every other: with more of them, trees and rings are better.
_MESH_MOST_RANKS = 64


@dataclass(frozen=True)
class Link:
    """What the group's network does, agreed by all ranks."""

    latency_us: float = 50.0  # of one network step, however small
    gbit_per_s: float = 10.0  # of an all-reduce that moves every byte twice
    backend_us: float | None = None  # of the backend's all-reduce, however small; None: two steps


def tensor_at(address: int, nbytes: int) -> torch.Tensor:
    """The bytes at an address as a tensor. The caller keeps the memory alive."""
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Pool:
    """Byte tensors that are lent and come back, so that steps do not allocate."""

    def __init__(self, pinned: bool) -> None:
        self._free: dict[int, list[torch.Tensor]] = {}
        self._pinned = pinned

    def take(self, nbytes: int) -> torch.Tensor:
        size = max(1 << max(nbytes - 1, 0).bit_length(), 4096)
        free = self._free.get(size)
        if free:
            return free.pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)

    def give(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self._free.setdefault(tensor.numel(), []).append(tensor)


@dataclass
class Engine:
    """One rank's end of a group that only its owner uses."""

    group: Group
    device: torch.device
    native: frozenset[Op]  # operations left to the backend
    link: Link = field(default_factory=Link)
    missing: int = 0  # ranks that are not in the sums of the job in front: bit r is rank r
    sums_on_device: ClassVar[bool] = True  # plain sums of device tensors need not leave it

    mesh: Mesh | None = None
    hauler: Hauler | None = None  # the mesh's

    @property
    def repeats(self) -> bool:
        """Whether a job may have to begin again (Changed), so that gradients must be kept."""
        return False

    def abandon(self) -> None:
        """Afterwards nothing here touches planes of rounds under way."""
        if self.hauler is not None:
            self.hauler.abandon()

    def close(self) -> None:
        """After the last round."""
        if self.mesh is not None:
            self.mesh.close()

    def __post_init__(self) -> None:
        self.world: int = dist.get_world_size(self.group)
        self.rank: int = dist.get_rank(self.group)
        self._pool = Pool(pinned=self.device.type == "cuda")
        self._read: list[int] = []  # its own exchanges whose messages somebody may still read
        self._lent: list[torch.Tensor] = []  # the same, of the group

    # ---- collectives of bytes, wherever the backend wants them

    def _all_to_all(self, out: torch.Tensor, data: torch.Tensor) -> list[Any]:
        if self.device.type == "cpu":
            return [dist.all_to_all_single(out, data, group=self.group, async_op=True)]
        there = data.to(self.device, non_blocking=True)
        back = torch.empty_like(there)
        work = dist.all_to_all_single(back, there, group=self.group, async_op=True)
        return [Staged(work, back, out)]

    def _all_gather(self, out: torch.Tensor, own: torch.Tensor) -> list[Any]:
        there = own if self.device.type == "cpu" else own.to(self.device, non_blocking=True)
        back = out if self.device.type == "cpu" else torch.empty_like(out, device=self.device)
        work = _group.start_all_gather(self.group, back, there)
        return [work] if back is out else [Staged(work, back, out)]

    def _all_reduce(self, tensor: torch.Tensor, reduce_op: Any) -> list[Any]:
        if tensor.device.type == self.device.type:
            return [dist.all_reduce(tensor, op=reduce_op, group=self.group, async_op=True)]
        # A copy to the host is waited for: the backend reads it at once.
        there = tensor.to(self.device, non_blocking=self.device.type != "cpu")
        work = dist.all_reduce(there, op=reduce_op, group=self.group, async_op=True)
        return [Staged(work, there, tensor)]

    def start_all_reduce(self, tensor: torch.Tensor) -> list[Any]:
        """The backend's own sum of a tensor, in place."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    # ---- rounds

    def exchange(
        self, pieces: Sequence[Bytes], room: int, replies: list[Bytes], last: bool = False
    ) -> Steps:
        """Sends pieces to all ranks as one message and appends every rank's, by rank, to `replies`,
        for use before the next wait. Pieces begin at multiples of 64 bytes.

        Without a mesh, and where `room` is too large for it, messages have `room` bytes on all
        ranks, and what does not fit is left out.
        """
        self._reclaim()
        if self.mesh is not None and room <= _EXCHANGE_MOST_BYTES // self.world:
            exchange = self.mesh.start(pieces)
            work = MeshWork(functools.partial(self.mesh.wait, exchange))
            yield Wait([work], last)
            self._read.append(exchange)
            replies += [self.mesh.message(exchange, rank) for rank in range(self.world)]
            return
        stride = aligned(room)
        total = stride * self.world
        send, receive = self._pool.take(total), self._pool.take(total)
        send[:total].view(self.world, stride)[:] = _lay_out(pieces, room)
        yield Wait(self._all_to_all(receive[:total], send[:total]), last)
        first = receive.data_ptr()
        replies += [Bytes(first + rank * stride, room) for rank in range(self.world)]
        self._lent += [send, receive]

    def _reclaim(self) -> None:
        """Takes back the memory of messages that were there for use before the next wait."""
        self._pool.give(*self._lent)
        self._lent.clear()
        for exchange in self._read:
            assert self.mesh is not None
            self.mesh.release(exchange)
        self._read.clear()

    def reduce(self, planes: Sequence[Plane], last: bool) -> Steps:
        """Sums planes over all ranks, in place. `last`: the job's last round."""
        planes = [plane for plane in planes if plane.lanes > 0]
        if self.world == 1:
            for plane in planes:
                if plane.op.is_table_sum:
                    _fold_all(plane, [plane.data], plane.lanes, plane.sums)
            return
        if self._exchanges(planes):
            yield from self._reduce_by_exchange(planes, last)
            return
        scattered = [plane for plane in planes if plane.op not in self.native]
        works: list[Any] = []
        flips: list[torch.Tensor] = []
        for plane in planes:
            if plane.op in self.native:
                works += self._start_all_reduce(plane, flips)
        if scattered and self.hauler is not None:
            haul = self.hauler.start(scattered)
            works.append(HaulWork(functools.partial(self.hauler.wait, haul)))
            yield Wait(works, last)
        elif scattered:
            yield from self._reduce_by_scatter(scattered, last, works)
        else:
            yield Wait(works, last)
        for lanes in flips:
            _flip(lanes)

    def _exchanges(self, planes: Sequence[Plane]) -> bool:
        most = self.exchange_bytes
        if self.hauler is not None and any(plane.op not in self.native for plane in planes):
            most = min(most, self._worth_us(self.link.latency_us))
        return sum(plane.nbytes for plane in planes) <= most

    @property
    def exchange_bytes(self) -> int:
        """Up to where one step with everyone's bytes beats two steps with a share of them."""
        link, world = self.link, self.world
        step_us = link.latency_us
        if self.mesh is not None and link.backend_us is not None:
            step_us = link.backend_us - link.latency_us
        most = _EXCHANGE_MOST_BYTES // world
        if self.mesh is not None and self.device.type != "cpu":
            most = min(most, _DEVICE_MOST_BYTES)
        if step_us < 0:
            return 0  # steps cost nothing
        if world <= 2:
            return most  # a share is all of it
        return min(most, self._worth_us(step_us))

    def _worth_us(self, step_us: float) -> int:
        """Up to where an exchange takes at most so much longer than two steps with shares."""
        # An exchange sends (world - 1) times the bytes, two steps send 2 / world of that.
        extra = (self.world - 1) * (1 - 2 / self.world)
        return (
            int(step_us * self.link.gbit_per_s / 8e-3 / extra)
            if extra > 0
            else _EXCHANGE_MOST_BYTES
        )

    def _reduce_by_exchange(self, planes: Sequence[Plane], last: bool) -> Steps:
        places = _places([plane.nbytes for plane in planes])
        replies: list[Bytes] = []
        pieces = [Bytes(plane.data, plane.nbytes) for plane in planes]
        yield from self.exchange(pieces, places[-1], replies, last)
        for plane, at in zip(planes, places):
            target = plane.sums if plane.op.is_table_sum else plane.data
            _fold_all(plane, [reply.address + at for reply in replies], plane.lanes, target)

    def _start_all_reduce(self, plane: Plane, flips: list[torch.Tensor]) -> list[Any]:
        dtype, width, name = _group.backend_view(plane.op)
        reduce_op = getattr(dist.ReduceOp, name)
        lanes = tensor_at(plane.data, plane.nbytes)
        whole = plane.nbytes // width * width
        works = []
        if plane.op is Op.MAX_U32:
            _flip(lanes)
            flips.append(lanes)
        if whole:
            works += self._all_reduce(lanes[:whole].view(dtype), reduce_op)
        if whole < plane.nbytes:  # u8 and u16 lanes that do not fill a wide one
            tail = lanes[whole:]
            padded = torch.zeros(width, dtype=torch.uint8)
            padded[: tail.numel()] = tail
            works += [
                Staged(work, padded[: tail.numel()], tail)
                for work in self._all_reduce(padded.view(dtype), reduce_op)
            ]
        return works

    def _reduce_by_scatter(self, planes: Sequence[Plane], last: bool, works: list[Any]) -> Steps:
        # Segments in lanes, a multiple of 16 so that they begin on whole bytes and words.
        shares = [-(-plane.lanes // (16 * self.world)) * 16 for plane in planes]
        room_in = _places([p.op.nbytes(n) for p, n in zip(planes, shares)])
        room_out = _places([p.op.sum_nbytes(n) for p, n in zip(planes, shares)])
        send = self._pool.take(room_in[-1] * self.world)
        receive = self._pool.take(room_in[-1] * self.world)
        for plane, share, at in zip(planes, shares, room_in):
            _copy_out(plane, share, send, room_in[-1], at, self.world)
        n = room_in[-1] * self.world
        yield Wait([*works, *self._all_to_all(receive[:n], send[:n])])
        summed = self._pool.take(room_out[-1])
        for plane, share, at_in, at_out in zip(planes, shares, room_in, room_out):
            pieces = [receive.data_ptr() + r * room_in[-1] + at_in for r in range(self.world)]
            _fold_all(plane, pieces, share, summed.data_ptr() + at_out)
        n = room_out[-1] * self.world
        gathered = self._pool.take(n)
        yield Wait(self._all_gather(gathered[:n], summed[: room_out[-1]]), last)
        for plane, share, at in zip(planes, shares, room_out):
            _copy_in(plane, share, gathered, room_out[-1], at, self.world)
        self._pool.give(send, receive, summed, gathered)


@dataclass
class AggregatedEngine(Engine):
    """Rounds go to an aggregation server; headers and plain sums stay with the group. If the server
    goes, the group does the rounds as well.

    With a quorum headers go to the server, too: they decide who is in a job's sums, and the group
    would wait for a rank that the server goes on without.
    """

    reducer: ServiceReducer | None = None
    timeout_s: float = 300.0
    quorum: int = 0
    sums_on_device: ClassVar[bool] = False  # every sum is the server's

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gone = False
        if self.reducer is not None and self.quorum == 0:
            self.reducer.fall_back_on(self._reduce_by_group)

    @property
    def exchange_bytes(self) -> int:
        return 0

    @property
    def repeats(self) -> bool:
        return self.quorum > 0

    def close(self) -> None:
        super().close()
        if self.reducer is not None:
            self.reducer.close()

    def exchange(
        self, pieces: Sequence[Bytes], room: int, replies: list[Bytes], last: bool = False
    ) -> Steps:
        if self.quorum == 0:
            yield from super().exchange(pieces, room, replies, last)
            return
        assert self.reducer is not None
        stride = aligned(room)
        self._rows = rows = torch.zeros(self.world, stride, dtype=torch.uint8)
        message = _lay_out(pieces, room)
        while True:
            rows.zero_()
            rows[self.rank] = message
            address, nbytes = rows.data_ptr(), rows.numel()
            plane = Plane(Op.OR_U64, nbytes // 8, address, 0, 0, nbytes, nbytes)
            self.reducer.begin_step()
            try:
                self.reducer.reduce([plane], self.timeout_s)
                break
            except Changed:
                continue  # all ranks are told, so all come here again
        self.missing = self.reducer.missing
        yield Wait([], last)
        replies += [Bytes(rows.data_ptr() + rank * stride, room) for rank in range(self.world)]

    def reduce(self, planes: Sequence[Plane], last: bool) -> Steps:
        assert self.reducer is not None
        self.reducer.reduce([plane for plane in planes if plane.lanes > 0], self.timeout_s)
        yield from ()  # the call returns when the sums are there

    def _reduce_by_group(self, planes: Sequence[Plane]) -> None:
        if not self._gone:
            self._gone = True
            _log.FAULT.warning(
                "rank %d: the aggregation server is gone; the process group goes on", self.rank
            )
        run(super().reduce(planes, last=False))


def _lay_out(pieces: Sequence[Bytes], room: int) -> torch.Tensor:
    """One message of pieces, in a multiple of 64 bytes; what `room` does not hold is left out."""
    message = torch.zeros(aligned(room), dtype=torch.uint8)
    for piece, at in zip(pieces, _places([piece.size for piece in pieces])):
        if piece.size and at + piece.size <= room:
            message[at : at + piece.size] = tensor_at(*piece)
    return message


def _places(sizes: Sequence[int]) -> list[int]:
    """Where pieces of these sizes begin in one message, and its length at the end."""
    places = [0]
    for size in sizes:
        places.append(aligned(places[-1] + size))
    return places


def _flip(lanes: torch.Tensor) -> None:
    lanes.view(torch.int32).bitwise_xor_(-(2**31))


def _fold_all(plane: Plane, pieces: Sequence[int], lanes: int, target: int) -> None:
    """target = pieces[0] (op) pieces[1] (op) ..., in this order: the same bits on every rank."""
    if plane.op.is_table_sum:
        ctypes.memset(target, 0, plane.op.sum_nbytes(lanes))
        for piece in pieces:
            fold_table(plane.op, target, piece, plane.table, lanes)
        return
    nbytes = plane.op.nbytes(lanes)
    ctypes.memmove(target, pieces[0], nbytes)
    for piece in pieces[1:]:
        fold(plane.op, target, piece, lanes)


def _segments(plane_bytes: int, share_bytes: int, world: int) -> list[tuple[int, int, int]]:
    """(rank, begin, length) of the segments that hold something."""
    return [
        (rank, rank * share_bytes, min(share_bytes, plane_bytes - rank * share_bytes))
        for rank in range(world)
        if plane_bytes > rank * share_bytes
    ]


def _copy_out(
    plane: Plane, share: int, send: torch.Tensor, stride: int, at: int, world: int
) -> None:
    lanes = tensor_at(plane.data, plane.nbytes)
    for rank, begin, length in _segments(plane.nbytes, plane.op.nbytes(share), world):
        place = rank * stride + at
        send[place : place + length] = lanes[begin : begin + length]


def _copy_in(
    plane: Plane, share: int, received: torch.Tensor, stride: int, at: int, world: int
) -> None:
    address = plane.sums if plane.op.is_table_sum else plane.data
    lanes = tensor_at(address, plane.sum_nbytes)
    for rank, begin, length in _segments(plane.sum_nbytes, plane.op.sum_nbytes(share), world):
        place = rank * stride + at
        lanes[begin : begin + length] = received[place : place + length]


def measure_link(engine: Engine) -> Link:
    """Times small exchanges and one all-reduce of 4 MB. Collective; the slowest rank's figures."""
    if engine.world == 1:
        return Link()

    def seconds(start: Callable[[], Steps]) -> float:
        begin = time.perf_counter()
        run(start())
        return time.perf_counter() - begin

    def bulk_sum(tensor: torch.Tensor) -> Steps:
        yield Wait(engine.start_all_reduce(tensor))

    small = torch.zeros(64, dtype=torch.uint8)
    message = [Bytes(small.data_ptr(), 64)]
    latency = sorted(seconds(lambda: engine.exchange(message, 64, [])) for _ in range(7))[2]
    large = torch.zeros(1 << 20, device=engine.device)
    backend = sorted(seconds(lambda: bulk_sum(large[:16])) for _ in range(5))[1]
    bulk = min(seconds(lambda: bulk_sum(large)) for _ in range(2))
    replies: list[Bytes] = []
    figures = torch.tensor([latency, bulk, backend], dtype=torch.float64)
    run(engine.exchange([Bytes(figures.data_ptr(), 24)], 24, replies))
    latency, bulk, backend = (
        torch.stack([tensor_at(*reply).view(torch.float64) for reply in replies]).max(dim=0).values
    ).tolist()
    bits = 2 * 8 * large.numel() * large.element_size()
    gbit_per_s = bits / max(bulk - backend, bulk / 4) * 1e-9
    return Link(latency * 1e6, gbit_per_s, backend * 1e6)


def make_engine(
    group: Group,
    timeout_s: float,
    aggregator: Aggregator | None = None,
    device_type: str = "cpu",
) -> Engine:
    """An engine on a group of its own with the members of `group`, for tensors of one type of
    device; `link` is measured by whoever completes it. Collective."""
    twin = _group.make_twin(group, timeout_s, device_type)
    device = _group.transport_device(twin)
    native = _group.probe(twin, device)
    engine: Engine
    if aggregator is None:
        engine = Engine(twin, device, native)
    else:
        reducer = _jobs.join(aggregator, twin, device)
        engine = AggregatedEngine(
            twin,
            device,
            native,
            reducer=reducer,
            timeout_s=timeout_s,
            quorum=reducer.quorum,  # the job may have been made by an operator
        )
    return engine


def open_mesh(rollcall: RollCall, exchange: Callable[[bytes], list[bytes]]) -> Mesh | None:
    """Direct connections between all ranks, or None on all of them. Collective."""
    if rollcall.world == 1:
        return None
    refused = os.environ.get("ADDEND_MESH", "on") == "off" or rollcall.world > _MESH_MOST_RANKS
    if any(said == b"0" for said in exchange(b"0" if refused else b"1")):
        return None
    links = _link(rollcall, exchange)
    if links is not None:
        return Mesh(links, rollcall.rank)
    _log.INIT.warning("ranks cannot connect directly: all messages go through the backend")
    return None


def open_hauler(
    mesh: Mesh, rollcall: RollCall, exchange: Callable[[bytes], list[bytes]]
) -> Hauler | None:
    """More connections, for large rounds, or None on all ranks. Collective."""
    links = _link(rollcall, exchange)
    return None if links is None else mesh.add_hauler(links)


def _link(
    rollcall: RollCall, exchange: Callable[[bytes], list[bytes]]
) -> list[socket.socket | None] | None:
    links = rollcall.link()
    if all(said == b"1" for said in exchange(b"0" if links is None else b"1")):
        return links
    for one in links or []:
        if one is not None:
            one.close()
    return None

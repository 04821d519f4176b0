# SPDX-License-Identifier: Apache-2.0
"""A worker's ends of groups that sum planes: what a pipeline talks to."""

from __future__ import annotations

import ctypes
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from addend import _native
from addend._native import check, created, library
from addend.codec import plane_of
from addend.errors import Error, Status
from addend.plane import Plane


@dataclass(frozen=True)
class Link:
    """What a group's network does, agreed by all workers."""

    latency_us: float = 50.0  # of one network step, however small
    gbit_per_s: float = 10.0


class Reducer:
    """Sums planes over all workers of a group. One thread at a time."""

    def __init__(self, handle: int, world: int, worker: int, *kept: Any) -> None:
        """`kept`: what native code refers to."""
        self.world, self.worker = world, worker
        self._handle: int | None = handle
        self._kept = kept
        self._owner: weakref.ref[Reducer] | None = None
        self._finalizer = weakref.finalize(self, _destroy, self.handle, kept)

    @property
    def handle(self) -> int:
        """For the C ABI."""
        assert self._handle is not None
        return self._handle

    def reduce(self, planes: Sequence[Plane], timeout_s: float) -> None:
        """Sums every plane over all workers, in place; table sums into their `sums`. Changed if
        another set of workers is in these sums than in the step's first."""
        native = _native.Round()
        for first in range(0, len(planes), _native.MAX_PLANES):
            part = planes[first : first + _native.MAX_PLANES]
            native.plane_count = len(part)
            for slot, plane in zip(native.planes, part):
                slot.op, slot.lanes, slot.data = plane.op, plane.lanes, plane.data
                slot.table, slot.sums = plane.table or None, plane.sums or None
            check(library.reducer_reduce(self.handle, native, int(timeout_s * 1e9)))

    def begin_step(self) -> None:
        """The next round is the first of a step: workers that were done without may take part."""
        library.reducer_begin_step(self.handle)

    @property
    def quorum(self) -> int:
        """How many workers suffice for a sum when others are late; 0: all are waited for."""
        return int(library.reducer_quorum(self.handle))

    @property
    def missing(self) -> int:
        """Workers that are not in the sums of this step: bit w is worker w."""
        return int(library.reducer_missing(self.handle))

    def measure_link(self, timeout_s: float) -> Link:
        """The slowest worker's figures. Collective."""
        link = _native.Link()
        check(library.reducer_measure_link(self.handle, int(timeout_s * 1e9), link))
        return Link(link.latency_us, link.gbit_per_s)

    def set_link(self, link: Link) -> None:
        """Reducers with several ways to do a round choose by it. The same on all workers."""
        check(library.reducer_set_link(self.handle, _native.Link(link.latency_us, link.gbit_per_s)))

    def belong_to(self, owner: Reducer) -> None:
        """Native code has given the handle to another one, which closes both."""
        self._finalizer.detach()
        self._handle, self._owner = None, weakref.ref(owner)

    def stay_at_exit(self) -> None:
        """Whoever uses it closes it: when the interpreter exits it may still be in use."""
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        if self._owner is not None:
            owner = self._owner()
            return owner is None or owner.closed
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()


def _destroy(handle: int, _kept: tuple[Any, ...]) -> None:
    library.reducer_destroy(handle)


def alone() -> Reducer:
    """The group of one worker."""
    return Reducer(created(library.local_create, 1), 1, 0)


def connect(
    peers: Sequence[str],
    worker: int,
    *,
    listener: socket.socket | None = None,
    token: bytes = b"",
    timeout_s: float = 60.0,
) -> Reducer:
    """A mesh: workers that are connected to each other by TCP. `peers`: every worker's "host:port",
    by number. `listener`: a socket that listens there, and is taken over. Returns when all are
    connected."""
    options = _native.MeshOptions()
    library.mesh_options_init(options, ctypes.sizeof(options))
    options.world, options.worker = len(peers), worker
    options.peers = (ctypes.c_char_p * len(peers))(*[peer.encode() for peer in peers])
    options.token, options.token_bytes = token, len(token)
    options.join_timeout_ns = int(timeout_s * 1e9)
    if listener is not None:
        options.listener = listener.detach()
    return Reducer(created(library.mesh_create, options), len(peers), worker)


def call_back(
    world: int,
    worker: int,
    reduce: Callable[[Sequence[Plane], float], None],
    *,
    takes_devices: bool = False,
) -> Reducer:
    """A group of the caller's own: `reduce(planes, timeout_s)` sums planes over all workers, in
    place, in a thread of the pipeline's. With `takes_devices` also those of a CUDA device: what it
    does to them it leaves in the order of their stream, and need not wait for."""

    def call(native: Any, stream: int | None, timeout_ns: int) -> int:
        planes = native.contents.planes[: native.contents.plane_count]
        try:
            reduce([plane_of(plane, stream) for plane in planes], timeout_ns * 1e-9)
        except BaseException as error:  # must not pass through C
            library.set_error(str(error).encode())
            return int(error.status if isinstance(error, Error) else Status.UNAVAILABLE)
        return int(Status.OK)

    def of_host(_context: int, native: Any, timeout_ns: int) -> int:
        return call(native, None, timeout_ns)

    def of_any(_context: int, native: Any, device: int, stream: int, timeout_ns: int) -> int:
        return call(native, (stream or 0) if device else None, timeout_ns)

    function: Any
    if takes_devices:
        function = _native.DeviceReduceFunction(of_any)
        create = library.custom_create_for_devices
    else:
        function = _native.ReduceFunction(of_host)
        create = library.custom_create
    return Reducer(created(create, world, worker, function, None), world, worker, function)


def fall_back(primary: Reducer, fallback: Reducer, on_switch: Callable[[str], None]) -> Reducer:
    """Sums with `primary` until that is gone for good, and from then on with `fallback`, first of
    all those of the round in which it went. Owns both."""

    def function(_context: int, why: bytes) -> None:
        on_switch(why.decode(errors="replace"))

    callback = _native.SwitchFunction(function)
    handle = created(library.fallback_create, primary.handle, fallback.handle, callback, None)
    both = Reducer(handle, primary.world, primary.worker, callback, primary, fallback)
    primary.belong_to(both)
    fallback.belong_to(both)
    return both


def stage(host: Reducer) -> Reducer:
    """Takes planes that are a CUDA device's to a reducer of the host, through pinned memory, in
    chunks that overlap with the wire. All workers of a group stage, or none. Owns `host`."""
    handle = created(library.staged_create, host.handle, 0)
    staged = Reducer(handle, host.world, host.worker, host)
    host.belong_to(staged)
    return staged

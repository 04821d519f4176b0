# SPDX-License-Identifier: Apache-2.0
"""Small messages from every rank to every rank, and sums of what they carry."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import socket
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from addend import _native
from addend._native import check, library
from addend.codec import Codec, round_from_native
from addend.plane import Op, Round

ALIGN = 64  # pieces of a message begin at multiples of this


class Bytes(NamedTuple):
    """Memory that somebody else keeps alive."""

    address: int
    size: int


def aligned(nbytes: int) -> int:
    return (nbytes + ALIGN - 1) // ALIGN * ALIGN


class Mesh:
    """One rank's end of connections to all other ranks.

    `sockets`: by rank, None for this one; they belong to the mesh from now on. All ranks start the
    same exchanges in the same order. One thread at a time, but for `ring`.
    """

    def __init__(self, sockets: Sequence[socket.socket | None], rank: int) -> None:
        self.world, self.rank = len(sockets), rank
        self._sockets = [one for one in sockets if one is not None]
        fds = [-1 if one is None else one.fileno() for one in sockets]
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ringer, False)
        handle = ctypes.c_void_p()
        check(
            library.mesh_create(
                self.world, rank, (ctypes.c_int * self.world)(*fds), self._bell, handle
            )
        )
        self._handle = handle.value
        self._finalizer = weakref.finalize(self, library.mesh_destroy, handle.value)
        _open_meshes.add(self)

    @property
    def handle(self) -> int | None:
        """For the C ABI."""
        return self._handle

    def start(self, pieces: Sequence[Bytes]) -> int:
        """Starts to send everyone the pieces as one message; they are copied at once. Returns the
        number of the exchange."""
        number = ctypes.c_uint64()
        native = (_native.Piece * len(pieces))(*[_native.Piece(*piece) for piece in pieces])
        check(library.mesh_start(self._handle, native, len(pieces), ctypes.byref(number)))
        return number.value

    def wait(self, exchange: int, timeout_s: float) -> bool:
        """Whether the exchange is done, after waiting at most so long, or until the bell rings."""
        done = ctypes.c_int()
        check(library.mesh_wait(self._handle, exchange, int(timeout_s * 1e9), ctypes.byref(done)))
        return done.value != 0

    def message(self, exchange: int, rank: int) -> Bytes:
        """What a rank sent, until the exchange is released."""
        piece = _native.Piece()
        check(library.mesh_message(self._handle, exchange, rank, ctypes.byref(piece)))
        return Bytes(piece.data or 0, piece.size)

    def release(self, exchange: int) -> None:
        check(library.mesh_release(self._handle, exchange))

    def ring(self) -> None:
        """Ends a wait in another thread."""
        with contextlib.suppress(OSError):  # full: it rings already
            os.write(self._ringer, b"x")

    def hush(self) -> None:
        """After a wait that a ring ended."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._bell, 64):
                pass

    def close(self) -> None:
        if self not in _open_meshes:
            return
        _open_meshes.discard(self)
        self._finalizer()
        for one in self._sockets:
            one.close()
        os.close(self._bell)
        os.close(self._ringer)


_open_meshes: weakref.WeakSet[Mesh] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # A forked child (a data loader, say) may outlive its parent, whose peers must hear of its end.
    for mesh in list(_open_meshes):
        for one in mesh._sockets:
            one.close()


os.register_at_fork(after_in_child=_leave_to_parent)


class TripState(enum.IntEnum):
    """How far a trip has come; the numbers of `addend_trip_state`."""

    WAITING = 0
    SUMMED = 1
    LARGE = 2
    DIFFERENT = 3


_STATES: list[TripState] = list(TripState)
_STAGES = ("encode", "agree", "reduce")


class Trip:
    """A codec's way through its rounds over a mesh, in the caller's thread.

    After `begin`, `run` until it is SUMMED, then `Codec.finish`. LARGE: `round` is left to the
    caller, who reduces it and calls `reduced`. DIFFERENT: the messages of `exchange` begin with
    headers that differ.
    """

    def __init__(self, mesh: Mesh, codec: Codec) -> None:
        handle = ctypes.c_void_p()
        check(library.trip_create(mesh.handle, codec.handle, ctypes.byref(handle)))
        self._handle = handle
        # The native trip refers to both.
        self._finalizer = weakref.finalize(self, _destroy_trip, handle, mesh, codec)
        self._view = _native.TripView()
        self._reference = ctypes.byref(self._view)

    def begin(
        self, address: int, in_place: bool, header: Bytes, alike_bytes: int, mesh_bytes: int
    ) -> None:
        """Sets out with the gradient at an address. `header` precedes the first round, and its
        first `alike_bytes` must be the same on all ranks. Sends nothing yet."""
        check(
            library.trip_begin(
                self._handle,
                address,
                in_place,
                header.address,
                header.size,
                alike_bytes,
                mesh_bytes,
            )
        )

    def encode(self) -> None:
        """Encodes the first round, ahead of the first run."""
        check(library.trip_encode(self._handle))

    def run(self, timeout_s: float) -> TripState:
        """Goes as far as it can within the time."""
        check(library.trip_run(self._handle, int(timeout_s * 1e9), self._reference))
        return _STATES[int(self._view.state)]

    def reduced(self) -> None:
        check(library.trip_reduced(self._handle))

    def cancel(self) -> None:
        library.trip_cancel(self._handle)

    def close(self) -> None:
        self._finalizer()
        self._handle = ctypes.c_void_p()

    @property
    def round_number(self) -> int:
        """The round under way; any thread may ask."""
        return int(library.trip_round_number(self._handle))

    @property
    def round(self) -> Round:
        """The round that is left to the caller."""
        return round_from_native(self._view.round)

    @property
    def exchange(self) -> int:
        return int(self._view.exchange)

    def spans(self) -> Iterator[tuple[str, float, float]]:
        """(stage, begin, end) of what it did after the first round was encoded, in seconds of the
        monotonic clock."""
        for i in range(self._view.span_count):
            span = self._view.spans[i]
            yield _STAGES[span.stage], span.begin_ns * 1e-9, span.end_ns * 1e-9


def _destroy_trip(handle: ctypes.c_void_p, _mesh: Mesh, _codec: Codec) -> None:
    library.trip_destroy(handle)


def merge_rows(parts: Sequence[Bytes], merged: int, places: int) -> int:
    """The union of parts' 64-bit row numbers, which come in any order and may repeat: ascending, at
    address `merged`, and at `places` where in it each row given is, part after part. Both have room
    for as many as are given; returns how many are different."""
    different = ctypes.c_uint64()
    check(
        library.rows_merge(
            (ctypes.c_void_p * len(parts))(*(part.address for part in parts)),
            (ctypes.c_uint64 * len(parts))(*(part.size // 8 for part in parts)),
            len(parts),
            merged,
            places,
            ctypes.byref(different),
        )
    )
    return different.value


def add_rows(op: Op, lanes: int, places: Bytes, values: int, total: int) -> None:
    """total[places[i]] += values[i], for rows of `lanes` lanes at two addresses."""
    check(library.rows_add(op, lanes, places.address, places.size // 8, values, total))

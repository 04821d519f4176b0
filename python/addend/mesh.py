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
from addend.plane import Op, Plane, Round

ALIGN = 64  # pieces of a message begin at multiples of this
_FEW_PIECES = 8


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
        self._pieces = (_native.Piece * _FEW_PIECES)()
        self._hauler: Hauler | None = None
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
        native = self._pieces
        if len(pieces) > _FEW_PIECES:
            native = (_native.Piece * len(pieces))()
        for piece, (address, size) in zip(native, pieces):
            piece.data, piece.size = address, size
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
        """Nobody asks for it any more, done or not."""
        check(library.mesh_release(self._handle, exchange))

    def ring(self) -> None:
        """Ends a wait in another thread."""
        with contextlib.suppress(OSError):  # full: it rings already
            os.write(self._ringer, b"x")

    def add_hauler(self, sockets: Sequence[socket.socket | None]) -> Hauler:
        """A hauler that rings this mesh's bell, and ends with the mesh."""
        self._hauler = Hauler(sockets, self.rank, self._bell, self._ringer)
        return self._hauler

    def close(self) -> None:
        if self not in _open_meshes:
            return
        _open_meshes.discard(self)
        if self._hauler is not None:
            self._hauler.close()
        self._finalizer()
        for one in self._sockets:
            one.close()
        os.close(self._bell)
        os.close(self._ringer)


class Hauler:
    """Sums of rounds that are too large to send to everyone, in a thread of its own.

    `sockets` belong to it from now on. All ranks start the same hauls in the same order. One thread
    at a time.
    """

    def __init__(
        self, sockets: Sequence[socket.socket | None], rank: int, bell: int, ringer: int
    ) -> None:
        self._sockets = [one for one in sockets if one is not None]
        fds = (ctypes.c_int * len(sockets))(
            *[-1 if one is None else one.fileno() for one in sockets]
        )
        handle = ctypes.c_void_p()
        check(library.hauler_create(len(sockets), rank, fds, bell, ringer, handle))
        self._handle = handle.value
        self._finalizer = weakref.finalize(self, library.hauler_destroy, handle.value)

    def start(self, planes: Sequence[Plane]) -> int:
        """Starts to sum planes over all ranks, in place and in the order of ranks. Their memory is
        the hauler's until the haul is done or abandoned. Returns the number of the haul."""
        number = ctypes.c_uint64()
        native = (_native.Plane * len(planes))(
            *[_native.Plane(p.op, p.lanes, p.data, p.table or None, p.sums or None) for p in planes]
        )
        check(library.hauler_start(self._handle, native, len(planes), ctypes.byref(number)))
        return number.value

    def wait(self, haul: int, timeout_s: float) -> bool:
        """Whether the haul is done, after waiting at most so long, or until the bell rings. It is
        forgotten with the first yes."""
        done = ctypes.c_int()
        check(library.hauler_wait(self._handle, haul, int(timeout_s * 1e9), ctypes.byref(done)))
        return done.value != 0

    def abandon(self) -> None:
        """From now on no plane is touched, and nothing works."""
        if self._finalizer.alive:
            library.hauler_abandon(self._handle)

    def close(self) -> None:
        self._finalizer()
        for one in self._sockets:
            one.close()


_open_meshes: weakref.WeakSet[Mesh] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # A forked child (a data loader, say) may outlive its parent, whose peers must hear of its end.
    for mesh in list(_open_meshes):
        hauled = mesh._hauler._sockets if mesh._hauler is not None else []
        for one in (*mesh._sockets, *hauled):
            one.close()


os.register_at_fork(after_in_child=_leave_to_parent)


class TripState(enum.IntEnum):
    """How far a trip has come; the numbers of `addend_trip_state`."""

    WAITING = 0
    SUMMED = 1
    LARGE = 2
    DIFFERENT = 3
    DECODED = 4


_STATES: list[TripState] = list(TripState)
_STAGES = ("encode", "agree", "reduce", "decode")


class Trip:
    """A codec's way through its rounds over a mesh, in the caller's thread.

    After `begin`, `run` until it is SUMMED, then `Codec.finish`. LARGE: `round` is left to the
    caller, who reduces it and calls `reduced`. DIFFERENT: the messages of `exchange` begin with
    headers that differ. DECODED, instead of SUMMED: the codec has finished, too.
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
        self,
        address: int,
        in_place: bool,
        header: Bytes,
        alike_bytes: int,
        mesh_bytes: int,
        decode: bool = False,
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
                decode,
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
        """(stage, begin, end) of what `run` did, in seconds of the monotonic clock."""
        return _spans(self._view)

    def record(self) -> bytes:
        """What `spans_of` reads later: keeping it takes less time than reading it."""
        return bytes(self._view)


def _spans(view: _native.TripView) -> Iterator[tuple[str, float, float]]:
    for i in range(view.span_count):
        span = view.spans[i]
        yield _STAGES[span.stage], span.begin_ns * 1e-9, span.end_ns * 1e-9


def spans_of(record: bytes) -> Iterator[tuple[str, float, float]]:
    """The spans of a trip's record."""
    return _spans(_native.TripView.from_buffer_copy(record))


def _destroy_trip(handle: ctypes.c_void_p, _mesh: Mesh, _codec: Codec) -> None:
    library.trip_destroy(handle)


class Rows:
    """The union of rows that came from several ranks. One thread at a time."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        check(library.rows_create(ctypes.byref(handle)))
        self._handle = handle.value
        self._finalizer = weakref.finalize(self, library.rows_destroy, handle.value)
        self._different = ctypes.c_uint64()
        self._reference = ctypes.byref(self._different)

    def merge(self, parts: Sequence[Bytes]) -> int:
        """Merges the parts' 64-bit row numbers, which come in any order and may repeat. Returns how
        many are different."""
        addresses = (ctypes.c_void_p * len(parts))(*[part.address for part in parts])
        sizes = (ctypes.c_uint64 * len(parts))(*[part.size // 8 for part in parts])
        check(library.rows_merge(self._handle, addresses, sizes, len(parts), self._reference))
        return self._different.value

    @property
    def places(self) -> int:
        """The address of where in the union each row given is, part after part: 64 bits each, until
        the next merge."""
        places = ctypes.c_void_p()
        check(library.rows_places(self._handle, ctypes.byref(places)))
        return places.value or 0

    def sum(self, op: Op, lanes: int, values: Sequence[int], merged: int, total: int) -> None:
        """Writes the different row numbers, ascending, to address `merged`, and the sums of their
        values, in the order given, to `total`. `values`: by part, the address of its rows of
        `lanes` lanes; 0: they count as zeros."""
        addresses = (ctypes.c_void_p * len(values))(*values)
        check(library.rows_sum(self._handle, op, lanes, addresses, merged, total))

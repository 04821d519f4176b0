# SPDX-License-Identifier: Apache-2.0
"""A worker's end of a job at an aggregation server (docs/service.md)."""

from __future__ import annotations

import ctypes
import os
import stat
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from addend import _native
from addend._native import check, library
from addend.codec import plane_of
from addend.errors import Error, InvalidArgument, Status
from addend.plane import Plane

KEY_BYTES = 32
KEY_FILE_VARIABLE = "ADDEND_KEY_FILE"


@dataclass(frozen=True)
class Aggregator:
    """Where the server is and who we are there.

    `key_file`: as `addend keygen` makes it; by default what ADDEND_KEY_FILE names. Or certificates:
    `authority`, `certificate`, `certificate_key`, PEM files. `slots`, `payload_bytes` (at most),
    `patience_s` and `quorum` count for the worker whose join makes the job; all workers must name
    the same quorum, 0 if every worker must contribute. `return_timeout_s`: how long to wait for a
    server that is gone, before the process group does the sums instead (not with a quorum).
    """

    address: str  # "host:port" of the control plane
    job: str = "default"
    identity: str = "default"  # tenant, or "tenant/job" with a job's own key
    key_file: str | None = None
    authority: str | None = None
    certificate: str | None = None
    certificate_key: str | None = None
    slots: int = 512
    payload_bytes: int = 1408
    patience_s: float = 0.0
    quorum: int = 0
    join_timeout_s: float = 60.0
    return_timeout_s: float = 30.0

    def key(self) -> bytes | None:
        """The pre-shared key; None where certificates are used."""
        path = self.key_file or os.environ.get(KEY_FILE_VARIABLE)
        if path is None:
            if self.certificate is None:
                raise InvalidArgument(
                    f"the aggregator wants a key_file (or {KEY_FILE_VARIABLE}) or certificates"
                )
            return None
        if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidArgument(f"{path}: others may read this key; 'chmod 600' it")
        with open(path) as file:
            text = file.readline().strip()
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise InvalidArgument(f"{path}: a key is {2 * KEY_BYTES} hexadecimal digits")
        return key


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


class ServiceReducer:
    """Sums planes at the server. Returns when all workers have joined. One thread at a time."""

    def __init__(self, aggregator: Aggregator, world: int, worker: int) -> None:
        key = aggregator.key()
        options = _native.ServiceOptions()
        library.service_options_init(options, ctypes.sizeof(options))
        options.world, options.worker = world, worker
        options.slots, options.payload_bytes = aggregator.slots, aggregator.payload_bytes
        options.patience_ns = int(aggregator.patience_s * 1e9)
        options.quorum = aggregator.quorum
        options.return_timeout_ns = int(aggregator.return_timeout_s * 1e9)
        options.join_timeout_ns = int(aggregator.join_timeout_s * 1e9)
        options.aggregator = _text(aggregator.address)
        options.job, options.identity = _text(aggregator.job), _text(aggregator.identity)
        options.key = None if key is None else (ctypes.c_uint8 * KEY_BYTES)(*key)
        options.authority = _text(aggregator.authority)
        options.certificate = _text(aggregator.certificate)
        options.certificate_key = _text(aggregator.certificate_key)
        handle = ctypes.c_void_p()
        check(library.service_create(options, ctypes.byref(handle)))
        self._world, self._worker = world, worker
        self.job = aggregator.job
        self._handle = handle.value
        self._round = _native.Round()
        self._finalizer = weakref.finalize(self, library.reducer_destroy, handle.value)
        self._callback: Any = None
        self._failure: Exception | None = None

    def fall_back_on(self, reduce: Callable[[Sequence[Plane]], None]) -> None:
        """From when the server is gone for good, `reduce` sums planes over the same workers, in
        place: first of all those of the round in which it went. At most once, before any round."""

        def function(_context: int, native: Any, _timeout_ns: int) -> int:
            planes = native.contents.planes[: native.contents.plane_count]
            try:
                reduce([plane_of(plane) for plane in planes])
            except Exception as error:  # must not pass through C
                self._failure = error
                library.set_error(str(error).encode())
                return int(error.status if isinstance(error, Error) else Status.UNAVAILABLE)
            return int(Status.OK)

        self._callback = _native.ReduceFunction(function)
        custom, both = ctypes.c_void_p(), ctypes.c_void_p()
        check(
            library.custom_create(
                self._world, self._worker, self._callback, None, ctypes.byref(custom)
            )
        )
        check(library.fallback_create(self._handle, custom, ctypes.byref(both)))
        self._finalizer.detach()
        self._handle = both.value
        self._finalizer = weakref.finalize(self, library.reducer_destroy, both.value)

    def begin_step(self) -> None:
        """The next round is the first of a step: workers that were done without may take part."""
        library.reducer_begin_step(self._handle)

    @property
    def quorum(self) -> int:
        """How many workers suffice for a sum when others are late, as the job has it; 0: all."""
        return int(library.reducer_quorum(self._handle))

    @property
    def missing(self) -> int:
        """Workers that are not in the sums of this step: bit w is worker w."""
        return int(library.reducer_missing(self._handle))

    def reduce(self, planes: Sequence[Plane], timeout_s: float) -> None:
        """Sums every plane over all workers, in place; table sums into their `sums`. Changed if
        another set of workers is in these sums than in the step's first."""
        for first in range(0, len(planes), _native.MAX_PLANES):
            part = planes[first : first + _native.MAX_PLANES]
            self._round.plane_count = len(part)
            for slot, plane in zip(self._round.planes, part):
                slot.op, slot.lanes, slot.data = plane.op, plane.lanes, plane.data
                slot.table, slot.sums = plane.table or None, plane.sums or None
            status = library.reducer_reduce(self._handle, self._round, int(timeout_s * 1e9))
            if self._failure is not None:  # the fallback's own error says more
                failure, self._failure = self._failure, None
                raise failure
            check(status)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        self._finalizer()

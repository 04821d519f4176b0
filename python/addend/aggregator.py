# SPDX-License-Identifier: Apache-2.0
"""A worker's end of a job at an aggregation server (docs/service.md)."""

from __future__ import annotations

import ctypes
import os
import stat
from dataclasses import dataclass

from addend import _native
from addend._native import created, library
from addend.errors import InvalidArgument
from addend.reducer import Reducer

KEY_BYTES = 32
KEY_FILE_VARIABLE = "ADDEND_KEY_FILE"


@dataclass(frozen=True)
class Aggregator:
    """Where the server is and who we are there.

    `address` may list several servers, "a:7700,b:7700", in the same order on all ranks: each sums a
    share of every round, so that a job has the bandwidth of all of them (not with a quorum).
    `key_file`: as `addend keygen` makes it; by default what ADDEND_KEY_FILE names. Or certificates:
    `authority`, `certificate`, `certificate_key`, PEM files. `slots`, `payload_bytes` (at most),
    `patience_s` and `quorum` count for the worker whose join makes the job; all workers must name
    the same quorum, 0 if every worker must contribute. `return_timeout_s`: how long to wait for a
    server that is gone, before the ranks go on over their own connections (the process group, where
    they cannot connect), or with a quorum fail.
    """

    address: str  # "host:port" of the control plane, or several
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


class ServiceReducer(Reducer):
    """Sums planes at the server. Returns when all workers have joined."""

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
        super().__init__(created(library.service_create, options), world, worker)
        self.job = aggregator.job

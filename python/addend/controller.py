# SPDX-License-Identifier: Apache-2.0
"""Which codec each bucket gets next: the native controller (control.h, docs/adaptive.md)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from addend import _native
from addend._native import check, created, library, read_bytes
from addend.errors import InvalidArgument

# How a candidate's sum differs from the true one, as addend.h numbers it.
LOSSLESS, UNBIASED, BIASED = range(3)

# The order of signals, as addend_controller_signals has it.
STEP_SIGNALS = (
    "world",
    "steps",
    "step_s",
    "dense_step_s",
    "dense_network_s",
    "learning_rate",
)
BUCKET_SIGNALS = (
    "ready_s",
    "encode_s",
    "network_s",
    "decode_s",
    "bytes",
    "energy",
    "mean_energy",
    "union_density",
    "error",
    "residual",
    "nonfinite",
    "whole_energy",
)
CANDIDATE_SIGNALS = ("encode_s", "decode_s", "bytes", "error", "kept", "probe_s")


class Candidate(NamedTuple):
    """A codec that buckets may get. The first of a controller's is dense."""

    spec: str
    loss: int = LOSSLESS
    rounds: int = 1
    factor: float = 1.0  # above 1: keeps 1 / factor of the elements
    bits: float = 32.0  # on the wire for every element
    union_bits: float = 0.0  # and for every element that is non-zero on some rank


class Decision(NamedTuple):
    """What a controller says of the next window, and of the one just over."""

    window: int
    plan: tuple[int, ...]  # candidate of each bucket
    why: tuple[str, ...]  # of each bucket
    steps: int
    reference_steps: int  # of them, those that go dense
    probe: bytes  # bucket by bucket and candidate: 1 to measure it on a sampled block
    realised_s: float
    foreseen_s: float
    predicted_s: float
    predicted_dense_s: float
    phi: float
    latency_us: float
    gbit_per_s: float


class Controller:
    """Signals of all ranks in, a plan out. No clock, no I/O: equal signals give equal decisions."""

    def __init__(
        self,
        options: str,
        *,
        world: int,
        candidates: Sequence[Candidate],
        buckets: Sequence[tuple[int, int]],
        latency_us: float = 50.0,
        gbit_per_s: float = 10.0,
    ) -> None:
        """`buckets`: elements and bytes of each."""
        native = [
            _native.Candidate(c.spec.encode(), c.loss, c.rounds, c.factor, c.bits, c.union_bits)
            for c in candidates
        ]
        setup = _native.ControlSetup()
        setup.size, setup.world = ctypes.sizeof(setup), world
        setup.options = _without_selector(options)
        setup.latency_us, setup.gbit_per_s = latency_us, gbit_per_s
        setup.candidates = (_native.Candidate * len(native))(*native)
        setup.candidate_count, setup.bucket_count = len(native), len(buckets)
        numbers = ctypes.c_uint64 * len(buckets)
        setup.bucket_elements = numbers(*(elements for elements, _ in buckets))
        setup.bucket_bytes = numbers(*(nbytes for _, nbytes in buckets))
        self._handle = created(library.controller_create, setup)
        self._finalizer = weakref.finalize(self, library.controller_destroy, self._handle)
        self.candidates, self.buckets = tuple(candidates), len(buckets)
        self.first_steps = int(library.controller_first_steps(self._handle))
        self.signals = int(library.controller_signals(self._handle))  # of one rank

    def decide(self, signals: Sequence[float]) -> Decision:
        """`signals`: of all ranks, in their order, and the same on all of them."""
        ranks, rest = divmod(len(signals), self.signals)
        if rest or not ranks:
            raise InvalidArgument(
                f"{len(signals)} signals, but each rank has {self.signals}: not those of any ranks"
            )
        native = _native.Decision()
        native.size = ctypes.sizeof(native)
        values = (ctypes.c_double * len(signals))(*signals)
        check(library.controller_decide(self._handle, values, ranks, native))
        return self._decision(native)

    def rate_changed(self, learning_rate: float) -> bool:
        """Whether a window had better end now, because this is far from what was decided by. If any
        rank says so, all have to end it."""
        return bool(library.controller_rate_changed(self._handle, learning_rate))

    def _decision(self, native: Any) -> Decision:
        buckets, all_of_them = self.buckets, self.buckets * len(self.candidates)
        return Decision(
            native.window,
            tuple(native.plan[:buckets]),
            tuple(word.decode() for word in native.why[:buckets]),
            native.steps,
            native.reference_steps,
            bytes(native.probe[:all_of_them]),
            native.realised_s,
            native.foreseen_s,
            native.predicted_s,
            native.predicted_dense_s,
            native.phi,
            native.latency_us,
            native.gbit_per_s,
        )

    def trace(self) -> str:
        """Everything it saw and decided, as JSON that `addend replay` reads."""
        return read_bytes(library.controller_trace, self._handle).decode()


def _without_selector(options: str) -> bytes:
    """`selector=` says what candidates to make, which a controller knows by number only."""
    parts = (part for part in options.split(",") if not part.startswith("selector="))
    return ",".join(parts).encode()


def factors(options: str) -> list[float]:
    """Compression factors that "policy=gravac" with these options needs candidates for."""
    count, text = ctypes.c_uint64(), _without_selector(options)
    check(library.control_factors(text, None, 0, ctypes.byref(count)))
    found = (ctypes.c_double * count.value)()
    check(library.control_factors(text, found, count.value, ctypes.byref(count)))
    return list(found)

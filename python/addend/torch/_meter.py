# SPDX-License-Identifier: Apache-2.0
"""What a handle did: counters, times, and a Chrome trace of a window of steps."""

from __future__ import annotations

import collections
import json
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from addend import InvalidArgument, Report
from addend.pipeline import STAGES, spans_of
from addend.report import from_record
from addend.torch import _log
from addend.torch._peers import Place

_MOST_EVENTS = 200_000
_MOST_RECORDS = 16
# A range for torch's profiler; the light kind is not in every torch.
profiler_range = getattr(
    getattr(torch._C, "_profiler", None),
    "_RecordFunctionFast",
    torch.autograd.profiler.record_function,
)


class Trace:
    """Complete events in the Chrome/Perfetto JSON form; `pid` is the rank, a lane a thread.

    It covers `steps` steps from that of the first event on. The file is opened at once, so that
    the caller hears of a bad path.
    """

    def __init__(self, rank: int, path: str, steps: int) -> None:
        self._rank, self._steps = rank, steps
        self._file = open(path, "w")  # noqa: SIM115
        self._begin = time.perf_counter()
        self._wall = time.time()
        self._first: int | None = None
        self._lanes: dict[tuple[str, int], float] = {}  # when each is free
        self._events: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST_EVENTS)

    def add(self, stage: str, begin: float, end: float, place: Place) -> None:
        if self._first is None:
            self._first = place.step
        if place.step >= self._first + self._steps:
            return
        self._events.append(
            {
                "name": f"bucket {place.bucket}",
                "cat": stage,
                "ph": "X",
                "pid": self._rank,
                "tid": self._lane(stage, begin, end),
                "ts": (begin - self._begin) * 1e6,
                "dur": (end - begin) * 1e6,
                "args": {"step": place.step, "bucket": place.bucket},
            }
        )

    def _lane(self, stage: str, begin: float, end: float) -> int:
        """A lane without an event in this time: buckets overlap, and events of a lane must not."""
        number = 0
        while self._lanes.get((stage, number), begin) > begin:
            number += 1
        self._lanes[stage, number] = end
        return list(self._lanes).index((stage, number))

    def ends_with(self, step: int) -> bool:
        return self._first is not None and step >= self._first + self._steps - 1

    def write(self) -> None:
        of_process = {"ph": "M", "pid": self._rank}
        events: list[dict[str, Any]] = [
            {**of_process, "name": "process_name", "args": {"name": f"rank {self._rank}"}}
        ]
        for tid, (stage, number) in enumerate(self._lanes):
            name = {"name": stage if number == 0 else f"{stage} {number + 1}"}
            events.append({**of_process, "name": "thread_name", "tid": tid, "args": name})
        meta = {"rank": self._rank, "start_unix_s": self._wall}
        with self._file as file:
            json.dump({"traceEvents": events + list(self._events), "otherData": meta}, file)


class _Record(NamedTuple):
    """What a job did, as native code tells it."""

    spans: bytes
    codecs: Sequence[tuple[bytes, int]]  # with their elements
    place: Place


class Meter:
    """Written by whoever ends jobs, read by anyone."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._totals: dict[str, float] = collections.defaultdict(float)
        self._last: dict[str, float] = {}
        self._trace: Trace | None = None
        self._records: list[_Record] = []  # not counted yet

    def _add_time(self, name: str, begin: float, end: float, place: Place) -> None:
        self._totals[f"time/{name}_s"] += end - begin
        if self._trace is not None:
            self._trace.add(name, begin, end, place)

    def hook_done(self, seconds: float) -> None:
        with self._lock:
            self._totals["hook_calls"] += 1
            self._totals["time/hook_s"] += seconds

    def _codec_done(self, report: Report, elements: int) -> None:
        """One codec's step: bytes, what it fell back to, what it saw of density and error."""
        totals = self._totals
        totals["wire_bytes"] += report.wire_bytes
        totals["dense_bytes"] += report.dense_bytes
        totals[f"mode/{report.mode}"] += 1
        if report.fallback != "none":
            totals[f"fallback/{report.fallback}"] += 1
        if report.union_nonzeros is not None:
            totals["_union"] += report.union_nonzeros
            totals["_union_of"] += elements
        if report.local_nonzeros is not None:
            totals["_local"] += report.local_nonzeros
            totals["_local_of"] += elements
        totals["_energy"] += report.sampled_energy
        totals["_error"] += report.sampled_error
        totals["nonfinite_elements"] += report.nonfinite
        if report.missing:
            totals["partial"] += 1
            for rank in range(report.missing.bit_length()):
                totals[f"missing/rank_{rank}"] += report.missing >> rank & 1

    def job_done(
        self, spans: bytes, codecs: Sequence[tuple[bytes, int]], place: Place, repeats: int = 0
    ) -> None:
        """A gradient's step, by its records and its codecs': counted when somebody asks, or when
        many have come together, for counting takes longer than a small sum."""
        with self._lock:
            self._records.append(_Record(spans, codecs, place))
            if repeats:
                self._totals["repeated_buckets"] += repeats
            if len(self._records) >= _MOST_RECORDS:
                self._count_records()

    def _count_records(self) -> None:
        for record in self._records:
            for stage, begin, end in spans_of(record.spans):
                self._add_time(stage, begin, end, record.place)
            for codec, elements in record.codecs:
                self._codec_done(from_record(codec), elements)
        self._records.clear()

    def left_done(self, begin: float, end: float, place: Place, nbytes: int, mode: str) -> None:
        """A gradient that the backend added as it is."""
        with self._lock:
            self._add_time("reduce", begin, end, place)
            self._totals["wire_bytes"] += nbytes
            self._totals["dense_bytes"] += nbytes
            self._totals[mode] += 1

    def raw_bytes(self, wire: int, dense: int) -> None:
        """A bucket that travelled without a codec."""
        with self._lock:
            self._totals["wire_bytes"] += wire
            self._totals["dense_bytes"] += dense

    def step_done(self, step: int, exposed_s: float) -> None:
        with self._lock:
            self._totals["time/exposed_s"] += exposed_s
            self._last = {"step": step, "last/exposed_s": exposed_s}
            over = self._trace is not None and self._trace.ends_with(step)
        if over:
            self.stop_trace()

    def start_trace(self, path: str, steps: int) -> None:
        if steps < 1:
            raise InvalidArgument(f"a trace of {steps} steps")
        self.stop_trace()
        trace = Trace(self._rank, path, steps)
        with self._lock:
            self._count_records()
            self._trace = trace

    def stop_trace(self) -> None:
        with self._lock:
            self._count_records()
            trace, self._trace = self._trace, None
        if trace is None:
            return
        try:
            trace.write()
        except OSError as error:  # a full disk, say: no reason to end the training
            _log.STATE.warning("the trace is lost: %s", error)

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            self._count_records()
            totals = dict(self._totals)
            last = dict(self._last)
        union, of = totals.pop("_union", 0.0), totals.pop("_union_of", 0.0)
        local, local_of = totals.pop("_local", 0.0), totals.pop("_local_of", 0.0)
        energy, error = totals.pop("_energy", 0.0), totals.pop("_error", 0.0)
        out = {"step": 0.0, "wire_bytes": 0.0, "dense_bytes": 0.0, **totals, **last}
        for name in (*STAGES, "exposed"):
            out.setdefault(f"time/{name}_s", 0.0)
        out["ratio"] = out["dense_bytes"] / out["wire_bytes"] if out["wire_bytes"] else 1.0
        out["union_density"] = union / of if of else 1.0
        out["local_density"] = local / local_of if local_of else 1.0
        out["nmse"] = error / energy if energy else 0.0
        out["kept_energy"] = 1.0 - out["nmse"]
        return out

# SPDX-License-Identifier: Apache-2.0
"""What can be seen: metrics, traces, profiler ranges, log lines."""

from __future__ import annotations

import collections
import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from tensors import believe_in
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Lines

import addend
import addend.torch
from addend import reducer as reducers
from addend.pipeline import STAGES
from addend.reducer import Reducer
from addend.report import from_record
from addend.torch import Link
from addend.torch._meter import Meter
from addend.torch._peers import Place

ROWS, WIDTH = 1000, 8
TOUCHED = 10  # rows of each rank, all different
BUCKETS = 2


class Model(nn.Module):
    """An embedding, a layer of doubles that no codec takes, and two buckets in float32."""

    def __init__(self, doubles: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)
        self.odd = nn.Linear(WIDTH, 3).double() if doubles else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.items(rows)
        total = found.sin().sum()
        return total if self.odd is None else total + self.odd(found.double()).sum()


def attach(codec: str, doubles: bool = False) -> tuple[DistributedDataParallel, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(doubles))
    return model, addend.torch.attach(model, codec=codec, deadline=60.0)


def one_step(model: nn.Module, rank: int) -> None:
    model.zero_grad(set_to_none=True)
    model(torch.arange(TOUCHED) + rank * TOUCHED).backward()


class Books:
    """A second account of what codecs and planes did, kept beside the meter's."""

    def __init__(self) -> None:
        self.plane_bytes = 0
        self.counts: collections.Counter[str] = collections.Counter()
        call_back, record = reducers.call_back, addend.Codec.record

        def counting(world: int, rank: int, reduce: Any, **named: Any) -> Reducer:
            def reduce_and_count(planes: Any, timeout_s: float) -> None:
                # But for what ranks compare before they add anything.
                alike = ((addend.Op.MAX_U32, 32), (addend.Op.SUM_F32, 1))
                gradients = [p for p in planes if (p.op, p.lanes) not in alike]
                self.plane_bytes += sum(plane.nbytes for plane in gradients)
                reduce(planes, timeout_s)

            return call_back(world, rank, reduce_and_count, **named)

        def recording(codec: addend.Codec) -> bytes:
            found = record(codec)
            seen = from_record(found)
            self.counts["wire_bytes"] += seen.wire_bytes
            self.counts["dense_bytes"] += seen.dense_bytes
            self.counts[f"mode/{seen.mode}"] += 1
            if seen.fallback != "none":
                self.counts[f"fallback/{seen.fallback}"] += 1
            return found

        reducers.call_back = counting  # type: ignore[assignment]
        addend.Codec.record = recording  # type: ignore[assignment, method-assign]


def measure(rank: int, world: int) -> None:
    _check_bytes_modes_and_fallbacks(rank, world)
    _check_union_density(rank, world)
    _check_exposed_time(rank, world)


def _check_bytes_modes_and_fallbacks(rank: int, world: int) -> None:
    books = Books()
    model, handle = attach("exact:mode=sketch", doubles=True)
    assert handle.metrics()["wire_bytes"] == 0
    assert handle.metrics()["ratio"] == 1.0
    books.plane_bytes = 0  # those of the link's measurement
    begin = time.perf_counter()
    for _ in range(4):
        one_step(model, rank)
    wall = time.perf_counter() - begin
    seen = handle.metrics()
    odd_bytes = 4 * 8 * (3 * WIDTH + 3)
    assert books.plane_bytes == books.counts["wire_bytes"], (books.plane_bytes, books.counts)
    assert seen["wire_bytes"] == books.counts["wire_bytes"] + odd_bytes
    assert seen["dense_bytes"] == books.counts["dense_bytes"] + odd_bytes
    assert seen["dense_bytes"] == 4 * 4 * ROWS * WIDTH + odd_bytes
    assert seen["ratio"] == seen["dense_bytes"] / seen["wire_bytes"] > 3.0
    told = {k: v for k, v in seen.items() if k.startswith(("mode/", "fallback/"))}
    expected = {k: v for k, v in books.counts.items() if "/" in k}
    assert told == {**expected, "fallback/dtype": 4}
    assert expected["fallback/first-step"] in (1, 2)  # DDP may move parameters after a step
    assert expected["mode/sketch"] >= 2
    assert seen["step"] == 3
    assert seen["hook_calls"] == 4 * BUCKETS
    assert 0 < seen["time/hook_s"] < wall
    assert 0 < seen["time/exposed_s"] < wall
    assert 0 < seen["last/exposed_s"] <= seen["time/exposed_s"]
    for stage in STAGES:
        assert 0 < seen[f"time/{stage}_s"] < wall
    assert seen["nonfinite_elements"] == 0
    assert seen["nmse"] == 0
    assert all(isinstance(value, (int, float)) for value in seen.values())
    handle.close()


def _check_union_density(rank: int, world: int) -> None:
    model, handle = attach("exact:mode=packed")
    for _ in range(3):
        one_step(model, rank)
    assert handle.metrics()["union_density"] == pytest.approx(world * TOUCHED / ROWS)
    handle.close()


def _check_exposed_time(rank: int, world: int) -> None:
    """Rank 1 comes late: for the others that is time they could not hide."""
    model, handle = attach("exact:mode=packed")
    for _ in range(2):  # then DDP has nothing left to agree on
        one_step(model, rank)
    before = handle.metrics()
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)  # the lateness itself
    one_step(model, rank)
    after = handle.metrics()
    if rank != 1:
        assert after["last/exposed_s"] > 0.4
        assert after["time/exposed_s"] - before["time/exposed_s"] == pytest.approx(
            after["last/exposed_s"]
        )
        assert after["time/agree_s"] + after["time/reduce_s"] > 0.4
    handle.close()


def test_metrics_agree_with_a_second_account() -> None:
    # Over a mesh, native code takes planes to where they are added.
    run_ranks(3, measure, env={"ADDEND_MESH": "off"})


def sum_and_measure(rank: int, world: int) -> None:
    assert addend.torch.metrics() == {}
    for spec in ("quant:bits=4", "quant:bits=2", "quant:bits=4,rounding=independent"):
        _check_error_estimate(rank, spec)
    _check_sparse_bytes(rank, world)


def _check_error_estimate(rank: int, spec: str) -> None:
    group = dist.new_group()
    error = energy = 0.0
    for step in range(4):
        mine = torch.randn(50_000, generator=torch.Generator().manual_seed(100 * rank + step))
        exact = mine.clone()
        dist.all_reduce(exact)
        addend.torch.all_reduce(mine, codec=spec, group=group)
        error += float(((mine - exact) ** 2).sum())
        energy += float((exact**2).sum())
    told = addend.torch.metrics(group)["nmse"]
    assert 0.5 < told / (error / energy) < 2.0, (spec, told, error / energy)


def _check_sparse_bytes(rank: int, world: int) -> None:
    group = dist.new_group()
    believe_in(Link(latency_us=1e6, gbit_per_s=1e3))  # by which gathering is the better way
    for _ in range(3):
        rows = torch.arange(TOUCHED)[None] + rank * TOUCHED
        addend.torch.all_reduce(
            torch.sparse_coo_tensor(rows, torch.ones(TOUCHED, WIDTH), (ROWS, WIDTH)), group=group
        )
    seen = addend.torch.metrics(group)
    assert seen["dense_bytes"] == 3 * ROWS * WIDTH * 4
    assert seen["mode/gather"] == 3
    # Each rank hands over its own rows, numbers of 8 bytes and values, in room for a few more; the
    # first time nobody knows how many there are.
    least = 3 * TOUCHED * (8 + 4 * WIDTH)
    assert least < seen["wire_bytes"] < 10 * least, (least, seen)


def test_sums_have_metrics_with_an_estimate_of_the_error() -> None:
    run_ranks(3, sum_and_measure)


# ---- traces


def trace(rank: int, world: int, folder: Path) -> None:
    model, handle = attach("exact:mode=packed", doubles=True)
    one_step(model, rank)
    path = folder / f"{rank}.json"
    handle.start_trace(str(path), steps=3)
    for _ in range(3):
        one_step(model, rank)
    assert path.stat().st_size > 0  # written when the last step is over
    written = path.read_bytes()
    one_step(model, rank)
    assert path.read_bytes() == written
    _check_events(json.loads(written), rank, steps=[1, 2, 3])

    handle.start_trace(str(path), steps=100)
    one_step(model, rank)
    handle.stop_trace()
    _check_events(json.loads(path.read_bytes()), rank, steps=[5])

    handle.start_trace(str(path), steps=100)
    one_step(model, rank)
    handle.close()
    _check_events(json.loads(path.read_bytes()), rank, steps=[6])


def _check_events(found: dict[str, Any], rank: int, steps: list[int]) -> None:
    assert found["otherData"]["rank"] == rank
    assert abs(found["otherData"]["start_unix_s"] - time.time()) < 600
    names = {}
    complete = []
    for event in found["traceEvents"]:
        assert event["pid"] == rank
        if event["ph"] == "M":
            names[event.get("tid"), event["name"]] = event["args"]["name"]
        else:
            assert event["ph"] == "X"
            complete.append(event)
    assert names[None, "process_name"] == f"rank {rank}"
    lanes: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    for event in complete:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["name"] == f"bucket {event['args']['bucket']}"
        assert names[event["tid"], "thread_name"].startswith(event["cat"])
        lanes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:]))
    stages = collections.defaultdict(set)
    for event in complete:
        stages[event["args"]["step"], event["args"]["bucket"]].add(event["cat"])
    assert set(stages) == {(step, bucket) for step in steps for bucket in range(BUCKETS)}, stages
    float32 = [seen for seen in stages.values() if "encode" in seen]
    assert len(float32) == len(steps)  # doubles are not encoded
    assert all(seen == set(STAGES) for seen in float32)
    assert all("reduce" in seen for seen in stages.values())


def test_a_trace_has_all_stages_of_exactly_the_steps_asked_for(tmp_path: Path) -> None:
    run_ranks(2, trace, tmp_path)


def refuse_traces(rank: int, world: int, folder: Path) -> None:
    model, handle = attach("exact")
    with pytest.raises(OSError, match="No such file"):
        handle.start_trace(str(folder / "nowhere" / "trace.json"), 1)
    with pytest.raises(addend.InvalidArgument, match="0 steps"):
        handle.start_trace(str(folder / "trace.json"), 0)
    one_step(model, rank)


def test_a_trace_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    run_ranks(1, refuse_traces, tmp_path)


def fill_the_disk(rank: int, world: int) -> str:
    log = Lines("addend.state")
    model, handle = attach("exact")
    handle.start_trace("/dev/full", 1)
    one_step(model, rank)
    handle.stop_trace()  # there is none any more
    handle.close()
    return log.take()


def test_a_full_disk_ends_the_trace_but_not_the_step() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (said,) = run_ranks(1, fill_the_disk)
    assert said.startswith("the trace is lost")
    assert "\n" not in said


def test_events_of_one_lane_do_not_overlap_and_an_older_step_is_not_counted(
    tmp_path: Path,
) -> None:
    """A unit test of `_meter`."""
    meter = Meter(3)
    path = tmp_path / "trace.json"
    meter.start_trace(str(path), 2)
    meter.step_done(6, 0.0)  # ended before the first event
    now = time.perf_counter()
    for step, bucket, begin, end in ((7, 0, 0, 4), (7, 1, 2, 6), (7, 2, 5, 8), (8, 0, 9, 10)):
        meter.left_done(now + begin, now + end, Place(step, bucket), 0, "mode/dense")
    meter.left_done(now + 11, now + 12, Place(9), 0, "mode/dense")
    meter.step_done(7, 0.0)
    assert path.read_text() == ""
    meter.step_done(8, 0.0)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(e["args"]["step"], e["args"]["bucket"]) for e in events] == [
        (7, 0),
        (7, 1),
        (7, 2),
        (8, 0),
    ]
    assert [e["tid"] for e in events] == [0, 1, 0, 0]


# ---- torch's profiler


def profile(rank: int, world: int) -> None:
    tensor = torch.randn(5000, generator=torch.Generator().manual_seed(rank))
    addend.torch.all_reduce(tensor)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        addend.torch.all_reduce(tensor)
    seen = {event.name for event in profiler.events()}
    assert "addend::all_reduce" in seen


def test_a_call_is_a_range_of_the_profiler() -> None:
    run_ranks(2, profile)


def profile_backward(rank: int, world: int) -> dict[str, int]:
    """How many ranges of ours are shown, by name."""
    model, handle = attach("exact:mode=packed", doubles=True)
    one_step(model, rank)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        one_step(model, rank)
    seen = collections.Counter(event.name for event in profiler.events())
    handle.close()
    return {k: n for k, n in seen.items() if k.startswith("addend::")}


def test_a_profiler_shows_what_the_hook_costs_backward() -> None:
    for ranges in run_ranks(2, profile_backward):
        assert ranges == {"addend::hook": BUCKETS}


# ---- log lines


def log(rank: int, world: int) -> int:
    model, handle = attach("exact:mode=packed")
    one_step(model, rank)
    handle.close()
    return os.getpid()


def read_logs(folder: Path, pids: list[int]) -> list[list[str]]:
    """Lines by rank, without what precedes the message."""
    lines = []
    for pid in pids:
        path = folder / f"{socket.gethostname()}.{pid}.log"
        start = f"{socket.gethostname()}:{pid} addend "
        said = path.read_text().splitlines() if path.exists() else []
        assert all(line.startswith(start) for line in said)
        lines.append([line[len(start) :] for line in said])
    return lines


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"ADDEND_DEBUG_FILE": str(folder / "%h.%p.log"), **more}


def test_one_line_says_how_a_rank_starts(tmp_path: Path) -> None:
    pids = run_ranks(2, log, env=environment(tmp_path, ADDEND_DEBUG="INFO"))
    for rank, lines in enumerate(read_logs(tmp_path, pids)):
        starts = [line for line in lines if "version" in line]
        assert len(starts) == 1
        start = starts[0]
        assert start.startswith("INFO ")
        for fact in (
            f"version {addend.__version__}",
            f"rank {rank} of 2",
            "codec exact:mode=packed",
            "backend gloo",
            "1 parameters",
            f"{ROWS * WIDTH} elements",
            "float32",
        ):
            assert fact in start
        assert [line for line in lines if line.startswith("INFO bucket 0: 8000 elements")]


@pytest.mark.parametrize(("subsystem", "words"), [("INIT", "version"), ("PLAN,STATE", "bucket 0")])
def test_subsystems_can_be_chosen(tmp_path: Path, subsystem: str, words: str) -> None:
    env = environment(tmp_path, ADDEND_DEBUG="INFO", ADDEND_DEBUG_SUBSYS=subsystem)
    for lines in read_logs(tmp_path, run_ranks(1, log, env=env)):
        assert lines
        assert all(words in line for line in lines)


def test_warnings_alone_are_the_default(tmp_path: Path) -> None:
    env = environment(tmp_path, ADDEND_DEBUG="WARN")
    assert read_logs(tmp_path, run_ranks(1, log, env=env)) == [[]]


def describe_logger(rank: int, world: int) -> tuple[list[str], int, bool]:
    logger = logging.getLogger("addend")
    kinds = [
        "stderr" if getattr(handler, "stream", None) is sys.stderr else type(handler).__name__
        for handler in logger.handlers
    ]
    return kinds, logger.level, logger.propagate


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("", ([], logging.NOTSET, True)),
        ("warn", (["stderr"], logging.WARNING, False)),
        ("INFO", (["stderr"], logging.INFO, False)),
        ("TRACE", (["stderr"], 5, False)),
        ("LOUD", (["stderr"], logging.WARNING, False)),
    ],
)
def test_the_application_decides_unless_told_otherwise(word: str, expected: Any) -> None:
    assert run_ranks(1, describe_logger, env={"ADDEND_DEBUG": word}) == [expected]

# SPDX-License-Identifier: Apache-2.0
"""Calls whose whole way is one native run, and what happens when it is not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import notes, run_ranks  # noqa: E402
from tensors import integers, torchs_sum  # noqa: E402

import addend  # noqa: E402
from addend.torch import _collectives, _shortcut, all_reduce, metrics  # noqa: E402
from addend.torch._coder import CodecJob  # noqa: E402
from addend.torch._engine import Engine  # noqa: E402


def count_jobs() -> list[int]:
    """The steps of ordinary jobs from now on."""
    steps: list[int] = []
    original = CodecJob.steps

    def counting(self: Any) -> Any:
        steps.append(self.place.step)
        return original(self)

    CodecJob.steps = counting  # type: ignore[method-assign]
    return steps


def warm_up(rank: int, shape: tuple[int, ...]) -> None:
    """The first call of a shape makes what the next ones use."""
    tensor = integers(rank, shape)
    expected = torchs_sum(tensor)
    assert torch.equal(all_reduce(tensor), expected)


def calls(rank: int, world: int) -> tuple[list[int], dict[str, float]]:
    _shortcut._MOMENT_S = 60.0
    warm_up(rank, (100, 30))
    jobs = count_jobs()
    for call in range(20):
        # The last rows only, the more the later: modes change on the way.
        tensor = integers(rank, (100, 30), dense=True)
        tensor[: 90 - 4 * call] = 0
        expected = torchs_sum(tensor)
        assert all_reduce(tensor) is tensor
        assert torch.equal(tensor, expected), call
    return jobs, metrics()


def test_calls_are_exact_and_counted_without_a_job() -> None:
    for jobs, seen in run_ranks(3, calls):
        assert jobs == []
        modes = {name: count for name, count in seen.items() if name.startswith("mode/")}
        assert sum(modes.values()) == 21, modes
        assert seen["dense_bytes"] == 21 * 100 * 30 * 4
        assert seen["wire_bytes"] > 0
        for stage in ("encode", "agree", "decode"):
            assert seen[f"time/{stage}_s"] > 0, stage


def late_rank(rank: int, world: int) -> list[int]:
    """Rank 1 begins when rank 0 has given up to meet it within a moment."""
    warm_up(rank, (1000,))
    jobs = count_jobs()
    original = CodecJob.take_over

    def telling(self: Any, *given: Any) -> None:
        original(self, *given)
        notes().set("rank 0 goes on", "1")

    if rank == 0:
        CodecJob.take_over = telling  # type: ignore[method-assign]
    else:
        _shortcut._MOMENT_S = 60.0
    tensor = integers(rank, (1000,))
    expected = torchs_sum(tensor)
    if rank == 1:
        notes().wait(["rank 0 goes on"])
    assert torch.equal(all_reduce(tensor), expected)
    assert metrics()["dense_bytes"] == 2 * 4000
    return jobs


def test_a_late_rank_makes_an_ordinary_job_of_it() -> None:
    assert run_ranks(2, late_rank) == [[2], []]


def large_rounds(rank: int, world: int) -> list[int]:
    for shape in ((1000,), (1001,)):
        warm_up(rank, shape)
    jobs = count_jobs()
    Engine.exchange_bytes = property(lambda _: 100)  # type: ignore[assignment, method-assign]
    for dense in (True, False, True):
        for shape in ((1000,), (1001,)):
            tensor = integers(rank, shape, dense=dense)
            expected = torchs_sum(tensor)
            assert torch.equal(all_reduce(tensor), expected), (shape, dense)
    return jobs


def test_rounds_too_large_for_the_mesh_go_on_through_the_backend() -> None:
    assert run_ranks(3, large_rounds) == [[3, 4, 5, 6, 7, 8]] * 3


def two_threads(rank: int, world: int) -> None:
    """A call while another is under way waits for its turn like any other."""
    for shape in ((500,), (501,)):
        warm_up(rank, shape)
    first, second = integers(rank, (500,)), integers(rank, (501,))
    sums = torchs_sum(first), torchs_sum(second)
    pending = all_reduce(first, async_op=True)
    thread = threading.Thread(target=all_reduce, args=(second,))
    thread.start()
    thread.join()
    assert torch.equal(pending.wait(), sums[0])
    assert torch.equal(second, sums[1])


def test_calls_in_flight_keep_their_order() -> None:
    run_ranks(2, two_threads)


def failing_decode(rank: int, world: int) -> tuple[str, bool]:
    """The sum is there, and rank 1 cannot go on: it says so, and its tensor is as it was."""
    warm_up(rank, (1000,))
    tensor = integers(rank, (1000,))
    before = tensor.clone()
    (known,) = _collectives._context(None, 30.0).known.values()
    assert isinstance(known, _collectives._Dense)
    assert known.shortcut is not None
    trip = known.shortcut._trip
    original = trip.run

    def failing(timeout_s: float) -> Any:
        raise addend.Capacity("no room for 7 apples")

    if rank == 1:
        trip.run = failing  # type: ignore[method-assign]
    try:
        all_reduce(tensor)
    except addend.Error as error:
        trip.run = original  # type: ignore[method-assign]
        with pytest.raises(addend.Error):
            all_reduce(torch.ones(1000))
        return f"{type(error).__name__}: {error}", torch.equal(tensor, before)
    raise AssertionError("rank 1 failed, and nobody was told")


def test_a_failure_names_the_place_and_leaves_the_tensor() -> None:
    (first, untouched), (second, unchanged) = run_ranks(2, failing_decode)
    assert second.startswith("Capacity: rank 1 of 2, step 2, bucket 0, round 0: no room")
    assert "rank 1 gave up" in first
    assert untouched
    assert unchanged

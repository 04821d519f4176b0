# SPDX-License-Identifier: Apache-2.0
"""Calls that run in the thread that waits for them."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from tensors import integers, torchs_sum  # noqa: E402

from addend.torch import all_reduce, metrics  # noqa: E402


def warm_up(rank: int, shape: tuple[int, ...]) -> None:
    """The first call of a shape makes what the next ones use."""
    tensor = integers(rank, shape)
    expected = torchs_sum(tensor)
    assert torch.equal(all_reduce(tensor), expected)


def calls(rank: int, world: int) -> dict[str, float]:
    warm_up(rank, (100, 30))
    for call in range(20):
        # The last rows only, the more the later: modes change on the way.
        tensor = integers(rank, (100, 30), dense=True)
        tensor[: 90 - 4 * call] = 0
        expected = torchs_sum(tensor)
        assert all_reduce(tensor) is tensor
        assert torch.equal(tensor, expected), call
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("addend-") and name != "addend-peers" for name in names), names
    return metrics()


def test_calls_that_wait_are_exact_and_counted() -> None:
    for seen in run_ranks(3, calls):
        modes = {name: count for name, count in seen.items() if name.startswith("mode/")}
        assert sum(modes.values()) == 21, modes
        assert seen["dense_bytes"] == 21 * 100 * 30 * 4
        assert seen["wire_bytes"] > 0
        for stage in ("encode", "agree", "decode"):
            assert seen[f"time/{stage}_s"] > 0, stage


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

# SPDX-License-Identifier: Apache-2.0
"""Rounds that the hauler carries: large ones of operations that the backend lacks."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import Ranks, run_ranks  # noqa: E402

import addend  # noqa: E402
from addend.mesh import Hauler  # noqa: E402
from addend.torch import _collectives, all_reduce  # noqa: E402
from addend.torch._engine import Link  # noqa: E402

QUANT = "quant:bits=4"
PIECE = 1 << 18  # elements; its round is too large to be sent to everyone
ELEMENTS = 9 * PIECE
DEADLINE_S = 3.0


def noise(seed: int, count: int = ELEMENTS) -> Any:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def prepare(deadline_s: float = 60.0) -> None:
    """Large tensors in small pieces, on links so slow that shares pay."""
    _collectives._QUANT_PIECE_ELEMENTS = PIECE
    all_reduce(torch.zeros(1), deadline=deadline_s)
    _collectives._context(None, 60.0).worker.engine.link = Link(1e-3, 1e-3)


def count_hauls() -> list[int]:
    """Numbers of planes of hauls from now on."""
    hauls: list[int] = []
    original = Hauler.start

    def counting(self: Any, planes: Any) -> int:
        hauls.append(len(planes))
        return original(self, planes)

    Hauler.start = counting  # type: ignore[method-assign]
    return hauls


def quantised(rank: int, world: int) -> tuple[int, list[bytes]]:
    prepare()
    hauls = count_hauls()
    sums = []
    for step in range(3):
        tensor = noise(10 * step + rank)
        expected = sum(noise(10 * step + peer) for peer in range(world))
        all_reduce(tensor, codec=QUANT)
        error = (tensor - expected).square().sum() / expected.square().sum()
        assert error < 0.02, error
        sums.append(tensor.numpy().tobytes())
    return len(hauls), sums


def test_large_quantised_rounds_are_hauled_and_are_what_the_backend_makes_of_them() -> None:
    told = run_ranks(3, quantised)
    assert all(hauls >= 3 * 9 for hauls, _ in told)
    by_backend = run_ranks(3, quantised, env={"ADDEND_MESH": "off"})
    assert all(hauls == 0 for hauls, _ in by_backend)
    assert {tuple(sums) for _, sums in (*told, *by_backend)} == {tuple(told[0][1])}


def some_wait(rank: int, world: int) -> list[bytes]:
    """Rank 0 starts all its calls, the others wait for each."""
    prepare()
    tensors = [noise(rank + 10 * i) for i in range(4)]
    if rank == 0:
        for pending in [all_reduce(t, codec=QUANT, async_op=True) for t in tensors]:
            pending.wait()
    else:
        for tensor in tensors:
            all_reduce(tensor, codec=QUANT)
    return [tensor.numpy().tobytes() for tensor in tensors]


def test_ranks_may_wait_in_different_ways() -> None:
    first, *others = run_ranks(3, some_wait)
    assert [other == first for other in others] == [True, True]


def struck(rank: int, world: int, victim: int, number: int, kind: int) -> tuple[str, bool]:
    """The victim is hit before it starts its `number`-th haul."""
    prepare(DEADLINE_S if kind == signal.SIGSTOP else 60.0)
    hauls = count_hauls()
    original = Hauler.start

    def hit(self: Any, planes: Any) -> int:
        if len(hauls) == number:
            os.kill(os.getpid(), kind)
        return original(self, planes)

    if rank == victim:
        Hauler.start = hit  # type: ignore[method-assign]
    tensor = noise(rank)
    with pytest.raises(addend.Error) as raised:
        all_reduce(tensor, codec=QUANT)
    return f"{type(raised.value).__name__}: {raised.value}", torch.equal(tensor, noise(rank))


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_goes_in_the_middle_is_named_and_tensors_stay(number: int, kind: int) -> None:
    with Ranks(3, struck, 1, number, kind) as ranks:
        for rank in (0, 2):
            outcome = ranks.outcome(rank)
            assert not outcome.error, outcome.error
            message, untouched = outcome.value
            assert "step 2, bucket 0, round 1: " in message, message
            assert f"rank 1 is {'dead' if kind == signal.SIGKILL else 'stuck'}" in message
            assert untouched

# SPDX-License-Identifier: Apache-2.0
"""lowrank under DDP: parameters are matrices by their shapes, whatever buckets they are in.

Two ranks: a sum of two floats has one order, so runs can be compared bit by bit.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from training import (  # noqa: E402
    MANY_BUCKETS,
    Recommender,
    Run,
    assert_same_bits,
    digest,
    fit,
    generator,
    recommender_loss,
    trainer,
)

import addend  # noqa: E402
import addend.torch  # noqa: E402

RANK = 2
CODEC = f"lowrank:rank={RANK}"
BEFORE, AFTER = 4, 4  # steps
DEEP = functools.partial(Recommender, depth=4)
LAYOUTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "one bucket a parameter": {"bucket_cap_mb": 0.001},
    "many": MANY_BUCKETS,
    "views": {"gradient_as_bucket_view": True},
    "unused parameters": {"find_unused_parameters": True},
}


def sent_bytes(model: Any) -> int:
    """What one step hands over, from the shapes alone."""
    total = 0
    for parameter in model.parameters():
        dense, factors = parameter.numel(), parameter.numel()
        if parameter.dim() > 1:
            factors = RANK * (parameter.shape[0] + parameter.numel() // parameter.shape[0])
        total += 4 * min(dense, factors)
    return total


def train_with_buckets(rank: int, world: int) -> None:
    expected: Run | None = None
    for name, ddp in LAYOUTS.items():
        run = fit(DEEP, recommender_loss, CODEC, steps=6, ddp=ddp)
        assert run.metrics["wire_bytes"] == 6 * sent_bytes(DEEP()), name
        if expected is not None:
            assert_same_bits(run, expected)
        expected = run


def test_no_bucket_layout_changes_a_bit_or_a_byte() -> None:
    run_ranks(2, train_with_buckets)


def train_long(rank: int, world: int) -> tuple[float, float]:
    """Last losses, smoothed, of plain DDP and of one direction a matrix."""
    plain = fit(DEEP, recommender_loss, None, steps=120)
    ours = fit(DEEP, recommender_loss, "lowrank:rank=1", steps=120)
    return sum(plain.losses[-20:]) / 20, sum(ours.losses[-20:]) / 20


def test_feedback_brings_the_loss_to_that_of_plain_ddp() -> None:
    for plain, ours in run_ranks(2, train_long):
        assert ours < 1.1 * plain


# ---- state


def train_and_save(rank: int, world: int, folder: Path) -> str:
    made = trainer(DEEP, recommender_loss, CODEC, MANY_BUCKETS)
    made.run(0, BEFORE)
    saved = {"model": made.model.module.state_dict(), "handle": made.handle.state_dict()}
    torch.save(saved, folder / f"{rank}.pt")
    made.run(BEFORE, AFTER)
    return digest(made.result().parameters)


def load_and_train(rank: int, world: int, folder: Path, of_rank: int | None = None) -> str:
    made = trainer(DEEP, recommender_loss, CODEC)
    saved = torch.load(folder / f"{rank if of_rank is None else of_rank}.pt", weights_only=True)
    made.model.module.load_state_dict(saved["model"])
    made.handle.load_state_dict(saved["handle"])
    made.run(BEFORE, AFTER)
    return digest(made.result().parameters)


def refuse_anothers_state(rank: int, world: int, folder: Path) -> None:
    made = trainer(DEEP, recommender_loss, CODEC)
    handle = torch.load(folder / f"{1 - rank}.pt", weights_only=True)["handle"]
    with pytest.raises(addend.InvalidArgument, match="save one per rank"):
        made.handle.load_state_dict(handle)
    made.run(0, 1)  # nothing has happened
    made.result()


def test_a_restart_in_other_buckets_changes_no_bit(tmp_path: Path) -> None:
    whole = run_ranks(2, train_and_save, tmp_path)
    assert run_ranks(2, load_and_train, tmp_path) == whole
    run_ranks(2, refuse_anothers_state, tmp_path)


def test_another_world_goes_on_with_the_residuals_there_are(tmp_path: Path) -> None:
    run_ranks(2, train_and_save, tmp_path)
    run_ranks(3, load_and_train, tmp_path, 0)  # those that load rank 0's state drop its residuals


# ---- tensors


def sum_named(rank: int, world: int) -> None:
    random = torch.Generator().manual_seed(5)
    left, right = torch.randn(50, 2, generator=random), torch.randn(2, 30, generator=random)
    matrix = left @ right * (rank + 1)
    with pytest.raises(addend.InvalidArgument, match="name"):
        addend.torch.all_reduce(matrix.clone(), codec=CODEC)
    got = addend.torch.all_reduce(matrix.clone(), codec=CODEC, name="one")
    torch.testing.assert_close(got, left @ right * 3, rtol=1e-3, atol=1e-3)
    with pytest.raises(addend.InvalidArgument, match="sparse"):
        addend.torch.all_reduce(matrix.to_sparse(), codec=CODEC, name="two")
    addend.torch.close_all()


def test_all_reduce_of_a_matrix() -> None:
    run_ranks(2, sum_named)


class Parameters(nn.Module):
    """Of these shapes and strides; gradients are what `forward` is given."""

    def __init__(self, *likes: Any) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.zeros_like(p)) for p in likes)

    def forward(self, *gradients: Any) -> Any:
        return sum((p * gradient).sum() for p, gradient in zip(self.all, gradients))


def outer_products(rank: int, world: int) -> None:
    """A matrix of rank 1 comes back as it was, if rows are what they are in memory."""
    likes = [
        torch.empty(7),
        torch.empty(0, 5),
        torch.empty(15, 8),
        torch.empty(15, 8).t(),
        torch.empty(8, 3, 5, 5),
        torch.empty(8, 3, 5, 5).to(memory_format=torch.channels_last),
    ]
    gradients = []
    for like in likes:
        outer = like.stride().index(max(like.stride()))
        rows = torch.arange(1.0, like.shape[outer] + 1)
        column = torch.randn(like.numel() // max(len(rows), 1), generator=generator(0))
        flat = torch.outer(rows, column).flatten()
        gradients.append(torch.empty_like(like).copy_(flat.as_strided(like.shape, like.stride())))
    model = DistributedDataParallel(Parameters(*likes))
    handle = addend.torch.attach(model, codec="lowrank:rank=1")
    model(*gradients).backward()
    for p, gradient in zip(model.parameters(), gradients):
        torch.testing.assert_close(p.grad, gradient)
    assert handle.metrics()["ratio"] > 3
    handle.close()


def test_rows_are_those_of_the_gradient_in_memory() -> None:
    run_ranks(2, outer_products)

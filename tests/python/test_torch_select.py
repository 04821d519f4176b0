# SPDX-License-Identifier: Apache-2.0
"""Codecs that select, under DDP and by name: what a step leaves out a later one brings.

Two ranks where runs are compared bit by bit: a sum of two floats has one order.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from tensors import FREE_STEPS  # noqa: E402
from training import (  # noqa: E402
    MANY_BUCKETS,
    Recommender,
    assert_same_bits,
    digest,
    fit,
    recommender_loss,
    trainer,
)

SELECTORS = ("topk", "threshold", "redsync", "random", "leader")
BEFORE, AFTER = 3, 3  # steps
DEEP = functools.partial(Recommender, depth=4)


def train_with_buckets(rank: int, world: int) -> None:
    train = functools.partial(
        fit, DEEP, recommender_loss, "topk:density=0.05", steps=5, attach={"link": FREE_STEPS}
    )
    usual, many = train(), train(ddp=MANY_BUCKETS)
    assert_same_bits(many, usual)
    metrics = usual.metrics
    assert 0 < metrics["local_density"] < 0.06
    assert metrics["local_density"] <= metrics["union_density"] <= 2 * metrics["local_density"]
    assert metrics["local_density"] < metrics["kept_energy"] < 1
    assert metrics["wire_bytes"] < 0.5 * metrics["dense_bytes"]


def test_no_bucket_layout_changes_a_bit() -> None:
    run_ranks(2, train_with_buckets)


def train_and_save(rank: int, world: int, folder: Path) -> str:
    made = trainer(DEEP, recommender_loss, "topk:density=0.05", MANY_BUCKETS)
    made.run(0, BEFORE)
    saved = {"model": made.model.module.state_dict(), "handle": made.handle.state_dict()}
    torch.save(saved, folder / f"{rank}.pt")
    made.run(BEFORE, AFTER)
    return digest(made.result().parameters)


def load_and_train(rank: int, world: int, folder: Path) -> str:
    made = trainer(DEEP, recommender_loss, "topk:density=0.05")
    saved = torch.load(folder / f"{rank}.pt", weights_only=True)
    made.model.module.load_state_dict(saved["model"])
    made.handle.load_state_dict(saved["handle"])
    made.run(BEFORE, AFTER)
    return digest(made.result().parameters)


def test_a_restart_in_other_buckets_changes_no_bit(tmp_path: Path) -> None:
    whole = run_ranks(2, train_and_save, tmp_path)
    assert run_ranks(2, load_and_train, tmp_path) == whole


def sum_named(rank: int, world: int) -> None:
    import addend
    import addend.torch

    integers = torch.arange(600, dtype=torch.float32) % 7 - 3
    with pytest.raises(addend.InvalidArgument, match="name"):
        addend.torch.all_reduce(integers.clone(), codec="topk:density=0.1")
    for selector in SELECTORS:
        total = torch.zeros(600)
        for step in range(400):
            mine = integers * (rank + 1) if step < 3 else torch.zeros(600)
            got = addend.torch.all_reduce(mine, codec=f"{selector}:density=0.2", name=selector)
            total += got
            if step >= 3 and torch.equal(total, 3 * integers * world * (world + 1) / 2):
                break
        else:
            raise AssertionError(f"{selector} does not bring everything")
    addend.torch.close_all()


@pytest.mark.parametrize("world", [2, 4])
def test_named_sums_bring_everything_once(world: int) -> None:
    run_ranks(world, sum_named)

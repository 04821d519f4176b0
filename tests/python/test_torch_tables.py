# SPDX-License-Identifier: Apache-2.0
"""Which codec an embedding table gets, and why: rows that nobody looked up must not move."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Lines, generator

import addend
import addend.torch

ROWS, USED, WIDTH = 600, 200, 16


class Model(nn.Module):
    """Two tables and a layer; with `tied`, the first is the output projection as well."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)
        self.bags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.output = nn.Linear(WIDTH, ROWS)
        if tied:
            self.output.weight = self.items.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.items(rows).sum(1) + self.bags(rows))
        return output


def train(rank: int, tied: bool = False, **options: Any) -> tuple[Any, dict[str, float]]:
    """Parameters' movements in units of the learning rate, by name, and metrics."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(tied))
    handle = addend.torch.attach(model, **options)
    begin = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    rate = 1e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(20):
        rows = torch.randint(USED, (8, 3), generator=generator(rank, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), rows[:, 0]).backward()
        optimizer.step()
    moved = {n: (p.detach() - begin[n]).abs() / rate for n, p in model.module.named_parameters()}
    metrics = handle.metrics()
    handle.close()
    return moved, metrics


def farthest(moved: Any, name: str) -> float:
    """By how much a row moved that nobody looked up."""
    return float(moved[f"{name}.weight"][USED:].max())


def rows_that_nobody_looked_up(rank: int, world: int) -> dict[str, Any]:
    log = Lines("addend.plan")
    quant = functools.partial(train, rank, codec="quant:bits=4,feedback=float")
    spared, metrics = quant()
    said = log.take()
    everything, _ = quant(overrides={"*": "quant:bits=4,feedback=float"})
    one, _ = quant(overrides={"bags.*": "quant:bits=8"})
    log.take()
    tied, _ = quant(tied=True)
    return {
        "said": said,
        "said of tied ones": log.take(),
        "modes": {key for key in metrics if key.startswith("mode/")},
        "spared": (farthest(spared, "items"), farthest(spared, "bags")),
        "overridden": (farthest(everything, "items"), farthest(everything, "bags")),
        "one overridden": (farthest(one, "items"), farthest(one, "bags")),
        "tied": farthest(tied, "items"),
    }


def test_a_lossy_codec_leaves_tables_alone() -> None:
    for rank, found in enumerate(run_ranks(2, rows_that_nobody_looked_up)):
        said = found["said"]
        assert ("embedding tables stay with exact: bags.weight, items.weight" in said) == (
            rank == 0
        )
        assert "mode/quant" in found["modes"]
        assert len(found["modes"]) > 1
        assert found["spared"] == (0.0, 0.0)
        # Adam makes steps of a learning rate of the smallest error.
        assert min(found["overridden"]) > 1.0
        assert found["one overridden"][0] == 0.0
        assert found["one overridden"][1] > 1.0
        # The projection has a gradient in every row.
        assert found["tied"] > 1.0
        if rank == 0:
            assert "stay with exact: bags.weight (" in found["said of tied ones"]


def explained(rank: int, world: int, codec: str, rules: dict[str, str]) -> str:
    """Of buckets of one parameter each, in the order of gradients."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), bucket_cap_mb=1e-6)
    handle = addend.torch.attach(model, codec=codec, overrides=rules)
    for step in range(2):  # DDP may move parameters after a step
        model(torch.randint(USED, (8, 3), generator=generator(rank, step))).sum().backward()
    said = handle.explain()
    handle.close()
    return said


def test_only_a_lossy_default_spares_tables() -> None:
    table, layer = f"{ROWS * WIDTH} elements, ", f"{ROWS} elements, "
    for codec in ("exact:mode=packed", "dense"):
        first, *buckets = run_ranks(1, explained, codec, {})[0].splitlines()
        assert first == f"fixed: {codec}"
        assert all(line.endswith(f"elements, {codec}") for line in buckets)
    rules = {"bags.*": "dense", "b*": "exact"}  # the first that matches counts
    (said,) = run_ranks(1, explained, "quant:bits=8", rules)
    first, *buckets = said.splitlines()
    assert first == "fixed: quant:bits=8, bags.*: dense, b*: exact, embedding tables: exact"
    told = sorted(line.partition(": ")[2] for line in buckets)
    tables = [table + spec for spec in ("quant:bits=8", "dense", "exact")]
    assert told == sorted([layer + "quant:bits=8", *tables])


def patterns_that_match_nothing(rank: int, world: int) -> str:
    log = Lines("addend.plan")
    model = DistributedDataParallel(Model())
    rules = {
        "output.bias": "dense",
        "ouptut.*": "dense",
        "_orig_mod.items.*": "dense",
        "x": "exact",
    }
    with pytest.raises(addend.InvalidArgument, match="nonsense"):
        addend.torch.attach(model, overrides={"*": "nonsense"})
    addend.torch.attach(model, overrides=rules).close()
    return log.take()


def test_overrides_that_match_nothing_are_named_once() -> None:
    first, second = run_ranks(2, patterns_that_match_nothing)
    assert first == "overrides that match no parameter: ouptut.*, x"
    assert second == ""

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
from addend.torch._look import Look, Looker, candidates_for
from addend.torch._specs import Specs

ROWS, USED, WIDTH = 600, 200, 16


class Model(nn.Module):
    """Two tables and a layer; with `tied`, the first is the output projection as well."""

    def __init__(self, tied: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.bags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse)
        self.output = nn.Linear(WIDTH, ROWS)
        if tied:
            self.output.weight = self.items.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.items(rows).sum(1) + self.bags(rows))
        return output


def rows_of_step(rank: int, step: int) -> torch.Tensor:
    return torch.randint(USED, (8, 3), generator=generator(rank, step))


def train(rank: int, tied: bool = False, **options: Any) -> tuple[Any, dict[str, float]]:
    """Parameters' movements in units of the learning rate, by name, and metrics."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(tied))
    handle = addend.torch.attach(model, **options)
    begin = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    rate = 1e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(20):
        rows = rows_of_step(rank, step)
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


INDEXED = ("quant:index=auto", "quant:index=auto,feedback=float")


def rows_of_an_index(rank: int, world: int, codec: str) -> dict[str, Any]:
    """Gradients of rows not looked up in a step, and movements of those never looked up."""
    log = Lines("addend.plan")
    moved, metrics = train(rank, codec=codec)
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    handle = addend.torch.attach(model, codec=codec)
    elsewhere = []
    for step in range(4):
        model.zero_grad()
        nn.functional.cross_entropy(model(rows_of_step(rank, step)), torch.arange(8)).backward()
        looked_up = torch.cat([rows_of_step(r, step).flatten() for r in range(world)])
        others = torch.ones(ROWS, dtype=torch.bool)
        others[looked_up] = False
        for table in (model.module.items, model.module.bags):
            assert table.weight.grad is not None
            assert int(table.weight.grad[looked_up].count_nonzero()) > 0
            elsewhere.append(float(table.weight.grad[others].abs().max()))
    handle.close()
    return {
        "said": log.take(),
        "modes": {key for key in metrics if key.startswith("mode/")},
        "never": (farthest(moved, "items"), farthest(moved, "bags")),
        "used": min(float(moved[f"{n}.weight"][:USED].max()) for n in ("items", "bags")),
        "elsewhere": elsewhere,
    }


@pytest.mark.parametrize("codec", INDEXED)
def test_a_codec_with_an_index_has_the_tables(codec: str) -> None:
    for found in run_ranks(2, rows_of_an_index, codec):
        assert found["said"] == ""
        assert found["modes"] == {"mode/quant"}
        assert found["never"] == (0.0, 0.0)
        assert found["used"] > 1.0
        assert set(found["elsewhere"]) == {0.0}  # what feedback owes them waits for its row


def sparse_gradients(rank: int, world: int, codec: str) -> dict[str, Any]:
    log = Lines("addend.plan")
    found = {}
    for spec in (codec, "exact"):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model(sparse=True))
        handle = addend.torch.attach(model, codec=spec)
        model(rows_of_step(rank, 0)).square().mean().backward()
        items, bags = model.module.items.weight.grad, model.module.bags.weight.grad
        assert items is not None
        assert bags is not None
        assert items.is_sparse
        assert bags.is_sparse
        found[spec] = items.to_dense(), bags.to_dense()
        handle.close()
    same = all(torch.equal(*both) for both in zip(*found.values()))
    return {"said": log.take(), "same": same}


@pytest.mark.parametrize("codec", ["quant:bits=4,feedback=float", *INDEXED])
def test_tables_of_sparse_gradients_stay_with_exact(codec: str) -> None:
    for rank, found in enumerate(run_ranks(2, sparse_gradients, codec)):
        assert found["same"]
        assert ("stay with exact: bags.weight, items.weight" in found["said"]) == (rank == 0)


def test_of_the_candidates_only_those_that_fill_zeros_leave_tables_out() -> None:
    specs = Specs("adaptive", {"bags.*": "dense"}, 2, ["items.weight", "bags.weight"])
    tables = {"exact": "exact", "dense": "dense", "quant:index=auto": "quant:index=auto"}
    for choice in ("exact", "dense", "quant", "cast:bf16", "lowrank:rank=4", *INDEXED):
        indexed = choice in INDEXED
        wanted = choice if indexed else tables.get(choice, "exact")
        assert specs.of("items.weight", choice) == wanted
        assert specs.of("output.bias", choice) == choice
        assert specs.of("bags.weight", choice) == "dense"


def test_candidates_are_tried_on_what_they_would_get() -> None:
    """The first half of a bucket is a table's and the second a layer's, ten times as large."""
    table, layer = nn.Parameter(torch.zeros(1 << 15)), nn.Parameter(torch.zeros(1 << 15))
    bucket = torch.cat([torch.ones(1 << 15), torch.full((1 << 15,), 10.0)])
    candidates = candidates_for("", 2)
    looker = Looker(candidates, 0, lambda index: None, {id(table)}, fed=False)
    specs = [one.spec.partition(",")[0] for one in candidates]
    plain, indexed = specs.index("quant:carrier=indices"), specs.index("quant:index=auto")
    seen = looker.look(0, bucket, [table, layer], range(1, len(candidates)))
    looker.close()
    assert seen.probes[indexed].nbytes > 1.5 * seen.probes[plain].nbytes


def test_signals_are_of_what_each_candidate_would_get() -> None:
    """A unit test of `_look`."""
    mask = torch.arange(100) < 50
    look = Look(torch.where(mask, 2.0, 1.0), 1.0, False, {}, {}, 0.0, mask)
    added = {
        one.spec.partition(",")[0]: look.bytes_with(one, torch.ones(100), 1, 0.0)
        for one in candidates_for("", 2)
    }
    by_exact = 50 * (1 + 32) / 8  # the table's half
    assert added["exact"] == added["dense"] == added["quant:index=auto"] == 0.0
    assert added["quant:carrier=indices"] == added["cast:bf16"] == by_exact
    errors = {spec: look.error_with(spec, 0.5) for spec in ("quant:index=auto", "cast:bf16")}
    assert errors == {"quant:index=auto": 0.5, "cast:bf16": pytest.approx(0.5 / 5)}


def explained(rank: int, world: int, codec: str, rules: dict[str, str]) -> str:
    """Of buckets of one parameter each, in the order of gradients."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), bucket_cap_mb=1e-6)
    handle = addend.torch.attach(model, codec=codec, overrides=rules)
    for step in range(2):  # DDP may move parameters after a step
        model(rows_of_step(rank, step)).sum().backward()
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

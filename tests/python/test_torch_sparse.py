# SPDX-License-Identifier: Apache-2.0
"""all_reduce of sparse COO tensors against torch's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run_ranks  # noqa: E402
from tensors import (  # noqa: E402
    DEAR_STEPS,
    FREE_STEPS,
    HALVES,
    PLAIN,
    believe_in,
    integers,
    seeded,
    torchs_sum,
)

from addend.torch import all_reduce, metrics  # noqa: E402


class Form(NamedTuple):
    """One of the forms that COO tensors take."""

    entries: int
    sparse: tuple[int, ...]
    dense: tuple[int, ...] = ()
    idle: int = -1  # the rank that has no entries
    coalesced: bool = False


FORMS = {
    "coalesced": Form(20, (50,), (8,), coalesced=True),
    "duplicates": Form(60, (10,), (8,)),
    "no dense dimension": Form(30, (40,)),
    "hybrid": Form(25, (6, 7), (4, 3)),
    "three sparse dimensions": Form(40, (4, 5, 6)),
    "long": Form(700, (100_000,), (16,)),  # does not fit into a first message
    "rank 0 empty": Form(20, (50,), (8,), idle=0),
    "rank 1 empty": Form(20, (50,), (8,), idle=1),
    "one row each": Form(1, (50,), (8,)),
    "all empty": Form(0, (50,), (8,)),
    "no columns": Form(5, (50,), (0,)),
    "no rows": Form(0, (0,), (8,)),
}


def sparse_tensor(rank: int, name: str, dtype: Any = torch.float32) -> Any:
    form, random = FORMS[name], seeded(rank, name)
    count = 0 if rank == form.idle else form.entries
    rows = [torch.randint(0, max(n, 1), (count,), generator=random) for n in form.sparse]
    values = 4 * torch.randint(-3, 4, (count, *form.dense), generator=random)
    shape = (*form.sparse, *form.dense)
    made = torch.sparse_coo_tensor(torch.stack(rows), values.to(dtype), shape)
    return made.coalesce() if form.coalesced else made


def check_sparse(tensor: Any, expected: Any, note: object) -> None:
    assert tensor.is_coalesced(), note
    assert tensor.shape == expected.shape, note
    assert torch.equal(tensor.to_dense(), expected), note


def sparse_tensors(rank: int, world: int) -> None:
    for name in FORMS:
        for dtype in (torch.float32, *HALVES, *PLAIN):
            for op in ("sum", "mean") if dtype.is_floating_point else ("sum",):
                for codec in ("exact", "dense"):
                    tensor = sparse_tensor(rank, name, dtype)
                    expected = torchs_sum(tensor.to_dense(), op)
                    assert all_reduce(tensor, op, codec=codec) is tensor
                    check_sparse(tensor, expected, (name, dtype, op, codec))
        reproducible = sparse_tensor(rank, name)
        expected = torchs_sum(reproducible.to_dense())
        all_reduce(reproducible, codec="exact:values=reproducible")
        check_sparse(reproducible, expected, name)
    leaf = sparse_tensor(rank, "duplicates").requires_grad_()
    expected = torchs_sum(leaf.detach().to_dense())
    all_reduce(leaf)
    check_sparse(leaf.detach(), expected, "leaf")


def test_sparse_sums_are_those_of_the_dense_tensors() -> None:
    run_ranks(4, sparse_tensors)


def against_torchs_sparse_sums(rank: int, world: int) -> None:
    for name in FORMS:
        if name in ("no columns", "no rows"):  # torch's own do not take them
            continue
        for dtype in (torch.float32, torch.float64, torch.int64):
            tensor = sparse_tensor(rank, name, dtype)
            theirs = tensor.clone().coalesce()
            dist.all_reduce(theirs)
            theirs = theirs.coalesce()
            all_reduce(tensor)
            assert torch.equal(tensor.indices(), theirs.indices()), (name, dtype)
            assert torch.equal(tensor.values(), theirs.values()), (name, dtype)


def test_sparse_sums_have_the_rows_of_torchs_own() -> None:
    run_ranks(3, against_torchs_sparse_sums)


def lossy_sparse_tensors(rank: int, world: int) -> list[Any]:
    out = []
    for name in ("coalesced", "hybrid", "duplicates", "long", "rank 0 empty", "all empty"):
        for spec in ("quant", "quant:bits=8"):
            for dtype in (torch.float32, torch.float16):
                for _ in range(2):
                    tensor = sparse_tensor(rank, name, dtype)
                    expected = torchs_sum(tensor.to_dense())
                    all_reduce(tensor, codec=spec)
                    error = (tensor.to_dense() - expected).double().square().sum()
                    assert error <= 0.05 * expected.double().square().sum(), (name, spec, dtype)
                    # Nothing appears where no rank has a row.
                    rows: list[Any] = [None] * world
                    dist.all_gather_object(
                        rows, sparse_tensor(rank, name, dtype)._indices().T.tolist()
                    )
                    union = sorted({tuple(row) for part in rows for row in part})
                    assert [tuple(row) for row in tensor.indices().T.tolist()] == union
                    out.append(tensor.values().double().tolist())
    return out


def test_lossy_sparse_sums_are_close_and_alike() -> None:
    first, *others = run_ranks(3, lossy_sparse_tensors)
    for other in others:
        assert other == first


def both_ways(rank: int, world: int) -> None:
    """The same sums by gathering values and by summing them in the order of the union."""
    for name in ("duplicates", "hybrid", "rank 0 empty", "long", "coalesced"):
        for dtype in (torch.float32, *HALVES):
            results = {}
            for way, link in (("gather", DEAR_STEPS), ("union", FREE_STEPS)):
                believe_in(link)
                group = dist.new_group()
                shape = shared_rows(rank, name, dtype).shape
                for _ in range(2):  # the size of the union is known from the second call on
                    tensor = shared_rows(rank, name, dtype)
                    all_reduce(tensor, group=group)
                assert tensor.shape == shape
                assert metrics(group).get(f"mode/{way}", 0) > 0, (name, way)
                results[way] = tensor
            expected = torchs_sum(shared_rows(rank, name, dtype).to_dense())
            for way, tensor in results.items():
                check_sparse(tensor, expected, (name, dtype, way))
            assert torch.equal(results["gather"].indices(), results["union"].indices())


def shared_rows(rank: int, name: str, dtype: Any) -> Any:
    """Every rank but an idle one has the same rows, so that the union way pays."""
    if rank == FORMS[name].idle:
        return sparse_tensor(rank, name, dtype)
    tensor = sparse_tensor(1, name, dtype)
    values = tensor._values() * (rank + 1)
    return torch.sparse_coo_tensor(tensor._indices(), values, tensor.shape)


def test_gathered_values_and_summed_unions_are_equal() -> None:
    run_ranks(4, both_ways)


def wandering_sizes(rank: int, world: int) -> None:
    """Sizes that outgrow the room of first messages, and messages of other kinds between."""
    for call, most in enumerate((1, 300, 40, 5000, 0, 5000, 64, 65, 2, 9000, 1)):
        nnz = max(most - 7 * rank, 0)
        rows = torch.randint(0, 20_000, (1, nnz), generator=seeded(rank, f"rows {call}"))
        values = torch.full((nnz, 4), float(rank + 1))
        tensor = torch.sparse_coo_tensor(rows, values, (20_000, 4))
        expected = torchs_sum(tensor.to_dense())
        all_reduce(tensor)
        check_sparse(tensor, expected, call)
        dense = integers(rank, (most + 1,))
        expected = torchs_sum(dense)
        assert torch.equal(all_reduce(dense), expected)


def test_sparse_tensors_whose_sizes_wander() -> None:
    run_ranks(3, wandering_sizes)


def the_same_sum_again(rank: int, world: int) -> list[float]:
    """Squared errors of single lossy sums, and of their average."""
    expected = torchs_sum(sparse_tensor(rank, "long").to_dense())
    sums = [all_reduce(sparse_tensor(rank, "long"), codec="quant:bits=2") for _ in range(8)]
    average = sum(one.to_dense() for one in sums) / len(sums)
    return [float((one - expected).square().sum()) for one in (sums[0].to_dense(), average)]


def test_lossy_sparse_sums_round_anew_in_every_call() -> None:
    single, average = run_ranks(2, the_same_sum_again)[0]
    assert average < single / 4

# SPDX-License-Identifier: Apache-2.0
"""What all_reduce refuses, and how ranks learn that they differ."""

from __future__ import annotations

import math
import threading
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run_ranks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

import addend  # noqa: E402
from addend.pipeline import Pipeline  # noqa: E402
from addend.torch import all_reduce, metrics  # noqa: E402


def bad_arguments(rank: int, world: int) -> None:
    for known in (False, True):  # whether the group was used before
        for kind, message, call in wrong_calls(world):
            with pytest.raises(kind, match=message):
                call()
            if known:
                ones = torch.ones(4)
                assert torch.equal(all_reduce(ones.clone()), ones * world)  # nothing was broken
        # Other ranks of a group that does not exist yet would wait for this one.
        assert bool(metrics()) == known
        all_reduce(torch.ones(4))


def wrong_calls(world: int) -> list[tuple[type[Exception], str, Callable[[], Any]]]:
    ones = torch.ones(4)
    mesh = init_device_mesh("cpu", (world,))
    distributed = distribute_tensor(torch.ones(world, 2), mesh, [Shard(0)])
    quantized = torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)
    return [
        (addend.InvalidArgument, "op 'max' is not sum or mean", lambda: all_reduce(ones, "max")),
        (addend.InvalidArgument, "not list", lambda: all_reduce([1.0])),  # type: ignore[arg-type]
        (addend.InvalidArgument, "codec 3 is not a spec", lambda: all_reduce(ones, codec=3)),  # type: ignore[arg-type]
        (addend.InvalidArgument, "nonsense", lambda: all_reduce(ones, codec="nonsense")),
        (addend.InvalidArgument, "bits", lambda: all_reduce(ones, codec="quant:bits=9")),
        (addend.InvalidArgument, "bits", lambda: all_reduce(ones, codec="quant:bits=x")),
        (addend.InvalidArgument, "op", lambda: all_reduce(ones, dist.ReduceOp.SUM)),  # type: ignore[arg-type]
        (addend.InvalidArgument, "op", lambda: all_reduce(ones, ["sum"])),  # type: ignore[arg-type]
        (addend.InvalidArgument, "deadline 0", lambda: all_reduce(ones, deadline=0)),
        (addend.InvalidArgument, "deadline inf", lambda: all_reduce(ones, deadline=math.inf)),
        (addend.InvalidArgument, "deadline nan", lambda: all_reduce(ones, deadline=math.nan)),
        (addend.InvalidArgument, "deadline 'soon'", lambda: all_reduce(ones, deadline="soon")),  # type: ignore[arg-type]
        (addend.InvalidArgument, "group 'all' is", lambda: all_reduce(ones, group="all")),
        (addend.InvalidArgument, "share memory", lambda: all_reduce(ones.unfold(0, 2, 1))),
        (addend.Unsupported, "DTensor", lambda: all_reduce(distributed)),
        (addend.Unsupported, "on meta", lambda: all_reduce(torch.ones(4, device="meta"))),
        (addend.Unsupported, "nested", lambda: all_reduce(torch.nested.nested_tensor([ones]))),
        (addend.Unsupported, "torch.qint8", lambda: all_reduce(quantized)),
        (addend.InvalidArgument, "clone", lambda: all_reduce(torch.ones(1).expand(4))),
        (addend.InvalidArgument, "mean of torch.int64", lambda: all_reduce(ones.long(), "mean")),
        (addend.Unsupported, "torch.complex64", lambda: all_reduce(ones + 1j)),
        (addend.Unsupported, "torch.bool", lambda: all_reduce(ones.bool())),
        (addend.Unsupported, "sparse_csr", lambda: all_reduce(torch.eye(3).to_sparse_csr())),
        (addend.Unsupported, "sparse dim", lambda: all_reduce(torch.sparse_coo_tensor(size=()))),
        (addend.Unsupported, "quant.*float64", lambda: all_reduce(ones.double(), codec="quant")),
        (addend.Unsupported, "quant.*int64", lambda: all_reduce(ones.long(), codec="quant")),
        (
            addend.Unsupported,
            "reproducible.*float64",
            lambda: all_reduce(ones.double(), codec="exact:values=reproducible"),
        ),
        (
            addend.Unsupported,
            "quant.*float64",
            lambda: all_reduce(ones.double().to_sparse(), codec="quant"),
        ),
        (
            addend.InvalidArgument,
            "feedback",
            lambda: all_reduce(ones.to_sparse(), codec="quant:feedback=float", name="sparse"),
        ),
        (
            addend.InvalidArgument,
            "residual from call to call: say by name=",
            lambda: all_reduce(ones, codec="quant:feedback=float"),
        ),
        (addend.InvalidArgument, "name 7 is not a name", lambda: all_reduce(ones, name=7)),  # type: ignore[arg-type]
        (addend.InvalidArgument, "name '' is not a name", lambda: all_reduce(ones, name="")),
    ]


def test_bad_arguments_are_named_and_harmless() -> None:
    run_ranks(2, bad_arguments)


def test_without_a_process_group_that_is_said() -> None:
    with pytest.raises(addend.InvalidArgument, match="init_process_group"):
        all_reduce(torch.ones(3))


ODD = 1


def disagreements(rank: int) -> dict[str, Callable[[Any], tuple[Any, Callable[[], Any]]]]:
    """Calls in which one rank differs: name -> (tensor, the call) for a group."""
    odd = rank == ODD

    def reduces(tensor: Any, *arguments: Any, **named: Any) -> Any:
        return lambda group: (tensor, lambda: all_reduce(tensor, *arguments, group=group, **named))

    ones, rows = torch.ones(6, 4), torch.ones(6, 4).to_sparse(1)
    return {
        "count": reduces(torch.ones(7 if odd else 6)),
        "much larger": reduces(torch.ones(1_000_000 if odd else 6)),
        "shape": reduces(torch.ones(4, 6) if odd else ones.clone()),
        "type": reduces(ones.half() if odd else ones.clone()),
        "type without codec": reduces(ones.double() if odd else ones.clone()),
        "codec": reduces(ones.clone(), codec="dense" if odd else "exact"),
        "name": reduces(ones.clone(), name="odd" if odd else "even"),
        "op": reduces(ones.clone(), "mean" if odd else "sum"),
        "sparse and dense": reduces(rows.clone() if odd else ones.clone()),
        "sparse shape": reduces(torch.ones(7 if odd else 6, 4).to_sparse(1)),
        "sparse dimensions": reduces(ones.to_sparse(2 if odd else 1)),
        "sparse codec": reduces(rows.clone(), codec="quant" if odd else "exact"),
        "sparse op": reduces(rows.clone(), "mean" if odd else "sum"),
    }


def mismatches(rank: int, world: int) -> dict[str, tuple[str, str, bool]]:
    out = {}
    for name, make in disagreements(rank).items():
        group = dist.new_group()
        all_reduce(torch.ones(3), group=group)
        tensor, call = make(group)
        before = tensor.clone()
        try:
            call()
            out[name] = ("none", "", True)
        except addend.Error as error:
            same = torch.equal(tensor.to_dense(), before.to_dense())
            out[name] = (type(error).__name__, str(error), same)
        with pytest.raises(addend.Mismatch):  # this group's order is lost
            all_reduce(torch.ones(3), group=group)
    tensor = torch.ones(3)
    assert torch.equal(all_reduce(tensor), torch.full((3,), float(world)))  # others are not
    return out


def test_ranks_that_differ_get_a_mismatch_that_names_the_odd_one() -> None:
    told = run_ranks(3, mismatches)
    for name in disagreements(0):
        for rank in range(3):
            kind, message, unchanged = told[rank][name]
            assert kind == "Mismatch", (name, rank, message)
            assert f"rank {ODD} has" in message, (name, rank, message)
            assert "rank 0 has" not in message
            assert "rank 2 has" not in message
            assert f"rank {rank} of 3" in message
            assert unchanged, (name, rank)


def calls_out_of_order(rank: int, world: int) -> list[tuple[str, str, bool]]:
    tensors = [torch.full((n,), 1.0) for n in (10, 20, 30)]
    order = (1, 0, 2) if rank == 2 else (0, 1, 2)
    all_reduce(torch.ones(3))
    gate = threading.Event()  # none begins before all are in flight: a call after a failure raises
    run: Any = Pipeline.run

    def held(*args: Any, **named: Any) -> Any:
        return run(*args, **{**named, "prepare": gate.wait})

    Pipeline.run = held  # type: ignore[method-assign]
    pendings = [all_reduce(tensors[i], async_op=True) for i in order]
    gate.set()
    out = []
    for pending in pendings:
        with pytest.raises(addend.Error) as raised:
            pending.wait()
        out.append((type(raised.value).__name__, str(raised.value)))
    return [(*told, torch.equal(t, torch.ones_like(t))) for told, t in zip(out, tensors)]


def test_calls_in_another_order_fail_all_that_are_in_flight() -> None:
    for rank, told in enumerate(run_ranks(4, calls_out_of_order)):
        for kind, message, unchanged in told:
            assert kind == "Mismatch", (rank, message)
            assert "rank 2 has" in message, (rank, message)
            assert unchanged

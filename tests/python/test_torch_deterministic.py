# SPDX-License-Identifier: Apache-2.0
"""The same bits in every run, whatever the network looked like when it was measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run_ranks  # noqa: E402
from tensors import seeded  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from training import MANY_BUCKETS, Recommender, digest, fit, recommender_loss  # noqa: E402

import addend  # noqa: E402
from addend.reducer import Reducer  # noqa: E402
from addend.torch import Link, all_reduce, attach  # noqa: E402

# What measuring may give on one machine: steps that cost nothing, and bytes that do.
MEASURED = (Link(1.0, 0.01), Link(1e6, 1000.0))


@contextlib.contextmanager
def torch_is_told() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def trained(rank: int, asked: dict[str, Any]) -> str:
    run = fit(Recommender, recommender_loss, "exact", ddp=MANY_BUCKETS, attach=asked)
    return digest(run.parameters)


def summed(rank: int, asked: dict[str, Any]) -> str:
    """Sums of several sizes, some of them twice, on a group of their own."""
    group = dist.new_group()
    out = {}
    for step, count in enumerate((100, 20_000, 400_000, 20_000, 400_000)):
        tensor = torch.randn(count, generator=seeded(rank, f"{count} {step}"))
        tensor[torch.rand(count, generator=seeded(0, count)) < 0.7] = 0
        out[f"dense {step}"] = all_reduce(tensor.clone(), group=group, **asked)
        rows = tensor.view(-1, 10).to_sparse(1)
        out[f"sparse {step}"] = all_reduce(rows, group=group, **asked).to_dense()
    return digest(out)


def end_states(rank: int, world: int) -> dict[str, list[str]]:
    """By who asks for determinism: digests of what runs over different networks end with."""
    out: dict[str, list[str]] = {}
    for link in MEASURED:
        Reducer.measure_link = lambda reducer, timeout_s, link=link: link  # type: ignore[method-assign, misc]
        for what in (trained, summed):
            cases: dict[str, tuple[Any, dict[str, Any]]] = {
                "nobody": (contextlib.nullcontext(), {}),
                "the caller": (contextlib.nullcontext(), {"deterministic": True}),
                "torch": (torch_is_told(), {}),
            }
            for who, (told, asked) in cases.items():
                with told:
                    out.setdefault(f"{what.__name__}: {who}", []).append(what(rank, asked))
    return out


@pytest.mark.parametrize("mesh", ["on", "off"])
def test_plans_do_not_depend_on_the_network_if_that_is_asked_for(mesh: str) -> None:
    first, *others = run_ranks(4, end_states, env={"ADDEND_MESH": mesh})
    assert all(other == first for other in others)
    for what in ("trained", "summed"):
        # A mesh adds in the order of ranks, whatever the plan. Elsewhere it must show, or this test
        # could not fail: where there is no mesh, or a slow link has the backend add what is dense.
        shows = mesh == "off" or what == "trained"
        assert (len(set(first[f"{what}: nobody"])) > 1) == shows, what
        asked = first[f"{what}: the caller"] + first[f"{what}: torch"]
        assert len(set(asked)) == 1, what


def too_late(rank: int, world: int) -> None:
    ones = torch.ones(10)
    all_reduce(ones.clone())
    with pytest.raises(addend.InvalidArgument, match="from the first one on"):
        all_reduce(ones.clone(), deterministic=True)
    with torch_is_told(), pytest.raises(addend.InvalidArgument, match="from the first one on"):
        all_reduce(ones.clone())
    with torch_is_told():  # the caller's word counts before torch's
        assert torch.equal(all_reduce(ones.clone(), deterministic=False), ones * world)
    with pytest.raises(addend.InvalidArgument, match="deterministic 1 is not"):
        all_reduce(ones.clone(), deterministic=1)  # type: ignore[arg-type]


def test_it_must_be_asked_for_at_first() -> None:
    run_ranks(2, too_late)


def only_one_rank_asks(rank: int, world: int) -> list[str]:
    said = []
    model = DistributedDataParallel(Recommender())
    for call in (
        lambda: all_reduce(torch.ones(3), deterministic=rank == 1),
        lambda: attach(model, deterministic=rank == 1),
    ):
        with pytest.raises(addend.Mismatch) as raised:
            call()
        said.append(str(raised.value))
    assert torch.equal(all_reduce(torch.ones(3)), torch.full((3,), float(world)))  # still in order
    return said


def test_ranks_that_differ_in_what_they_ask_for_are_told_at_once() -> None:
    for said in run_ranks(3, only_one_rank_asks):
        for text in said:
            assert "ranks differ from rank 0 in what they ask for: 1; here: tensors on cpu" in text


def served(rank: int, world: int) -> None:
    model = DistributedDataParallel(Recommender())
    server = addend.Aggregator("127.0.0.1:1", certificate="x", certificate_key="x", authority="x")
    for codec in ("exact", "dense", "quant:bits=4"):
        with pytest.raises(addend.Unsupported, match="a server's sums of floats"):
            attach(model, codec=codec, aggregator=server, deterministic=True)


def test_a_servers_order_is_refused() -> None:
    run_ranks(1, served)

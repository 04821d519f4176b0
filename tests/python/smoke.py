# SPDX-License-Identifier: Apache-2.0
"""The PyTorch front in one minute, for interpreters and torches that have no test tools.

python tests/python/smoke.py        two ranks on this machine; prints "smoke: ok" and the torch
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import addend.torch

WORLD = 2


class Model(torch.nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(3000, 32, sparse=sparse)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(32, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(self.table(rows).mean(1))  # type: ignore[no-any-return]


def check_sums(rank: int) -> None:
    torch.manual_seed(rank)
    for spec in (
        "exact",
        "dense",
        "exact:mode=sketch",
        "exact:values=reproducible",
        "quant:bits=4",
    ):
        for shape in ((), (0,), (1001,), (64, 1000)):
            given = torch.randn(shape) * (torch.rand(shape) < 0.1)
            expected = given.clone()
            dist.all_reduce(expected)
            for _ in range(2):
                got = given.clone()
                addend.torch.all_reduce(got, codec=spec)
            error = float((got - expected).norm())
            bound = 0.5 if spec.startswith("quant") else 1e-5
            assert error <= bound * float(expected.norm()), (spec, shape, error)
    count = 5 * rank  # rank 0 has nothing
    sparse = torch.sparse_coo_tensor(
        torch.randint(0, 50, (1, count)), torch.randn(count, 4), (50, 4)
    )
    expected = sparse.to_dense()
    dist.all_reduce(expected)
    addend.torch.all_reduce(sparse)
    assert torch.allclose(sparse.to_dense(), expected, atol=1e-6)


def train(rank: int, codec: str | None, sparse: bool, **options: Any) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(sparse), **options)
    handle = addend.torch.attach(model, codec=codec) if codec else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(6):
        rows = torch.randint(0, 3000, (8, 4), generator=generator)
        loss = (model(rows) - rows.float().mean(1, keepdim=True) / 3000).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    if handle is not None:
        handle.load_state_dict(handle.state_dict())
        handle.close()
    return losses


def body(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD
    )
    check_sums(rank)
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        for sparse in (False, True):
            if sparse and options.get("gradient_as_bucket_view"):
                continue  # DDP itself refuses sparse gradients as views
            plain = train(rank, None, sparse, **options)
            assert train(rank, "exact", sparse, **options) == plain, options
            for ours, theirs in zip(train(rank, "quant:bits=4", sparse, **options), plain):
                assert abs(ours - theirs) < 0.05, options
    addend.torch.close_all()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(body, (folder,), nprocs=WORLD)
    print("smoke: ok, torch", torch.__version__, os.path.dirname(addend.__file__))

# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors: sums and training with gradients on a device, in stream order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from addend.torch._collectives import _Dense, _known_context
from addend.torch._engine import can_encode_on

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5000, 64)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(self.table(rows).mean(1))  # type: ignore[no-any-return]


def _check_sums(rank: int) -> None:
    torch.manual_seed(rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for count in (0, 1, 3_000_001, 40_000_000):
            live = torch.rand(count, device="cuda") < 0.05
            given = (torch.randn(count, device="cuda") * live).to(dtype)
            expected = given.clone()
            dist.all_reduce(expected)
            for _ in range(2):
                # Work that is queued on the caller's stream comes before the sum and after it.
                tensor = given.clone().mul_(2).mul_(0.5)
                addend.torch.all_reduce(tensor)
                got = tensor + 0
            tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 1e-2
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    if can_encode_on(torch.device("cuda", 0)):
        context = _known_context(None)
        assert context is not None
        made = [known.codecs for known in context.known.values() if isinstance(known, _Dense)]
        assert all(codecs.on_device for codecs in made if codecs is not None)
        assert sum(codecs is not None for codecs in made) == 12
    mean = torch.full((1000,), float(rank + 1), device="cuda")
    addend.torch.all_reduce(mean, op="mean")
    torch.testing.assert_close(mean, torch.full_like(mean, (dist.get_world_size() + 1) / 2))
    dense = torch.randn(1_000_001, device="cuda")
    expected, got = dense.clone(), dense.clone()
    dist.all_reduce(expected)
    addend.torch.all_reduce(got, codec="quant:bits=4", async_op=True).wait()
    assert float(((got - expected).norm() / expected.norm()) ** 2) < 0.02
    rows = torch.randint(0, 500, (1, 64), device="cuda")
    sparse = torch.sparse_coo_tensor(rows, torch.randn(64, 8, device="cuda"), (500, 8))
    expected = sparse.to_dense()
    dist.all_reduce(expected)
    addend.torch.all_reduce(sparse)
    torch.testing.assert_close(sparse.to_dense(), expected)


def _train(rank: int, codec: str | None, **options: Any) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().cuda(), device_ids=[0], **options)
    handle = addend.torch.attach(model, codec=codec) if codec else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(30):
        rows = torch.randint(0, 5000, (16, 4), generator=generator).cuda()
        target = rows.float().mean(1, keepdim=True) / 5000
        loss = torch.nn.functional.mse_loss(model(rows), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)  # read at the end: the host does not wait for a step
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(one, flat) for one in everyone), f"{codec}: replicas differ"
    if handle is not None:
        if can_encode_on(flat.device):
            there = [b.codecs.on_device for b in handle._buckets.values() if b.codecs is not None]
            assert all(there), f"{codec}: {there}"
        handle.close()
    return [float(loss) for loss in losses]


def _body(rank: int, world: int, rendezvous: str, backend: str) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world
    )
    _check_sums(rank)
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1}):
        plain = _train(rank, None, **options)
        assert _train(rank, "exact", **options) == pytest.approx(plain, rel=1e-5)
        assert _train(rank, "dense", **options) == pytest.approx(plain, rel=1e-5)
        assert _train(rank, "cast:bf16", **options) == pytest.approx(plain, abs=0.01)
        quantised = _train(rank, "quant:bits=4,feedback=float", **options)
        assert quantised == pytest.approx(plain, abs=0.01)
    addend.torch.close_all()
    dist.destroy_process_group()


# NCCL refuses two ranks on one device, so with one device its group has one member.
@pytest.mark.parametrize(("backend", "world"), [("gloo", 2), ("nccl", 1)])
def test_on_a_device(backend: str, world: int, tmp_path: Any) -> None:
    if backend == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    spawn(_body, (world, str(tmp_path / "rendezvous"), backend), nprocs=world)

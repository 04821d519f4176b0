# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors: sums and training with gradients on a device, in stream order."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from addend import Op, Plane, Unsupported
from addend.torch._bucket import side_stream
from addend.torch._collectives import _Dense, _known_context
from addend.torch._engine import can_encode_on
from addend.torch._group_sums import GroupSums

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


class Chatty(torch.autograd.Function):
    """A layer that has a collective of its own in its backward pass."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradients[0])
        return gradients[0]


class Model(torch.nn.Module):
    def __init__(self, chatty: bool = False) -> None:
        super().__init__()
        self.chatty = chatty
        self.table = torch.nn.Embedding(5000, 64)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.table(rows).mean(1)
        if self.chatty:
            hidden = Chatty.apply(hidden)  # type: ignore[no-untyped-call]
        return self.layers(hidden)  # type: ignore[no-any-return]


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
            assert handle._engine.planes_stay == (dist.get_world_size() == 1)
            there = [
                b.codecs.on_device for b in handle._buckets.known.values() if b.codecs is not None
            ]
            assert all(there), f"{codec}: {there}"
        handle.close()
    return [float(loss) for loss in losses]


def _body(rank: int, world: int, rendezvous: str, backend: str) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world
    )
    _check_sums(rank)
    _check_order(rank)
    _check_overlap()
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1}):
        plain = _train(rank, None, **options)
        assert _train(rank, "exact", **options) == pytest.approx(plain, rel=1e-5)
        assert _train(rank, "dense", **options) == pytest.approx(plain, rel=1e-5)
        assert _train(rank, "cast:bf16", **options) == pytest.approx(plain, abs=0.01)
        quantised = _train(rank, "quant:bits=4,feedback=float", **options)
        assert quantised == pytest.approx(plain, abs=0.01)
    addend.torch.close_all()
    dist.destroy_process_group()


def _slow(milliseconds: int = 50) -> None:
    """The current stream does nothing for a while; the host goes on."""
    torch.cuda._sleep(milliseconds * 2_000_000)


def _check_order(rank: int) -> None:
    """Sums come after what wrote a tensor and before what reads it, however slow a stream is, and
    memory is not given to others before that."""
    world = dist.get_world_size()
    base = torch.randn(2_000_003, generator=torch.Generator().manual_seed(1)).cuda()
    expected = base * sum(range(1, world + 1))
    for codec in ("exact", "quant:bits=8"):
        for late in ("the caller's", "ours", "both"):
            given = torch.zeros_like(base)
            torch.cuda.synchronize()
            if late != "ours":
                _slow()
            if late != "the caller's":
                with torch.cuda.stream(side_stream(given.device)):
                    _slow()
            given.add_(base, alpha=rank + 1)
            work = addend.torch.all_reduce(given, codec=codec, async_op=True)
            work.wait()
            got = given.clone()
            del given, work
            other = torch.full_like(base, -1.0)  # where it was, if it may be there
            error = float((got - expected).norm() / expected.norm())
            assert error < (1e-6 if codec == "exact" else 0.02), (codec, late)
            assert bool((other == -1.0).all()), (codec, late)


class Late(torch.autograd.Function):
    """A layer whose backward pass takes a device long."""

    ended: torch.cuda.Event | None = None

    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        _slow(1000)
        ended = torch.cuda.Event()
        ended.record()
        Late.ended = ended
        return gradients[0]


class TwoBuckets(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(700, 700), torch.nn.Linear(700, 700)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        late = Late.apply(self.first(x))  # type: ignore[no-untyped-call]
        return self.second(late)  # type: ignore[no-any-return]


def _check_overlap() -> None:
    """All rounds of a bucket are over while the gradients of the next are being computed."""
    for codec in ("exact:mode=packed", "quant:bits=4"):
        model = DistributedDataParallel(TwoBuckets().cuda(), device_ids=[0], bucket_cap_mb=1)
        handle = addend.torch.attach(model, codec=codec)
        tell, late = handle._bucket_done, list[bool]()

        def done(step: int, tell: Any = tell, late: list[bool] = late) -> None:
            late.append(Late.ended is not None and Late.ended.query())
            tell(step)

        handle._bucket_done = done  # type: ignore[method-assign]
        for _ in range(3):  # the first has one bucket
            late.clear()
            Late.ended = None
            model(torch.randn(4, 700, device="cuda")).sum().backward()
        assert len(late) == 2
        assert not late[0], codec
        handle.close()


# NCCL refuses two ranks on one device, so with one device its group has one member.
@pytest.mark.parametrize(("backend", "world"), [("gloo", 2), ("nccl", 1)])
def test_on_a_device(backend: str, world: int, tmp_path: Any) -> None:
    if backend == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    spawn(_body, (world, str(tmp_path / "rendezvous"), backend), nprocs=world)


# ---- planes over a process group


def _random_plane(op: Op, lanes: int, world: int, generator: random.Random) -> bytes:
    """Lanes whose sums do not overflow."""
    if op in (Op.SUM_F32, Op.SUM_BF16, Op.SUM_F16):
        dtype = {Op.SUM_F32: torch.float32, Op.SUM_BF16: torch.bfloat16}.get(op, torch.float16)
        whole = torch.tensor([float(generator.randrange(-8, 8)) for _ in range(lanes)])
        return bytes(whole.to(dtype).view(torch.uint8).tolist())
    data = bytearray(generator.randbytes(op.nbytes(lanes)))
    if op is Op.SUM_U8:
        return bytes(b // world for b in data)
    if op is Op.SUM_U16:
        data[1::2] = bytes(b // world for b in data[1::2])
    if op in (Op.TABLE_SUM_U8, Op.TABLE_SUM_U16) and lanes % 2:
        data[-1] &= 15
    return bytes(data)


def _sum_planes(rank: int, world: int, rendezvous: str, backend: str) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world
    )
    device = torch.device("cuda", 0)
    there, here = GroupSums(dist.group.WORLD, device), None
    if backend == "gloo":
        here = GroupSums(dist.group.WORLD, torch.device("cpu"))
        there.native = there.native - {Op.OR_U64}  # as NCCL, which has no OR
    else:
        assert Op.OR_U64 not in there.native
    table = (ctypes.c_uint16 * 16)(*[3 * i for i in range(16)])
    small = (ctypes.c_uint8 * 16)(*[2 * i for i in range(16)])
    stream = torch.cuda.Stream()
    for lanes in (1, 7, 64, 1000, 70_001):
        planes: dict[str, list[Plane]] = {"cpu": [], "cuda": []}
        results: dict[str, list[torch.Tensor]] = {"cpu": [], "cuda": []}
        for op in [op for op in Op if not op.is_narrow_sum]:
            data = _random_plane(op, lanes, world, random.Random(f"{op} {lanes} {rank}"))
            entries = small if op is Op.TABLE_SUM_U8 else table
            for where in ("cpu", "cuda"):
                mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(where)
                sums = torch.full((op.sum_nbytes(lanes),), 0xEE, dtype=torch.uint8, device=where)
                results[where].append(sums if op.is_table_sum else mine)
                planes[where].append(
                    Plane(
                        op,
                        lanes,
                        mine.data_ptr(),
                        ctypes.addressof(entries) if op.is_table_sum else 0,
                        sums.data_ptr() if op.is_table_sum else 0,
                        op.nbytes(lanes),
                        op.sum_nbytes(lanes),
                        stream.cuda_stream if where == "cuda" else None,
                    )
                )
                results[where].append(mine)  # kept alive; indices stay as they are
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            _slow(5)
        there.reduce(planes["cuda"], 60.0)
        stream.synchronize()
        if here is not None:
            here.reduce(planes["cpu"], 60.0)
        else:  # of one worker
            for plane, sums in zip(planes["cpu"], results["cpu"][::2]):
                if plane.op.is_table_sum:
                    addend.fold_tables(
                        plane.op, sums.data_ptr(), [plane.data], plane.table, plane.lanes
                    )
        for plane, one, other in zip(planes["cpu"], results["cpu"][::2], results["cuda"][::2]):
            assert torch.equal(one, other.cpu()), (plane.op, lanes)
    dist.destroy_process_group()


@pytest.mark.parametrize(("backend", "world"), [("gloo", 2), ("gloo", 3), ("nccl", 1)])
def test_planes_of_a_device_are_summed_there(backend: str, world: int, tmp_path: Any) -> None:
    if backend == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    spawn(_sum_planes, (world, str(tmp_path / "rendezvous"), backend), nprocs=world)


def _over_nccl(rank: int, world: int, rendezvous: str) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    options = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True}
    plain = _train(rank, None, **options)
    assert _train(rank, "exact", **options) == pytest.approx(plain, rel=1e-5)
    quantised = _train(rank, "quant:bits=4,feedback=float,carrier=indices", **options)
    assert quantised == pytest.approx(plain, abs=0.01)

    # Layers and table in buckets of their own: between their hooks a layer can be heard.
    model = DistributedDataParallel(Model().cuda(), device_ids=[0], bucket_cap_mb=0.1)
    handle = addend.torch.attach(model, codec="exact")
    assert handle._engine.launches is not None
    assert handle._engine.way == "group"
    rows = torch.randint(0, 5000, (16, 4)).cuda()
    for _ in range(3):
        model(rows).square().mean().backward()
    spoken = DistributedDataParallel(
        Model().cuda(), device_ids=[0], find_unused_parameters=True, bucket_cap_mb=0.1
    )
    with pytest.raises(Unsupported, match="find_unused_parameters"):
        addend.torch.attach(spoken, codec="exact")
    model.module.chatty = True
    loss = model(rows).square().mean()
    with pytest.raises(Unsupported, match="collectives of other groups came during backward"):
        loss.backward()
    handle.close()
    addend.torch.close_all()
    dist.destroy_process_group()


def test_planes_go_over_nccl_and_nobody_else_meanwhile(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dist.is_nccl_available() or not can_encode_on(torch.device("cuda", 0)):
        pytest.skip("needs NCCL and libaddend_cuda.so")
    monkeypatch.setenv("ADDEND_MESH", "off")  # one rank would be alone otherwise
    spawn(_over_nccl, (1, str(tmp_path / "rendezvous")), nprocs=1)

# SPDX-License-Identifier: Apache-2.0
"""all_reduce of dense tensors against torch's own."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import notes, run_ranks  # noqa: E402
from tensors import HALVES, LOSSLESS, LOSSY, PLAIN, integers, seeded, torchs_sum  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend  # noqa: E402
import addend.torch  # noqa: E402
from addend.reducer import Link  # noqa: E402
from addend.torch import Pending, _collectives, _specs, all_reduce, metrics  # noqa: E402
from addend.torch._engine import Engine  # noqa: E402

SHAPES = ((), (0,), (3, 0), (1,), (7,), (3, 5, 7), (1000,), (257, 64))
FEW_SHAPES = ((), (0,), (3, 5, 7), (257, 64))


def dense_tensors(rank: int, world: int) -> None:
    cases = [(spec, torch.float32) for spec in LOSSLESS]
    cases += [(spec, dtype) for spec in ("dense", "exact", LOSSLESS[-1]) for dtype in HALVES]
    cases += [("dense", PLAIN[0]), *(("exact", dtype) for dtype in PLAIN)]
    for spec, dtype in cases:
        for shape in SHAPES if spec == "exact" else FEW_SHAPES:
            for op in ("sum", "mean") if dtype.is_floating_point else ("sum",):
                for dense in (False, True):  # the second has learnt from the first
                    tensor = integers(rank, shape, dtype, dense)
                    expected = torchs_sum(tensor, op)
                    assert all_reduce(tensor, op, codec=spec) is tensor
                    assert tensor.dtype == dtype
                    assert torch.equal(tensor, expected), (spec, dtype, shape, op, dense)


def test_lossless_sums_and_means_are_torchs() -> None:
    run_ranks(4, dense_tensors)


def lossy_tensors(rank: int, world: int) -> list[Any]:
    out = []
    for spec in LOSSY:
        for shape in (*FEW_SHAPES, (64, 257)):
            for op in ("sum", "mean"):
                tensor = integers(rank, shape, torch.float32, dense=True)
                expected = torchs_sum(tensor, op)
                most = torchs_sum(tensor.abs(), op).square().sum()
                strided = tensor.t() if shape == (64, 257) else tensor
                all_reduce(strided, op, codec=spec, name=f"{spec} {shape} {op}")
                assert (tensor - expected).square().sum() <= 0.5 * most, (spec, shape, op)
                out.append(tensor.view(-1).tolist())
    return out


def test_lossy_sums_of_any_shape_are_the_same_everywhere() -> None:
    first, *others = run_ranks(3, lossy_tensors)
    assert [other == first for other in others] == [True, True]


def sums_that_round(rank: int, world: int) -> list[Any]:
    out = []
    for spec in (*LOSSLESS, *LOSSY):
        for dtype in (torch.float32, *HALVES):
            tensor = torch.randn(3000, generator=seeded(rank, spec)).to(dtype)
            terms = [torch.empty_like(tensor) for _ in range(world)]
            dist.all_gather(terms, tensor)
            exactly = sum(term.double() for term in terms)
            all_reduce(tensor, codec=spec, name=f"{spec} {dtype}")
            error = (tensor.double() - exactly).square().sum() / exactly.square().sum()
            out.append((spec, dtype, float(error), tensor.double().tolist()))
            if "reproducible" in spec:
                assert torch.equal(tensor, exactly.to(dtype)), (spec, dtype)
    return out


def test_sums_that_round_are_the_same_everywhere_and_close() -> None:
    first, *others = run_ranks(3, sums_that_round)
    for other in others:
        assert other == first
    allowed = {torch.float32: 1e-13, torch.float16: 1e-6, torch.bfloat16: 3e-5}
    for spec, dtype, error, _ in first:
        if spec in LOSSLESS:
            assert error < allowed[dtype], (spec, dtype)
        else:
            assert 1e-6 < error < (0.3 if "bits=2" in spec else 0.02), (spec, dtype)


def strided_tensors(rank: int, world: int) -> None:
    whole = integers(rank, (6, 40, 3))
    views: dict[str, Callable[[Any], Any]] = {
        "transposed": lambda t: t.transpose(0, 1),
        "every second": lambda t: t[:, ::2],
        "one column": lambda t: t[:, :, 1],
        "channels last": lambda t: t.permute(2, 0, 1),
        "part": lambda t: t[2:4],  # contiguous, not at the beginning of its memory
    }
    for name, view in views.items():
        for codec, dtype in (
            ("exact", torch.float32),
            ("dense", torch.float16),
            ("exact", PLAIN[0]),
        ):
            memory = whole.to(dtype)
            expected = memory.clone()
            view(expected).copy_(torchs_sum(view(memory)))
            all_reduce(view(memory), codec=codec)
            assert torch.equal(memory, expected), (name, codec, dtype)
    for shape in ((4, 3), (3,)):
        leaf = integers(rank, shape).requires_grad_()
        expected = torchs_sum(leaf)
        assert all_reduce(leaf) is leaf
        assert torch.equal(leaf, expected)
        assert leaf.requires_grad
        assert leaf.is_leaf
    leaf = integers(rank, (4, 3)).t().requires_grad_()
    expected = torchs_sum(leaf)
    all_reduce(leaf)
    assert torch.equal(leaf, expected)


def test_strided_tensors_change_their_own_elements_alone() -> None:
    run_ranks(3, strided_tensors)


INFERENCE_VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda t: t,
    "transposed": lambda t: t.t(),
    "sparse": lambda t: t.to_sparse(1),
}


def inference_tensors(rank: int, world: int) -> None:
    """Tensors of inference mode, summed within and outside of it, by this thread and by ours."""
    for first in (True, False):
        for dtype in (torch.float32, torch.float64):
            for name, view in INFERENCE_VIEWS.items():
                for async_op in (False, True):
                    with torch.inference_mode():
                        tensor = view(integers(rank, (40, 8), dtype))
                        expected = torchs_sum(tensor.to_dense())
                    with torch.inference_mode(first):
                        found = all_reduce(tensor, async_op=async_op)
                        found = found.wait() if async_op else found
                        assert found is tensor
                    assert torch.equal(tensor.to_dense(), expected), (first, dtype, name, async_op)
            # Nothing that later sums use was made in inference mode.
            normal = integers(rank, (41, 8), dtype).t()
            expected = torchs_sum(normal)
            assert torch.equal(all_reduce(normal), expected)
    assert torch.equal(all_reduce(integers(rank, (5,)), async_op=True).wait(), _sum_of_5(world))


def _sum_of_5(world: int) -> Any:
    return sum(integers(r, (5,)) for r in range(world))


def test_tensors_of_inference_mode() -> None:
    run_ranks(2, inference_tensors)
    run_ranks(2, inference_tensors, env={"ADDEND_MESH": "off"})


def large_tensors(rank: int, world: int) -> None:
    count = 2 * _collectives._QUANT_PIECE_ELEMENTS + 12_345
    tensor = torch.zeros(count)
    rows = torch.randint(0, count, (count // 100,), generator=seeded(rank, count))
    tensor[rows] = 1.0 + rank
    expected = torchs_sum(tensor)
    exactly = all_reduce(tensor.clone())
    assert torch.equal(exactly, expected)
    roughly = all_reduce(tensor.clone(), codec="quant:bits=8")
    assert (roughly - expected).square().sum() < 0.01 * expected.square().sum()


def many_pieces(rank: int, world: int) -> list[Any]:
    _collectives._PIECE_ELEMENTS = _collectives._QUANT_PIECE_ELEMENTS = 1000
    for spec in LOSSLESS:
        for dtype, op in ((torch.float32, "sum"), (torch.float16, "mean")):
            for dense in (False, True):
                tensor = integers(rank, (103, 100), dtype, dense)
                expected = torchs_sum(tensor, op)
                whole, turned = tensor.clone(), tensor.clone().t()
                assert torch.equal(all_reduce(whole, op, codec=spec), expected), (spec, op)
                assert torch.equal(all_reduce(turned, op, codec=spec), expected.t()), (spec, op)
    lossy = [
        all_reduce(integers(rank, (103, 100), dense=True), codec=spec, name=spec) for spec in LOSSY
    ]
    expected = torchs_sum(integers(rank, (103, 100), dense=True))
    for spec, tensor in zip(LOSSY, lossy):
        assert (tensor - expected).square().sum() < 0.4 * expected.square().sum(), spec
    tensors = [integers(rank, shape) for shape in ((9, 1000), (9, 1000), (5,), (20, 700))]
    sums = [torchs_sum(tensor) for tensor in tensors]
    pendings = [all_reduce(tensor, async_op=True) for tensor in tensors]
    assert all(torch.equal(p.wait(), expected) for p, expected in zip(pendings, sums))
    return [tensor.tolist() for tensor in lossy]


def test_large_tensors_go_in_pieces() -> None:
    run_ranks(2, large_tensors)


@pytest.mark.parametrize("world", [1, 4])
def test_pieces_give_the_same_sums(world: int) -> None:
    first, *others = run_ranks(world, many_pieces)
    assert all(other == first for other in others)


def special_values(rank: int, world: int) -> None:
    inf, nan = float("inf"), float("nan")
    mine = {0: [1.0, inf, inf, nan, 1e-42], 1: [2.0, 1.0, -inf, 1.0, 1e-42]}[rank]
    for spec in LOSSLESS:
        for padding in (0, 1000):
            tensor = torch.tensor(mine + [0.0] * padding)
            expected = torchs_sum(tensor)
            all_reduce(tensor, codec=spec)
            assert torch.allclose(tensor, expected, rtol=0, atol=0, equal_nan=True), spec


def test_nan_and_infinity_reach_all_ranks() -> None:
    run_ranks(2, special_values)


def calls_that_learn(rank: int, world: int) -> list[str]:
    modes = []
    before: dict[str, float] = {}
    for call in range(8):
        # Ever denser: what paid for the first calls does not for the last.
        density = (0.002, 0.002, 0.002, 0.05, 0.3, 1.0, 1.0, 1.0)[call]
        random = seeded(rank, f"call {call}")
        tensor = torch.randint(1, 9, (400, 64), generator=random).float()
        tensor[torch.rand(400, generator=random) > density] = 0
        expected = torchs_sum(tensor)
        all_reduce(tensor, name="ever denser")
        assert torch.equal(tensor, expected), call
        after = metrics()
        keys = [key for key in after if key.startswith("mode/")]
        modes += [key for key in keys if after[key] != before.get(key, 0)]
        before = after
    assert before["wire_bytes"] < 0.9 * before["dense_bytes"]
    return modes


def test_calls_learn_and_stay_exact() -> None:
    modes = run_ranks(3, calls_that_learn)
    assert len(modes[0]) == 8
    assert len(set(modes[0])) > 1
    assert modes[1:] == modes[:1] * 2


def many_shapes(rank: int, world: int) -> None:
    shapes = [(n, 3) for n in range(1, _collectives._MOST_SHAPES + 12)]
    context = _collectives._context(None, 30.0)
    for _ in range(2):  # the second time, the first ones have been forgotten
        for shape in shapes:
            tensor = integers(rank, shape)
            expected = torchs_sum(tensor)
            assert torch.equal(all_reduce(tensor), expected)
    tensors = [integers(rank, shape) for shape in shapes]
    expected = [torchs_sum(tensor) for tensor in tensors]
    pendings = [all_reduce(tensor, async_op=True) for tensor in tensors]  # forgotten while in use
    for pending, sum_ in zip(pendings, expected):
        assert torch.equal(pending.wait(), sum_)
    for shape in shapes:
        tensor = integers(rank, shape)
        expected_sparse = torchs_sum(tensor)
        for spec in ("exact", "exact:values=reproducible"):
            summed = all_reduce(tensor.to_sparse(), codec=spec)
            assert torch.equal(summed.to_dense(), expected_sparse)
    assert len(context.known) == _collectives._MOST_SHAPES


def test_more_shapes_than_are_remembered() -> None:
    run_ranks(2, many_shapes)


# ---- several at once


def several_at_once(rank: int, world: int) -> None:
    shapes = [(100,), (257, 8), (100,), (0,), (100,), (5000,), (3, 3)]
    for codec, dtype in (("exact", torch.float32), ("dense", torch.float16), ("exact", PLAIN[1])):
        tensors = [integers(rank, shape, dtype) for shape in shapes]
        tensors += [integers(rank, (50, 4), dtype).to_sparse(d) for d in (1, 2, 1)]
        expected = [torchs_sum(tensor.to_dense()) for tensor in tensors]
        pendings = [all_reduce(tensor, async_op=True, codec=codec) for tensor in tensors]
        between = integers(rank, (40,), dtype)  # waits its turn
        assert torch.equal(all_reduce(between.clone()), torchs_sum(between))
        for pending, tensor in reversed(list(zip(pendings, tensors))):
            assert isinstance(pending, Pending)
            assert pending.wait() is tensor
            assert pending.is_completed()
            assert pending.wait() is tensor
        for tensor, sum_ in zip(tensors, expected):
            assert torch.equal(tensor.to_dense(), sum_)


def test_several_calls_in_flight() -> None:
    run_ranks(3, several_at_once)


def waits_with_a_limit(rank: int, world: int) -> None:
    all_reduce(torch.zeros(3))
    if rank == 1:
        notes().wait(["rank 0 has given up waiting"])
    pending = all_reduce(torch.ones(5), async_op=True)
    if rank == 0:
        assert not pending.is_completed()
        with pytest.raises(TimeoutError, match="not done"):
            pending.wait(timeout=0.01)
        notes().set("rank 0 has given up waiting", "")
    assert torch.equal(pending.wait(), torch.full((5,), 2.0))


def test_a_wait_may_have_a_limit() -> None:
    run_ranks(2, waits_with_a_limit)


# ---- groups


def groups(rank: int, world: int) -> None:
    pair = dist.new_group([0, 1])
    others = dist.new_group([2, 3])
    three = dist.new_group([0, 2, 3])
    mine, members = (pair, [0, 1]) if rank < 2 else (others, [2, 3])
    for _ in range(2):
        for group, ranks in ((mine, members), (three, [0, 2, 3]), (None, range(4))):
            if rank not in ranks:
                with pytest.raises(addend.InvalidArgument, match="not a member"):
                    all_reduce(torch.ones(3), group=group)
                continue
            expected = sum(integers(r, (100, 3)) for r in ranks)
            assert torch.equal(all_reduce(integers(rank, (100, 3)), group=group), expected)
            for op, scale in (("sum", 1.0), ("mean", 1 / len(ranks))):
                sparse = all_reduce(integers(rank, (100, 3)).to_sparse(1), op, group=group)
                assert torch.allclose(sparse.to_dense(), expected * scale)


def test_subgroups() -> None:
    run_ranks(4, groups)


def alone(rank: int, world: int) -> None:
    for dtype in (torch.float32, *HALVES, *PLAIN):
        for shape in FEW_SHAPES:
            for spec in LOSSLESS if dtype == torch.float32 else ("exact",):
                tensor = integers(0, shape, dtype)
                expected = tensor.clone()
                op = "mean" if dtype.is_floating_point else "sum"
                assert torch.equal(all_reduce(tensor, op, codec=spec), expected)
                if shape:
                    sparse = all_reduce(tensor.to_sparse(), op, codec=spec)
                    assert torch.equal(sparse.to_dense(), expected)
    tensor = torch.randn(3000, generator=seeded(0, "alone"))
    error = all_reduce(tensor.clone(), codec="quant") - tensor
    assert error.square().sum() < 0.02 * tensor.square().sum()
    pending = all_reduce(tensor.clone(), async_op=True)
    assert torch.equal(pending.wait(), tensor)


def test_a_group_of_one() -> None:
    run_ranks(1, alone)


# ---- which codec


def what_it_attached(rank: int, world: int, spec: str) -> str:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    handle = addend.torch.attach(model, codec=spec)
    said = handle.explain()
    handle.close()
    return said


@pytest.mark.parametrize(
    ("spec", "travels_as"),
    [
        ("exact", "exact"),
        ("quant", "quant:carrier=indices"),
        ("quant:", "quant:carrier=indices"),
        ("quant:bits=3", "quant:bits=3,carrier=indices"),
        ("quant:bits=5", "quant:bits=5"),
        ("quant:bits=auto", "quant:bits=auto"),
        ("quant:bits=4,carrier=levels", "quant:bits=4,carrier=levels"),
    ],
)
def test_few_bits_travel_as_indices(spec: str, travels_as: str) -> None:
    (said,) = run_ranks(1, what_it_attached, spec)
    assert said == f"fixed: {travels_as}"


# Eighteen ranks are the fewest whose whole sums would take 16 bits; one to three bits fit eight.
@pytest.mark.parametrize(
    ("spec", "world", "on_device", "travels_as"),
    [
        ("quant", 17, False, "TABLE_SUM_U8"),
        ("quant", 18, False, "NARROW_SUM_8_8"),
        ("quant", 18, True, "TABLE_SUM_U16"),
        ("quant:bits=4", 18, False, "TABLE_SUM_U16"),
        ("quant:feedback=float", 18, False, "TABLE_SUM_U16"),
        ("quant:bits=2,feedback=float", 4, False, "NARROW_SUM_2_8"),
        ("quant:bits=2", 4, True, "TABLE_SUM_U8"),
    ],
)
def test_sums_of_many_ranks_come_back_in_eight_bits_unless_one_is_on_a_device(
    spec: str, world: int, on_device: bool, travels_as: str
) -> None:
    engine: Any = types.SimpleNamespace(
        world=world, rank=0, link=Link(), way="mesh", on_device=on_device
    )
    gradient = torch.ones(4096)
    with Engine.make_codec(engine, _specs.tuned(spec), gradient, 4096) as codec:
        codec.begin(gradient.data_ptr())
        codec.next_round()  # the norms
        levels = codec.next_round()
        assert levels is not None
        assert levels.planes[0].op.name == travels_as


def bytes_of_a_quantised_sum(rank: int, world: int) -> float:
    all_reduce(torch.randn(100_000, generator=seeded(rank, "bytes")), codec="quant:bits=4")
    return metrics()["ratio"]


def test_four_bits_take_an_eighth_of_the_bytes() -> None:
    assert all(ratio > 7.8 for ratio in run_ranks(2, bytes_of_a_quantised_sum))


def test_metrics_begin_with_the_first_call() -> None:
    run_ranks(2, no_calls)


def no_calls(rank: int, world: int) -> None:
    assert metrics() == {}
    all_reduce(torch.zeros(1000))
    assert metrics()["dense_bytes"] == 4000
    addend.torch.close_all()
    assert torch.equal(all_reduce(torch.ones(3)), torch.full((3,), float(world)))  # begins anew
    assert metrics()["dense_bytes"] == 12
    assert metrics(dist.new_group()) == {}


def sums_by_threads(rank: int, world: int, threads: int) -> tuple[int, list[float]]:
    tensor = torch.randn(300_000, generator=seeded(rank, "threads"))
    all_reduce(tensor, codec="quant:bits=4", threads=threads)
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return names.count("addend helper\n"), tensor.tolist()


def test_threads_help_and_change_no_bit() -> None:
    alone, helped = (run_ranks(2, sums_by_threads, threads) for threads in (1, 3))
    assert [helpers for helpers, _ in alone + helped] == [0, 0, 2, 2]
    assert [sums for _, sums in helped] == [sums for _, sums in alone]

# SPDX-License-Identifier: Apache-2.0
"""all_reduce against torch's own, for dense and sparse tensors."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import notes, run_ranks  # noqa: E402

import addend  # noqa: E402
import addend.torch  # noqa: E402
from addend.torch import Link, Pending, _collectives, _specs, all_reduce, metrics  # noqa: E402

LOSSLESS = (
    "dense",
    "exact",
    "exact:mode=packed",
    "exact:mode=two-level",
    "exact:mode=sketch",
    "exact:values=reproducible",
    "exact:mode=sketch,values=reproducible",
)
LOSSY = ("quant", "quant:bits=8", "quant:bits=2,feedback=float", "quant:bits=4,carrier=levels")
HALVES = (torch.bfloat16, torch.float16)
PLAIN = (torch.float64, torch.int64, torch.int32)  # no codec takes them

FREE_STEPS = Link(latency_us=0.0, gbit_per_s=1e-6)  # bytes decide
DEAR_STEPS = Link(latency_us=1e12)  # network steps decide


def seeded(rank: int, name: object) -> Any:
    return torch.Generator().manual_seed(sum(str(name).encode()) * 64 + rank)


def integers(rank: int, shape: tuple[int, ...], dtype: Any = torch.float32, dense: bool = False):
    """Small multiples of 4, so that sums and means of 4 ranks need no rounding; mostly zeros."""
    random = seeded(rank, shape)
    values = 4 * torch.randint(-3, 4, shape, generator=random)
    if not dense:
        values = values * (torch.rand(shape, generator=random) < 0.1)
    return values.to(dtype)


def torchs_sum(tensor: Any, op: str = "sum", group: Any = None) -> Any:
    """What torch's own all_reduce gives."""
    out = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=group)
    return out / dist.get_world_size(group) if op == "mean" else out


def force(link: Link, group: Any = None) -> None:
    """Makes a group's context believe in a network, alike on all ranks."""
    _collectives._context(group, 30.0).worker.engine.link = link


# ---- dense tensors


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
                all_reduce(strided, op, codec=spec)
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
            all_reduce(tensor, codec=spec)
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
    lossy = [all_reduce(integers(rank, (103, 100), dense=True), codec=spec) for spec in LOSSY]
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
        all_reduce(tensor)
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
    assert len(context._coders) == len(context._sparse) == _collectives._MOST_SHAPES


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


# ---- sparse tensors


def sparse_tensor(rank: int, name: str, dtype: Any = torch.float32) -> Any:
    """A tensor of one rank in one of the forms that COO tensors take."""
    random = seeded(rank, name)

    def draw(nnz: int, sparse: tuple[int, ...], dense: tuple[int, ...] = ()) -> Any:
        rows = [torch.randint(0, max(n, 1), (nnz,), generator=random) for n in sparse]
        indices = torch.stack(rows)
        values = 4 * torch.randint(-3, 4, (nnz, *dense), generator=random)
        return torch.sparse_coo_tensor(indices, values.to(dtype), (*sparse, *dense))

    made = {
        "coalesced": lambda: draw(20, (50,), (8,)).coalesce(),
        "duplicates": lambda: draw(60, (10,), (8,)),
        "no dense dimension": lambda: draw(30, (40,)),
        "hybrid": lambda: draw(25, (6, 7), (4, 3)),
        "three sparse dimensions": lambda: draw(40, (4, 5, 6)),
        "long": lambda: draw(700, (100_000,), (16,)),  # does not fit into a first message
        "rank 0 empty": lambda: draw(20 if rank else 0, (50,), (8,)),
        "rank 1 empty": lambda: draw(0 if rank == 1 else 20, (50,), (8,)),
        "one row each": lambda: draw(1, (50,), (8,)),
        "all empty": lambda: draw(0, (50,), (8,)),
        "no columns": lambda: draw(5, (50,), (0,)),
        "no rows": lambda: draw(0, (0,), (8,)),
    }
    return made[name]()


FORMS = (
    "coalesced",
    "duplicates",
    "no dense dimension",
    "hybrid",
    "three sparse dimensions",
    "long",
    "rank 0 empty",
    "rank 1 empty",
    "one row each",
    "all empty",
    "no columns",
    "no rows",
)


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
                    rows = [None] * world
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
                force(link)
                before = metrics()
                shape = shared_rows(rank, name, dtype).shape
                for _ in range(2):  # the size of the union is known from the second call on
                    tensor = shared_rows(rank, name, dtype)
                    all_reduce(tensor)
                after = metrics()
                assert tensor.shape == shape
                assert after.get(f"mode/{way}", 0) > before.get(f"mode/{way}", 0), (name, way)
                results[way] = tensor
            expected = torchs_sum(shared_rows(rank, name, dtype).to_dense())
            for way, tensor in results.items():
                check_sparse(tensor, expected, (name, dtype, way))
            assert torch.equal(results["gather"].indices(), results["union"].indices())


def shared_rows(rank: int, name: str, dtype: Any) -> Any:
    """Every rank has the same rows (rank 0 possibly none), so that the union way pays."""
    tensor = sparse_tensor(1, name, dtype) if rank or name != "rank 0 empty" else None
    if tensor is None:
        return sparse_tensor(0, name, dtype)
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


def steps_of_known_sizes(rank: int, world: int) -> list[int]:
    """Network steps of one sum after the other of a sparse tensor."""
    force(DEAR_STEPS)
    steps: list[int] = []
    exchange = dist.all_to_all_single

    def counting(*arguments: Any, **named: Any) -> Any:
        steps[-1] += 1
        return exchange(*arguments, **named)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(dist, "all_to_all_single", counting)
        for _ in range(3):
            steps.append(0)
            all_reduce(sparse_tensor(rank, "coalesced"))
    return steps


def test_a_small_sparse_tensor_takes_one_step_once_its_size_is_known() -> None:
    assert run_ranks(3, steps_of_known_sizes) == [[2, 1, 1]] * 3


# ---- which codec


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
    assert _specs.tuned(spec) == travels_as


def test_the_first_pattern_that_matches_a_name_counts() -> None:
    specs = _specs.Specs("exact", {"table.*": "dense", "*.weight": "quant:bits=8"}, world=2)
    assert specs.of("table.weight") == "dense"
    assert specs.of("layer.weight") == "quant:bits=8"
    assert specs.of("layer.bias") == "exact"
    with pytest.raises(addend.InvalidArgument, match="nonsense"):
        _specs.Specs("exact", {"*": "nonsense"}, world=2)


def bytes_of_a_quantised_sum(rank: int, world: int) -> float:
    all_reduce(torch.randn(100_000, generator=seeded(rank, "bytes")), codec="quant:bits=4")
    return metrics()["ratio"]


def test_four_bits_take_an_eighth_of_the_bytes() -> None:
    assert all(ratio > 7.8 for ratio in run_ranks(2, bytes_of_a_quantised_sum))


# ---- what is wrong is named


def bad_arguments(rank: int, world: int) -> None:
    ones = torch.ones(4)
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (addend.InvalidArgument, "op 'max' is not sum or mean", lambda: all_reduce(ones, "max")),
        (addend.InvalidArgument, "not list", lambda: all_reduce([1.0])),
        (addend.InvalidArgument, "codec 3 is not a spec", lambda: all_reduce(ones, codec=3)),
        (addend.InvalidArgument, "nonsense", lambda: all_reduce(ones, codec="nonsense")),
        (addend.InvalidArgument, "bits", lambda: all_reduce(ones, codec="quant:bits=9")),
        (addend.InvalidArgument, "bits", lambda: all_reduce(ones, codec="quant:bits=x")),
        (addend.InvalidArgument, "deadline 0", lambda: all_reduce(ones, deadline=0)),
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
            lambda: all_reduce(ones.to_sparse(), codec="quant:feedback=float"),
        ),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()
        assert torch.equal(all_reduce(ones.clone()), ones * world)  # nothing was broken


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
    pendings = [all_reduce(tensors[i], async_op=True) for i in order]
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


def a_late_piece_fails(rank: int, world: int) -> tuple[int, str, str]:
    """One rank cannot go on with the last of many pieces, when others have been written."""
    _collectives._PIECE_ELEMENTS = 1000
    tensor = integers(rank, (16, 1000))
    all_reduce(tensor.clone(), codec="exact:mode=packed")
    (coder,) = _collectives._context(None, 30.0)._coders.values()
    codec = coder.runs[-1].codec
    next_round = codec.next_round
    calls: list[int] = []

    def fail_the_second_time() -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise addend.OutOfMemory("no memory for the last piece")
        return next_round()

    restored = []
    restore = coder.restore
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            coder, "restore", lambda *given: (restored.append(given), restore(*given))
        )
        if rank == 1:
            monkeypatch.setattr(codec, "next_round", fail_the_second_time)
        before = tensor.clone()
        with pytest.raises(addend.Error) as raised:
            all_reduce(tensor, codec="exact:mode=packed")
    assert torch.equal(tensor, before)
    return len(restored), type(raised.value).__name__, str(raised.value)


def test_a_piece_that_fails_takes_the_others_back() -> None:
    told = run_ranks(2, a_late_piece_fails)
    assert [kind for _, kind, _ in told] == ["Unavailable", "OutOfMemory"]
    for restored, _, message in told:
        assert restored > 1
        assert "rank 1" in message
        assert "no memory for the last piece" in message


def test_metrics_of_a_group_without_calls_are_empty() -> None:
    run_ranks(1, no_calls)


def no_calls(rank: int, world: int) -> None:
    assert metrics() == {}
    all_reduce(torch.zeros(1000))
    assert metrics()["dense_bytes"] == 4000
    assert metrics(dist.new_group()) == {}

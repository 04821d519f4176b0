# SPDX-License-Identifier: Apache-2.0
"""What all_reduce keeps from call to call, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from tensors import believe_in, integers, seeded, torchs_sum  # noqa: E402

import addend  # noqa: E402
from addend.torch import Link, all_reduce, metrics  # noqa: E402

MANY = 70  # more shapes than are remembered of tensors without a name
FEEDBACK = "quant:bits=2,feedback=float"


def two_tensors_of_one_shape(rank: int, world: int) -> tuple[float, float, float]:
    first = torch.randn(5000, generator=seeded(rank, "first"))
    all_reduce(first.clone(), codec=FEEDBACK, name="first")
    other = all_reduce(torch.zeros(5000), codec=FEEDBACK, name="other")
    again = all_reduce(torch.zeros(5000), codec=FEEDBACK, name="first")
    # What a residual is for: the mean over many calls is the sum, which no single call is.
    total = torch.zeros(5000)
    for _ in range(32):
        total += all_reduce(first.clone(), codec=FEEDBACK, name="mean")
    expected = torchs_sum(first)
    error = (total / 32 - expected).norm() / expected.norm()
    return float(other.norm()), float(again.norm()), float(error)


def test_a_residual_belongs_to_a_name() -> None:
    for other, again, error in run_ranks(2, two_tensors_of_one_shape):
        assert other == 0.0
        assert again > 1.0
        assert error < 0.05


def many_names(rank: int, world: int) -> float:
    mine = torch.randn(500, generator=seeded(rank, "mine"))
    all_reduce(mine.clone(), codec=FEEDBACK, name="oldest")
    for number in range(MANY):
        all_reduce(torch.zeros(500), codec=FEEDBACK, name=f"name {number}")
        all_reduce(torch.zeros(number))
    rest = all_reduce(torch.zeros(500), codec=FEEDBACK, name="oldest")
    return float(rest.norm())


def test_names_are_not_forgotten() -> None:
    for norm in run_ranks(2, many_names):
        assert norm > 1.0


def a_name_for_two(rank: int, world: int) -> list[str]:
    expected = all_reduce(torch.ones(6), name="six")
    said = []
    cases: list[tuple[Any, dict[str, Any]]] = [
        (torch.ones(7), {}),
        (torch.ones(6).half(), {}),
        (torch.ones(6).to_sparse(), {}),
        (torch.ones(6), {"op": "mean"}),
        (torch.ones(6), {"codec": "dense"}),
    ]
    for tensor, named in cases:
        with pytest.raises(addend.InvalidArgument, match="another tensor needs another name") as e:
            all_reduce(tensor, name="six", **named)
        said.append(str(e.value))
    assert torch.equal(all_reduce(torch.ones(6), name="six"), expected)  # nothing was broken
    return said


def test_a_name_stands_for_one_tensor() -> None:
    for said in run_ranks(2, a_name_for_two):
        assert "'six' stands for torch.float32 (6,) on cpu, codec 'exact', op 'sum'" in said[0]
        assert "here it is torch.float32 (7,)" in said[0]


def mode_of(call: Any) -> str:
    """By which mode a call went."""
    before = metrics()
    call()
    after = metrics()
    (mode,) = [k for k in after if k.startswith("mode/") and after[k] != before.get(k, 0)]
    return mode


def dense_then_sparse(rank: int, world: int) -> dict[str, str]:
    believe_in(Link(latency_us=50.0, gbit_per_s=1.0))
    full = integers(rank, (4000, 64), dense=True) + 1
    few = torch.zeros(4000, 64)
    few[rank * 7 : rank * 7 + 5] = 1.0
    expected = torchs_sum(few)
    out = {}
    for name in (None, "named"):
        names = {"full": name and "full", "few": name and "few"}
        for _ in range(3):
            all_reduce(full.clone(), name=names["full"])
        out[f"full, {name}"] = mode_of(lambda n=names["full"]: all_reduce(full.clone(), name=n))
        for _ in range(2):
            mine = few.clone()
            out[f"few, {name}"] = mode_of(lambda t=mine, n=names["few"]: all_reduce(t, name=n))
            assert torch.equal(mine, expected)
    # Where nothing could be gained, nothing is looked for.
    for _ in range(2):
        out["tiny"] = mode_of(lambda: all_reduce(torch.ones(10)))
    return out


def test_a_dense_tensor_does_not_decide_for_a_sparse_one_of_its_shape() -> None:
    for modes in run_ranks(2, dense_then_sparse):
        assert modes == {
            "full, None": "mode/packed",  # might be another tensor, so it is looked at
            "few, None": "mode/two-level",
            "full, named": "mode/dense",
            "few, named": "mode/two-level",
            "tiny": "mode/dense",
        }

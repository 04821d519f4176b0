# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import addend
from addend import simulation


def sparse_rows(worker: int) -> np.ndarray[Any, Any]:
    """An embedding's gradient: a few rows, of small integers."""
    rng = np.random.default_rng(worker)
    gradient = np.zeros((500, 16), np.float32)
    gradient[rng.integers(0, 500, 20)] = rng.integers(-9, 10, (20, 16))
    return gradient


ROWS = [sparse_rows(worker) for worker in range(3)]


def test_the_sum_is_exact_and_the_inputs_untouched() -> None:
    before = [row.copy() for row in ROWS]
    result = addend.simulate(ROWS)
    np.testing.assert_array_equal(result.sum, np.sum(ROWS, axis=0))
    np.testing.assert_array_equal(ROWS, before)
    assert (result.sum.dtype, result.sum.shape) == (np.float32, (500, 16))
    assert result.nmse == 0


def test_bytes_and_reports_are_those_of_the_codecs() -> None:
    result = addend.simulate(ROWS, "exact:mode=packed")
    assert len(result.reports) == 3
    assert result.dense_bytes == 4 * 8000
    union = np.count_nonzero(np.any(np.array(ROWS) != 0, axis=0))
    assert result.wire_bytes == 8000 // 8 + 4 * union
    assert result.ratio == pytest.approx(result.dense_bytes / result.wire_bytes)
    assert [report.union_nonzeros for report in result.reports] == [union] * 3


def test_printing_says_what_matters() -> None:
    text = str(addend.simulate(ROWS, "exact:mode=packed"))
    assert "exact:mode=packed: 3 workers, float32 of shape (500, 16), mode packed" in text
    assert "of 32000 bytes a worker (ratio" in text
    assert "nmse 0" in text
    full = str(addend.simulate([np.ones((10, 10), np.float32)], "exact:mode=packed"))
    assert "fallback dense" in full


def test_a_matrix_travels_as_two_factors() -> None:
    rng = np.random.default_rng(3)
    left, right = rng.standard_normal((60, 2)), rng.standard_normal((2, 8, 10))
    matrix = np.tensordot(left, right, 1).astype(np.float32)
    result = addend.simulate([matrix, 2 * matrix], "lowrank:rank=2")
    assert result.reports[0].mode == "lowrank"
    assert result.wire_bytes == 4 * 2 * (60 + 80)
    assert result.nmse < 1e-9
    flat = addend.simulate([matrix.ravel(), matrix.ravel()], "lowrank:rank=2")
    assert flat.reports[0].mode == "dense"


@pytest.mark.parametrize("spec", ["quant:bits=4", "quant:carrier=indices", "quant:bits=4,down=8"])
def test_a_lossy_codec_shows_its_error(spec: str) -> None:
    rng = np.random.default_rng(5)
    result = addend.simulate(list(rng.normal(size=(4, 100, 70)).astype(np.float32)), spec)
    assert 0.003 < result.nmse < 0.03  # 4 bits, independent gradients: about 0.012


@pytest.mark.parametrize(("spec", "least", "most"), [("bf16", 2e-6, 3e-5), ("f16", 3e-8, 1e-6)])
def test_a_cast_halves_the_bytes(spec: str, least: float, most: float) -> None:
    rng = np.random.default_rng(5)
    arrays = list(rng.normal(size=(4, 100, 70)).astype(np.float32))
    result = addend.simulate(arrays, f"cast:{spec}")
    assert least < result.nmse < most
    assert result.ratio == 2


def test_the_same_seed_gives_the_same_answer() -> None:
    arrays = list(np.random.default_rng(6).normal(size=(2, 4096)).astype(np.float32))
    one, same, other = (addend.simulate(arrays, "quant", seed=seed).sum for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)


def test_mean() -> None:
    result = addend.simulate([*ROWS, ROWS[0]], op="mean")
    np.testing.assert_array_equal(result.sum, np.mean([*ROWS, ROWS[0]], axis=0))
    assert result.nmse == 0


def test_a_simulator_learns_from_step_to_step() -> None:
    simulator = addend.Simulator("exact:mode=sketch")
    first = simulator.step(ROWS)
    second = simulator.step(ROWS)
    assert first.reports[0].fallback == "first-step"
    assert second.reports[0].mode == "sketch"
    np.testing.assert_array_equal(second.sum, np.sum(ROWS, axis=0))


def test_feedback_averages_errors_out() -> None:
    arrays = list(np.random.default_rng(7).normal(size=(2, 4096)).astype(np.float32))
    truth = np.sum(arrays, axis=0)

    def error_of_the_average(spec: str) -> float:
        simulator = addend.Simulator(spec)
        average = np.mean([simulator.step(arrays).sum for _ in range(16)], axis=0)
        return float(np.sum((average - truth) ** 2))

    assert error_of_the_average("quant:bits=4,feedback=float") < 0.5 * error_of_the_average(
        "quant:bits=4"
    )


def test_a_failed_step_leaves_the_simulator_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = addend.Simulator("exact")

    def lose(*_: object) -> None:
        raise addend.Unavailable("the network is gone")

    with monkeypatch.context() as broken:
        broken.setattr(simulation, "fold", lose)
        with pytest.raises(addend.Unavailable):
            simulator.step(ROWS)
    np.testing.assert_array_equal(simulator.step(ROWS).sum, np.sum(ROWS, axis=0))


def test_any_shape_and_order() -> None:
    scalar = addend.simulate([np.array(2, np.float32), np.array(3, np.float32)])
    assert scalar.sum.shape == ()
    assert scalar.sum == 5
    empty = addend.simulate([np.zeros((0, 4), np.float32)] * 2)
    assert empty.sum.shape == (0, 4)
    assert empty.ratio == 1
    fortran = addend.simulate([np.asfortranarray(row) for row in ROWS])
    np.testing.assert_array_equal(fortran.sum, np.sum(ROWS, axis=0))
    strided = addend.simulate([row[::2, ::3] for row in ROWS])
    np.testing.assert_array_equal(strided.sum, np.sum(ROWS, axis=0)[::2, ::3])


def test_half_floats_of_numpy() -> None:
    half = addend.simulate([row.astype(np.float16) for row in ROWS])
    assert half.sum.dtype == np.float16
    np.testing.assert_array_equal(half.sum, np.sum(ROWS, axis=0))


def test_bfloat16_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = addend.simulate([row.astype(ml_dtypes.bfloat16) for row in ROWS])
    assert result.sum.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.sum.astype(np.float32), np.sum(ROWS, axis=0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_come_back_as_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    tensors = [torch.nn.Parameter(torch.from_numpy(row).to(kind)) for row in ROWS]
    result = addend.simulate(tensors, op="sum")
    assert isinstance(result.sum, torch.Tensor)
    assert not result.sum.requires_grad
    assert (result.sum.dtype, tuple(result.sum.shape)) == (kind, (500, 16))
    np.testing.assert_array_equal(result.sum.float().numpy(), np.sum(ROWS, axis=0))
    np.testing.assert_array_equal(tensors[0].detach().float().numpy(), ROWS[0])
    turned = addend.simulate([tensor.T for tensor in tensors])
    np.testing.assert_array_equal(turned.sum.float().numpy(), np.sum(ROWS, axis=0).T)


def test_sparse_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(addend.InvalidArgument, match="to_dense"):
        addend.simulate([torch.eye(3).to_sparse()])


def test_non_finite_values_give_a_nan_error_not_a_warning() -> None:
    arrays = [np.array([np.inf, 1], np.float32), np.array([-np.inf, 1], np.float32)]
    with np.errstate(all="raise"):
        result = addend.simulate(arrays)
    assert np.isnan(result.sum[0])
    assert np.isnan(result.nmse)


def test_an_error_about_nothing_is_infinite() -> None:
    opposite = np.random.default_rng(8).normal(size=4096).astype(np.float32)
    result = addend.simulate([opposite, -opposite], "quant:rounding=independent")
    assert result.nmse == np.inf


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "no arrays"),
        ([[1.0, 2.0]], "not list"),
        ([np.zeros(3)], "float64: convert to one of float32"),
        ([np.zeros(3, ">f4")], ">f4"),
        (
            [np.zeros(3, np.float32), np.zeros(4, np.float32)],
            r"worker 1 .*4.*worker 0 .*3",
        ),
        ([np.zeros(3, np.float32), np.zeros(3, np.float16)], "worker 1 has float16"),
    ],
)
def test_what_is_wrong_with_the_arrays_is_named(arrays: list[Any], message: str) -> None:
    with pytest.raises(addend.InvalidArgument, match=message):
        addend.simulate(arrays)


def test_what_is_wrong_with_the_rest_is_named() -> None:
    with pytest.raises(addend.InvalidArgument, match="op 'max' is not one of sum, mean"):
        addend.simulate(ROWS, op="max")
    with pytest.raises(addend.InvalidArgument, match="codec"):
        addend.simulate(ROWS, "nothing")
    simulator = addend.Simulator()
    simulator.step(ROWS)
    with pytest.raises(addend.InvalidArgument, match="this simulator's steps"):
        simulator.step(ROWS[:2])

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from by_hand import all_reduce, at, rounds_of, workers

import addend
from addend import Codec
from addend.simulation import add_planes

EXACT = [
    "dense",
    "exact",
    "exact:mode=packed",
    "exact:mode=two-level",
    "exact:mode=sketch",
    "exact:values=reproducible",
]
CAST = ["cast:bf16", "cast:f16", "cast:f16,feedback=float"]
QUANT = [
    "quant",
    "quant:carrier=indices",
    "quant:feedback=float",
    "quant:bits=auto",
    "quant:index=auto",
]


def sparse(world: int, count: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Small integers, so that sums are exact in every type and order; nine of ten are zero."""
    rng = np.random.default_rng(seed)
    mask = rng.random((world, count)) < 0.1
    return list(np.where(mask, rng.integers(-8, 9, (world, count)), 0).astype(np.float32))


def normal(world: int, count: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    return list(np.random.default_rng(seed).normal(size=(world, count)).astype(np.float32))


def as_dtype(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":  # small integers fit the upper half of a float32
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spec", EXACT + CAST)
def test_sums_that_are_exact_arrive_step_after_step(spec: str, dtype: str, world: int) -> None:
    codecs = workers(spec, world, 5000, dtype=dtype)
    for step in range(3):
        values = sparse(world, 5000, seed=step)
        gradients = [as_dtype(value, dtype) for value in values]
        all_reduce(codecs, gradients)
        expected = as_dtype(np.asarray(np.sum(values, axis=0, dtype=np.float32)), dtype)
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("spec", QUANT)
def test_quant_is_near_the_sum_and_alike_on_all_workers(spec: str) -> None:
    values = normal(4, 5000)
    gradients = [value.copy() for value in values]
    all_reduce(workers(spec, 4, 5000), gradients)
    total = np.sum(values, axis=0)
    error = np.sum((gradients[0] - total) ** 2) / np.sum(total**2)
    assert 0 < error < 0.03  # 4 bits, independent gradients: about 0.012
    for gradient in gradients[1:]:
        np.testing.assert_array_equal(gradient, gradients[0])


@pytest.mark.parametrize("spec", EXACT + CAST + QUANT)
def test_a_step_leaves_its_gradient_alone_if_the_sum_goes_elsewhere(spec: str) -> None:
    (codec,) = workers(spec, 1, 1000)
    (gradient,) = sparse(1, 1000)
    before, total = gradient.copy(), np.full(1000, 999, np.float32)
    codec.begin(gradient.ctypes.data)
    for _ in rounds_of([codec]):
        pass
    codec.finish(total.ctypes.data)
    np.testing.assert_array_equal(gradient, before)
    assert not np.any(total == 999)


def test_dense_in_place_hands_out_the_gradient_itself() -> None:
    (codec,) = workers("dense", 1, 100)
    gradient = np.arange(100, dtype=np.float32)
    codec.begin(gradient.ctypes.data, in_place=True)
    round = codec.next_round()
    assert round is not None
    assert round.planes[0].data == gradient.ctypes.data
    at(round.planes[0].data, np.float32, 100)[:] *= 2
    assert codec.next_round() is None
    codec.finish(gradient.ctypes.data)
    np.testing.assert_array_equal(gradient, 2 * np.arange(100))


@pytest.mark.parametrize("spec", EXACT + CAST + QUANT)
def test_in_place_gives_the_same_sum(spec: str) -> None:
    copied, in_place = sparse(2, 3000), sparse(2, 3000)
    all_reduce(workers(spec, 2, 3000), copied)
    codecs = workers(spec, 2, 3000)
    for codec, gradient in zip(codecs, in_place):
        codec.begin(gradient.ctypes.data, in_place=True)
    for _ in rounds_of(codecs):
        pass
    for codec, gradient in zip(codecs, in_place):
        codec.finish(gradient.ctypes.data)
    for one, other in zip(copied, in_place):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("spec", EXACT + CAST + QUANT)
def test_nothing_follows_a_round_that_says_it_is_the_last(spec: str) -> None:
    codecs = workers(spec, 2, 3000)
    for step in range(2):
        gradients = sparse(2, 3000, seed=step)
        for codec, gradient in zip(codecs, gradients):
            codec.begin(gradient.ctypes.data)
        lasts = [rounds[0].last for rounds in rounds_of(codecs)]
        assert True not in lasts[:-1]
        if "sketch" not in spec:  # whose last round can turn out to need a fix-up
            assert lasts[-1]
        for codec, gradient in zip(codecs, gradients):
            codec.finish(gradient.ctypes.data)


@pytest.mark.parametrize("spec", EXACT + CAST)
def test_scale_turns_the_sum_into_a_mean(spec: str) -> None:
    gradients = sparse(4, 2000)
    expected = np.mean(gradients, axis=0)
    all_reduce(workers(spec, 4, 2000, scale=0.25), gradients)
    np.testing.assert_array_equal(gradients[0], expected)


def test_planes_describe_their_memory() -> None:
    (codec,) = workers("quant:carrier=indices", 1, 2048)
    (gradient,) = normal(1, 2048)
    codec.begin(gradient.ctypes.data)
    norms, levels = (rounds[0].planes for rounds in rounds_of([codec]))
    assert [(plane.op, plane.nbytes, plane.sum_nbytes) for plane in norms] == [
        (addend.Op.MAX_U32, 4, 4)
    ]
    assert (norms[0].table, norms[0].sums) == (0, 0)
    assert (levels[0].op, levels[0].lanes) == (addend.Op.TABLE_SUM_U8, 2048)
    assert (levels[0].nbytes, levels[0].sum_nbytes) == (1024, 2048)
    assert levels[0].table
    assert levels[0].sums


def test_fingerprints_agree_among_workers_and_tell_plans_apart() -> None:
    prints = [codec.fingerprint for codec in workers("quant", 3, 100, seed=1)]
    assert len(set(prints)) == 1
    others = [
        workers("quant", 3, 100, seed=2)[0],
        workers("quant", 3, 101, seed=1)[0],
        workers("quant", 3, 100, seed=1, bucket=1)[0],
        workers("quant", 3, 100, seed=1, first_step=1)[0],
        workers("quant", 3, 100, seed=1, scale=0.5)[0],
        workers("dense", 3, 100, seed=1)[0],
    ]
    assert prints[0] not in {codec.fingerprint for codec in others}


def test_the_next_mode_is_what_the_next_report_says() -> None:
    for spec in ("dense", "quant", "exact", "exact:mode=sketch"):
        codecs = workers(spec, 2, 6400)
        planned = []
        for _ in range(3):
            (mode,) = {codec.next_mode for codec in codecs}
            all_reduce(codecs, sparse(2, 6400))
            assert codecs[0].report().mode == mode
            planned.append(mode)
        if spec == "exact:mode=sketch":  # which needs a sum to be sized by
            assert planned == ["packed", "sketch", "sketch"]


def test_workers_on_a_mesh_gather_what_is_their_own() -> None:
    modes = {}
    for gathers in (False, True):
        codecs = workers("exact", 2, 64000, gathers=gathers, gbit_per_s=0.01)
        for _ in range(3):
            gradients = [np.zeros(64000, np.float32) for _ in codecs]
            for worker, gradient in enumerate(gradients):
                gradient[worker * 1000 : worker * 1000 + 500] = 1.0
            total = gradients[0] + gradients[1]
            all_reduce(codecs, gradients)
            assert np.array_equal(gradients[1], total)
        modes[gathers] = codecs[0].report().mode
    assert modes[True] == "gather"
    assert modes[False] != "gather"


def test_quant_for_many_workers_takes_eight_bits_where_sums_may_be_narrow() -> None:
    sent = {}
    for narrows in (False, True):
        codecs = workers("quant", 18, 65536, narrows=narrows)
        draw = np.random.default_rng(1)
        gradients = [draw.standard_normal(65536, np.float32) for _ in codecs]
        total = np.sum(gradients, axis=0)
        for codec, gradient in zip(codecs, gradients):
            codec.begin(gradient.ctypes.data)
        while (rounds := [codec.next_round() for codec in codecs])[0] is not None:
            for planes in zip(*(each.planes for each in rounds if each is not None)):
                add_planes(planes)
        for codec, gradient in zip(codecs, gradients):
            codec.finish(gradient.ctypes.data)
        assert np.square(gradients[0] - total).sum() < 1e-3 * np.square(total).sum()
        sent[narrows] = codecs[0].report().wire_bytes
    assert sent[True] < 0.51 * sent[False]


def test_the_report_tells_bytes_counts_and_mode() -> None:
    codecs = workers("exact:mode=packed", 2, 6400)
    gradients = sparse(2, 6400)
    nonzeros = [int(np.count_nonzero(gradient)) for gradient in gradients]
    union = int(np.count_nonzero(gradients[0].astype(bool) | gradients[1].astype(bool)))
    all_reduce(codecs, gradients)
    for codec, local in zip(codecs, nonzeros):
        report = codec.report()
        assert (report.mode, report.fallback, report.rounds) == ("packed", "none", 2)
        assert (report.local_nonzeros, report.union_nonzeros) == (local, union)
        assert report.round_bytes == (6400 // 8, 4 * union)
        assert report.wire_bytes == sum(report.round_bytes)
        assert report.dense_bytes == 4 * 6400
        assert report.ratio == pytest.approx(report.dense_bytes / report.wire_bytes)
        assert report.nmse is None


def test_what_a_mode_does_not_count_is_none() -> None:
    codecs = workers("dense", 1, 100)
    all_reduce(codecs, sparse(1, 100))
    assert codecs[0].report().local_nonzeros is None
    assert codecs[0].report().union_nonzeros is None
    assert codecs[0].memory_bytes >= 400


def test_quant_samples_its_own_error() -> None:
    codecs = workers("quant:bits=4", 2, 1 << 16)
    all_reduce(codecs, normal(2, 1 << 16))
    report = codecs[0].report()
    assert report.nmse is not None
    assert 0.001 < report.nmse < 0.1
    assert report.nonfinite == 0


def test_quant_counts_what_came_back_non_finite() -> None:
    codecs = workers("quant:block=256", 2, 1024)
    gradients = normal(2, 1024)
    gradients[1][300] = np.inf
    all_reduce(codecs, gradients)
    assert np.count_nonzero(np.isnan(gradients[0])) == 256
    assert [codec.report().nonfinite for codec in codecs] == [256, 256]


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    codecs = workers("quant:feedback=float", 2, 1000)
    all_reduce(codecs, normal(2, 1000, seed=1))
    restarted = workers("quant:feedback=float", 2, 1000)
    for old, new in zip(codecs, restarted):
        new.load_state(old.save_state())
    one, other = normal(2, 1000, seed=2), normal(2, 1000, seed=2)
    all_reduce(codecs, one)
    all_reduce(restarted, other)
    np.testing.assert_array_equal(one, other)
    fresh = workers("quant:feedback=float", 2, 1000)
    third = normal(2, 1000, seed=2)
    all_reduce(fresh, third)
    assert np.any(third[0] != one[0])


def test_a_state_of_another_plan_is_refused() -> None:
    (codec,) = workers("quant:feedback=float", 1, 1000)
    state = codec.save_state()
    (other,) = workers("quant:feedback=float", 1, 1001)
    with pytest.raises(addend.Mismatch):
        other.load_state(state)
    with pytest.raises(addend.Error):
        codec.load_state(state[:-1])
    codec.load_state(memoryview(bytearray(state)))


def test_a_segment_moves_to_another_bucket_bit_for_bit() -> None:
    spec, one, other = "quant:feedback=float", (7, 700), (9, 1300)
    together = workers(spec, 2, 2000, bucket=0, segments=[one, other])
    all_reduce(together, normal(2, 2000, seed=1))
    alone = workers(spec, 2, 1300, bucket=5, segments=[other], first_step=1)
    for old, new in zip(together, alone):
        new.load_segment(0, old.save_segment(1))
    before = normal(2, 2000, seed=2)
    moved = [gradient[700:].copy() for gradient in before]
    all_reduce(together, before)
    all_reduce(alone, moved)
    for gradient, part in zip(before, moved):
        np.testing.assert_array_equal(part, gradient[700:])


def test_the_state_of_another_segment_worker_or_step_is_refused() -> None:
    spec, segments = "quant:feedback=float", [(7, 700), (9, 1300)]
    codecs = workers(spec, 2, 2000, segments=segments)
    all_reduce(codecs, normal(2, 2000))
    state = codecs[0].save_segment(0)
    with pytest.raises(addend.Mismatch, match="segment"):
        codecs[0].load_segment(1, state)
    with pytest.raises(addend.Mismatch, match="worker"):
        codecs[1].load_segment(0, state)
    with pytest.raises(addend.Mismatch, match="step"):
        workers(spec, 2, 2000, segments=segments)[0].load_segment(0, state)
    with pytest.raises(addend.InvalidArgument):
        codecs[0].save_segment(2)
    codecs[0].load_segment(0, state)


def test_a_scaled_residual_goes_with_a_scaled_gradient() -> None:
    spec = "quant:feedback=float"
    rescaled, doubled = workers(spec, 2, 1000), workers(spec, 2, 1000)
    all_reduce(rescaled, normal(2, 1000, seed=1))
    all_reduce(doubled, [2 * gradient for gradient in normal(2, 1000, seed=1)])
    for codec in rescaled:
        codec.scale_residual(2.0)
    one, other = ([2 * gradient for gradient in normal(2, 1000, seed=2)] for _ in range(2))
    all_reduce(rescaled, one)
    all_reduce(doubled, other)
    np.testing.assert_array_equal(one, other)
    with pytest.raises(addend.InvalidArgument):
        rescaled[0].scale_residual(0.0)


def test_a_residual_is_read_in_the_gradients_coordinates() -> None:
    (gradient,) = normal(1, 64)
    cases: list[tuple[str, list[tuple[int, int, int]]]] = [
        ("cast:bf16,feedback=float", []),
        ("lowrank:rank=1", [(1, 48, 6), (2, 16, 0)]),
        ("quant:feedback=float", [(1, 48, 0), (2, 16, 0)]),
        ("quant:index=auto,feedback=float", []),
    ]
    for spec, segments in cases:
        with Codec(spec, dtype="float32", count=64, world=1, worker=0, segments=segments) as codec:
            summed = gradient.copy()
            all_reduce([codec], [summed])
            kept = np.empty(64, np.float32)
            codec.read_residual(kept.ctypes.data)
        assert np.abs(kept).max() > 0
        np.testing.assert_allclose(summed + kept, gradient, rtol=1e-5, atol=1e-6)
    with Codec("exact", dtype="float32", count=64, world=1, worker=0) as codec:
        codec.read_residual(kept.ctypes.data)
    assert not kept.any()


def test_codecs_without_state_save_nothing() -> None:
    (codec,) = workers("exact", 1, 100)
    assert codec.save_state() == b""
    codec.load_state(b"")


def test_a_missing_worker_gets_the_sum_of_the_others() -> None:
    codecs = workers("quant", 3, 2048)
    gradients = normal(3, 2048)
    others = [gradient.copy() for gradient in gradients[:2]]
    for codec, gradient in zip(codecs, gradients):
        codec.begin(gradient.ctypes.data)
    for number, rounds in enumerate(rounds_of(codecs)):
        if number == 1:  # the levels: an engine that lost worker 2
            for plane in rounds[2].planes:
                at(plane.data, np.uint8, plane.nbytes)[:] = 0
    for codec in codecs:
        codec.set_missing(1 << 2)
    for codec, gradient in zip(codecs, gradients):
        codec.finish(gradient.ctypes.data)
    np.testing.assert_array_equal(gradients[2], gradients[0])
    # Levels are rounded for a mean over three; two thirds as many contribute to this sum.
    total = np.sum(others, axis=0) * 1.5
    assert np.sum((gradients[0] - total) ** 2) < 0.05 * np.sum(total**2)
    assert [codec.report().contributors for codec in codecs] == [2, 2, 2]
    assert [codec.report().missing for codec in codecs] == [4, 4, 4]


def test_missing_workers_are_refused_by_codecs_that_need_everyone() -> None:
    codec, _ = workers("dense", 2, 10)
    gradient = np.ones(10, np.float32)
    codec.begin(gradient.ctypes.data)
    with pytest.raises(addend.Unsupported, match="worker 1 is missing"):
        codec.set_missing(2)


def test_a_cancelled_step_can_be_begun_again() -> None:
    (codec,) = workers("quant:feedback=float", 1, 100)
    before = codec.save_state()
    (gradient,) = normal(1, 100)
    codec.begin(gradient.ctypes.data)
    codec.next_round()
    codec.cancel()
    assert codec.save_state() == before
    all_reduce([codec], [gradient])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spec": "exact:mode=pack"}, "mode=pack is not one of"),
        ({"spec": "nothing"}, "nothing"),
        ({"dtype": "float64"}, "float64.*float32"),
        ({"count": -1}, "count = -1"),
        ({"count": 1 << 64}, "count = 18446744073709551616"),
        ({"world": 0}, "world"),
        ({"world": 1 << 32}, "world = 4294967296"),
        ({"worker": 1}, "worker"),
        ({"seed": -5}, "seed = -5"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"segments": [(1, 5), (2, 4)]}, "segment"),
        ({"segments": [(1, 5), (1, 5)]}, "segment"),
        ({"segments": [(-1, 10)]}, "segment id = -1"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], message: str) -> None:
    layout = {"spec": "exact", "dtype": "float32", "count": 10, "world": 1, "worker": 0}
    with pytest.raises(addend.InvalidArgument, match=message):
        Codec(**{**layout, **arguments})


def test_calls_out_of_order_are_refused() -> None:
    (codec,) = workers("dense", 1, 10)
    gradient = np.ones(10, np.float32)
    with pytest.raises(addend.InvalidArgument):
        codec.next_round()
    with pytest.raises(addend.InvalidArgument):
        codec.finish(gradient.ctypes.data)
    with pytest.raises(addend.InvalidArgument):
        codec.begin(0)
    codec.begin(gradient.ctypes.data)
    with pytest.raises(addend.InvalidArgument):
        codec.begin(gradient.ctypes.data)


def test_a_closed_codec_says_so() -> None:
    with Codec("exact", dtype="float32", count=10, world=1, worker=0) as codec:
        assert codec.fingerprint != 0
    codec.close()
    with pytest.raises(addend.InvalidArgument, match="closed"):
        codec.begin(0)
    with pytest.raises(addend.InvalidArgument, match="closed"):
        _ = codec.fingerprint


def test_a_codec_nobody_holds_is_freed() -> None:
    (codec,) = workers("exact", 1, 10)
    finalizer = codec._finalizer
    del codec
    gc.collect()
    assert not finalizer.alive


def test_codecs_of_several_threads_do_not_disturb_each_other() -> None:
    expected = np.sum(sparse(2, 20000), axis=0)
    failures: list[str] = []

    def run(bucket: int) -> None:
        codecs = workers("exact", 2, 20000, bucket=bucket)
        for _ in range(20):
            gradients = sparse(2, 20000)
            all_reduce(codecs, gradients)
            if not np.array_equal(gradients[0], expected):
                failures.append(f"bucket {bucket}")
            try:
                Codec(f"nothing-{bucket}", dtype="float32", count=1, world=1, worker=0)
            except addend.InvalidArgument as error:
                if f"nothing-{bucket}" not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=run, args=(bucket,)) for bucket in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(addend.InvalidArgument, match="device 'tpu' is not one of cpu, cuda"):
        Codec("exact", dtype="float32", count=8, world=1, worker=0, device="tpu")

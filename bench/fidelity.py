# SPDX-License-Identifier: Apache-2.0
"""Error of a sum against the bits that a worker sends and receives for each element.

    python bench/fidelity.py                  what docs/algorithms/quant.md has, "Bits and error"
    python bench/fidelity.py --workers 4 8    some worlds

Gradients of normal elements: independent of each other, and half alike (each the same vector plus
one of its own). Error: squared error of the sum over the energy of the sum. Bits: what a worker
sends to whoever adds plus what it gets back, scales and headers included; shares that stay at home
are the same for all.

Rivals, as published: an all-to-all of int8 or int4, where owners add in f32 and round once more for
the way back (groups of 256 or 64 elements, an f16 scale each), rounded at random (without bias) and
to the nearest; THC's table with independent rounding, sums in 8 bits while they fit.

The bar: whatever a rival without bias sends, a spec of ours sends no more and has no larger error.
Exit code 1 if one is below that, or if a codec's workers disagree.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from addend import Codec
from addend.simulation import add_planes

Floats = NDArray[np.float32]

OURS = [
    "quant:bits=1,down=4",
    "quant:bits=2,down=4",
    "quant:bits=3,down=4",
    "quant:bits=4,down=4",
    "quant:bits=4,carrier=indices",
    "quant:bits=4,down=8",
    "quant:bits=8,down=4",
    "quant:bits=8,down=8",
    "quant:bits=8,down=8,clipped=3e-5",
    "quant",
    "quant:bits=8",
    "cast:bf16",
]
THC = "quant:levels=published,rounding=independent,carrier=indices"
GROUPS = {8: 256, 4: 64}
COUNT = 1 << 16
STEPS = 2


class Point(NamedTuple):
    name: str
    bits: float
    error: float
    biased: bool = False


def error_of(estimate: Floats, truth: NDArray[np.float64]) -> float:
    return float(np.sum((estimate - truth) ** 2) / np.sum(truth**2))


def add_round(codecs: list[Codec]) -> int:
    """One round of all workers. Its bytes, up and down; 0 after the last."""
    rounds = [codec.next_round() for codec in codecs]
    if rounds[0] is None:
        return 0
    for planes in zip(*(each.planes for each in rounds if each is not None)):
        add_planes(planes)
    return sum(plane.nbytes + plane.sum_nbytes for plane in rounds[0].planes)


def ours(spec: str, gradients: Floats) -> Point:
    world, count = gradients.shape
    codecs = [
        Codec(spec, dtype="float32", count=count, world=world, worker=w, seed=9, narrows=True)
        for w in range(world)
    ]
    truth, errors, cost = gradients.sum(axis=0, dtype=np.float64), [], 0
    for _ in range(STEPS):
        sums = gradients.copy()
        for codec, each in zip(codecs, sums):
            codec.begin(each.ctypes.data)
        while spent := add_round(codecs):
            cost += spent
        for codec, each in zip(codecs, sums):
            codec.finish(each.ctypes.data)
        if not (sums == sums[0]).all():
            raise SystemExit(f"{spec}: workers disagree")
        errors.append(error_of(sums[0], truth))
    for codec in codecs:
        codec.close()
    return Point(spec, 8 * cost / STEPS / count, float(np.mean(errors)))


def rounded(x: Floats, bits: int, draw: np.random.Generator | None) -> Floats:
    """To integers of a scale per group; at random with `draw`, else to the nearest."""
    groups = x.reshape(-1, GROUPS[bits])
    top = 2 ** (bits - 1) - 1
    largest = np.abs(groups).max(axis=1, keepdims=True)
    half = (largest / top).astype(np.float16)
    up = np.nextafter(half, np.float16(np.inf))
    scale = np.where(half.astype(np.float32) * top < largest, up, half).astype(np.float32)
    levels = groups / scale
    if draw is None:
        levels = np.rint(levels)
    else:
        levels = np.floor(levels + draw.random(levels.shape, dtype=np.float32))
    near: Floats = (np.clip(levels, -top, top) * scale).reshape(x.shape).astype(np.float32)
    return near


def all_to_all(bits: int, biased: bool, gradients: Floats) -> Point:
    truth, errors = gradients.sum(axis=0, dtype=np.float64), []
    for step in range(STEPS):
        draw = None if biased else np.random.default_rng(1000 + step)
        total = np.zeros(gradients.shape[1], np.float32)
        for each in gradients:
            total += rounded(each, bits, draw)
        errors.append(error_of(rounded(total, bits, draw), truth))
    name = f"int{bits} all-to-all, {'nearest' if biased else 'random'}"
    return Point(name, 2 * (bits + 16 / GROUPS[bits]), float(np.mean(errors)), biased)


def gradients_of(world: int, alike: bool) -> Floats:
    draw = np.random.default_rng(world)
    own = draw.standard_normal((world, COUNT), dtype=np.float32)
    shared = draw.standard_normal(COUNT, dtype=np.float32)
    both: Floats = np.float32(0.5**0.5) * (own + shared)
    return both if alike else own


def below(rival: Point, curve: list[Point]) -> bool:
    """Whether no spec of ours has as few bits and as little error."""
    return not any(p.bits <= rival.bits and p.error <= rival.error for p in curve)


def compare(world: int, alike: bool) -> bool:
    gradients = gradients_of(world, alike)
    curve = [ours(spec, gradients) for spec in OURS]
    rivals = [all_to_all(bits, biased, gradients) for bits in (4, 8) for biased in (False, True)]
    rivals.append(ours(THC, gradients)._replace(name="THC"))
    print(f"\nN = {world}, {'half alike' if alike else 'independent'}")
    good = True
    for point in sorted(curve + rivals, key=lambda p: (p.bits, p.error)):
        verdict = ""
        if point in rivals and below(point, curve):
            verdict = "below our curve" + (", biased" if point.biased else "")
            good = good and point.biased
        print(f"  {point.bits:6.2f} bits  {point.error:.3e}  {point.name}  {verdict}".rstrip())
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 256], metavar="N"
    )
    arguments = parser.parse_args()
    good = True
    for world in arguments.workers:
        for alike in (False, True):
            good = compare(world, alike) and good
    print("\nno rival without bias is below our curve" if good else "\nFAILED: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

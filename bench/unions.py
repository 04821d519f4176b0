# SPDX-License-Identifier: Apache-2.0
"""How the union of what workers select grows with the workers, and what travels for it.

    python bench/unions.py                    what docs/algorithms/select.md has, "Unions"
    python bench/unions.py --workers 16       some worlds

Two kinds of gradients: normal elements that have nothing to do with each other, and those of a
small network (two layers, 18,944 weights) that learns another one's answers, each worker from 32
examples of its own in every step. A percent of the elements travels, with error feedback, in steps
after the tenth; the network learns from what arrives. Exit code 1 if workers disagree.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np
from fidelity import add_round
from numpy.typing import NDArray

from addend import Codec

Floats = NDArray[np.float32]
SPECS = ("topk:density=0.01", "random:density=0.01", "leader:density=0.01")
INPUTS, HIDDEN, OUTPUTS, BATCH = 64, 256, 10, 32
COUNT = INPUTS * HIDDEN + HIDDEN * OUTPUTS
STEPS, FIRST = 30, 10
LINK = 0.01  # Gbit/s: what is as cheap as dense to a plan goes as dense, and bytes are asked for


class Network:
    """Weights, and the gradient of the squared error of a batch."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.weights = (draw.standard_normal(COUNT) / 8).astype(np.float32)

    def layers(self) -> tuple[Floats, Floats]:
        cut = INPUTS * HIDDEN
        return self.weights[:cut].reshape(INPUTS, HIDDEN), self.weights[cut:].reshape(HIDDEN, -1)

    def answer(self, x: Floats) -> tuple[Floats, Floats]:
        first, second = self.layers()
        hidden = np.maximum(x @ first, 0)
        return hidden, hidden @ second

    def gradient(self, x: Floats, wanted: Floats) -> Floats:
        hidden, answer = self.answer(x)
        error = (answer - wanted) / len(x)
        back = (error @ self.layers()[1].T) * (hidden > 0)
        parts = [(x.T @ back).ravel(), (hidden.T @ error).ravel()]
        return np.concatenate(parts).astype(np.float32)


class Training:
    """Gradients of all workers; what they sum to is learnt."""

    def __init__(self, world: int) -> None:
        draw = np.random.default_rng(world)
        self.world, self.teacher, self.pupil = world, Network(draw), Network(draw)
        self.scales = (1 / np.sqrt(1 + np.arange(INPUTS))).astype(np.float32)

    def gradients(self, step: int) -> Floats:
        made = []
        for worker in range(self.world):
            draw = np.random.default_rng((step, worker))
            x = draw.standard_normal((BATCH, INPUTS)).astype(np.float32) * self.scales
            made.append(self.pupil.gradient(x, self.teacher.answer(x)[1]))
        return np.stack(made)

    def learn(self, total: Floats) -> None:
        self.pupil.weights -= np.float32(0.3 / self.world) * total


class Noise(Training):
    def gradients(self, step: int) -> Floats:
        draw = np.random.default_rng((step, self.world))
        return draw.standard_normal((self.world, COUNT), dtype=np.float32)

    def learn(self, total: Floats) -> None:
        pass


class Sent(NamedTuple):
    local: float
    union: float
    dense_over_sent: float


def run(spec: str, training: Training) -> Sent:
    world = training.world
    codecs = [
        Codec(spec, dtype="float32", count=COUNT, world=world, worker=w, seed=9, gbit_per_s=LINK)
        for w in range(world)
    ]
    seen = []
    for step in range(STEPS):
        sums = training.gradients(step)
        for codec, each in zip(codecs, sums):
            codec.begin(each.ctypes.data)
        while add_round(codecs):
            pass
        for codec, each in zip(codecs, sums):
            codec.finish(each.ctypes.data)
        if not (sums == sums[0]).all():
            raise SystemExit(f"{spec}: workers disagree")
        training.learn(sums[0])
        report = codecs[0].report()
        if step >= FIRST and report.union_nonzeros is not None:
            assert report.local_nonzeros is not None
            seen.append((report.local_nonzeros, report.union_nonzeros, report.wire_bytes))
    for codec in codecs:
        codec.close()
    local, union, wire = np.mean(seen, axis=0)
    return Sent(local / COUNT, union / COUNT, 4 * COUNT / wire)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 16, 64], metavar="N")
    arguments = parser.parse_args()
    print("| N | gradients | codec | local density | union density | dense bytes / bytes sent |")
    print("|---|---|---|---|---|---|")
    for world in arguments.workers:
        for kind, name in ((Noise, "independent"), (Training, "of a network")):
            for spec in SPECS:
                sent = run(spec, kind(world))
                print(
                    f"| {world} | {name} | `{spec.partition(':')[0]}` | {sent.local:.2%} |"
                    f" {sent.union:.1%} | {sent.dense_over_sent:.1f} x |"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())

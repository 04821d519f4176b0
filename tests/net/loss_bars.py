#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What loss costs on paths of 0.2 to 80 ms: goodput (all bytes over all the time) against that of
the same paths without loss. Two workers, each behind a bad wire of its own (bad_wire.cc), answers
checked. Runs without and with loss take turns, with other losses each time; printed are the ratio
of the sums and the least and largest ratio of neighbouring runs. Without --full, the part that
takes three minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from network import Network, Service, why_not

WORLD = 2
KIB, MIB = 1 << 10, 1 << 20
LOSSES = {0: 0.0, 1000: 0.85, 10000: 0.5}  # a million, and the bar
# Round trip in milliseconds: sizes and steps of a run of each. Steps of few datagrams differ most.
SHORT = {0.2: {256 * KIB: 200}, 2: {256 * KIB: 200, 8 * MIB: 5}, 20: {256 * KIB: 40}}
FULL = {
    0.2: {256 * KIB: 200, 8 * MIB: 40, 64 * MIB: 10},
    2: {256 * KIB: 200, 8 * MIB: 20, 64 * MIB: 5},
    20: {256 * KIB: 60, 8 * MIB: 5, 64 * MIB: 2},
    80: {256 * KIB: 30, 8 * MIB: 3, 64 * MIB: 1},
}
Cell = tuple[str, int]  # a codec and a size


def seconds_of_steps(
    arguments: argparse.Namespace, folder: Path, seed: int, ms: float, ppm: int
) -> dict[Cell, float]:
    """The mean of a run's steps."""
    faults = ("--delay-us", int(ms * 500), "--loss-ppm", ppm)
    network = Network(WORLD, (arguments.bad_wire, *faults), seed)
    try:
        service = Service(network, arguments.addend, folder)
        seconds = {}
        for size, steps in (FULL if arguments.full else SHORT)[ms].items():
            if arguments.kib and size // KIB not in arguments.kib:
                continue
            options = (
                f"-b {size} -e {size} -w 1 -n {steps} -c dense -c exact --density 0.05 "
                "--overlap full --values integers"
            )
            for codec, each in service.measure(WORLD, options, "mean_us").items():
                seconds[codec, size] = each
        return seconds
    finally:
        network.close()


def compare(arguments: argparse.Namespace, folder: Path, ms: float) -> bool:
    """Prints and judges all cells of a round trip."""
    runs: dict[int, list[dict[Cell, float]]] = {ppm: [] for ppm in LOSSES}
    for pair in range(arguments.pairs):
        for ppm, of_loss in runs.items():
            of_loss.append(seconds_of_steps(arguments, folder, pair, ms, ppm))
    good = True
    for cell in runs[0][0]:
        free = [run[cell] for run in runs[0]]
        for ppm, bar in list(LOSSES.items())[1:]:
            lossy = [run[cell] for run in runs[ppm]]
            ratio = sum(free) / sum(lossy)
            each = [one / other for one, other in zip(free, lossy, strict=True)]
            good = good and ratio >= bar
            verdict = f">= {bar} {'PASS' if ratio >= bar else 'FAIL'}"
            print(
                f"{ms:4} ms, {cell[0]:5} {cell[1] // KIB:5} KiB, {ppm / 10000:.1f} % loss: "
                f"{sum(free) / len(free) * 1e3:8.2f} ms a step without, goodput {ratio:5.3f} "
                f"({min(each):.2f} to {max(each):.2f}) {verdict}",
                flush=True,
            )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addend")
    parser.add_argument("bad_wire")
    parser.add_argument("--full", action="store_true", help="every round trip and size")
    parser.add_argument("--pairs", type=int, default=5, help="runs with and without each loss")
    parser.add_argument("--ms", type=float, nargs="+", help="these round trips only (0.2 2 20 80)")
    parser.add_argument("--kib", type=int, nargs="+", help="these sizes only (256 8192 65536)")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print("not run:", reason)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        good = True
        for ms in arguments.ms or list(FULL if arguments.full else SHORT):
            good = compare(arguments, Path(folder), ms) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

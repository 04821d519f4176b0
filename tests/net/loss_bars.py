#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What loss costs on paths of 0.2 to 80 ms, against the same paths without loss: two workers, each
behind a bad wire of its own (bad_wire.cc), answers checked. Medians of steps. Without --full, the
part that takes a minute and a half. Usage: loss_bars.py PATH_OF_ADDEND PATH_OF_BAD_WIRE [--full]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from network import Network, Service, why_not

WORLD = 2
KIB, MIB = 1 << 10, 1 << 20
LOSSES = {0: 0.0, 1000: 0.85, 10000: 0.5}  # a million, and the bar
# Round trip in microseconds: sizes and steps of each.
SHORT = {200: {256 * KIB: 60}, 2000: {256 * KIB: 40, 8 * MIB: 5}, 20000: {256 * KIB: 20}}
FULL = {us: {256 * KIB: 60, 8 * MIB: 9, 64 * MIB: 3} for us in (200, 2000, 20000, 80000)}


def measure(
    addend: str, bad_wire: str, folder: Path, us: int, ppm: int, sizes: dict[int, int]
) -> dict[tuple[str, int], float]:
    """Seconds of a step, by codec and size."""
    network = Network(WORLD, (bad_wire, "--delay-us", us // 2, "--loss-ppm", ppm))
    try:
        service = Service(network, addend, folder)
        seconds = {}
        for size, steps in sizes.items():
            options = (
                f"-b {size} -e {size} -w 2 -n {steps} -c dense -c exact --density 0.05 "
                "--overlap full --values integers"
            )
            for codec, each in service.measure(WORLD, options).items():
                seconds[codec, size] = each
        return seconds
    finally:
        network.close()


def main() -> int:
    reason = why_not()
    if reason is not None:
        print("not run:", reason)
        return 0
    addend, bad_wire = sys.argv[1:3]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for us, sizes in (FULL if "--full" in sys.argv else SHORT).items():
            seconds = {
                ppm: measure(addend, bad_wire, Path(folder), us, ppm, sizes) for ppm in LOSSES
            }
            for (codec, size), free in seconds[0].items():
                for ppm, bar in list(LOSSES.items())[1:]:
                    ratio = free / seconds[ppm][codec, size]
                    good = good and ratio >= bar
                    print(
                        f"{us / 1000:5.1f} ms, {codec} {size // KIB:6} KiB, {ppm / 10000:.1f} % "
                        f"loss: {free * 1e3:8.1f} ms without, "
                        f"goodput {ratio:5.2f} >= {bar} {'PASS' if ratio >= bar else 'FAIL'}",
                        flush=True,
                    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What norms=ahead saves on paths of 10 and 50 ms: most of a round trip in every step but the
first. Two workers, each behind a long wire of its own (bad_wire.cc), answers checked, medians of
steps. Usage: ahead_bars.py PATH_OF_ADDEND PATH_OF_BAD_WIRE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from network import Network, Service, why_not

WORLD, STEPS = 2, 15
SPEC = "quant:bits=4,feedback=float"
LEAST_SAVED = 0.8  # of a round trip


def measure(addend: str, bad_wire: str, folder: Path, ms: int) -> dict[str, float]:
    """Milliseconds of a step, by codec."""
    network = Network(WORLD, (bad_wire, "--delay-us", ms * 500))
    try:
        service = Service(network, addend, folder)
        specs = f"-c {SPEC} -c {SPEC},norms=ahead"
        seconds = service.measure(WORLD, f"-b 256K -e 256K -w 2 -n {STEPS} {specs}")
        return {codec: 1e3 * each for codec, each in seconds.items()}
    finally:
        network.close()


def main() -> int:
    reason = why_not()
    if reason is not None:
        print("not run:", reason)
        return 0
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for ms in (10, 50):
            found = measure(sys.argv[1], sys.argv[2], Path(folder), ms)
            now, ahead = found[SPEC], found[SPEC + ",norms=ahead"]
            saved = (now - ahead) / ms
            good = good and saved >= LEAST_SAVED
            print(
                f"{ms} ms: {now:.1f} ms a step, {ahead:.1f} with norms=ahead: {saved:.2f} round "
                f"trips less >= {LEAST_SAVED} {'PASS' if saved >= LEAST_SAVED else 'FAIL'}",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

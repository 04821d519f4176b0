#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real sockets over a long wire that loses, doubles and swaps datagrams: every sum is right. What
that costs: loss_bars.py. Usage: long_path_test.py PATH_OF_ADDEND PATH_OF_BAD_WIRE
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import unittest
from pathlib import Path

from network import Network, Service, make_key, why_not

ADDEND, BAD_WIRE = (
    (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else ("addend", "bad_wire")
)
WORLD = 3
REASON = why_not() or (None if os.path.exists("/dev/net/tun") else "there are no TUN devices")


@unittest.skipIf(REASON is not None, REASON or "")
class LongPathTest(unittest.TestCase):
    def test_every_element_is_right(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            network = Network(
                WORLD,
                (
                    BAD_WIRE,
                    "--delay-us",
                    5000,
                    "--loss-ppm",
                    20000,
                    "--duplicate-ppm",
                    20000,
                    "--swap-ppm",
                    20000,
                ),
            )
            self.addCleanup(network.close)
            key = make_key(ADDEND, folder / "lab.key")
            service = Service(
                network, ADDEND, folder, f'[[tenant]]\nname = "lab"\nkey_file = "{key}"\n'
            )
            processes = [
                network.start(
                    network.space(worker),
                    ADDEND,
                    *shlex.split(
                        f"perf --reducer service --aggregator 10.77.{worker}.1:7700 --identity "
                        f"lab --key {key} --workers {WORLD} --worker {worker} -b 256K -e 1M -n 4 "
                        "-c dense -c exact:values=reproducible --values integers"
                    ),
                )
                for worker in range(WORLD)
            ]
            for process in processes:
                out, err = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, out + err)
            self.assertIsNone(service.process.poll())


if __name__ == "__main__":
    unittest.main(verbosity=2)

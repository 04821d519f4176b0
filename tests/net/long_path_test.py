#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real sockets over a long wire that loses, doubles and swaps datagrams: every sum is right. What
that costs: loss_bars.py. Usage: long_path_test.py PATH_OF_ADDEND PATH_OF_BAD_WIRE
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

from network import Network, Service, why_not

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
            faults = "--delay-us 5000 --loss-ppm 20000 --duplicate-ppm 20000 --swap-ppm 20000"
            network = Network(WORLD, (BAD_WIRE, *faults.split()))
            self.addCleanup(network.close)
            service = Service(network, ADDEND, folder)
            options = "-b 256K -e 1M -n 4 -c dense -c exact:values=reproducible --values integers"
            processes = [service.worker(worker, WORLD, options) for worker in range(WORLD)]
            for process in processes:
                out, err = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, out + err)
            self.assertIsNone(service.process.poll())


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Paths that carry less than Ethernet does, or no datagrams at all: one worker's link is short or
closed, in namespaces. Usage: path_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import subprocess
import sys
import time
import unittest
from typing import Any

from network import NetworkTest, Service, wait_until, why_not

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
WORLD = 3
ODD = 2  # the worker whose link is another
REASON = why_not()


@unittest.skipIf(REASON is not None, REASON or "")
class PathTest(NetworkTest):
    workers = WORLD

    def setUp(self) -> None:
        super().setUp()
        self.server_end, self.worker_end = self.network.ends(ODD)
        self.service = Service(self.network, ADDEND, self.folder)

    def set_mtu(self, end: tuple[str, str], mtu: int) -> None:
        space, device = end
        self.network.inside(space, "ip", "link", "set", device, "mtu", mtu)

    def start(
        self, host: str = "10.77.{}.1", iterations: int = 100000
    ) -> list[subprocess.Popen[str]]:
        options = f"-b 256K -e 256K -n {iterations} -c dense --values integers"
        return [self.service.worker(number, WORLD, options, host) for number in range(WORLD)]

    def runs(self, payload: int, **options: Any) -> None:
        """Steps go by, in frames of that payload."""
        processes = self.start(**options)
        wait_until(lambda: self.service.turns() > 2000, "turns at the server", 20)
        self.assertEqual([job["payload_bytes"] for job in self.service.status()["jobs"]], [payload])
        for process in processes:
            self.assertIsNone(process.poll())

    def all_fail(self, processes: list[subprocess.Popen[str]], *words: str) -> None:
        """Each with the words that are its own."""
        for process, own in zip(processes, words):
            out, err = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 1, out + err)
            self.assertIn(own, err)

    def test_a_link_of_1460_at_both_ends(self) -> None:
        self.set_mtu(self.server_end, 1460)
        self.set_mtu(self.worker_end, 1460)
        self.runs(1392)

    def test_a_link_of_1420_that_only_the_worker_knows_of(self) -> None:
        self.set_mtu(self.worker_end, 1420)
        self.runs(1352)

    def test_a_link_of_1280_that_only_the_server_knows_of(self) -> None:
        self.set_mtu(self.server_end, 1280)
        self.runs(1208)

    def test_the_least_link_of_ipv6(self) -> None:
        self.set_mtu(self.server_end, 1280)
        self.set_mtu(self.worker_end, 1280)
        self.runs(1192, host="[fd77:{}::1]")

    def test_a_worker_whose_datagrams_are_lost_is_named_to_all(self) -> None:
        self.network.drop(1000000, self.folder, [self.server_end])
        begun = time.monotonic()
        self.all_fail(
            self.start(),
            *[f"worker {ODD}'s datagrams do not arrive at the server: UDP port 7701 blocked?"]
            * WORLD,
        )
        # Without a probe this takes the workers' deadline, which is a minute.
        self.assertLess(time.monotonic() - begun, 20)

    def test_so_is_one_that_hears_nothing(self) -> None:
        self.network.drop(1000000, self.folder, [self.worker_end])
        self.all_fail(
            self.start(),
            *[f"the server's datagrams do not arrive at worker {ODD}: UDP port"] * WORLD,
        )

    def test_a_link_that_shrinks_at_the_worker_is_told_in_words(self) -> None:
        processes = self.start()
        wait_until(lambda: self.service.turns() > 500, "turns at the server")
        self.set_mtu(self.worker_end, 1280)
        self.all_fail(
            processes,
            *[f"worker {ODD} left the job"] * ODD,
            f"the path to the aggregator at 10.77.{ODD}.1:7701 no longer carries datagrams of "
            "1448 bytes: its MTU has shrunk",
        )

    def test_a_link_that_shrinks_at_the_server_is_told_to_all_and_counted(self) -> None:
        processes = self.start()
        wait_until(lambda: self.service.turns() > 500, "turns at the server")
        self.set_mtu(self.server_end, 1280)
        self.all_fail(
            processes,
            *[f"the path from the server to worker {ODD} no longer carries the job's datagrams"]
            * WORLD,
        )
        self.assertGreater(self.service.status()["too_long"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host whose kernel has no IPv6, as with `ipv6.disable=1`: every process of this test, in a
network namespace of its own, is refused sockets of that family. Usage: ipv4_only_test.py
PATH_OF_ADDEND
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from confine import ALLOW, EQUAL, ERRNO, Argument, Filter, check, libc

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
CLONE_NEWNET = 0x40000000
WORLD = 3
WORK = "-b 64K -e 64K -n 3 -c exact:values=reproducible --values integers"


def why_not() -> str:
    if os.geteuid() != 0:
        return "a network namespace needs root"
    return "" if ctypes.util.find_library("seccomp") else "no libseccomp to make filters with"


@unittest.skipIf(why_not() != "", why_not())
class Ipv4OnlyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        check(libc.unshare(CLONE_NEWNET), "unshare")
        subprocess.run(shlex.split("ip link set lo up"), check=True)
        refused = Filter(ALLOW)
        no_ipv6 = Argument(0, EQUAL, int(socket.AF_INET6))
        refused.rule(ERRNO | errno.EAFNOSUPPORT, "socket", no_ipv6)
        refused.load()

    def start(self, command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [ADDEND, *shlex.split(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def finish(self, workers: list[subprocess.Popen[str]]) -> None:
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            self.assertEqual(worker.returncode, 0, out + err)

    def test_there_is_no_ipv6(self) -> None:
        self.assertEqual(libc.socket(int(socket.AF_INET6), int(socket.SOCK_STREAM), 0), -1)
        self.assertEqual(ctypes.get_errno(), errno.EAFNOSUPPORT)

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.key = Path(scratch.name) / "lab.key"
        self.finish([self.start(f"keygen {self.key}")])

    def serve(self, address: str) -> str:
        server = self.start(f"serve {address} --port 0 --key {self.key}")
        assert server.stdout is not None
        words = server.stdout.readline().split()
        if words[:1] != ["control"]:
            self.fail(server.communicate()[1])
        return f"--aggregator 127.0.0.1:{words[1]} --key {self.key}"

    def sum_with_the_service(self, access: str) -> None:
        command = f"perf --reducer service --workers {WORLD} {access} {WORK} --worker"
        self.finish([self.start(f"{command} {number}") for number in range(WORLD)])

    def test_a_server_at_every_address_sums(self) -> None:
        self.sum_with_the_service(self.serve(""))

    def test_a_server_at_one_address_sums(self) -> None:
        self.sum_with_the_service(self.serve("--address 127.0.0.1"))

    def test_an_ipv6_address_is_refused_in_words(self) -> None:
        server = self.start(f"serve --address ::1 --port 0 --key {self.key}")
        _, err = server.communicate(timeout=60)
        self.assertEqual(server.returncode, 1)
        self.assertIn("[::1]", err)

    def test_a_mesh_sums(self) -> None:
        peers = ",".join(f"127.0.0.1:{7600 + number}" for number in range(WORLD))
        command = f"perf --reducer mesh --peers {peers} {WORK} --worker"
        self.finish([self.start(f"{command} {number}") for number in range(WORLD)])


if __name__ == "__main__":
    unittest.main(verbosity=2)

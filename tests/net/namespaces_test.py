#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Server and workers as processes in namespaces of their own: loss, crashes, stalls, dead links,
restarts, forgeries, greedy tenants. Usage: namespaces_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import unittest
from typing import Any

from network import NetworkTest, Service, wait_until, why_not

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
WORLD = 4
REASON = why_not()


@unittest.skipIf(REASON is not None, REASON or "")
class NamespacesTest(NetworkTest):
    workers = WORLD

    def setUp(self) -> None:
        super().setUp()
        self.service = Service(
            self.network,
            ADDEND,
            self.folder,
            {"lab": "sees_all = true", "greedy": "packets_per_s = 2000\nmax_slots = 100"},
        )

    def worker(
        self,
        number: int,
        more: str = "",
        world: int = WORLD,
        iterations: int = 10,
        size: str = "1M",
        **where: Any,
    ) -> subprocess.Popen[str]:
        options = f"-b {size} -e {size} -n {iterations} -c dense -c exact:values=reproducible"
        return self.service.worker(number, world, f"{options} --values integers {more}", **where)

    def start_workers(self, **options: Any) -> list[subprocess.Popen[str]]:
        return [self.worker(number, **options) for number in range(WORLD)]

    def finish(self, process: subprocess.Popen[str], seconds: float = 120) -> str:
        out, err = process.communicate(timeout=seconds)
        self.assertEqual(process.returncode, 0, out + err)
        return out

    def fails(self, process: subprocess.Popen[str], words: str, seconds: float = 30) -> None:
        out, err = process.communicate(timeout=seconds)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertIn(words, err)

    def wait_for_turns(self, turns: int = 1) -> None:
        wait_until(lambda: self.service.turns() >= turns, "turns at the server")

    def test_every_element_is_right(self) -> None:
        processes = self.start_workers(iterations=40)
        self.wait_for_turns(5000)
        refused = set(self.service.refused())
        for process in processes:
            self.finish(process)
        # On a busy machine a worker may lose patience and send again; nothing else may happen.
        self.assertLessEqual(refused, {"duplicate", "turn"})

    def test_one_percent_loss_both_ways(self) -> None:
        self.network.drop(10000, self.folder)
        for process in self.start_workers():
            self.finish(process)

    def test_ten_percent_loss_both_ways(self) -> None:
        self.network.drop(100000, self.folder)
        for process in self.start_workers(iterations=2):
            self.finish(process)

    def test_a_killed_worker_is_named_at_once(self) -> None:
        processes = self.start_workers(iterations=100000)
        self.wait_for_turns()
        processes[2].kill()
        for number in (0, 1, 3):
            self.fails(processes[number], "worker 2 left the job")

    def test_a_stalled_worker_is_named_when_patience_ends(self) -> None:
        self.network.inside(
            self.network.server_space,
            ADDEND,
            *shlex.split(
                f"job create default --workers {WORLD} --patience 5 --aggregator 127.0.0.1:7700 "
                f"--identity lab --key {self.service.keys['lab']}"
            ),
        )
        processes = self.start_workers(iterations=100000)
        self.wait_for_turns()
        processes[1].send_signal(signal.SIGSTOP)
        for number in (0, 2, 3):
            self.fails(processes[number], "worker 1 did not contribute in time")

    def test_a_link_that_was_down_for_a_while_is_made_up_for(self) -> None:
        processes = self.start_workers(iterations=40)
        self.wait_for_turns(1000)
        self.network.inside(self.network.server_space, "ip", "link", "set", "s3", "down")
        seen: list[int] = []

        def stands_still() -> bool:
            seen.append(self.service.turns())
            return len(seen) > 10 and seen[-1] == seen[-10]

        wait_until(stands_still, "a standstill")
        self.network.inside(self.network.server_space, "ip", "link", "set", "s3", "up")
        for process in processes:
            self.finish(process)

    def test_with_a_quorum_a_job_outlives_links_that_are_down_for_long(self) -> None:
        self.network.inside(
            self.network.server_space,
            ADDEND,
            *shlex.split(
                f"job create default --workers {WORLD} --patience 100 --quorum 3 --aggregator "
                f"127.0.0.1:7700 --identity lab --key {self.service.keys['lab']}"
            ),
        )
        processes = self.start_workers(iterations=200)
        self.wait_for_turns(1000)
        for port in ("s2", "s3"):
            self.network.inside(self.network.server_space, "ip", "link", "set", port, "down")
        # Keep-alive ends their connections, and the others are fewer than the quorum.
        wait_until(
            lambda: self.service.status()["jobs"][0]["waits_for"] == [2, 3], "workers that wait"
        )
        for port in ("s2", "s3"):
            self.network.inside(self.network.server_space, "ip", "link", "set", port, "up")
        for process in processes:
            self.finish(process)

    def test_a_server_that_is_killed_and_restarted_changes_nothing(self) -> None:
        processes = self.start_workers(iterations=60)
        self.wait_for_turns(2000)
        self.service.kill_and_restart()
        for process in processes:
            self.finish(process)

    def test_a_worker_whose_machine_is_gone_can_be_replaced(self) -> None:
        processes = self.start_workers(iterations=100000)
        self.wait_for_turns()
        self.network.inside(self.network.server_space, "ip", "link", "set", "s3", "down")
        again = self.worker(3, machine=0)
        for number in (0, 1, 2):
            self.fails(processes[number], "worker 3 left the job")
        wait_until(
            lambda: [job["waits_for"] for job in self.service.status()["jobs"]] == [[0, 1, 2]],
            "a job with the new worker only",
        )
        self.assertIsNone(again.poll())

    def test_a_wrong_key_does_not_join(self) -> None:
        self.fails(self.worker(0, key="greedy", world=1), "did not accept 'lab'")

    def test_garbage_is_counted_and_not_answered(self) -> None:
        processes = self.start_workers(iterations=40)
        self.wait_for_turns()
        script = (
            "import os, socket\n"
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.settimeout(0.2)\n"
            "head = bytes([0xAD, 1, 1, 0]) + os.urandom(4) + bytes(6) + bytes([0, 4, 3, 1, 0, "
            "16]) + bytes(4 + 7) + bytes([1])\n"
            "for i in range(3000):\n"
            "    s.sendto(os.urandom(i % 1400) if i % 2 else head + os.urandom(8 + 16), "
            "('10.77.0.1', 7701))\n"
            "try:\n"
            "    s.recv(1)\n"
            "    print('answered')\n"
            "except TimeoutError:\n"
            "    print('silent')\n"
        )
        done = self.network.inside(self.network.space(0), sys.executable, "-c", script)
        self.assertEqual(done.stdout.strip(), "silent")
        refused = self.service.refused()
        self.assertGreater(refused.get("magic", 0) + refused.get("truncated", 0), 1000)
        self.assertGreater(refused.get("epoch", 0), 1000)
        for process in processes:
            self.finish(process)

    def test_recorded_frames_are_of_no_use(self) -> None:
        # A machine in the middle keeps contributions of worker 0 and sends them again when the job
        # has moved on. Checksums are left to the device in what it sees, so it leaves them out.
        opening = (
            "import socket\n"
            "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))\n"
            "s.bind(('w', 3))\n"
            "s.settimeout(5)\n"
        )
        record = opening + (
            "kept = []\n"
            "while len(kept) < 400:\n"
            "    frame, origin = s.recvfrom(65536)\n"
            "    if origin[2] == socket.PACKET_OUTGOING and 1000 < len(frame) <= 1514 and "
            "frame[23] == 17:\n"
            "        kept.append(frame[:40] + bytes(2) + frame[42:])\n"
            f"open('{self.folder}/kept', 'w').write('\\n'.join(frame.hex() for frame in kept))\n"
        )
        replay = opening + f"for line in open('{self.folder}/kept'): s.send(bytes.fromhex(line))\n"
        # Whole super-packets cannot be sent again from a packet socket.
        self.network.inside(self.network.space(0), "ip", "link", "set", "w", "gso_max_segs", 1)
        processes = self.start_workers(iterations=400)
        self.wait_for_turns()
        self.network.inside(self.network.space(0), sys.executable, "-c", record)
        self.wait_for_turns(self.service.turns() + 5000)
        before = self.service.refused().get("turn", 0)
        self.network.inside(self.network.space(0), sys.executable, "-c", replay)
        wait_until(
            lambda: self.service.refused().get("turn", 0) >= before + 300, "refusals of old turns"
        )
        for process in processes:
            self.finish(process)

    def test_a_greedy_tenant_is_slowed_down_and_another_does_not_notice(self) -> None:
        greedy = [
            self.worker(number, "--slots 64", tenant="greedy", iterations=100000, world=2)
            for number in range(2)
        ]
        wait_until(lambda: self.service.refused().get("rate", 0) > 100, "refusals by rate")
        for process in self.start_workers():
            self.finish(process)
        jobs = {job["tenant"]: job for job in self.service.status()["jobs"]}
        self.assertGreater(jobs["greedy"]["refused"]["rate"], 100)
        for process in greedy:
            self.assertIsNone(process.poll())
        self.fails(
            self.worker(0, "--job big --slots 101", tenant="greedy", world=1),
            "capacity",
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

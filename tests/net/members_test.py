#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who is in a job: workers that die, leave, come back, are waited for, or are there twice. Usage:
members_test.py PATH_OF_ADDEND PATH_OF_SERVICE_WORKER
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from network import start, wait_until

ADDEND, WORKER = (
    (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else ("addend", "service_worker")
)
WORLD = 3
# Far less than the keep-alive of TCP takes, far more than a busy machine does.
SOON_S = 10


class MembersTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.key = self.folder / "lab.key"
        subprocess.run([ADDEND, "keygen", self.key], check=True, capture_output=True)
        self.config = self.folder / "serve.toml"
        self.config.write_text(
            f'[server]\naddress = "127.0.0.1"\ncontrol_port = 0\ndata_port = 0\n[http]\nport = 0\n'
            f'[[tenant]]\nname = "lab"\nkey_file = "{self.key}"\n'
        )
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                [ADDEND, "serve", "--config", self.config],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.addCleanup(self.server.communicate)
        self.addCleanup(self.server.kill)
        assert self.server.stdout is not None
        self.control = "127.0.0.1:" + self.server.stdout.readline().split()[1]

    def worker(self, number: int, mode: str = "planes") -> subprocess.Popen[str]:
        key = self.key.read_text().strip()
        return start(self, WORKER, self.control, key, "ring", WORLD, number, mode)

    def workers(self) -> list[subprocess.Popen[str]]:
        processes = [self.worker(number) for number in range(WORLD)]
        self.step(processes)
        return processes

    def release(self, processes: list[subprocess.Popen[str]]) -> None:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("step\n")
            process.stdin.flush()

    def step(self, processes: list[subprocess.Popen[str]]) -> None:
        self.release(processes)
        for process in processes:
            assert process.stdout is not None
            self.assertRegex(process.stdout.readline(), r"^\d+ 0 0 0$")

    def job(self) -> Any:
        done = subprocess.run(
            [
                ADDEND,
                *shlex.split(
                    f"job list --json --aggregator {self.control} --identity lab --key {self.key}"
                ),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return (json.loads(done.stdout) or [{}])[0]

    def fails(self, process: subprocess.Popen[str], words: str, seconds: float = SOON_S) -> None:
        self.assertIn(words, process.communicate(timeout=seconds)[0])

    def test_a_dead_worker_is_noticed_though_its_child_lives(self) -> None:
        processes = [self.worker(0), self.worker(1), self.worker(2, "fork")]
        assert processes[2].stdout is not None
        self.assertEqual(processes[2].stdout.readline(), "forked\n")
        self.release(processes[:2])
        processes[2].kill()
        processes[2].wait()
        for process in processes[:2]:
            self.fails(process, "unavailable worker 2 left the job")

    def test_a_second_run_of_the_same_name_is_refused_and_the_first_goes_on(self) -> None:
        processes = self.workers()
        again = [self.worker(number) for number in range(WORLD)]
        for number, process in enumerate(again):
            self.fails(
                process,
                f"invalid_argument worker {number} of job ring is there already, at 127.0.0.1:",
            )
        self.step(processes)
        # Also while the job waits for some, and for one that hangs.
        for process in processes:
            process.communicate(timeout=SOON_S)
        first = self.worker(0)
        wait_until(lambda: self.job().get("joined") == 1, "a job with one worker")
        first.send_signal(signal.SIGSTOP)
        self.fails(self.worker(0), "worker 0 of job ring is there already")
        # One that was ended makes room at once.
        first.kill()
        self.step([self.worker(number) for number in range(WORLD)])

    def test_a_worker_that_leaves_is_named_to_the_others(self) -> None:
        processes = self.workers()
        processes[1].communicate(timeout=SOON_S)
        wait_until(lambda: "worker left" in self.log.read_text(), "the log")
        self.release([processes[0], processes[2]])
        for process in (processes[0], processes[2]):
            self.fails(process, "unavailable worker 1 left the job")

    def test_those_who_are_waited_for_are_named(self) -> None:
        first = self.worker(1)
        wait_until(
            lambda: self.job().get("waits_for") == [0, 2],
            "a job that waits for two workers to come",
        )
        processes = [self.worker(0), first, self.worker(2)]
        self.step(processes)
        self.assertEqual(self.job()["waits_for"], [])
        processes[2].send_signal(signal.SIGSTOP)
        self.release(processes)
        wait_until(lambda: self.job()["waits_for"] == [2], "a job that waits for one to contribute")
        processes[2].send_signal(signal.SIGCONT)
        for process in processes:
            assert process.stdout is not None
            self.assertEqual(process.stdout.readline(), "1 0 0 0\n")
        wait_until(lambda: self.job()["waits_for"] == [], "a job that waits for nobody")


if __name__ == "__main__":
    unittest.main(verbosity=2)

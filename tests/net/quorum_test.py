#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server and four workers as processes, and a job that goes on with three of them. Usage:
quorum_test.py PATH_OF_ADDEND WORKER
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

from network import start, wait_until

ADDEND, WORKER = (
    (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else ("addend", "service_worker")
)
WORLD, STOPPED = 4, 3
WITHOUT = 1 << STOPPED
GRADIENTS = 6  # as in service_worker.cc


def element(worker: int, step: int, i: int) -> float:
    return (worker + 1) * (i % 13 - 6) + step


class QuorumTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        folder = Path(scratch.name)
        self.key = folder / "lab.key"
        subprocess.run([ADDEND, "keygen", self.key], check=True, capture_output=True)
        config = folder / "serve.toml"
        config.write_text(
            '[server]\naddress = "127.0.0.1"\ncontrol_port = 0\ndata_port = 0\nthreads = 2\n'
            "drain_s = 0.2\n"
            f'[http]\nport = 0\n[[tenant]]\nname = "lab"\nkey_file = "{self.key}"\n'
        )
        self.server = start(self, ADDEND, "serve", "--config", config)
        words = self.line(self.server).split()
        self.control, self.http = f"127.0.0.1:{words[1]}", words[3]
        subprocess.run(
            [
                ADDEND,
                *shlex.split(
                    f"job create open --workers {WORLD} --patience 2 --quorum 3 --aggregator "
                    f"{self.control} --identity lab --key {self.key}"
                ),
            ],
            check=True,
            timeout=60,
        )

    def workers(self, mode: str) -> list[subprocess.Popen[str]]:
        key = self.key.read_text().strip()
        return [
            start(self, WORKER, self.control, key, "open", WORLD, number, mode)
            for number in range(WORLD)
        ]

    def line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def release(self, processes: list[subprocess.Popen[str]], steps: int) -> None:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("step\n" * steps)
            process.stdin.flush()

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{process.pid}/stat")
        wait_until(
            lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T",
            "a worker that is stopped",
        )

    def late(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=10) as page:
            return sum(
                int(row.split()[-1])
                for row in page.read().decode().splitlines()
                if row.startswith("addend_refused_total") and 'reason="late"' in row
            )

    def test_a_stalled_worker_is_done_without_and_takes_part_again(self) -> None:
        processes = self.workers("steps")
        total = [0.0] * 13

        def check(number: int, contributors: int, missing: int, lines: list[str]) -> None:
            self.assertEqual(set(lines), {lines[0]}, "workers got different sums")
            words = lines[0].split()
            self.assertEqual(
                [int(word) for word in words[:3]], [number, contributors, missing], lines[0]
            )
            for i, word in enumerate(words[4:]):
                # World times the mean of those that came: a sum over three stands for four.
                got = float(word) * contributors / WORLD
                total[i] += got
                if number < GRADIENTS:
                    expected = sum(
                        element(w, number, i) for w in range(WORLD) if missing >> w & 1 == 0
                    )
                    self.assertAlmostEqual(
                        got, expected, delta=3.0, msg=f"step {number} element {i}"
                    )

        self.release(processes, 3)
        for number in range(3):
            check(number, WORLD, 0, [self.line(process) for process in processes])
        self.stop(processes[STOPPED])
        self.release(processes, 3)
        partial = [[self.line(process) for process in processes[:STOPPED]] for _ in range(3)]
        self.assertEqual(self.late(), 0)
        processes[STOPPED].send_signal(signal.SIGCONT)
        # The stalled worker gets the same sums, after the fact, and knows that it is not in them.
        for number, lines in enumerate(partial, start=3):
            check(number, WORLD - 1, WITHOUT, [*lines, self.line(processes[STOPPED])])
        wait_until(lambda: self.late() > 0, "contributions that were refused")
        # From now on it takes part again. Gradients are zero, so that what is left of earlier
        # rounding comes; the mean of the others stands for what it had in the three steps without
        # it.
        self.release(processes, 12)
        for number in range(GRADIENTS, GRADIENTS + 12):
            check(number, WORLD, 0, [self.line(process) for process in processes])
        for i, got in enumerate(total):
            expected = sum(
                element(w, number, i)
                for w in range(WORLD)
                for number in range(GRADIENTS)
                if w != STOPPED or number < 3
            )
            self.assertAlmostEqual(got, expected, delta=1e-2, msg=f"element {i}")

    def test_sums_are_of_one_set_even_if_a_worker_stalls_in_the_middle_of_a_step(self) -> None:
        processes = self.workers("planes")
        self.release(processes, 40)
        for _ in range(3):
            for process in processes:
                self.assertEqual(self.line(process).split()[3], "0")
        processes[STOPPED].send_signal(signal.SIGSTOP)  # wherever it is
        ends = set()
        for process in processes[:STOPPED]:
            rows = [[int(word) for word in self.line(process).split()] for _ in range(37)]
            self.assertEqual([row[0] for row in rows], list(range(3, 40)))
            self.assertEqual([row[3] for row in rows], [0] * 37, "wrong lanes")
            ends.add(str([row[1:3] for row in rows]))
            self.assertEqual(rows[-1][1], WITHOUT)
        self.assertEqual(
            len(ends), 1, "workers disagree about who was in a sum, or about repeating a step"
        )
        processes[STOPPED].send_signal(signal.SIGCONT)
        self.release(processes[:STOPPED], 5)
        stopped = processes[STOPPED].stdout
        assert stopped is not None
        *lines, last = stopped.read().splitlines()
        for line in lines:
            self.assertEqual(line.split()[3], "0", line)
        self.assertIn("unavailable this worker was left behind", last)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs come and go, steps go on and on; neither the server's nor a worker's memory may grow. Jobs
come for ADDEND_SOAK_SECONDS (20), until ADDEND_SOAK_JOBS (0) of them are done and until the server
has received ADDEND_SOAK_PACKETS (0), whichever comes last; says how far it is every half minute.
Usage: soak_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Callable
from pathlib import Path

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
SECONDS = float(os.environ.get("ADDEND_SOAK_SECONDS", "20"))
JOBS = int(os.environ.get("ADDEND_SOAK_JOBS", "0"))
PACKETS = int(os.environ.get("ADDEND_SOAK_PACKETS", "0"))
MIB = 1 << 20
WORKERS, SIZE = 4, 256 << 10
SMALL, LARGE = (
    64,
    1408,
)  # bytes of a frame's lanes: most jobs have many small frames, some have large ones
PROGRESS_S = 30
FEW, MANY = 200, 1200  # steps


def mesh() -> list[str]:
    """Arguments of each worker of a mesh, on ports that nobody has now."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(WORKERS)
        ]
        peers = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    return [f"--reducer mesh --peers {peers} --worker {worker}" for worker in range(WORKERS)]


class SoakTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.key = Path(scratch.name) / "key"
        subprocess.run([ADDEND, "keygen", self.key], check=True, capture_output=True)
        self.server = subprocess.Popen(
            [ADDEND, "serve", "--key", self.key, "--port", "0", "--address", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(self.stop)
        assert self.server.stdout is not None
        words = self.server.stdout.readline().split()
        self.control, self.http = words[1], words[3]

    def stop(self) -> None:
        self.server.send_signal(signal.SIGTERM)
        self.server.communicate(timeout=60)

    def perf(
        self, job: str, iterations: int, size: int, payload: int = LARGE
    ) -> subprocess.Popen[str]:
        command = [
            ADDEND,
            *shlex.split(
                f"perf --reducer service --aggregator 127.0.0.1:{self.control} --key {self.key} "
                f"--job {job} -b {size} -e {size} -w 1 -n {iterations} -c dense --workers "
                f"{WORKERS} --payload {payload}"
            ),
        ]
        return subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> None:
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, out + err)

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.server.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=10) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        raise KeyError(name)

    def soak_job(self, name: str, number: int) -> None:
        iterations = 2 + (PACKETS // JOBS // (WORKERS * SIZE // SMALL) if JOBS else 0)
        self.finish(self.perf(name, iterations, SIZE, LARGE if number % 10 == 0 else SMALL))

    def test_memory_does_not_grow_with_jobs(self) -> None:
        for i in range(5):
            self.soak_job(f"warm{i}", i)
        before, jobs, start = self.resident_bytes(), 0, time.monotonic()
        packets, said = 0.0, start
        while time.monotonic() < start + SECONDS or jobs < JOBS or packets < PACKETS:
            self.soak_job(f"job{jobs}", jobs)
            jobs += 1
            packets = self.metric("addend_received_packets_total")
            if time.monotonic() >= said + PROGRESS_S:
                said = time.monotonic()
                print(
                    f"{said - start:.0f} s: {jobs} jobs, {packets:.0f} packets, memory grew by "
                    f"{(self.resident_bytes() - before) / MIB:.2f} MiB",
                    flush=True,
                )
        grown = self.resident_bytes() - before
        print(
            f"{jobs} jobs, {packets:.0f} packets, memory {before / MIB:.2f} MiB grew by "
            f"{grown / MIB:.2f} MiB"
        )
        self.assertLess(grown, 2 * MIB)
        self.assertEqual(self.metric("addend_jobs"), 0)

    def steps(self, count: int, programs: list[str]) -> tuple[int, list[tuple[int, int]]]:
        """The most memory of the first of these programs, and the threads and descriptors it had,
        in the order of time. Each is `addend perf` with arguments of its own.
        """
        work = (
            f"-b 16K -e 16K -w 1 -n {count} -c dense -c exact -c exact:mode=packed "
            "-c quant:bits=4,feedback=float"
        )
        first, *others = (
            subprocess.Popen(
                [ADDEND, *shlex.split(f"perf {work} {arguments}")], stdout=subprocess.DEVNULL
            )
            for arguments in programs
        )
        held = []
        while True:
            with contextlib.suppress(OSError):  # it has ended
                folder = Path(f"/proc/{first.pid}")
                held.append((len(os.listdir(folder / "task")), len(os.listdir(folder / "fd"))))
            ended, status, usage = os.wait4(first.pid, os.WNOHANG)
            if ended:
                break
            time.sleep(0.005)
        first.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual([first.returncode, *(one.wait(60) for one in others)], [0] * len(programs))
        return usage.ru_maxrss * 1024, held

    def check_steps(self, name: str, programs: Callable[[], list[str]]) -> None:
        before, _ = self.steps(FEW, programs())
        after, held = self.steps(MANY, programs())
        print(
            f"{name}: {before / MIB:.2f} MiB after {FEW} steps, {after / MIB:.2f} after {MANY}; "
            f"at most {max(held)} threads and "
            "descriptors"
        )
        self.assertLess(after - before, 4 * MIB)  # runs of equal length differ by 1
        half = len(held) // 2
        for early, late in zip(zip(*held[:half]), zip(*held[half:])):
            self.assertLessEqual(max(late), max(early))

    def test_memory_does_not_grow_with_steps(self) -> None:
        self.check_steps("local workers", lambda: [f"--workers {WORKERS}"])
        self.check_steps("a worker of a mesh", mesh)
        access = f"--aggregator 127.0.0.1:{self.control} --key {self.key} --job steps"
        self.check_steps(
            "workers of a server", lambda: [f"--workers {WORKERS} --reducer service {access}"]
        )

    def test_eight_jobs_fit_in_64_mib(self) -> None:
        jobs = [self.perf(f"job{i}", 5, 4 << 20) for i in range(8)]
        most = 0
        while any(job.poll() is None for job in jobs):
            most = max(most, self.resident_bytes())
            time.sleep(0.05)
        for job in jobs:
            self.finish(job)
        print(f"8 jobs of 512 slots: {most / MIB:.1f} MiB")
        self.assertLess(most, 64 * MIB)


if __name__ == "__main__":
    unittest.main(verbosity=2)

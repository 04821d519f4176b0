#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An honest tenant beside one that means harm: what the server's own client, the pages and the
server's memory do while `service_abuse` works against a server of this test on loopback. Usage:
abuse_test.py PATH_OF_ADDEND PATH_OF_SERVICE_ABUSE [--bench [WAY...]]: with it, how long the honest
tenant's steps take, against those without the other, who has a core of its own; exit code 1 beyond
the bar.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from network import make_key, wait_until

BENCH = "--bench" in sys.argv
ADDEND, ABUSE = sys.argv[1:3]
sys.argv[1:] = [word for word in sys.argv[3:] if word != "--bench"]
MIB = 1 << 20
BAR = 1.2
PAIRS, STEPS = 6, 40
# What a stranger and a tenant may have at once is used up after so long: after that they are at
# what they may have all the time.
SETTLED_S = 1.0
CORES = sorted(os.sched_getaffinity(0))
ELSEWHERE = ["taskset", "-c", str(CORES[-1])] if BENCH else ["nice", "-n", "19"]


class Server:
    """`addend serve` with the tenants good and bad, who has a job with a key of its own."""

    def __init__(
        self,
        folder: Path,
        server: str = "",
        bad: str = "",
        stderr: int | None = None,
        files: int = 4096,
    ) -> None:
        self.folder = folder
        self.keys = {
            name: make_key(ADDEND, folder / f"{name}.key") for name in ("good", "bad", "job")
        }
        config = folder / "serve.toml"
        config.write_text(
            '[server]\naddress = "127.0.0.1"\ncontrol_port = 0\ndata_port = 0\ndrain_s = 0\n'
            f"{server}\n[http]\nport = 0\n"
            f'[[tenant]]\nname = "good"\nkey_file = "{self.keys["good"]}"\n'
            f'[[tenant]]\nname = "bad"\nkey_file = "{self.keys["bad"]}"\n{bad}\n'
        )
        self.log = (folder / "log").open("w") if stderr is None else None
        self.process = subprocess.Popen(
            [ADDEND, "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            text=True,
            stderr=self.log if stderr is None else stderr,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        self.control, self.http = int(words[1]), int(words[3])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        if self.log is not None:
            self.log.close()

    def access(self, identity: str, key: str | None = None) -> list[str]:
        return [
            "--aggregator",
            f"127.0.0.1:{self.control}",
            "--identity",
            identity,
            "--key",
            str(self.keys[key or identity]),
        ]

    def make_job(self) -> None:
        """A job of the bad tenant that `service_abuse` joins, with a key of its own."""
        made = subprocess.run(
            [
                ADDEND,
                *shlex.split("job create mine --workers 1 --slots 4096 --job-key"),
                str(self.keys["job"]),
                *self.access("bad"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert made.returncode == 0, made.stderr

    def abuse(self, how: str, identity: str = "bad", key: str = "bad") -> subprocess.Popen[str]:
        port = self.http if how == "pages" else self.control
        # Whoever means harm has machines of their own.
        process = subprocess.Popen(
            [*ELSEWHERE, ABUSE, how, str(port), identity, str(self.keys[key])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def page(self, path: str = "/metrics", timeout: float = 10) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=timeout) as page:
            return str(page.read(), "utf-8")

    def metric(self, name: str) -> float:
        found = re.search(rf"^addend_{name} (\S+)$", self.page(), re.M)
        assert found is not None, name
        return float(found.group(1))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def most_memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def processor_s(self) -> float:
        """Of all threads of the server so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def share_of_a_core(self) -> float:
        """What it takes for two seconds."""
        used, began = self.processor_s(), time.monotonic()
        wait_until(lambda: time.monotonic() > began + 2, "two seconds")
        return (self.processor_s() - used) / (time.monotonic() - began)

    def wakeups(self) -> int:
        """Times that a thread of the server waited and went on so far."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        texts = [(thread / "status").read_text() for thread in threads]
        return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)

    def work(self, steps: int = 3, size: str = "1M") -> Any:
        """A whole run of the honest tenant: four workers join, add and leave."""
        done = subprocess.run(
            [
                ADDEND,
                "perf",
                "--reducer",
                "service",
                *self.access("good"),
                *shlex.split(
                    f"-b {size} -e {size} -w 1 -n {steps} -c dense --values integers --json"
                ),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)["results"][0]
        assert row["wrong"] == 0, row
        return row


def finish(process: subprocess.Popen[str]) -> int:
    """What it did, in its own count."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, process.returncode
    return int(out)


def full_pipe() -> tuple[int, int]:
    """One that nobody reads: its ends to read from and to write to."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"nobody reads this\n")
    os.set_blocking(writer, True)
    return reader, writer


class AbuseTest(unittest.TestCase):
    def serve(self, **options: Any) -> Server:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        server = Server(Path(scratch.name), **options)
        self.addCleanup(server.close)
        return server

    def under(
        self,
        server: Server,
        how: str,
        began: Callable[[], bool],
        identity: str = "bad",
        key: str = "bad",
    ) -> int:
        """Honest runs and pages while it lasts; returns what the other side did."""
        process = server.abuse(how, identity, key)
        self.addCleanup(process.kill)
        wait_until(began, f"{how} at the server")
        for _ in range(2):
            server.work()
        self.assertIn('"boot"', server.page("/status.json"))
        listed = subprocess.run(
            [ADDEND, "job", "list", *server.access("good")],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.assertEqual(listed.returncode, 0, listed.stderr)
        did = finish(process)
        print(f"{how}: {did}, at most {server.most_memory() / MIB:.1f} MiB", flush=True)
        return did

    def connected(self, server: Server) -> Callable[[], bool]:
        return lambda: server.metric("connections") > 0

    def test_questions_without_reading_the_answers(self) -> None:
        server = self.serve()
        # What is not read stays with who sent it: the kernel's buffers, and no more.
        self.assertLess(self.under(server, "list", self.connected(server)), 64 * MIB)
        self.assertLess(server.most_memory(), 64 * MIB)

    def test_questions_with_a_jobs_key_only(self) -> None:
        server = self.serve()
        server.make_job()
        self.assertLess(
            self.under(server, "list", self.connected(server), "bad/mine", "job"), 64 * MIB
        )
        self.assertLess(server.most_memory(), 64 * MIB)

    def test_joins_with_a_jobs_key_only(self) -> None:
        server = self.serve()
        server.make_job()
        self.under(server, "rejoin", self.connected(server), "bad/mine", "job")
        self.assertLess(server.most_memory(), 160 * MIB)

    def test_joins_without_reading_the_answers(self) -> None:
        server = self.serve()
        self.under(server, "join", self.connected(server))
        self.assertLess(server.most_memory(), 96 * MIB)

    def test_joins_as_fast_as_they_are_answered(self) -> None:
        server = self.serve()
        self.under(server, "rejoin", self.connected(server))
        self.assertLess(server.most_memory(), 160 * MIB)

    def test_positions_that_never_end(self) -> None:
        server = self.serve(bad="max_slots = 65536\nmax_memory_bytes = 1000000")
        self.under(
            server,
            "positions",
            lambda: (
                server.metric("connections") > 300
                or server.metric("connections_cut_off_total") > 20
            ),
        )
        self.assertLess(server.most_memory(), 64 * MIB)

    def test_connections_that_say_nothing(self) -> None:
        server = self.serve()
        self.under(server, "silent", lambda: server.metric("handshakes_dropped_total") > 500)
        self.assertLess(server.most_memory(), 64 * MIB)

    def test_connections_that_say_nothing_are_taken_in_groups(self) -> None:
        server = self.serve()
        process = server.abuse("silent")
        self.addCleanup(process.kill)
        wait_until(lambda: server.metric("handshakes_dropped_total") > 500, "silence")
        woken, dropped, began = (
            server.wakeups(),
            server.metric("handshakes_dropped_total"),
            time.monotonic(),
        )
        wait_until(lambda: server.metric("handshakes_dropped_total") > dropped + 5000, "more of it")
        woken = server.wakeups() - woken
        seconds = time.monotonic() - began
        finish(process)
        # Every two milliseconds, however many come; beside that, a status and this test's pages.
        print(
            f"{woken / 5000:.3f} wake-ups a connection, {woken / seconds:.0f} a second", flush=True
        )
        self.assertLess(woken, 900 * seconds + 100)

    def check_share(self, how: str, *who: str, most: float = 0.2) -> None:
        server = self.serve()
        if who:
            server.make_job()
        process = server.abuse(how, *who)
        self.addCleanup(process.kill)
        if how in ("list", "join"):  # stop when their answers are not read: no work to wait for
            wait_until(self.connected(server), how)
        else:
            # By then they have used up what they may at once.
            wait_until(lambda: server.processor_s() > 0.25, "work")
        share = server.share_of_a_core()
        finish(process)
        print(f"{how} {' '.join(who)}: {share:.3f} of a core", flush=True)
        self.assertLess(share, most)

    def test_no_stranger_and_no_tenant_takes_more_than_its_share_of_a_core(self) -> None:
        # A sixteenth for the address, another for the tenant, and what nobody pays for: less than
        # 0.12 where it was measured, on a busy machine. Without shares it is 0.22 and more; of
        # answers that are not read, if that did not stop questions either, 0.31 and more.
        for how in ("idle", "positions", "silent", "knock", "pages", "join", "rejoin"):
            self.check_share(how)
        self.check_share("rejoin", "bad/mine", "job")
        # 0.01 at most; 0.11 with a share alone.
        self.check_share("list", most=0.06)

    def test_handshakes_with_a_wrong_key(self) -> None:
        server = self.serve()
        self.under(server, "knock", lambda: server.metric("handshakes") > 0)
        self.assertLess(server.most_memory(), 64 * MIB)

    def test_connections_of_a_tenant_that_stay(self) -> None:
        server = self.serve(server="max_connections = 64")
        self.under(server, "idle", lambda: server.metric("connections_cut_off_total") > 32)
        self.assertLessEqual(server.metric("connections"), 64)

    def test_no_descriptors_left(self) -> None:
        server = self.serve(files=64)
        for _ in range(200):
            held = socket.create_connection(("127.0.0.1", server.control))
            self.addCleanup(held.close)
        used = server.processor_s()
        # Strangers who say nothing hold every descriptor. They are dropped one by one, and the
        # server does not spin.
        server.work()
        self.assertLess(server.processor_s() - used, 3)

    def test_pages_beside_slow_readers(self) -> None:
        server = self.serve()
        for i in range(200):
            one = socket.socket()
            self.addCleanup(one.close)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            one.connect(("127.0.0.1", server.http))
            one.sendall(b"GET /metrics HTTP/1.1\r\n" + (b"\r\n" if i % 2 else b"X: "))
        self.assertIn("addend_jobs", server.page(timeout=20))
        server.work()

    def test_a_log_that_nobody_reads(self) -> None:
        reader, writer = full_pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        server = self.serve(stderr=writer)
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", server.control)) as one:
                one.sendall(b"this is no handshake\r\n" * 4)
        server.work()
        # It can be told to stop, too, and says what it left out.
        server.process.send_signal(signal.SIGTERM)
        os.set_blocking(reader, False)
        log = b""

        def drained() -> bool:
            nonlocal log
            over = server.process.poll() is not None  # so that this is the last there will be
            with contextlib.suppress(BlockingIOError):
                log += os.read(reader, 1 << 20)
            return over

        wait_until(drained, "the end of the server")
        self.assertEqual(server.process.returncode, 0)
        self.assertIn(b"left out", log)


def measure(name: str, how: str, server: Server, *who: str) -> bool:
    """Neighbouring runs of the honest tenant, one of each two beside the other: the first and the
    second of them in turn, so that a machine that slows down is no difference. Means of steps.
    """
    alone: list[float] = []
    beside: list[float] = []
    before, work_s = server.descriptors(), 0.0

    def run(attacked: bool) -> None:
        nonlocal work_s
        if attacked:
            process = server.abuse(how, *who)
            wait_until(lambda: server.descriptors() > before, how)
            time.sleep(SETTLED_S)
        used = server.processor_s()
        step_us = server.work(steps=STEPS, size="4M")["mean_us"]
        used = server.processor_s() - used
        work_s += used if attacked else -used
        (beside if attacked else alone).append(step_us)
        if attacked:
            finish(process)

    for pair in range(PAIRS):
        for attacked in (False, True) if pair % 2 == 0 else (True, False):
            run(attacked)
    low, ratio, high = statistics.quantiles(
        [with_it / without for with_it, without in zip(beside, alone, strict=True)], n=4
    )
    print(
        f"{name:<12} {statistics.median(alone):9.0f} us a step alone, median of {PAIRS} ratios "
        f"{ratio:5.2f} (quartiles {low:.2f} to {high:.2f}; of sums "
        f"{sum(beside) / sum(alone):.2f}) <= {BAR} {'PASS' if ratio <= BAR else 'FAIL'}; server "
        f"{work_s * 1e6 / (STEPS * sum(beside)):.3f} of a core more, at most "
        f"{server.most_memory() / MIB:.1f} MiB",
        flush=True,
    )
    return ratio <= BAR


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keeps the core of whoever means harm from sleeping while nothing happens there: how long a
    step takes on one core depends on what the other does.
    """
    command = [*ELSEWHERE, "chrt", "--idle", "0", sys.executable, "-c", "while True: pass"]
    spinner = subprocess.Popen(command)
    try:
        yield
    finally:
        spinner.kill()
        spinner.wait()


def bench(chosen: list[str]) -> int:
    if len(CORES) < 2:
        sys.exit("one core for whoever means harm and one for all others, or more, are needed")
    os.sched_setaffinity(0, CORES[:-1])
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        how: (how, {})
        for how in ("list", "join", "rejoin", "positions", "idle", "silent", "knock", "pages")
    }
    reader, writer = full_pipe()
    ways["descriptors"] = ("silent", {"files": 64})
    ways["log"] = ("knock", {"stderr": writer})
    good = True
    ways["job"] = ("rejoin", {})
    for name in chosen or ways:
        how, options = ways[name]
        who = ("bad/mine", "job") if name == "job" else ()
        with tempfile.TemporaryDirectory() as folder, awake():
            server = Server(Path(folder), **options)
            try:
                if who:
                    server.make_job()
                good = measure(name, how, server, *who) and good
            finally:
                server.close()
    os.close(reader)
    os.close(writer)
    return 0 if good else 1


if __name__ == "__main__":
    if BENCH:
        sys.exit(bench(sys.argv[1:]))
    unittest.main(verbosity=2)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that is stopped, killed, started again and told to read its files anew while workers,
each a process, sum through it. Usage: restart_test.py PATH_OF_ADDEND PATH_OF_SERVICE_WORKER
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from network import start, wait_until

ADDEND, WORKER = (
    (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else ("addend", "service_worker")
)
WORLD = 3
SEED = int(os.environ.get("ADDEND_RESTART_SEED", "1"))
STEPS = 4  # around an interruption
ROUNDS = int(os.environ.get("ADDEND_RESTART_ROUNDS", "2"))  # of each kind of interruption


def addend(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ADDEND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


class Relay:
    """Between a worker's control connections and the server; a test may break them."""

    def __init__(self, address: str, server: int) -> None:
        self._to = (address, server)
        self._listener = socket.create_server((address, 0))
        self.port = str(self._listener.getsockname()[1])
        self.came = 0
        self._workers: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                worker, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._workers.append(worker)
                self._servers.append(server)
                self.came += 1
                threading.Thread(target=self._carry, args=(worker, server), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, worker), daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
        if source in self._servers:
            _end(to)

    @staticmethod
    def cut(relays: Iterable[Relay]) -> None:
        """No worker hears from the server that another one's connection broke."""
        for relay in relays:
            for one in relay._workers:
                _end(one)
        for relay in relays:
            for one in relay._servers:
                _end(one)

    def close(self) -> None:
        self._listener.close()
        for one in self._workers + self._servers:
            one.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was first
        connection.shutdown(socket.SHUT_RDWR)


class RestartTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.state = self.folder / "state"
        self.key, self.job_key = self.folder / "lab.key", self.folder / "job.key"
        for key in (self.key, self.job_key):
            self.assertEqual(addend("keygen", key).returncode, 0)
        # An address of our own: nobody takes the port while the server is away.
        self.address = f"127.{100 + os.getpid() % 100}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self.control = self.http = "0"
        self.log = self.folder / "log"
        self.server: subprocess.Popen[str] | None = None
        self.addCleanup(self.kill)

    def configure(self, extra: str = "", server: str = "") -> None:
        (self.folder / "serve.toml").write_text(
            f'[server]\naddress = "{self.address}"\ncontrol_port = {self.control}\n'
            f"data_port = 0\n{server}\n"
            f'[http]\nport = {self.http}\n[[tenant]]\nname = "lab"\nkey_file = "{self.key}"\n'
            f"{extra}\n"
        )

    def launch(self) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                [
                    ADDEND,
                    "serve",
                    "--config",
                    self.folder / "serve.toml",
                    "--state-dir",
                    self.state,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start(self) -> None:
        self.server = self.launch()
        assert self.server.stdout is not None
        words = self.server.stdout.readline().split()
        self.assertTrue(words, self.log.read_text())
        self.control, self.http = words[1], words[3]
        self.configure()

    def end(self, how: signal.Signals) -> None:
        assert self.server is not None
        self.server.send_signal(how)
        self.server.communicate(timeout=30)

    def kill(self) -> None:
        if self.server is not None and self.server.poll() is None:
            self.end(signal.SIGKILL)

    def logged(self, words: str) -> int:
        return self.log.read_text().count(words)

    def reload(self, expected: str) -> None:
        before = self.logged(expected)
        assert self.server is not None
        self.server.send_signal(signal.SIGHUP)
        wait_until(lambda: self.logged(expected) > before, expected)

    def access(self, key: Path | None = None, identity: str = "lab") -> list[object]:
        return [
            "--aggregator",
            f"{self.address}:{self.control}",
            "--identity",
            identity,
            "--key",
            key or self.key,
        ]

    def jobs(self) -> Any:
        done = addend("job", "list", "--json", *self.access())
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def status(self) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.http}/status.json", timeout=10
        ) as page:
            return json.loads(page.read().decode())

    def turns(self) -> int:
        return sum(job["turns"] for job in self.status()["jobs"])

    def run_process(self, *command: object) -> subprocess.Popen[str]:
        return start(self, *command, stderr=subprocess.PIPE)

    def create(self, *words: object) -> None:
        done = addend(
            "job",
            "create",
            "ring",
            "--workers",
            WORLD,
            *words,
            "--job-key",
            self.job_key,
            *self.access(),
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def perf(
        self, iterations: int, key: Path | None = None, identity: str = "lab/ring"
    ) -> list[subprocess.Popen[str]]:
        """Check the last sum of each codec."""
        return [
            self.run_process(
                ADDEND,
                *shlex.split(
                    f"perf --reducer service --workers {WORLD} --worker {number} -b 512K -e 512K "
                    "-c dense -c exact:values=reproducible -c quant:carrier=indices --values "
                    f"integers --json --job ring -n {iterations}"
                ),
                *self.access(key or self.job_key, identity),
            )
            for number in range(WORLD)
        ]

    def finish(self, processes: list[subprocess.Popen[str]]) -> None:
        for number, process in enumerate(processes):
            out, err = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, out + err + self.log.read_text()[-4000:])
            if number == 0:
                self.assertEqual([row["wrong"] for row in json.loads(out)["results"]], [0, 0, 0])

    def workers(
        self,
        numbers: Iterable[int] = range(WORLD),
        key: Path | None = None,
        job: str = "lab/ring",
        control: str | None = None,
        return_s: int | None = None,
    ) -> list[subprocess.Popen[str]]:
        """Check every lane of every step."""
        secret = (key or self.job_key).read_text().strip()
        server = f"{self.address}:{control or self.control}"
        return [
            self.run_process(
                WORKER,
                server,
                secret,
                job,
                WORLD,
                number,
                "planes",
                *([return_s] if return_s else []),
            )
            for number in numbers
        ]

    def release(self, processes: list[subprocess.Popen[str]], steps: int) -> None:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("step\n" * steps)
            process.stdin.flush()

    def take_step(self, process: subprocess.Popen[str], step: int) -> None:
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), f"{step} 0 0 0\n", self.log.read_text()[-4000:])

    def interrupt(self, kind: str) -> None:
        if kind == "reload":
            self.reload("reloaded")
        elif kind == "bad reload":
            (self.folder / "serve.toml").write_text("[server]\nthreds = 2\n")
            self.reload("reload refused")
            self.configure()
        else:
            self.end(signal.SIGTERM if kind == "restart" else signal.SIGKILL)
            self.start()

    def test_every_sum_is_right_whatever_happens_to_the_server(self) -> None:
        self.configure()
        self.start()
        self.create("--slots", 64, "--patience", 20)
        processes = self.workers()
        kinds = ["restart", "crash", "reload", "bad reload"] * ROUNDS
        random.Random(SEED).shuffle(kinds)
        print(f"seed {SEED}: {kinds}")
        for number, kind in enumerate(kinds):
            self.release(processes, STEPS)
            self.take_step(processes[0], number * STEPS)
            self.interrupt(kind)  # in the middle of the others
            for step in range(number * STEPS, (number + 1) * STEPS):
                for process in processes[1 if step == number * STEPS else 0 :]:
                    self.take_step(process, step)
        self.assertEqual(
            [(job["job"], job["slots"], job["joined"]) for job in self.jobs()],
            [("ring", 64, WORLD)],
        )

    def test_jobs_of_their_workers_go_on_too(self) -> None:
        self.configure()
        self.start()
        processes = self.perf(150, self.key, "lab")
        for kind in ("restart", "crash"):
            wait_until(lambda: self.turns() > 300, "sums since the server started")
            self.interrupt(kind)
        self.finish(processes)
        wait_until(lambda: self.jobs() == [], "a server without jobs")

    def test_a_job_keeps_its_key_its_slots_and_its_patience(self) -> None:
        self.configure()
        self.start()
        self.create("--slots", 48, "--patience", 1)
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.end(how)
            self.start()
        self.assertEqual([(job["job"], job["slots"]) for job in self.jobs()], [("ring", 48)])
        kept = self.state / "jobs"
        self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.state.stat().st_mode), 0o700)
        processes = self.perf(100000)
        wait_until(lambda: self.turns() > 100, "sums")
        processes[-1].send_signal(signal.SIGSTOP)
        for process in processes[:-1]:
            _, err = process.communicate(timeout=60)
            self.assertIn(f"worker {WORLD - 1} did not contribute in time", err)

    def test_workers_that_wait_for_others_go_on_waiting(self) -> None:
        self.configure()
        self.start()
        self.create()
        processes = self.workers(range(WORLD - 1))
        for how in (signal.SIGTERM, signal.SIGKILL):
            wait_until(
                lambda: self.jobs()[0]["waits_for"] == [WORLD - 1],
                "a job that waits for its last worker",
            )
            self.end(how)
            self.start()
        processes += self.workers(range(WORLD - 1, WORLD))
        self.release(processes, 1)
        for process in processes:
            self.take_step(process, 0)

    def test_a_job_that_drains_is_finished_by_its_workers_after_a_restart(self) -> None:
        self.configure()
        self.start()
        self.create()
        processes = self.perf(150)
        wait_until(lambda: self.turns() > 300, "sums")
        self.assertEqual(addend("job", "drain", "ring", *self.access()).returncode, 0)
        self.end(signal.SIGTERM)
        self.start()
        self.assertIn(
            "draining",
            addend(
                *shlex.split(f"perf --reducer service --workers {WORLD} --worker 0 --job ring"),
                *self.access(),
            ).stderr,
        )
        self.finish(processes)
        wait_until(lambda: self.jobs() == [], "a server without jobs")
        self.end(signal.SIGTERM)
        self.start()
        self.assertEqual(self.jobs(), [])

    def take_steps(self, processes: list[subprocess.Popen[str]], steps: range) -> list[list[int]]:
        """Whoever is missing in them, and how often they were begun again, all say alike."""
        rows = []
        for step in steps:
            said = set()
            for process in processes:
                assert process.stdout is not None
                said.add(process.stdout.readline())
            self.assertEqual(len(said), 1, f"{said}\n{self.log.read_text()[-4000:]}")
            words = said.pop().split()
            self.assertEqual([words[0], words[3]], [str(step), "0"], words)
            rows.append([int(word) for word in words])
        return rows

    def test_with_a_quorum_every_step_is_the_same_for_all_whatever_happens_to_the_server(
        self,
    ) -> None:
        self.configure()
        self.start()
        self.create("--slots", 64, "--patience", 20, "--quorum", 2)
        processes = self.workers()
        kinds = ["restart", "crash", "reload", "twice"] * ROUNDS
        random.Random(SEED).shuffle(kinds)
        print(f"seed {SEED}: {kinds}")
        self.release(processes, 1)
        self.take_steps(processes, range(1))  # all have joined
        done, repeats = 1, 0
        for kind in kinds:
            self.release(processes, STEPS)
            self.interrupt("crash" if kind == "twice" else kind)  # while they are in some step
            if kind == "twice":
                self.interrupt("crash")  # while they come back
            # Whoever was first with all of them has what the others lack.
            self.release(processes, 1)
            steps = range(done, done + STEPS + 1)
            repeats += sum(row[2] for row in self.take_steps(processes, steps))
            done = steps.stop
        self.assertGreater(repeats, 0)

    def test_with_a_quorum_a_job_outlives_all_its_connections(self) -> None:
        self.configure()
        self.start()
        self.create("--patience", 20, "--quorum", 2)
        relays = [Relay(self.address, int(self.control)) for _ in range(WORLD)]
        for relay in relays:
            self.addCleanup(relay.close)
        processes = [
            process
            for number, relay in enumerate(relays)
            for process in self.workers([number], control=relay.port)
        ]
        self.release(processes, 1)
        self.take_steps(processes, range(1))
        Relay.cut(relays[:1])
        self.release(processes[:1], 1)
        # The others are enough, so it is refused, and asks again.
        wait_until(lambda: relays[0].came > 2, "a worker that asks again")
        Relay.cut(relays[1:])
        self.release(processes[1:], 1)
        ((_, missing, repeats, _),) = self.take_steps(processes, range(1, 2))
        self.assertEqual(missing, 0)
        self.assertGreater(repeats, 0)

    def test_whoever_hears_that_fewer_than_a_quorum_are_left_fails_at_once(self) -> None:
        self.configure()
        self.start()
        self.create("--patience", 600, "--quorum", 2)
        relays = [Relay(self.address, int(self.control)) for _ in range(2)]
        for relay in relays:
            self.addCleanup(relay.close)
        processes = [self.workers([n], control=relay.port)[0] for n, relay in enumerate(relays)]
        processes += self.workers([2])
        self.release(processes, 1)
        self.take_steps(processes, range(1))
        self.release(processes[2:], 1)
        Relay.cut(relays[:1])
        wait_until(lambda: self.jobs()[0]["joined"] == 2, "a server that has lost one of them")
        Relay.cut(relays[1:])
        out = processes[2].communicate(timeout=60)[0]
        self.assertIn("error unavailable worker 1 left the job", out)

    def test_a_worker_that_a_quorum_goes_on_without_asks_less_and_less_often(self) -> None:
        self.configure()
        self.start()
        self.create("--patience", 20, "--quorum", 2)
        relay = Relay(self.address, int(self.control))
        self.addCleanup(relay.close)
        alone = self.workers([0], control=relay.port, return_s=4)
        processes = alone + self.workers([1, 2])
        self.release(processes, 1)
        self.take_steps(processes, range(1))
        Relay.cut([relay])
        self.release(alone, 1)
        out = alone[0].communicate(timeout=60)[0]
        self.assertIn("error timeout this worker could not join again: worker 0 was left be", out)
        # Its first one, and those after 0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55 and 3.55 s.
        self.assertLessEqual(relay.came, 9)

    def test_a_job_with_a_quorum_goes_on_with_it(self) -> None:
        self.configure()
        self.start()
        self.create("--patience", 2, "--quorum", 2)
        processes = self.workers(key=self.key, job="ring")
        self.release(processes, 1)
        self.take_steps(processes, range(1))
        self.end(signal.SIGTERM)
        (self.state / "jobs").unlink()  # those who come back know what it was
        self.start()
        self.release(processes, 1)
        self.take_steps(processes, range(1, 2))
        processes[2].send_signal(signal.SIGSTOP)
        self.release(processes[:2], 2)
        self.assertEqual(self.take_steps(processes[:2], range(2, 4))[-1][1], 4)
        # It is back before anybody begins, far behind.
        self.end(signal.SIGKILL)
        self.start()
        self.release(processes, 3)
        processes[2].send_signal(signal.SIGCONT)
        out = processes[2].communicate(timeout=60)[0]
        self.assertIn("unavailable this worker was left behind", out)
        self.assertEqual(self.take_steps(processes[:2], range(4, 7))[-1][1], 4)

    def test_drain_s_ends_jobs_for_good(self) -> None:
        self.configure()
        self.start()
        self.create()
        self.configure(server="drain_s = 0.1")
        self.reload("reloaded")
        processes = self.perf(100000)
        wait_until(lambda: self.turns() > 100, "sums")
        self.end(signal.SIGTERM)
        for process in processes:
            self.assertIn("the server left the job", process.communicate(timeout=60)[1])
        self.start()
        self.assertEqual(self.jobs(), [])

    def test_a_reload_brings_tenants_and_takes_them_away(self) -> None:
        self.configure()
        self.start()
        other = self.folder / "other.key"
        self.assertEqual(addend("keygen", other).returncode, 0)
        self.configure(
            f'max_slots = 600\n[[tenant]]\nname = "other"\nkey_file = "{other}"',
            server="threads = 2",
        )
        self.assertEqual(addend("job", "list", *self.access(other, "other")).returncode, 1)
        self.reload("reloaded tenants=2")
        self.assertRegex(
            self.log.read_text(), "some settings change only with a restart settings=.*threads"
        )
        self.assertEqual(
            addend(
                "job", "create", "theirs", "--workers", 1, *self.access(other, "other")
            ).returncode,
            0,
        )
        self.create("--slots", 600)
        refused = addend("job", "create", "more", "--workers", 1, "--slots", 1, *self.access())
        self.assertIn("would have 601 slots", refused.stderr)
        self.configure()
        self.reload("reloaded tenants=1")
        wait_until(
            lambda: len(self.status()["jobs"]) == 1,
            "a server without the jobs of the tenant that is gone",
        )
        self.assertEqual(addend("job", "list", *self.access(other, "other")).returncode, 1)
        # A key that was exchanged: who has the new one gets in, who has the old one does not.
        self.key.unlink()
        self.assertEqual(addend("keygen", self.key).returncode, 0)
        self.assertEqual(addend("job", "list", *self.access()).returncode, 1)
        self.reload("reloaded tenants=1")
        self.assertEqual(len(self.jobs()), 1)

    def test_damaged_state_is_refused_by_name_and_the_old_one_survives_a_crash_in_the_middle(
        self,
    ) -> None:
        self.configure()
        self.start()
        self.create()
        self.end(signal.SIGTERM)
        kept = self.state / "jobs"
        whole = kept.read_bytes()
        rng = random.Random(SEED)
        cuts = [whole[: rng.randrange(len(whole))] for _ in range(3)] + [b"", whole + b"x"]
        for damaged in [*cuts, bytes([*whole[:40], whole[40] ^ 1, *whole[41:]])]:
            kept.write_bytes(damaged)
            before = self.log.stat().st_size
            server = self.launch()
            self.assertEqual(server.communicate(timeout=30)[0], "")
            self.assertEqual(server.returncode, 1)
            self.assertIn(str(self.state), self.log.read_text()[before:])
        # What a server that dies while it writes leaves behind.
        kept.write_bytes(whole)
        (self.state / "jobs.new").write_bytes(whole[:50])
        self.start()
        self.assertEqual(len(self.jobs()), 1)
        self.assertEqual(addend("job", "drain", "ring", *self.access()).returncode, 0)
        self.assertEqual(self.jobs(), [])

    def test_two_servers_do_not_share_a_state(self) -> None:
        self.configure()
        self.start()
        self.control = self.http = "0"
        self.configure()
        second = self.launch()
        self.assertEqual(second.communicate(timeout=30)[0], "")
        self.assertEqual(self.logged("another server keeps its jobs here"), 1)

    def test_a_job_that_cannot_be_kept_is_refused(self) -> None:
        self.configure()
        self.start()
        (self.state / "jobs.new").mkdir()
        done = addend("job", "create", "ring", "--workers", 1, *self.access())
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{self.state}/jobs: File exists", done.stderr)
        self.assertEqual(self.jobs(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""Namespaces with one link from the server to each worker, as a switch would have them, and
processes inside.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
# ethtool -K DEVICE tx on tso off, and so on, where there is no ethtool.
OFFLOADS = """
import ctypes, fcntl, socket, struct, sys
commands = {"tx": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
for name, state in zip(sys.argv[2::2], sys.argv[3::2]):
    value = ctypes.create_string_buffer(struct.pack("II", commands[name], state == "on"))
    request = struct.pack("16sP", sys.argv[1].encode(), ctypes.addressof(value))
    fcntl.ioctl(socket.socket(), 0x8946, request)
"""


def run(*command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=check, timeout=60
    )


def why_not() -> str | None:
    """Why namespaces cannot be tested here, or None."""
    if os.geteuid() != 0:
        return "namespaces need root"
    probe = f"addend-probe-{os.getpid()}"
    done = run("ip", "netns", "add", probe, check=False)
    if done.returncode != 0:
        return "the kernel gives no namespaces: " + done.stderr.strip()
    run("ip", "netns", "del", probe)
    return None


def may_load_drivers() -> bool:
    """Whether the kernel must take the XDP program from this process: it is recent enough, and the
    process has CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF, of this machine and not of a user namespace.
    """
    needed = 1 << 12 | 1 << 38 | 1 << 39
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.split("CapEff:")[1].split()[0], 16)
    users = Path("/proc/self/uid_map").read_text().split()
    release = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return (
        capabilities & needed == needed and users == ["0", "0", "4294967295"] and release >= (5, 15)
    )


def why_no_driver(addend: str) -> str | None:
    """Why the XDP program cannot be tested here, or None. An error where it could be but does not
    load.
    """
    reason = why_not()
    if reason is not None:
        return reason
    with tempfile.TemporaryDirectory() as folder:
        key = make_key(addend, Path(folder) / "key")
        done = run(addend, "serve", "--key", key, "--port", 0, "--xdp", "lo", check=False)
    # Loopback has no driver that could run it, which is found out last.
    if "no native XDP" in done.stderr:
        return None
    reason = "the XDP program cannot be loaded: " + done.stderr.strip()
    if may_load_drivers() and "no XDP data plane" not in done.stderr:
        raise RuntimeError(reason)
    return reason


def start(
    test: unittest.TestCase, *command: object, stderr: int | None = None
) -> subprocess.Popen[str]:
    """A process that lives no longer than the test."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    test.addCleanup(process.communicate)
    test.addCleanup(process.kill)
    return process


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


class Network:
    """Server namespace with addresses 10.77.W.1 and fd77:W::1 towards worker W, who has 10.77.W.2
    and fd77:W::2.
    """

    def __init__(self, workers: int, bad_wire: Sequence[object] = (), seed: int = 0) -> None:
        """Links are plain, or `bad_wire`: the program of that name with its options but the seed,
        which is another for each of them and each `seed` here.
        """
        # Namespaces outlive their maker, so one that is told to stop cleans up first.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.name = f"addend{os.getpid()}"
        self.workers, self.bad_wire, self.seed = workers, bad_wire, seed
        self.server_space = self.name + "s"
        self.processes: list[subprocess.Popen[str]] = []
        run("ip", "netns", "add", self.server_space)
        self.inside(self.server_space, "ip", "link", "set", "lo", "up")
        self.hosts: list[str] = []
        for worker in range(workers):
            self._link(self.space(worker), f"s{worker}", worker)

    def _link(self, space: str, port: str, subnet: int) -> None:
        self.hosts.append(space)
        run("ip", "netns", "add", space)
        if self.bad_wire:
            self._start_wire(space, port, 1000 * self.seed + subnet + 1)
        else:
            run(
                *shlex.split(
                    f"ip link add {port} netns {self.server_space} type veth peer name w netns "
                    f"{space}"
                ),
            )
        for where, device, host in ((self.server_space, port, 1), (space, "w", 2)):
            self.inside(where, "ip", "addr", "add", f"10.77.{subnet}.{host}/24", "dev", device)
            self.inside(
                where, "ip", "addr", "add", f"fd77:{subnet}::{host}/64", "dev", device, "nodad"
            )
            self.inside(where, "ip", "link", "set", device, "up")

    def _start_wire(self, space: str, port: str, seed: int) -> None:
        command = [*self.bad_wire, "--seed", seed, f"{self.server_space}/{port}:{space}/w"]
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the wire did not start: " + process.communicate()[1])
        for where, device in ((self.server_space, port), (space, "w")):
            # A window that leaves at once must find room: what overflows would be loss of another
            # kind.
            self.inside(where, "ip", "link", "set", device, "txqueuelen", 20000)

    def add_host(self, port: str) -> tuple[str, str]:
        """One more namespace, behind the server namespace's device `port`, which forwards: its name
        and address.
        """
        space, subnet = self.name + port, 200 + len(self.hosts)
        self._link(space, port, subnet)
        self.inside(space, "ip", "route", "add", "default", "via", f"10.77.{subnet}.1")
        return space, f"10.77.{subnet}.2"

    def offloads(self, space: str, device: str, settings: str) -> None:
        self.inside(space, sys.executable, "-c", OFFLOADS, device, *settings.split())

    def poll(self, space: str, device: str) -> None:
        """What arrives at a veth by XDP is taken in only if its end of the pair polls."""
        self.offloads(space, device, "gro on")

    def space(self, worker: int) -> str:
        return f"{self.name}w{worker}"

    def inside(self, space: str, *command: object) -> subprocess.CompletedProcess[str]:
        return run("ip", "netns", "exec", space, *command)

    def start(self, space: str, *command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", space, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def ends(self, worker: int) -> list[tuple[str, str]]:
        """Namespace and device of both ends of a worker's link: the server's, then its own."""
        return [(self.server_space, f"s{worker}"), (self.space(worker), "w")]

    def drop(self, ppm: int, folder: Path, at: Iterable[tuple[str, str]] | None = None) -> None:
        """Loses datagrams that arrive at these ends of links; in both directions of every link if
        none are named.
        """
        program = folder / f"drop{ppm}.o"
        run(
            *shlex.split(
                f"clang-14 -O2 -target bpf -DDROP_PPM={ppm} -I/usr/include/x86_64-linux-gnu -c"
            ),
            HERE / "drop.bpf.c",
            "-o",
            program,
        )
        everywhere = [end for worker in range(self.workers) for end in self.ends(worker)]
        for space, device in everywhere if at is None else at:
            self.inside(
                space,
                *shlex.split(f"ip link set dev {device} xdpgeneric obj {program} sec xdp"),
            )

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for space in (*self.hosts, self.server_space):
            run("ip", "netns", "del", space, check=False)


def make_key(addend: str, path: Path) -> Path:
    """Unless it is there."""
    if not path.exists():
        run(addend, "keygen", path)
    return path


class NetworkTest(unittest.TestCase):
    """Each test has a network of so many workers, and a folder."""

    workers = 1

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.network = Network(self.workers)
        self.addCleanup(self.network.close)


class Service:
    """`addend serve` in the server's namespace, or another. `tenants`: what the configuration says
    of each but its name and key. Tenant `lab` is there in any case. `server`: what it says of the
    server itself. `options`: of the command line.
    """

    def __init__(
        self,
        network: Network,
        addend: str,
        folder: Path,
        tenants: Mapping[str, str] = MappingProxyType({}),
        space: str | None = None,
        server: str = "",
        options: str = "",
    ) -> None:
        self.network, self.addend, self.folder = network, addend, folder
        self.options = shlex.split(options)
        self.space = space or network.server_space
        self.config = folder / "serve.toml"
        text = f'[server]\ndrain_s = 1\n{server}\n[http]\naddress = "0.0.0.0"\n'
        self.keys = {}
        for name, more in {"lab": "", **tenants}.items():
            self.keys[name] = make_key(addend, folder / f"{name}.key")
            text += f'[[tenant]]\nname = "{name}"\nkey_file = "{self.keys[name]}"\n{more}\n'
        self.config.write_text(text)
        self.process = self._start()

    def worker(
        self,
        number: int,
        world: int,
        options: str,
        host: str = "10.77.{}.1",
        tenant: str = "lab",
        key: str | None = None,
        machine: int | None = None,
    ) -> subprocess.Popen[str]:
        """`addend perf` as worker `number`, in that worker's namespace or in `machine`'s, with the
        key of `tenant` or of another.
        """
        machine = number if machine is None else machine
        access = f"{host.format(machine)}:7700 --identity {tenant} --key {self.keys[key or tenant]}"
        words = f"--aggregator {access} --workers {world} --worker {number} {options}"
        return self.network.start(
            self.network.space(machine),
            self.addend,
            *shlex.split(f"perf --reducer service {words}"),
        )

    def measure(self, world: int, options: str, field: str = "time_us") -> dict[str, float]:
        """Seconds of a step (the median one, or `mean_us`) by codec, of all workers together;
        answers checked.
        """
        processes = [self.worker(number, world, options + " --json") for number in range(world)]
        outputs = [process.communicate(timeout=900) for process in processes]
        if any(process.returncode != 0 for process in processes):
            raise RuntimeError(str(outputs))
        rows = json.loads(outputs[0][0])["results"]
        assert all(row["wrong"] == 0 for row in rows), rows
        return {row["codec"]: row[field] / 1e6 for row in rows}

    def _start(self) -> subprocess.Popen[str]:
        process = self.network.start(
            self.space, self.addend, "serve", "--config", self.config, *self.options
        )
        assert process.stdout is not None
        if not process.stdout.readline().startswith("control"):
            raise RuntimeError("the server did not start: " + process.communicate()[1])
        return process

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.process = self._start()

    def status(self) -> Any:
        done = self.network.inside(self.space, "curl", "-s", "http://127.0.0.1:7780/status.json")
        return json.loads(done.stdout)

    def turns(self) -> int:
        return sum(job["turns"] for job in self.status()["jobs"])

    def refused(self) -> dict[str, int]:
        status = self.status()
        total = dict(status["refused"])
        for job in status["jobs"]:
            for why, count in job["refused"].items():
                total[why] = total.get(why, 0) + count
        return total

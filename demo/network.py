# SPDX-License-Identifier: Apache-2.0
"""Links of a chosen speed between processes of one machine.

Each worker lives in a network namespace of its own and reaches the others through a bridge in one
more namespace, the switch. A token bucket filter at both ends of each cable (`tc tbf`) limits what
a worker sends and what it receives. Without the rights or tools for that, workers share the
loopback interface, which nothing limits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CABLE = "cable"  # the worker's end
BURST_SECONDS = 1e-3  # what a bucket holds; a longer one would let small messages pass unshaped
QUEUE = "100ms"  # room for all that is in flight, so that nothing is dropped


@dataclass(frozen=True)
class Place:
    """Where a worker runs."""

    prefix: tuple[str, ...]  # of its command
    interface: str
    address: str
    sent_bytes: Path | None  # the kernel's counter of what this worker alone sent, seen from inside


@dataclass(frozen=True)
class Network:
    places: list[Place]  # of the workers
    server: Place | None  # one more, where a server may run; None: links are not shaped
    gbit: float | None  # a link's speed in each direction; None: not shaped
    note: str


class NoNamespaces(RuntimeError):
    """Namespaces or shaping cannot be had; the message says why."""


@contextlib.contextmanager
def open_network(world: int, gbit: float) -> Iterator[Network]:
    """Shaped links where possible, the loopback interface otherwise or if `gbit` is 0."""
    with contextlib.ExitStack() as stack:
        if gbit == 0:
            yield _loopback(world, "as asked")
            return
        try:
            places = stack.enter_context(_namespaces(world, gbit))
        except NoNamespaces as reason:
            yield _loopback(world, str(reason))
            return
        note = f"every worker's link shaped to {gbit:g} Gbit/s each way"
        yield Network(places[:-1], places[-1], gbit, note)


def run_ranks(network: Network, command: Sequence[str]) -> bytes | None:
    """Runs a program as a rank in each place, with `--rank` behind its command. What rank 0
    printed; None where one of them failed."""
    processes = []
    for rank, place in enumerate(network.places):
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": place.interface, "OMP_NUM_THREADS": "1"}
        whole = [*place.prefix, *command, "--rank", str(rank)]
        processes.append(subprocess.Popen(whole, env=environment, stdout=subprocess.PIPE))
    said = [process.communicate()[0] for process in processes]
    return None if any(process.returncode for process in processes) else said[0]


def _loopback(world: int, reason: str) -> Network:
    place = Place(prefix=(), interface="lo", address="127.0.0.1", sent_bytes=None)
    return Network([place] * world, None, None, f"links not shaped ({reason})")


@contextlib.contextmanager
def _namespaces(world: int, gbit: float) -> Iterator[list[Place]]:
    if os.geteuid() != 0:
        raise NoNamespaces("that needs root")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise NoNamespaces(f"no command {' or '.join(missing)}: install the package iproute2")
    switch = f"addend-{os.getpid()}-switch"
    workers = [f"addend-{os.getpid()}-{i}" for i in range(world + 1)]  # and a server
    made: list[str] = []
    try:
        for name in [switch, *workers]:
            made.append(name)  # first, since a signal may come in between
            _run("ip", "netns", "add", name)
        _run("ip", "-n", switch, "link", "add", "bridge", "up", "type", "bridge")
        for i, name in enumerate(workers):
            _plug_in(switch, name, i, gbit)
        sent = Path("/sys/class/net", CABLE, "statistics/tx_bytes")
        yield [
            Place(("ip", "netns", "exec", name), CABLE, _address(i), sent)
            for i, name in enumerate(workers)
        ]
    finally:
        # A namespace takes its cables and filters with it.
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def _address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def _plug_in(switch: str, worker: str, number: int, gbit: float) -> None:
    port = f"port{number}"
    veth = ("type", "veth", "peer", "name", CABLE, "netns", worker)
    _run("ip", "-n", switch, "link", "add", port, "up", "master", "bridge", *veth)
    _run("ip", "-n", worker, "address", "add", f"{_address(number)}/16", "dev", CABLE)
    for interface in ("lo", CABLE):
        _run("ip", "-n", worker, "link", "set", interface, "up")
    _shape(switch, worker, number, gbit)
    _run("ip", "netns", "exec", worker, "true")  # some containers allow all but this


def _shape(switch: str, worker: str, number: int, gbit: float) -> None:
    burst = max(64 * 1024, int(gbit * 1e9 / 8 * BURST_SECONDS))
    shape = ("root", "tbf", "rate", f"{gbit * 1e3:g}mbit", "burst", str(burst), "latency", QUEUE)
    _run("tc", "-n", switch, "qdisc", "replace", "dev", f"port{number}", *shape)
    _run("tc", "-n", worker, "qdisc", "replace", "dev", CABLE, *shape)


def reshape(workers: Sequence[str], gbit: float) -> None:
    """Gives the links of these namespaces another speed, while programs use them."""
    switch = f"{workers[0].rpartition('-')[0]}-switch"
    for number, worker in enumerate(workers):
        _shape(switch, worker, number, gbit)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"`{' '.join(command)}` failed: {done.stderr.strip()}")

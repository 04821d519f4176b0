#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps a bmv2 switch that runs addend_v1model.p4 in step with `addend serve --switch DIR`.

Reads DIR/jobs (docs/formats/switch.md) whenever the server has written it, and a file of hosts, one
a line: IPv4 address, MAC address, port of the switch. Speaks to the switch through its own command
line, simple_switch_CLI. Prints `installed EPOCH`, `removed EPOCH`, and `kept EPOCH` for one that it
finds in the switch as it starts.

Usage: control.py --jobs DIR/jobs --hosts FILE [--cli COMMAND]
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

FIRST_LINE = "addend switch 1"
LOOK_AGAIN_S = 0.05


@dataclasses.dataclass(frozen=True)
class Host:
    mac: str
    port: int


@dataclasses.dataclass(frozen=True)
class Worker:
    number: int
    address: str
    port: int
    tag: str


@dataclasses.dataclass(frozen=True)
class Job:
    epoch: int
    boot: int
    world: int
    first_cell: int
    slots: int
    payload: int
    tag: str
    workers: tuple[Worker, ...] = ()

    @property
    def group(self) -> int:
        return self.first_cell + 1

    def key(self, worker: Worker) -> str:
        """What the table `members` compares."""
        return (
            f"{self.epoch} {self.boot} {worker.number} {self.world} 1 0 {1 << worker.number} "
            f"0x{worker.tag} {worker.address} {worker.port}"
        )


def read_jobs(text: str) -> dict[int, Job]:
    lines = text.splitlines()
    if not lines or lines[0] != FIRST_LINE:
        raise ValueError("not a server's list of jobs for a switch, or of another version")
    jobs: dict[int, Job] = {}
    for line in lines[1:]:
        kind, *words = line.split()
        if kind == "job":
            epoch, boot, world, first_cell, slots, payload = map(int, words[:-1])
            jobs[epoch] = Job(epoch, boot, world, first_cell, slots, payload, words[-1])
        elif kind == "worker":
            of, number, address, port, tag = words
            job = jobs[int(of)]
            worker = Worker(int(number), address, int(port), tag)
            jobs[job.epoch] = dataclasses.replace(job, workers=(*job.workers, worker))
        else:
            raise ValueError(f"line '{line}' is none that this controller knows")
    return jobs


def read_hosts(text: str) -> dict[str, Host]:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    return {address: Host(mac, int(port)) for address, mac, port in rows}


class Bmv2:
    """A simple_switch, through its command line."""

    def __init__(self, cli: Sequence[str]) -> None:
        self.cli = cli
        self.undo: dict[int, list[str]] = {}  # by epoch, commands that remove its job
        self.left: dict[int, list[str]] = {}  # by group that was found, and is no job's, the same

    def tell(self, commands: Iterable[str]) -> str:
        text = "\n".join(commands) + "\n"
        done = subprocess.run(self.cli, input=text, capture_output=True, text=True, timeout=60)
        wrong = re.search(r"^.*(Error|Invalid|Unknown|Could not).*$", done.stdout, re.MULTILINE)
        if done.returncode != 0 or wrong:
            raise RuntimeError(f"the switch refuses: {wrong[0] if wrong else done.stderr}")
        return done.stdout

    def forward(self, hosts: Iterable[Host]) -> None:
        """In the place of what an earlier controller said of them."""
        adds = (f"table_add Folding.forward Folding.send {h.mac} => {h.port}" for h in hosts)
        self.tell(["table_clear Folding.forward", *adds])

    def take_over(self) -> list[int]:
        """Epochs that an earlier controller installed: they go on, for their turns are in the
        switch's registers. What it did not finish is removed.
        """
        members = entries(self.tell(["table_dump Folding.members"]))
        receivers = entries(self.tell(["table_dump Addressing.receivers"]))
        self.left = groups(self.tell(["mc_dump"]))
        whole = []
        for epoch in {entry.epoch for entry in (*members, *receivers)}:
            own = [entry for entry in members if entry.epoch == epoch]
            copies = [entry for entry in receivers if entry.epoch == epoch]
            self.undo[epoch] = [f"table_delete Folding.members {entry.handle}" for entry in own]
            for entry in copies:
                self.undo[epoch].append(f"table_delete Addressing.receivers {entry.handle}")
            # World is the fourth part of the key, and the group the last of what is said.
            if own:
                self.undo[epoch] += self.left.pop(own[0].says[-1], [])
            if own and len(own) == len(copies) == own[0].key[3]:
                whole.append(epoch)
            else:
                self.remove(epoch)
        return whole

    def install(self, job: Job, hosts: dict[str, Host]) -> None:
        """The entries that let frames in come last, when everything is ready for them."""
        cells = range(job.first_cell, job.first_cell + job.slots)
        # Banks without a turn, and turn 0 next: nothing else of an earlier job is looked at.
        fresh = [f"register_write Folding.nexts {cell} 0" for cell in cells]
        banks = range(2 * cells.start, 2 * cells.stop)
        fresh += [f"register_write Folding.turns {bank} 0" for bank in banks]
        nodes, receivers = [], []
        for worker in job.workers:
            host, copy = hosts[worker.address], worker.number + 1
            nodes.append(f"mc_node_create {copy} {host.port}")
            receivers.append(
                f"table_add Addressing.receivers Addressing.receiver {job.epoch} {copy} => "
                f"{host.mac} {worker.address} {worker.port}"
            )
        free = self.left.pop(job.group, [])
        ready = self.tell([*fresh, *free, f"mc_mgrp_create {job.group}", *nodes, *receivers])
        handles = re.findall(r"created with handle (\d+)", ready)
        everybody = (1 << job.world) - 1
        members = [
            f"table_add Folding.members Folding.member {job.key(worker)} => {job.first_cell} "
            f"{0xFFFF & ~(job.slots - 1)} {job.payload} {1 << worker.number} "
            f"{everybody ^ 1 << worker.number} {everybody} 0x{job.tag} {job.group}"
            for worker in job.workers
        ]
        let_in = self.tell([*(f"mc_node_associate {job.group} {h}" for h in handles), *members])
        self.undo[job.epoch] = [
            *(f"table_delete Folding.members {handle}" for handle in added(let_in)),
            *(f"table_delete Addressing.receivers {handle}" for handle in added(ready)),
            *without_group(job.group, handles),
        ]

    def remove(self, epoch: int) -> None:
        self.tell(self.undo.pop(epoch))


def added(said: str) -> list[str]:
    """Handles of entries, as the switch tells them."""
    return re.findall(r"added with handle (\d+)", said)


def without_group(group: int, nodes: Iterable[str]) -> list[str]:
    return [*(f"mc_node_destroy {node}" for node in nodes), f"mc_mgrp_destroy {group}"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Of a table, as the switch shows it."""

    handle: int
    key: list[int]
    says: list[int]

    @property
    def epoch(self) -> int:
        return self.key[0]


def entries(dump: str) -> list[Entry]:
    found = []
    for text in re.split(r"^Dumping entry ", dump, flags=re.MULTILINE)[1:]:
        key = re.findall(r"^\* .*: EXACT +([0-9a-f]+)$", text, re.MULTILINE)
        says = re.findall(r"[0-9a-f]+", re.findall(r"^Action entry: \S+ - (.*)$", text, re.M)[0])
        numbers = ([int(number, 16) for number in part] for part in (key, says))
        found.append(Entry(int(text.split()[0], 16), *numbers))
    return found


def groups(dump: str) -> dict[int, list[str]]:
    """By multicast group, the commands that remove it."""
    parts = re.split(r"^mgrp\((\d+)\)$", dump, flags=re.MULTILINE)[1:]
    nodes = (re.findall(r"L1h=(\d+)", text) for text in parts[1::2])
    return {int(g): without_group(int(g), own) for g, own in zip(parts[::2], nodes)}


def follow(switch: Bmv2, jobs_file: Path, hosts: dict[str, Host]) -> None:
    installed = set(switch.take_over())
    for epoch in installed:
        print("kept", epoch, flush=True)
    seen = (0, 0)
    while True:
        try:
            stat = jobs_file.stat()
        except FileNotFoundError:  # the server has not started yet
            time.sleep(LOOK_AGAIN_S)
            continue
        if (stat.st_ino, stat.st_mtime_ns) == seen:
            time.sleep(LOOK_AGAIN_S)
            continue
        seen = (stat.st_ino, stat.st_mtime_ns)
        wanted = read_jobs(jobs_file.read_text())
        for epoch in [epoch for epoch in installed if epoch not in wanted]:
            switch.remove(epoch)
            installed.remove(epoch)
            print("removed", epoch, flush=True)
        for epoch in [epoch for epoch in wanted if epoch not in installed]:
            unknown = [w.address for w in wanted[epoch].workers if w.address not in hosts]
            if unknown:
                raise RuntimeError(f"the file of hosts does not say where {unknown[0]} is")
            switch.install(wanted[epoch], hosts)
            installed.add(epoch)
            print("installed", epoch, flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Keeps a bmv2 switch in step with a server.")
    arguments.add_argument(
        "--jobs", type=Path, required=True, help="DIR/jobs of serve --switch DIR"
    )
    arguments.add_argument(
        "--hosts", type=Path, required=True, help="address, MAC and port, by line"
    )
    arguments.add_argument("--cli", default="simple_switch_CLI", help="command that speaks to bmv2")
    given = arguments.parse_args()
    try:
        hosts = read_hosts(given.hosts.read_text())
        switch = Bmv2(shlex.split(given.cli))
        switch.forward(hosts.values())
        follow(switch, given.jobs, hosts)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"control.py: {error}")


if __name__ == "__main__":
    main()

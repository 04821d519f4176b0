#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps a bmv2 switch that runs addend_v1model.p4 in step with `addend serve --switch DIR`.

Reads DIR/jobs (docs/formats/switch.md) whenever the server has written it, and a file of hosts, one
a line: IPv4 address, MAC address, port of the switch. Speaks to the switch through its own command
line, simple_switch_CLI. Prints `installed EPOCH` and `removed EPOCH`.

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

    def tell(self, commands: Iterable[str]) -> str:
        text = "\n".join(commands) + "\n"
        done = subprocess.run(self.cli, input=text, capture_output=True, text=True, timeout=60)
        wrong = re.search(r"^.*(Error|Invalid|Unknown|Could not).*$", done.stdout, re.MULTILINE)
        if done.returncode != 0 or wrong:
            raise RuntimeError(f"the switch refuses: {wrong[0] if wrong else done.stderr}")
        return done.stdout

    def forward(self, hosts: Iterable[Host]) -> None:
        self.tell(f"table_add Folding.forward Folding.send {h.mac} => {h.port}" for h in hosts)

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
        ready = self.tell([*fresh, f"mc_mgrp_create {job.group}", *nodes, *receivers])
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
            *(f"mc_node_destroy {handle}" for handle in handles),  # which leave their group
            f"mc_mgrp_destroy {job.group}",
        ]

    def remove(self, job: Job) -> None:
        self.tell(self.undo.pop(job.epoch))


def added(said: str) -> list[str]:
    """Handles of entries, as the switch tells them."""
    return re.findall(r"added with handle (\d+)", said)


def follow(switch: Bmv2, jobs_file: Path, hosts: dict[str, Host]) -> None:
    installed: dict[int, Job] = {}
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
            switch.remove(installed.pop(epoch))
            print("removed", epoch, flush=True)
        for epoch in [epoch for epoch in wanted if epoch not in installed]:
            unknown = [w.address for w in wanted[epoch].workers if w.address not in hosts]
            if unknown:
                raise RuntimeError(f"the file of hosts does not say where {unknown[0]} is")
            switch.install(wanted[epoch], hosts)
            installed[epoch] = wanted[epoch]
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

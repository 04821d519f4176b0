#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a packet costs the server's machine, in its driver and by its threads, in turns and in one
run: four workers in one namespace, the server in another, one link, super-packets split to the MTU
as on a wire, answers checked. Counted is the processor time of everything on the server's side: the
thread that polls its interface, where the XDP program runs, and all threads of the server. Workers
and what polls their end are on another core. Exit code 1 if the bar does not hold. As root.
Usage: xdp_bars.py PATH_OF_ADDEND
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

from network import Network, Service, why_no_driver

WORLD = 4
ROUNDS = 5
BAR = 1.5


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def kernel_thread(name: str) -> Path:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "comm").read_text().startswith(name):
                    return process
            except OSError:
                pass
    raise RuntimeError(f"no thread polls: {name}")


def seconds(threads: list[Path]) -> float:
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def pin(core: int, threads: list[Path]) -> None:
    for thread in threads:
        os.sched_setaffinity(int(thread.name), {core})


class Link(Network):
    def __init__(self) -> None:
        super().__init__(1)
        # Names that tell the threads which poll them from those of other links on this machine.
        self.devices = [f"s{os.getpid()}"[:9], f"w{os.getpid()}"[:9]]
        for host, ((space, device), name) in enumerate(zip(self.ends(0), self.devices), 1):
            self.inside(space, "ip", "link", "set", device, "down")
            for setting in (f"name {name}", "gso_max_segs 1", "up"):
                known = device if setting.startswith("name") else name
                self.inside(space, *shlex.split(f"ip link set {known} {setting}"))
            self.inside(space, *shlex.split(f"ip addr replace 10.77.0.{host}/24 dev {name}"))
            self.poll(space, name)
            self.inside(space, "sh", "-c", f"echo 1 > /sys/class/net/{name}/threaded")


def measure(link: Link, addend: str, folder: Path, where: str) -> float:
    """Packets a second of the server's core."""
    server = f'xdp = "{link.devices[0]}"' if where == "driver" else ""
    service = Service(link, addend, folder, {"lab": "floats = false"}, server=server)
    threads = [*threads_of(service.process.pid), kernel_thread("napi/" + link.devices[0])]
    pin(1, threads)
    pin(0, [kernel_thread("napi/" + link.devices[1])])
    before = seconds(threads)
    options = "-b 16M -e 16M -w 1 -n 8 -c dense --values integers"
    workers = [service.worker(number, WORLD, options, machine=0) for number in range(WORLD)]
    for worker in workers:
        os.sched_setaffinity(worker.pid, {0})
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        if worker.returncode != 0:
            raise RuntimeError(out + err)
    used = seconds(threads) - before
    time.sleep(0.3)  # what the page shows is up to a tenth of a second old
    status = service.status()
    packets, share = status["packets"], status["driver_packets"] / status["packets"]
    each = f"{used / packets * 1e9:.0f} ns each"
    print(f"{where}: {packets} packets, {share:.0%} of them in the driver, {each}", flush=True)
    service.process.kill()
    service.process.communicate()
    return float(packets / used)


def main() -> int:
    addend = sys.argv[1]
    reason = why_no_driver(addend)
    if reason is None and (os.cpu_count() or 1) < 2:
        reason = "two cores are needed"
    if reason is not None:
        print("not run:", reason)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        link = Link()
        try:
            ratios = []
            for _ in range(ROUNDS):
                driver = measure(link, addend, Path(folder), "driver")
                ratios.append(driver / measure(link, addend, Path(folder), "threads"))
        finally:
            link.close()
    ratio = statistics.median(ratios)
    verdict = f"{ratio:.2f}  >= {BAR} {'PASS' if ratio >= BAR else 'FAIL'}"
    print(f"packets a core and second, in the driver / by threads: {verdict}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())

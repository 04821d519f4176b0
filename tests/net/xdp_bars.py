#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a packet costs the server's machine, in its driver and by its threads, in turns and in one
run: four workers in one namespace, the server in another, one link, super-packets split to the MTU
as on a wire, answers checked. Counted is the processor time of everything on the server's side: the
thread that polls its interface, where the XDP program runs, and all threads of the server. Workers
and what polls their end are on another core. Then the same of a program that does nothing but drop
datagrams and send as many back (empty.bpf.c): what no program on this link can go below. Exit code
1 if the bar does not hold. As root. Usage: xdp_bars.py PATH_OF_ADDEND
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

from network import HERE, Network, Service, run, why_no_driver

WORLD = 4
ROUNDS = 5
BAR = 1.5
PORT = 7999  # of the empty program
# The map of the program that was loaded last, whose entries are all this device.
FILL_COPIES = """
import ctypes, socket, struct, sys
def bpf(command, *parts):
    data = b"".join(parts)
    attribute = ctypes.create_string_buffer(data, max(len(data), 128))
    result = ctypes.CDLL(None, use_errno=True).syscall(321, command, attribute, len(attribute))
    return result, attribute.raw
copies, number = None, 0
while True:
    result, raw = bpf(12, struct.pack("I", number))  # BPF_MAP_GET_NEXT_ID
    if result != 0:
        break
    number = struct.unpack_from("I", raw, 4)[0]
    fd, _ = bpf(14, struct.pack("I", number))  # BPF_MAP_GET_FD_BY_ID
    info = ctypes.create_string_buffer(128)
    bpf(15, struct.pack("IIQ", fd, len(info), ctypes.addressof(info)))  # BPF_OBJ_GET_INFO_BY_FD
    if info.raw[24:40].rstrip(bytes(1)) == b"empty_copies":
        copies = fd
device = ctypes.c_uint32(socket.if_nametoindex(sys.argv[1]))
for entry in range(int(sys.argv[2])):
    key = ctypes.c_uint32(entry)
    places = struct.pack("IxxxxQQQ", copies, ctypes.addressof(key), ctypes.addressof(device), 0)
    assert bpf(2, places)[0] == 0  # BPF_MAP_UPDATE_ELEM
"""
# As workers do, with as much in flight as a veth takes in: super-packets that are split, and as
# many datagrams back.
SEND = """
import os, socket, sys, time
os.sched_setaffinity(0, {0})
SIZE, BURST, WINDOW = 1448, 32, 256
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.setsockopt(socket.IPPROTO_UDP, 103, SIZE)  # UDP_SEGMENT
link.setsockopt(socket.IPPROTO_UDP, 104, 1)  # UDP_GRO
link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
link.settimeout(0.05)
link.connect(("10.77.0.1", int(sys.argv[1])))
burst, end, missing = bytes(SIZE * BURST), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    for _ in range(WINDOW // BURST):
        link.send(burst)
    try:
        back = 0
        while back < WINDOW:
            back += len(link.recv(1 << 16)) // SIZE
    except TimeoutError:
        missing += WINDOW - back
print(missing)
"""


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
            # Each end takes in by itself what comes, as a card does. A veth whose peer could send
            # segments of TCP has the sender's core do it, and datagrams are not joined again.
            self.poll(space, name)
            self.offloads(space, name, "tso off")
            self.inside(space, "sh", "-c", f"echo 1 > /sys/class/net/{name}/threaded")
            # A queue that makes senders wait, as cards have; without it a veth drops.
            self.inside(space, *shlex.split(f"tc qdisc replace dev {name} root pfifo limit 10000"))


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


def received(link: Link) -> int:
    path = f"/sys/class/net/{link.devices[0]}/statistics/rx_packets"
    return int(link.inside(link.server_space, "cat", path).stdout)


def measure_empty(link: Link, folder: Path) -> float:
    """Seconds of the server's core for a packet of a program that folds nothing."""
    program, device = folder / "empty.o", link.devices[0]
    words = f"clang-14 -O2 -g -target bpf -DWORLD={WORLD} -DPORT={PORT}"
    run(
        *shlex.split(words),
        "-I/usr/include/x86_64-linux-gnu",
        "-c",
        HERE / "empty.bpf.c",
        "-o",
        program,
    )
    space = link.server_space
    link.inside(space, *shlex.split(f"ip link set dev {device} xdpdrv obj {program} sec xdp"))
    link.inside(space, sys.executable, "-c", FILL_COPIES, device, WORLD)
    threads = [kernel_thread("napi/" + device)]
    pin(1, threads)
    pin(0, [kernel_thread("napi/" + link.devices[1])])
    before, packets = seconds(threads), received(link)
    done = link.inside(link.space(0), sys.executable, "-c", SEND, PORT, 2)
    used, packets = seconds(threads) - before, received(link) - packets
    link.inside(space, *shlex.split(f"ip link set dev {device} xdpdrv off"))
    lost = int(done.stdout) / packets
    print(
        f"empty: {packets} packets, {lost:.1%} lost, {used / packets * 1e9:.0f} ns each", flush=True
    )
    return used / packets


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
            ratios, least = [], []
            for _ in range(ROUNDS):
                driver = measure(link, addend, Path(folder), "driver")
                threads = measure(link, addend, Path(folder), "threads")
                ratios.append(driver / threads)
                least.append(1 / measure_empty(link, Path(folder)) / threads)
        finally:
            link.close()
    ratio = statistics.median(ratios)
    verdict = f"{ratio:.2f}  >= {BAR} {'PASS' if ratio >= BAR else 'FAIL'}"
    print(f"packets a core and second, in the driver / by threads: {verdict}")
    print(f"an empty program / threads: {statistics.median(least):.2f}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())

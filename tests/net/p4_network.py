# SPDX-License-Identifier: Apache-2.0
"""A bmv2 switch in a namespace of its own, with a server and workers around it, each in theirs; and
the packets of golden traces as such a switch sees them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import shlex
import shutil
import socket
import struct
import sys
from pathlib import Path

from network import HERE, Network, run, wait_until, why_not

P4 = HERE.parents[1] / "src" / "dataplane" / "p4"
sys.path.insert(0, str(P4))
from control import Bmv2, Host, Job, Worker  # noqa: E402

CLONE_NEWNET = 0x40000000
FENCE = 0x88B5  # an Ethernet type for experiments
BIG_ENDIAN, RESENT = 1, 4
HEADER = struct.Struct(">BBBBIIHBBBBHIQQ")
LANES = {3: 4, 5: 1, 6: 2, 7: 8, 8: 4}  # bytes of a lane, by operations that a switch has
WORD_BYTES = 4  # that a switch adds
NOTICE = 3


def why_no_switch() -> str | None:
    """Why the P4 program cannot be run here, or None."""
    for tool in ("p4c-bm2-ss", "simple_switch", "simple_switch_CLI"):
        if shutil.which(tool) is None:
            return f"there is no {tool} on the PATH (docs/p4.md says where to get it)"
    return why_not()


def generate(folder: Path, target: str, words: int, cells: int) -> Path:
    path = folder / f"addend_{target}_{words}.p4"
    options = (target, "--words", words, "--cells", cells)
    path.write_text(run(sys.executable, P4 / "generate.py", *options).stdout)
    return path


def host_at(port: int) -> Host:
    return Host(f"02:00:00:00:00:{port:02x}", port)


def address_at(port: int) -> str:
    return f"10.79.0.{10 + port - 1}" if port > 0 else "10.79.0.1"


class SwitchNetwork(Network):
    """Server 10.79.0.1 at port 0 of the switch, worker W 10.79.0.1W at port 1 + W. Without
    addresses, the kernel of a host says nothing of its own.
    """

    def __init__(self, workers: int, addresses: bool) -> None:
        super().__init__(0)
        self.workers = workers
        self.switch_space = self.name + "x"
        run("ip", "netns", "add", self.switch_space)
        self.hosts.append(self.switch_space)
        self.inside(self.switch_space, "ip", "link", "set", "lo", "up")
        spaces = [self.server_space, *(self.space(w) for w in range(workers))]
        for port, space in enumerate(spaces):
            if port > 0:
                run("ip", "netns", "add", space)
                self.hosts.append(space)
            self._plug(space, port)
            if addresses:
                self._name(space, port)
        self.cli = ""  # the command that controls the switch, once it runs

    def _plug(self, space: str, port: int) -> None:
        pair = f"link add p{port} netns {self.switch_space} type veth peer name w netns {space}"
        run("ip", *shlex.split(pair))
        for where, device in ((space, "w"), (self.switch_space, f"p{port}")):
            self.inside(where, "sysctl", "-q", "-w", f"net.ipv6.conf.{device}.disable_ipv6=1")
            # Checksums and segments that a card would make are made before the switch sees them.
            self.offloads(where, device, "tx off tso off gso off gro off")
            self.inside(where, "ip", "link", "set", device, "up")
        self.inside(space, "ip", "link", "set", "w", "address", host_at(port).mac)

    def _name(self, space: str, port: int) -> None:
        self.inside(space, "ip", "addr", "add", address_at(port) + "/24", "dev", "w")
        for other in range(self.workers + 1):
            if other != port:
                neighbour = f"neigh add {address_at(other)} lladdr {host_at(other).mac} dev w"
                self.inside(space, "ip", *shlex.split(neighbour + " nud permanent"))

    def run_bmv2(self, program: Path) -> None:
        compiled = program.with_suffix(".json")
        run("p4c-bm2-ss", "--std", "p4-16", program, "-o", compiled)
        ports = " ".join(f"-i {port}@p{port}" for port in range(self.workers + 1))
        # Its command line finds it by a port, of which the namespace has all.
        command = f"simple_switch --thrift-port 9090 {ports} {compiled}"
        switch = self.start(self.switch_space, *shlex.split(command))
        self.cli = f"ip netns exec {self.switch_space} simple_switch_CLI --thrift-port 9090"

        def listens() -> bool:
            if switch.poll() is not None:
                raise RuntimeError("the switch did not start: " + switch.communicate()[1])
            return ":9090" in self.inside(self.switch_space, "ss", "-ltn").stdout

        wait_until(listens, "the switch starts", 60)

    def run_interpreter(self, program: Path) -> None:
        here = f"{sys.executable} {HERE / 'p4_switch.py'}"
        path = program.with_suffix(".socket")
        ports = " ".join(f"p{port}" for port in range(self.workers + 1))
        switch = self.start(self.switch_space, *shlex.split(f"{here} run {program} {path} {ports}"))
        self.cli = f"{here} tell {path}"
        assert switch.stdout is not None
        if switch.stdout.readline() != "ready\n":
            raise RuntimeError("the switch did not start: " + switch.communicate()[1])

    def control(self) -> Bmv2:
        return Bmv2(shlex.split(self.cli))

    def socket(self, port: int) -> socket.socket:
        """Raw, at the host's end of a link."""
        libc = ctypes.CDLL(None, use_errno=True)
        space = self.space(port - 1) if port > 0 else self.server_space
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(f"/var/run/netns/{space}", os.O_RDONLY)
        try:
            if libc.setns(there, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            raw.bind(("w", 0))
        finally:
            libc.setns(home, CLONE_NEWNET)
            os.close(home)
            os.close(there)
        raw.settimeout(30)
        return raw


def counted(control: Bmv2) -> dict[int, int]:
    """What the switch did with contributions: 1 folded, 2 completed a turn, 3 answered again, and
    refused by the numbers of docs/formats/protocol.md.
    """
    said = control.tell(f"counter_read Folding.counted {i}" for i in range(18))
    return {int(i): int(n) for i, n in re.findall(r"counted\[(\d+)\]= .*?(\d+) packets", said)}


def mac_bytes(mac: str) -> bytes:
    return bytes(int(byte, 16) for byte in mac.split(":"))


def packet(source: tuple[Host, str, int], to: tuple[Host, str, int], data: bytes) -> bytes:
    """A UDP datagram without a checksum, as a frame of Ethernet."""
    udp = struct.pack(">HHHH", source[2], to[2], 8 + len(data), 0) + data
    ip = struct.pack(
        ">BBHHHBBH4s4s",
        *(0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0),
        socket.inet_aton(source[1]),
        socket.inet_aton(to[1]),
    )
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", 0xFFFF ^ total) + ip[12:]
    return mac_bytes(to[0].mac) + mac_bytes(source[0].mac) + b"\x08\x00" + ip + udp


def datagram_of(frame: bytes) -> tuple[tuple[str, int], tuple[str, int], bytes]:
    """Source, destination and data; the checksum of its header must be right."""
    total = sum(struct.unpack(">10H", frame[14:34]))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF, "IPv4 checksum"
    length = struct.unpack(">H", frame[38:40])[0]
    ports = struct.unpack(">HH", frame[34:38])
    source, to = socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34])
    return (source, ports[0]), (to, ports[1]), frame[42 : 34 + length]


def swap(op: int, lanes: bytes) -> bytes:
    width = LANES.get(op, 1)
    if len(lanes) % width != 0:
        return lanes
    return b"".join(lanes[at : at + width][::-1] for at in range(0, len(lanes), width))


@dataclasses.dataclass
class Event:
    source: int | None  # worker; None: a stranger
    frame: bytes
    refused: str | None = None
    out: list[tuple[str, bytes]] = dataclasses.field(default_factory=list)
    ends: bool = False  # the epoch, instead of a frame


@dataclasses.dataclass
class Trace:
    job: dict[str, int]
    events: list[Event]
    counted: dict[str, int]
    others: set[str]  # lines that a switch cannot follow

    @classmethod
    def read(cls, path: Path) -> Trace:
        trace = cls({}, [], {}, set())
        for line in path.read_text().splitlines():
            words = line.split()
            if line.startswith("#") or words[0] == "secret":
                continue
            if words[0] == "job":
                trace.job = dict(zip(words[1::2], map(int, words[2::2])))
            elif words[0] == "counted":
                trace.counted = dict(zip(words[1::2], map(int, words[2::2])))
            elif words[0] == "at" and words[2] == "in":
                source = None if words[3] == "stranger" else int(words[3])
                trace.events.append(Event(source, bytes.fromhex("".join(words[4:]))))
            elif words[0] == "at" and words[2] == "end":
                trace.events.append(Event(None, b"", ends=True))
            elif words[0] == "refused":
                trace.events[-1].refused = words[1]
            elif words[0] == "out":
                trace.events[-1].out.append((words[1], bytes.fromhex("".join(words[2:]))))
            elif words[0] != "table":
                trace.others.add(words[2] if words[0] == "at" else words[0])
        return trace

    def for_switch(self, job: Job) -> None:
        """Lanes in network byte order, in whole words, and tags that do not change; without turns
        of operations that a switch does not have. Notices are the server's, and as they are.
        """
        kept = [e for e in self.events if e.refused or e.ends or e.frame[16] in LANES]
        # big_endian, which other planes refuse, is what a switch takes.
        kept = [e for e in kept if not (e.refused == "kind" and e.frame[3] == BIG_ENDIAN)]
        if len(kept) < len(self.events):
            left = {event.frame[8:12] for event in kept if not (event.refused or event.ends)}
            numbers = {turn: number for number, turn in enumerate(sorted(left))}
        else:
            numbers = {}
        first = self.job["first_slot"]
        for event in kept:
            event.frame = self._translate(event.frame, job, numbers, first, event.refused)
            event.out = [
                (to, self._translate(frame, job, numbers, first, None)) for to, frame in event.out
            ]
        self.events = kept

    @staticmethod
    def _translate(
        frame: bytes, job: Job, turns: dict[bytes, int], first_slot: int, refused: str | None
    ) -> bytes:
        if len(frame) < HEADER.size:
            return frame
        fields = list(HEADER.unpack(frame[: HEADER.size]))
        kind, worker, op = fields[2], fields[7], fields[9]
        if kind == NOTICE:
            return frame
        lanes = frame[HEADER.size :]
        if refused is None:
            lanes += bytes(-len(lanes) % WORD_BYTES)
            fields[11] = len(lanes)
        fields[3] |= BIG_ENDIAN
        fields[5] = turns.get(frame[8:12], fields[5])
        fields[6] -= first_slot
        if refused != "tag":
            tag = job.tag if kind != 1 or worker >= job.world else job.workers[worker].tag
            fields[14] = int(tag, 16)
        return HEADER.pack(*fields) + swap(op, lanes)


def job_of(trace: Trace, first_cell: int) -> Job:
    workers = tuple(
        Worker(w, address_at(w + 1), 7000 + w, f"{0xA000 + w:016x}")
        for w in range(trace.job["world"])
    )
    epoch, boot, world = (trace.job[name] for name in ("epoch", "boot", "world"))
    slots, payload = trace.job["slots"], trace.job["payload"]
    return Job(epoch, boot, world, first_cell, slots, payload, f"{0xB000:016x}", workers)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The aggregator as P4 programs: they are what the description says; and, where p4c and bmv2 are
installed, they compile, replay the golden traces, and sum for four workers of `addend perf` behind
`addend serve --switch`. With --perf the latter also through an interpreter in the place of bmv2.
Usage: p4_test.py PATH_OF_ADDEND [--perf]
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterable
from pathlib import Path

from network import HERE, Service, run, wait_until, why_not
from p4_interpreter import Interpreter
from p4_network import (
    FENCE,
    HEADER,
    NOTICE,
    P4,
    Event,
    SwitchNetwork,
    Trace,
    address_at,
    counted,
    datagram_of,
    generate,
    host_at,
    job_of,
    mac_bytes,
    packet,
    why_no_switch,
)

sys.path.insert(0, str(P4))
from control import Bmv2, Host, Job, Worker

PERF = "--perf" in sys.argv
if PERF:
    sys.argv.remove("--perf")
ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
TRACES = HERE.parent / "golden" / "traces"
SERVER_PORT = 7701
WORLD = 4
SLOTS, CELLS = 16, 64
HOSTS = 4  # around a switch that replays traces: the server, and three workers
SERVER = 0, SERVER_PORT  # its host and port
# Refusals that are the switch's own; frames that are refused for other reasons go on to the server.
OWN_REFUSALS = ("turn", "duplicate", "mismatch")
COUNTERS = {"turn": 14, "duplicate": 15, "mismatch": 17, "answered": 3, "complete": 2}
# What a switch leaves to others, and so cannot replay.
NOT_REPLAYED = {
    "leaf": "no switch is a leaf",
    "mismatch_length": "begins with a table sum",
    "mismatch_op": "begins with a table sum",
    "mismatch_table": "begins with a table sum",
    "narrow_leaf": "no switch is a leaf",
    "narrow_operations": "table sums",
    "narrow_quorum": "a switch has no clock",
    "quorum": "a switch has no clock",
    "timeout": "a switch has no clock",
}


class DescriptionTest(unittest.TestCase):
    """Needs no tool."""

    def test_programs_are_what_the_description_says(self) -> None:
        for target in ("v1model", "tna"):
            made = run(sys.executable, P4 / "generate.py", target).stdout
            kept = (P4 / f"addend_{target}.p4").read_text()
            self.assertEqual(made, kept, f"make it anew: generate.py {target}")

    def test_the_frame_is_that_of_the_wire(self) -> None:
        c_header = (HERE.parents[1] / "src" / "wire" / "frame.h").read_text()
        body = re.search(r"typedef struct addend_frame_header \{(.*?)\}", c_header, re.DOTALL)
        assert body is not None
        wire = [(name, int(bits)) for bits, name in re.findall(r"uint(\d+)_t (\w+);", body[1])]
        program = (P4 / "addend_tna.p4").read_text()
        frame = re.search(r"header frame_t \{(.*?)\}", program, re.DOTALL)
        assert frame is not None
        fields = [(name, int(bits)) for bits, name in re.findall(r"bit<(\d+)> (\w+);", frame[1])]
        parts = {"table_number": "flags", "entry": "flags", "resent": "flags", "partial": "flags"}
        parts |= {"big_endian": "flags", "contributors_high": "contributors"}
        joined: dict[str, int] = {}
        for name, bits in fields:
            name = parts.get(name, name)
            joined[name] = joined.get(name, 0) + bits
        self.assertEqual(list(joined.items()), wire)

    def test_what_no_switch_could_run_is_refused(self) -> None:
        for options, words in (
            ("tna --words 26", "one pass of Tofino 1 has room for 24 words"),
            ("v1model --words 354", "2 to 352 words"),
            ("v1model --words 3", "an even number"),
            ("tna --cells 70000", "1 to 32768 slots"),
        ):
            done = run(sys.executable, P4 / "generate.py", *options.split(), check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_a_switch_goes_with_no_other_plane(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(ADDEND, "keygen", Path(folder) / "key")
            serve = f"serve --key {folder}/key --port 0 --switch {folder}/switch --xdp lo"
            done = run(ADDEND, *shlex.split(serve), check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--switch goes neither with --xdp nor with --upstream", done.stderr)


class Simulated(Bmv2):
    """An interpreter of the program's text in the place of a switch, and of its hosts."""

    def __init__(self, target: str, words: int) -> None:
        super().__init__([])
        options = (target, "--words", words, "--cells", 64)
        self.switch = Interpreter(run(sys.executable, P4 / "generate.py", *options).stdout)

    def tell(self, commands: Iterable[str]) -> str:
        return self.switch.tell(commands)

    def send(
        self, port: int, data: bytes, source_port: int, to: tuple[int, int] = SERVER
    ) -> list[list[bytes]]:
        """Sends a datagram from a host, to the server if not to another; what every host gets."""
        got: list[list[bytes]] = [[] for _ in range(HOSTS)]
        for host, frame in self.switch.send(port, datagram(port, data, source_port, to)):
            got[host].append(frame)
        return got


class Wires:
    """The hosts of a bmv2, as the wires see them."""

    def __init__(self, network: SwitchNetwork) -> None:
        self.sockets = [network.socket(port) for port in range(HOSTS)]
        self.serial = 0

    def close(self) -> None:
        for one in self.sockets:
            one.close()

    def send(
        self, port: int, data: bytes, source_port: int, to: tuple[int, int] = SERVER
    ) -> list[list[bytes]]:
        """The same; what comes before anything that is sent later."""
        self.sockets[port].send(datagram(port, data, source_port, to))
        self.serial += 1
        # Behind it, on the same way in, one to every host: links and queues keep their order.
        fence = struct.pack(">HI", FENCE, self.serial) + bytes(46)
        for host in range(HOSTS):
            self.sockets[port].send(
                mac_bytes(host_at(host).mac) + mac_bytes(host_at(port).mac) + fence
            )
        return [self._until(host, fence) for host in range(HOSTS)]

    def _until(self, host: int, fence: bytes) -> list[bytes]:
        frames: list[bytes] = []
        while True:
            frame, (_, _, direction, *_rest) = self.sockets[host].recvfrom(2048)
            if direction == socket.PACKET_OUTGOING:
                continue
            if frame[12:18] == fence[:6]:
                return frames
            if frame[12:14] == b"\x08\x00":
                frames.append(frame)


def datagram(port: int, data: bytes, source_port: int, to: tuple[int, int]) -> bytes:
    source = (host_at(port), address_at(port), source_port)
    return packet(source, (host_at(to[0]), address_at(to[0]), to[1]), data)


class Replay:
    """Frame by frame through one switch; jobs come and go in it."""

    class Test(unittest.TestCase):
        words = 24
        control: Bmv2
        wires: Simulated | Wires
        hosts: dict[str, Host]

        @classmethod
        def plug(cls, control: Bmv2, wires: Simulated | Wires) -> None:
            cls.control, cls.wires = control, wires
            cls.hosts = {address_at(port): host_at(port) for port in range(HOSTS)}
            control.forward(cls.hosts.values())

        def install(self, job: Job) -> None:
            self.control.install(job, self.hosts)
            self.addCleanup(self.end, job.epoch)

        def end(self, epoch: int) -> None:
            """What a controller does when an epoch is over."""
            if epoch in self.control.undo:
                self.control.remove(epoch)

        def expect_notice(self, worker: int, frame: bytes, what: str) -> None:
            """What the server itself sends passes through the switch as it is."""
            got = self.wires.send(0, frame, SERVER_PORT, (worker + 1, 7000 + worker))
            datagrams = [datagram_of(one) for one in got[worker + 1]]
            where = (address_at(worker + 1), 7000 + worker)
            self.assertEqual(datagrams, [((address_at(0), SERVER_PORT), where, frame)], what)
            self.assertEqual(sum(map(len, got)), 1, what)

        def expect(self, event: Event, job: Job, what: str) -> None:
            port = 1 if event.source is None else event.source + 1
            source_port = 999 if event.source is None else 7000 + event.source
            got = self.wires.send(port, event.frame, source_port)
            wanted: list[list[bytes]] = [[] for _ in got]
            for to, frame in event.out:
                for number in range(job.world) if to == "all" else [int(to)]:
                    if frame[2] == NOTICE:
                        self.expect_notice(number, frame, what)
                    else:
                        wanted[number + 1].append(frame)
            passes = event.refused is not None and event.refused not in OWN_REFUSALS
            if passes:
                wanted[0].append(event.frame)
            for host, frames in enumerate(got):
                data = []
                for frame in frames:
                    source, where, payload = datagram_of(frame)
                    data.append(payload)
                    if host > 0:
                        self.assertEqual(source, (address_at(0), SERVER_PORT), what)
                        worker = job.workers[host - 1]
                        self.assertEqual(where, (worker.address, worker.port), what)
                self.assertEqual(data, wanted[host], f"{what}, at host {host}")

        def replay(self, name: str) -> None:
            trace = Trace.read(TRACES / f"{name}.trace")
            self.assertFalse(trace.others, name)
            job = job_of(trace, 16)
            trace.for_switch(job)
            self.install(job)
            before = counted(self.control)
            for number, event in enumerate(trace.events):
                if event.ends:
                    self.end(job.epoch)
                    for worker in range(job.world):
                        self.expect_notice(worker, event.out[0][1], f"{name}, event {number}")
                else:
                    self.expect(event, job, f"{name}, event {number}")
            after = counted(self.control)
            grown = {i: after[i] - before[i] for i in after}
            folded = [e for e in trace.events if not (e.refused or e.ends or answers(e))]
            for what, index in COUNTERS.items():
                if what == "complete":  # traces leave out other operations' turns
                    whole = sum(1 for e in folded if any(to == "all" for to, _ in e.out))
                    self.assertEqual(grown[index], whole, name)
                else:
                    self.assertEqual(grown[index], trace.counted.get(what, 0), f"{name}: {what}")
            self.assertEqual(grown[1] + grown[2], len(folded), name)

        def test_golden_traces(self) -> None:
            names = sorted(path.stem for path in TRACES.glob("*.trace"))
            for name in names:
                longer = Trace.read(TRACES / f"{name}.trace").job["payload"] > 4 * self.words
                if name in NOT_REPLAYED or longer:
                    continue
                with self.subTest(name):
                    self.replay(name)
                    self.doCleanups()

        def test_a_contribution_of_another_shape_is_dropped_and_counted(self) -> None:
            job = self.some_workers()
            self.install(job)
            before = counted(self.control)[17]
            self.expect(Event(0, self.frame(job, 0, lanes=[1, 2])), job, "first")
            for lanes, op in (([5], 3), ([5, 6], 8)):
                self.expect(Event(1, self.frame(job, 1, lanes=lanes, op=op)), job, "other shape")
            self.expect(Event(1, self.frame(job, 1, lanes=[5, 6], flags=9)), job, "entry")
            self.assertEqual(counted(self.control)[17], before + 3)
            sums = self.frame(job, 0xFF, lanes=[11, 22], kind=2, members=3)
            self.expect(
                Event(1, self.frame(job, 1, lanes=[10, 20]), None, [("all", sums)]), job, "sum"
            )

        def test_bits_are_joined_in_whole_lanes(self) -> None:
            job = self.some_workers()
            self.install(job)
            half = self.frame(job, 0, lanes=[1], op=7)
            self.expect(Event(0, half, "length"), job, "half a lane")
            self.expect(Event(0, self.frame(job, 0, lanes=[5, 1 << 31], op=7)), job, "first")
            sums = self.frame(job, 0xFF, lanes=[7, 1 << 31], op=7, kind=2, members=3)
            last = Event(1, self.frame(job, 1, lanes=[6, 1 << 31], op=7), None, [("all", sums)])
            self.expect(last, job, "bits")

        def test_a_job_of_one_worker_is_answered_at_once(self) -> None:
            two = self.some_workers()
            job = dataclasses.replace(two, world=1, workers=two.workers[:1])
            self.install(job)
            for turn in range(3):
                sums = self.frame(job, 0xFF, lanes=[turn], turn=turn, kind=2, members=1)
                event = Event(0, self.frame(job, 0, lanes=[turn], turn=turn), None, [("all", sums)])
                self.expect(event, job, f"turn {turn}")

        def test_jobs_do_not_see_each_other(self) -> None:
            one, two = self.some_workers(7, 16), self.some_workers(8, 32)
            self.install(one)
            self.install(two)
            for job in (one, two):
                self.expect(Event(0, self.frame(job, 0, lanes=[job.epoch])), job, "first")
            for job in (one, two):
                sums = self.frame(job, 0xFF, lanes=[job.epoch + 1], kind=2, members=3)
                event = Event(1, self.frame(job, 1, lanes=[1]), None, [("all", sums)])
                self.expect(event, job, "sum")

        def test_a_job_begins_anew_where_another_one_was(self) -> None:
            for epoch in (7, 8):
                job = self.some_workers(epoch)
                self.control.install(job, self.hosts)
                for turn in range(3):
                    self.expect(Event(0, self.frame(job, 0, lanes=[2], turn=turn)), job, "first")
                    sums = self.frame(job, 0xFF, lanes=[5], turn=turn, kind=2, members=3)
                    event = Event(
                        1, self.frame(job, 1, lanes=[3], turn=turn), None, [("all", sums)]
                    )
                    self.expect(event, job, f"epoch {epoch}, turn {turn}")
                self.control.remove(job.epoch)

        def test_a_controller_that_comes_back_keeps_what_the_switch_does(self) -> None:
            job = self.some_workers(7)
            self.control.install(job, self.hosts)
            for turn, workers in ((0, (0, 1)), (1, (0,))):  # in the midst of turn 1
                for worker in workers:
                    self.wires.send(
                        worker + 1, self.frame(job, worker, [5], turn=turn), 7000 + worker
                    )
            again = self.controller_of_the_same_switch()
            self.assertTrue(self.refuses_an_entry_twice())
            again.forward(self.hosts.values())
            self.assertEqual(again.take_over(), [7])
            sums = self.frame(job, 0xFF, [11], turn=1, kind=2, members=3)
            last = Event(1, self.frame(job, 1, [6], turn=1), None, [("all", sums)])
            self.expect(last, job, "the sum of turn 1")
            again.remove(7)
            self.expect(Event(0, self.frame(job, 0, [1], turn=2), "epoch"), job, "no job any more")

        def test_what_a_controller_did_not_finish_is_done_anew(self) -> None:
            for entries_of_members in range(2):
                job = self.some_workers(9)
                self.control.install(job, self.hosts)
                # The last commands but these were not given.
                undo = self.control.undo.pop(9)
                self.control.tell(undo[entries_of_members : job.world])
                again = self.controller_of_the_same_switch()
                self.assertEqual(again.take_over(), [])
                again.install(job, self.hosts)
                self.expect(Event(0, self.frame(job, 0, [5])), job, "first")
                sums = self.frame(job, 0xFF, [11], kind=2, members=3)
                last = Event(1, self.frame(job, 1, [6]), None, [("all", sums)])
                self.expect(last, job, "the sum")
                again.remove(9)

        def refuses_an_entry_twice(self) -> bool:
            host = self.hosts[address_at(0)]
            try:
                self.control.tell([f"table_add Folding.forward Folding.send {host.mac} => 0"])
            except (AssertionError, RuntimeError):
                return True
            return False

        def controller_of_the_same_switch(self) -> Bmv2:
            again = copy.copy(self.control)
            again.undo, again.left = {}, {}
            return again

        def test_random_frames_against_a_model(self) -> None:
            """Any order of any turns, late, early, doubled, of another shape, by three workers; of
            two slots.
            """
            for seed in range(1, 61):
                with self.subTest(seed=seed):
                    self.random_frames(seed)
                    self.doCleanups()

        def random_frames(self, seed: int) -> None:
            draw = random.Random(seed)
            job = self.some_workers(world=3, payload=24)
            self.install(job)
            state = {slot: Model(job.world) for slot in range(2)}
            shapes: dict[tuple[int, int], tuple[int, int]] = {}
            for number in range(100):
                slot, worker = draw.randrange(2), draw.randrange(job.world)
                model = state[slot]
                turn = model.next + draw.choice((0, 0, 0, 0, 0, -1, -1, -2, 1, 2, -7)) & 0xFFFFFFFF
                drawn = draw.choice(SHAPES)
                op, lanes = drawn if draw.random() < 0.1 else shapes.setdefault((slot, turn), drawn)
                values = [drawn_word(draw, op) for _ in range(lanes)]
                what = {"op": op, "turn": turn, "slot": slot}
                event = Event(worker, self.frame(job, worker, values, **what))
                if draw.random() < 0.05:  # the server's to refuse
                    event.frame = event.frame[:32] + bytes(8) + event.frame[40:]
                    event.refused = "tag"
                else:
                    to, totals, event.refused = model.take(turn, worker, op, values)
                    if to:
                        sums = self.frame(job, 0xFF, totals, **what, kind=2, members=7)
                        event.out.append((to, sums))
                self.expect(event, job, f"seed {seed}, frame {number}")

        def some_workers(
            self, epoch: int = 7, first_cell: int = 16, world: int = 2, payload: int = 8
        ) -> Job:
            workers = tuple(
                Worker(w, address_at(w + 1), 7000 + w, f"{epoch * 16 + w:016x}")
                for w in range(world)
            )
            return Job(epoch, 9, world, first_cell, 2, payload, f"{epoch:016x}", workers)

        @staticmethod
        def frame(
            job: Job,
            worker: int,
            lanes: list[int],
            *,
            op: int = 3,
            turn: int = 0,
            slot: int = 0,
            flags: int = 1,
            kind: int = 1,
            members: int = 0,
        ) -> bytes:
            tag = int(job.tag if kind == 2 else job.workers[worker].tag, 16)
            members = members or 1 << worker
            count, length = members.bit_count(), 4 * len(lanes)
            head = (0xAD, 1, kind, flags, job.epoch, turn, slot, worker, job.world)
            header = HEADER.pack(*head, op, count, length, job.boot, members, tag)
            return header + struct.pack(f">{len(lanes)}I", *lanes)


def answers(event: Event) -> bool:
    return any(to != "all" for to, _ in event.out)


SUM_I32, SUM_U8, SUM_U16, OR_U64, MAX_U32 = 3, 5, 6, 7, 8
BITS = {SUM_U8: 8, SUM_U16: 16}  # of lanes that share a word
# Operations and how many words of 32 bits; bits are joined in lanes of 64.
SHAPES = [(op, n) for op in (SUM_I32, SUM_U8, SUM_U16, MAX_U32) for n in range(1, 7)]
SHAPES += [(OR_U64, n) for n in (2, 4, 6)] * 2


def drawn_word(draw: random.Random, op: int) -> int:
    """Lanes that share a word are so small that three workers' sums do not overflow."""
    if op not in BITS:
        return draw.randrange(1 << 32)
    bits = BITS[op]
    largest = ((1 << bits) - 1) // 3
    return sum(draw.choice((largest, draw.randint(0, largest))) << at for at in range(0, 32, bits))


def combined(op: int, one: int, other: int) -> int:
    if op in BITS:
        lanes = range(0, 32, BITS[op])
        mask = (1 << BITS[op]) - 1
        return sum(((one >> at & mask) + (other >> at & mask) & mask) << at for at in lanes)
    if op == SUM_I32:
        return one + other & 0xFFFFFFFF
    return one | other if op == OR_U64 else max(one, other)


class Model:
    """A slot of a job, as docs/formats/protocol.md has it."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.next = 0  # turn that is open or may open
        self.banks: dict[int, tuple[int, list[int]]] = {}  # of the last turns: operation, sums
        self.seen: set[int] = set()

    def take(
        self, turn: int, worker: int, op: int, values: list[int]
    ) -> tuple[str, list[int], str | None]:
        """Whom to answer, with what; or why not."""
        opens = turn == self.next
        if turn in self.banks:
            known, sums = self.banks[turn]
            if (known, len(sums)) != (op, len(values)):
                return "", [], "mismatch"
            if not opens:
                return str(worker), sums, None
            if worker in self.seen:
                return "", [], "duplicate"
            values = [combined(op, one, other) for one, other in zip(sums, values)]
        if not opens:
            return "", [], "turn"
        self.banks[turn] = op, values
        self.banks.pop(turn - 2, None)  # whose bank this is now
        self.seen.add(worker)
        if len(self.seen) < self.world:
            return "", [], None
        self.seen.clear()
        self.next += 1
        return "all", values, None


class V1modelTest(Replay.Test):
    """Needs no tool: the program's text is interpreted."""

    @classmethod
    def setUpClass(cls) -> None:
        simulated = Simulated("v1model", cls.words)
        cls.plug(simulated, simulated)

    def test_payloads_of_a_whole_packet(self) -> None:
        simulated = Simulated("v1model", 352)
        simulated.forward(self.hosts.values())
        self.control = self.wires = simulated
        self.replay("full_payload")


class TnaTest(Replay.Test):
    """The program that nobody here can run otherwise."""

    @classmethod
    def setUpClass(cls) -> None:
        simulated = Simulated("tna", cls.words)
        cls.plug(simulated, simulated)

    def test_it_passes_the_front_end_of_p4c(self) -> None:
        tool = shutil.which("p4test")
        if tool is None:
            self.skipTest("there is no p4test on the PATH")
        include = Path(tool).resolve().parents[1] / "share" / "p4c" / "p4include"
        if not (include / "tna.p4").exists():
            self.skipTest(f"there is no tna.p4 in {include}")
        program = P4 / "addend_tna.p4"
        flags = ("-I", include, "-D__TARGET_TOFINO__=1")
        done = run(tool, "--std", "p4-16", *flags, program, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


REASON = why_no_switch()


@unittest.skipIf(REASON is not None, REASON or "")
class Bmv2Test(Replay.Test):
    @classmethod
    def setUpClass(cls) -> None:
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        network = SwitchNetwork(HOSTS - 1, addresses=False)
        cls.addClassCleanup(network.close)
        network.run_bmv2(generate(Path(scratch.name), "v1model", cls.words, 64))
        wires = Wires(network)
        cls.addClassCleanup(wires.close)
        cls.plug(network.control(), wires)


class Perf:
    """Four workers in namespaces around a switch, and a server that leaves the folding to it."""

    class Test(unittest.TestCase):
        size = "16K"
        steps = 100

        def run_switch(self) -> None:
            raise NotImplementedError

        def setUp(self) -> None:
            scratch = tempfile.TemporaryDirectory()
            self.addCleanup(scratch.cleanup)
            self.folder = Path(scratch.name)
            self.network = SwitchNetwork(WORLD, addresses=True)
            self.addCleanup(self.network.close)
            self.run_switch()
            switch, hosts = self.folder / "switch", self.folder / "hosts"
            self.jobs = switch / "jobs"
            self.service = Service(
                self.network,
                ADDEND,
                self.folder,
                options=f"--switch {switch} --switch-slots {CELLS}",
            )
            rows = ((address_at(port), host_at(port).mac, port) for port in range(WORLD + 1))
            hosts.write_text("".join(f"{address} {mac} {port}\n" for address, mac, port in rows))
            follow = ("--jobs", self.jobs, "--hosts", hosts, "--cli", self.network.cli)
            self.control = self.network.start(
                self.network.switch_space, sys.executable, P4 / "control.py", *follow
            )

        def workers(self, options: str) -> list[subprocess.Popen[str]]:
            host = address_at(0)
            return [self.service.worker(w, WORLD, options, host) for w in range(WORLD)]

        def finish(self, processes: list[subprocess.Popen[str]]) -> list[str]:
            outputs = []
            for process in processes:
                out, err = process.communicate(timeout=300)
                self.assertEqual(process.returncode, 0, out + err + self.trouble())
                outputs.append(out)
            return outputs

        def trouble(self) -> str:
            if self.control.poll() is None:
                return ""
            return "the controller has ended: " + self.control.communicate()[1]

        def folded(self) -> int:
            self.assertIsNone(self.control.poll(), self.trouble())
            so_far = counted(self.network.control())
            return so_far[1] + so_far[2]

        def test_four_workers_sum_through_the_switch(self) -> None:
            """Integers of 8 and 32 bits, bits, and floats as integers: right, and not summed by the
            server.
            """
            codecs = "dense -c exact:mode=packed -c quant"
            options = f"-b {self.size} -e {self.size} -n 2 -w 1 --values integers -c {codecs}"
            options += f" --slots {SLOTS} --json"
            outputs = self.finish(self.workers(options))
            rows = json.loads(outputs[0])["results"]
            for row in rows:
                self.assertEqual(row["wrong"], 0, row)
                print(type(self).__name__, row["codec"], row["time_us"], "us a step", flush=True)
            self.assertEqual(self.service.turns(), 0)
            self.assertGreater(self.folded(), 0)
            wait_until(lambda: "job" not in self.jobs.read_text(), "the switch may forget the job")
            codec = "exact:values=reproducible"
            for process in self.workers(f"-b 1K -e 1K -n 1 -c {codec} --slots {SLOTS}"):
                out, err = process.communicate(timeout=300)
                self.assertNotEqual(process.returncode, 0, out)
                self.assertIn("this job does not allow sum_i64", err)

        def test_workers_go_on_when_the_server_comes_back(self) -> None:
            codec = "exact:mode=packed"
            options = f"-b {self.size} -e {self.size} -n {self.steps} --values integers -c {codec}"
            options += f" --slots {SLOTS}"
            workers = self.workers(options)

            def begun() -> bool:
                for worker in workers:
                    self.assertIsNone(worker.poll(), "a worker has ended too soon")
                return self.folded() > 0

            wait_until(begun, "contributions in the switch", 120)
            self.service.kill_and_restart()
            self.finish(workers)
            self.control.kill()
            told = self.control.communicate()[0]
            self.assertGreaterEqual(told.count("installed"), 2, "it was over too soon")


@unittest.skipUnless(PERF and why_not() is None, why_not() or "asked for with --perf: net_p4_perf")
class InterpretedPerfTest(Perf.Test):
    """Needs no tool, but a millisecond for a packet, so it has the machine for itself."""

    size = "1K"
    steps = 200

    def run_switch(self) -> None:
        self.network.run_interpreter(generate(self.folder, "v1model", 24, CELLS))


@unittest.skipIf(REASON is not None, REASON or "")
class Bmv2PerfTest(Perf.Test):
    def run_switch(self) -> None:
        self.network.run_bmv2(generate(self.folder, "v1model", 24, CELLS))


if __name__ == "__main__":
    unittest.main(verbosity=2)

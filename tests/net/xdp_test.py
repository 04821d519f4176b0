#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`addend serve --xdp`: workers and server in namespaces around a router, the program in the driver
of the server's only interface. Loss, crashes, restarts, stalls, floats in between, IPv6; and every
reason not to start. Usage: xdp_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from network import Network, Service, run, wait_until, why_no_driver

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
WORLD = 4


class Routed(Network):
    """Server and workers around one router, which is all that the server's only interface sees:
    10.78.0.1 and fd78::1; worker W has 10.78.1W.2 and fd78:1W::2.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(0)
        self.workers = workers
        self.router = self.name + "x"
        run("ip", "netns", "add", self.router)
        self.hosts.append(self.router)
        forward = "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
        self.inside(self.router, *shlex.split(f"sysctl -q -w {forward}"))
        self._plug(self.server_space, "s", "p", ("10.78.0.", "fd78::"), 1)
        for worker in range(workers):
            run("ip", "netns", "add", self.space(worker))
            self.hosts.append(self.space(worker))
            nets = (f"10.78.1{worker}.", f"fd78:1{worker}::")
            self._plug(self.space(worker), "w", f"p{worker}", nets, 3)
        self.poll(self.router, "p")

    def _plug(self, space: str, device: str, port: str, nets: tuple[str, str], host: int) -> None:
        """The router is host 2 of every network."""
        pair = f"link add {port} netns {self.router} type veth peer name {device} netns {space}"
        run("ip", *shlex.split(pair))
        for where, link, number in ((self.router, port, 2), (space, device, host)):
            self.inside(where, "ip", "addr", "add", f"{nets[0]}{number}/24", "dev", link)
            self.inside(where, "ip", "addr", "add", f"{nets[1]}{number}/64", "dev", link, "nodad")
            self.inside(where, "ip", "link", "set", link, "up")
        self.inside(space, "ip", "route", "add", "default", "via", nets[0] + "2")
        self.inside(space, "ip", "-6", "route", "add", "default", "via", nets[1] + "2")

    def lose(self, ppm: int, folder: Path) -> None:
        ports = ["p", *(f"p{worker}" for worker in range(self.workers))]
        self.drop(ppm, folder, [(self.router, port) for port in ports])


REASON = why_no_driver(ADDEND)


@unittest.skipIf(REASON is not None, REASON or "")
class XdpTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)
        self.network = Routed(WORLD)
        self.addCleanup(self.network.close)
        tenants = {"lab": "floats = false", "floats": "floats = true"}
        self.service = Service(self.network, ADDEND, self.folder, tenants, server='xdp = "s"')

    def worker(
        self,
        number: int,
        iterations: int = 5,
        codec: str = "exact:values=reproducible",
        host: str = "10.78.0.1",
        **where: Any,
    ) -> subprocess.Popen[str]:
        options = f"-b 512K -e 512K -n {iterations} -c {codec} --values integers"
        return self.service.worker(number, WORLD, options, host, **where)

    def workers(self, **options: Any) -> list[subprocess.Popen[str]]:
        return [self.worker(number, **options) for number in range(WORLD)]

    def finish(self, processes: list[subprocess.Popen[str]]) -> None:
        for process in processes:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, out + err)

    def fails(self, process: subprocess.Popen[str], words: str) -> None:
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertIn(words, err)

    def wait_for_turns(self, turns: int) -> None:
        wait_until(lambda: self.service.turns() >= turns, "turns at the server")

    def driver_packets(self) -> int:
        return int(self.service.status()["driver_packets"])

    def share_of_driver(self) -> float:
        status = self.service.status()
        return float(status["driver_packets"] / max(1, status["packets"]))

    def test_integers_are_summed_in_the_driver_and_floats_by_the_server(self) -> None:
        self.finish(self.workers())
        self.assertGreater(self.share_of_driver(), 0.9)
        integers = self.driver_packets()
        # Integers and floats in turn: agreement and index, then values.
        self.finish(self.workers(codec="exact", tenant="floats"))
        self.assertGreater(self.driver_packets(), integers)
        self.assertLess(self.share_of_driver(), 0.9)
        self.assertLessEqual(set(self.service.refused()), {"duplicate", "turn"})

    def test_indices_through_tables(self) -> None:
        self.finish(self.workers(codec="quant:carrier=indices"))
        self.assertGreater(self.share_of_driver(), 0.9)

    def test_over_ipv6(self) -> None:
        self.finish(self.workers(host="[fd78::1]"))
        self.assertGreater(self.share_of_driver(), 0.9)

    def test_two_percent_loss_both_ways(self) -> None:
        self.network.lose(20000, self.folder)
        self.finish(self.workers())
        self.assertGreater(self.share_of_driver(), 0.5)

    def test_a_killed_server_takes_its_program_along_and_the_next_one_goes_on(self) -> None:
        processes = self.workers(iterations=40)
        self.wait_for_turns(2000)
        self.service.kill_and_restart()
        self.finish(processes)
        self.assertGreater(self.share_of_driver(), 0.9)
        self.service.process.terminate()
        self.service.process.communicate(timeout=30)
        shown = self.network.inside(self.network.server_space, "ip", "link", "show", "dev", "s")
        self.assertNotIn("xdp", shown.stdout)

    def test_a_killed_worker_is_named_at_once(self) -> None:
        processes = self.workers(iterations=100000)
        self.wait_for_turns(1)
        processes[2].kill()
        for number in (0, 1, 3):
            self.fails(processes[number], "worker 2 left the job")

    def test_a_stalled_worker_is_named_when_patience_ends(self) -> None:
        # Longer than a busy machine lets any of the others wait.
        self.network.inside(
            self.network.server_space,
            ADDEND,
            *shlex.split(f"job create default --workers {WORLD} --patience 5 --no-floats"),
            *shlex.split("--aggregator 10.78.0.1:7700 --identity lab --key"),
            self.service.keys["lab"],
        )
        processes = self.workers(iterations=100000)
        self.wait_for_turns(1000)
        processes[1].send_signal(signal.SIGSTOP)
        for number in (0, 2, 3):
            self.fails(processes[number], "worker 1 did not contribute in time")

    def test_a_worker_at_another_interface_takes_part(self) -> None:
        space = self.network.server_space
        self.network.inside(space, "ip", "addr", "add", "10.78.1.1/32", "dev", "lo")
        processes = [self.worker(number) for number in range(WORLD - 1)]
        access = f"--aggregator 10.78.1.1:7700 --identity lab --key {self.service.keys['lab']}"
        what = "-b 512K -e 512K -n 5 -c exact:values=reproducible --values integers"
        command = f"perf --reducer service --workers {WORLD} --worker {WORLD - 1} {access} {what}"
        processes.append(self.network.start(space, ADDEND, *shlex.split(command)))
        self.finish(processes)

    def refusal(self, *words: str, interface: str = "s") -> str:
        command = [*words, ADDEND, "serve", "--port", "0", "--key", self.service.keys["lab"]]
        space = self.network.server_space
        done = run("ip", "netns", "exec", space, *command, "--xdp", interface, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return done.stderr

    def test_what_cannot_be_is_refused_by_name(self) -> None:
        self.assertIn("there is no interface 'eth7'", self.refusal(interface="eth7"))
        self.assertIn("interface 'lo' has no native XDP", self.refusal(interface="lo"))
        self.assertIn("interface 's' has another XDP program already", self.refusal())
        less = "-bpf,-sys_admin"
        poor = shlex.split(f"setpriv --bounding-set {less} --inh-caps {less} --")
        self.assertIn("does not let this process load XDP programs", self.refusal(*poor))
        pair = "ip link add big mtu 9000 type veth peer name gib mtu 9000"
        self.network.inside(self.network.server_space, *shlex.split(pair))
        self.assertIn("MTU is too large", self.refusal(interface="big"))


if __name__ == "__main__":
    unittest.main(verbosity=2)

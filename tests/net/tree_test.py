#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tree of `addend serve` processes over loopback, hardened as they are elsewhere, and `addend
perf` with all workers as threads. With --bars: 256 workers through 4 leaves against 64 workers on
one server, on as many cores. With --workers: so many (4096, say) through 64 leaves, a small sum.
Usage: tree_test.py PATH_OF_ADDEND [--bars | --workers COUNT]
"""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from network import NetworkTest, Service, make_key, why_not

LEAVES, MOST_LEAVES = 4, 64
LOCAL = "--address 127.0.0.1 --port 0"
TURNS = "addend_job_turns_total"
REASON = why_not()


class Server:
    """`addend serve`, when it has said where it is."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["control"], words
        self.port, self.http = int(words[1]), int(words[3])

    def turns(self) -> float:
        """That all its jobs have done."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(TURNS))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Tree:
    """A root and its leaves, each a process."""

    def __init__(self, addend: str, folder: Path, leaves: int = LEAVES) -> None:
        self.addend, self.folder = addend, folder
        self.key = make_key(addend, folder / "lab.key")
        self.root_key = make_key(addend, folder / "root.key")
        self.servers: list[Server] = []
        self.root = self.serve_root(0)
        up = f"--upstream 127.0.0.1:{self.root.port} --upstream-key {self.root_key}"
        self.leaves = [
            self.serve(f"{LOCAL} --key {self.key} {up} --leaf {leaf} --leaves {leaves}")
            for leaf in range(leaves)
        ]

    def serve_root(self, port: int) -> Server:
        """At a port of the control plane alone: those beside it may be somebody else's."""
        config = self.folder / "root.toml"
        config.write_text(
            f'[server]\naddress = "127.0.0.1"\ncontrol_port = {port}\ndata_port = 0\n'
            f'[http]\nport = 0\n[[tenant]]\nname = "default"\nkey_file = "{self.root_key}"\n'
        )
        return self.serve(f"--config {config}")

    def serve(self, options: str) -> Server:
        server = Server([self.addend, "serve", *shlex.split(options)])
        self.servers.append(server)
        return server

    def perf(
        self, where: str, workers: int, size: int, steps: int, slots: int = 64
    ) -> subprocess.Popen[str]:
        command = (
            f"{self.addend} perf --reducer service {where} --key {self.key} --workers {workers} "
            f"-b {size} -e {size} -w 1 -n {steps} -c dense --values integers --slots {slots} "
            "--threads 1 --json"
        )
        return subprocess.Popen(
            shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def through_leaves(
        self, workers: int, size: int, steps: int, slots: int = 64
    ) -> subprocess.Popen[str]:
        names = ",".join(f"127.0.0.1:{leaf.port}" for leaf in self.leaves)
        return self.perf(f"--leaves {names}", workers, size, steps, slots)

    def close(self) -> None:
        for server in self.servers:
            server.close()


def seconds(process: subprocess.Popen[str]) -> float:
    """Of a step, with every sum right."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    row = json.loads(out)["results"][0]
    assert row["wrong"] == 0
    return float(row["time_us"]) / 1e6


class TreeTest(unittest.TestCase):
    addend: str

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Tree(self.addend, Path(folder.name))
        self.addCleanup(self.tree.close)

    def test_more_workers_than_one_server_takes(self) -> None:
        self.assertGreater(seconds(self.tree.through_leaves(72, 8 << 10, 3)), 0)

    def test_a_root_that_is_killed_comes_back_and_every_sum_is_right(self) -> None:
        run = self.tree.through_leaves(8, 1 << 20, 60)
        for _ in range(2):
            while run.poll() is None and self.tree.root.turns() == 0:
                time.sleep(0.01)
            if run.poll() is not None:
                break  # on a machine that let us wait so long, nothing is left to lose
            self.tree.root.process.kill()
            self.tree.root.process.wait()
            self.tree.root = self.tree.serve_root(self.tree.root.port)
        self.assertGreater(seconds(run), 0)


@unittest.skipIf(REASON is not None, REASON or "")
class LossyTreeTest(NetworkTest):
    """A root in the server's namespace, two leaves with two workers beside each."""

    workers = 2

    def test_loss_on_both_hops_changes_no_sum(self) -> None:
        addend = TreeTest.addend
        root = Service(self.network, addend, self.folder)
        leaves = []
        for leaf in range(2):
            folder = self.folder / str(leaf)
            folder.mkdir()
            space = self.network.space(leaf)
            self.network.inside(space, "ip", "link", "set", "lo", "up")
            upstream = (
                f'[upstream]\naddress = "10.77.{leaf}.1:7700"\nidentity = "lab"\n'
                f'key_file = "{root.keys["lab"]}"\nleaf = {leaf}\nleaves = 2\n'
            )
            leaves.append(Service(self.network, addend, folder, space=space, server=upstream))
        self.network.drop(50000, self.folder)
        self.network.drop(
            50000, self.folder, at=[(self.network.space(leaf), "lo") for leaf in range(2)]
        )
        options = "-b 512K -e 512K -w 0 -n 3 -c quant:carrier=indices --values integers"
        processes = [
            leaves[worker // 2].worker(worker, 4, options, host="127.0.0.1", machine=worker // 2)
            for worker in range(4)
        ]
        for process in processes:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, out + err)


def bars(addend: str) -> bool:
    """Time of a step for each worker, all of them on the cores that there are."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(addend, Path(folder))
        try:
            one = tree.serve(f"{LOCAL} --key {tree.key}")
            alone = seconds(tree.perf(f"--aggregator 127.0.0.1:{one.port}", 64, 64 << 10, 9)) / 64
            many = seconds(tree.through_leaves(256, 64 << 10, 9)) / 256
        finally:
            tree.close()
    ratio = many / alone
    holds = ratio <= 1.5
    print(
        f"64 workers on one server: {alone * 1e6:.0f} us a step and worker; 256 through {LEAVES} "
        f"leaves: {many * 1e6:.0f} us, {ratio:.2f} times <= 1.5 {'PASS' if holds else 'FAIL'}"
    )
    return holds


def try_many(addend: str, workers: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(addend, Path(folder), MOST_LEAVES)
        try:
            step = seconds(tree.through_leaves(workers, 256, 3, slots=8))
        finally:
            tree.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
    print(
        f"{workers} workers through {MOST_LEAVES} leaves: every sum right, {step:.2f} s a step, "
        f"{used:.1f} GiB for all workers"
    )


if __name__ == "__main__":
    if "--workers" in sys.argv:
        try_many(sys.argv[1], int(sys.argv[3]))
        sys.exit()
    if "--bars" in sys.argv:
        sys.exit(0 if bars(sys.argv[1]) else 1)
    TreeTest.addend = sys.argv.pop(1)
    unittest.main()

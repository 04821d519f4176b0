#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The service's bars on links of 1 Gbit/s, one run, answers checked: four worker namespaces, one
link each to the server's, as if the server stood in the switch; shown beside it: a server behind
one such link, as an ordinary machine is, and two of them for one job. Against Gloo's ring on the
same links (needs torch; left out otherwise), and with 1 % loss in both directions.
Usage: bars.py PATH_OF_ADDEND [PYTHON_WITH_TORCH]
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable

from network import Network, Service, why_not

WORLD = 4
DENSITY = 0.05
SIZE = 64 << 20
PIECE = 4 << 20
RING = """
import datetime, sys, time, torch, torch.distributed as dist
rank, world, count = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = dist.TCPStore("10.77.0.2", 7600, world, rank == 0)
options = dist.ProcessGroupGloo._Options()
options._devices = [dist.ProcessGroupGloo.create_device(hostname=f"10.77.{rank}.2")]
options._timeout = datetime.timedelta(seconds=60)
group = dist.ProcessGroupGloo(store, rank, world, options)
times = []
for step in range(4):
    data = torch.full((count,), rank + 1, dtype=torch.int32)
    group.barrier().wait()
    start = time.monotonic()
    group.allreduce([data]).wait()
    times.append(time.monotonic() - start)
    assert int(data[0]) == int(data[-1]) == world * (world + 1) // 2
slowest = torch.tensor([sorted(times[1:])[1]])
largest = dist.AllreduceOptions()
largest.reduceOp = dist.ReduceOp.MAX
group.allreduce([slowest], largest).wait()
if rank == 0: print(float(slowest))
"""
# The same sum as perf's over the service, from PyTorch.
TENSORS = """
import sys, time, torch, torch.distributed as dist
import addend.torch
rank, world, count, density, key = *map(int, sys.argv[1:4]), float(sys.argv[4]), sys.argv[5]
dist.init_process_group("gloo", init_method="tcp://10.77.0.2:7602", rank=rank, world_size=world)
server = addend.Aggregator(f"10.77.{rank}.1:7700", job="tensors", identity="lab", key_file=key)
live = torch.rand(count, generator=torch.Generator().manual_seed(7)) < density
mine = live * torch.randint(1, 9, (count,), generator=torch.Generator().manual_seed(rank)).float()
expected = mine.clone()
dist.all_reduce(expected)
times = []
for step in range(10):
    data = mine.clone()
    dist.barrier()
    start = time.monotonic()
    addend.torch.all_reduce(data, aggregator=server)
    times.append(time.monotonic() - start)
    assert torch.equal(data, expected)
slowest = torch.tensor([sorted(times[1:])[4]])
dist.all_reduce(slowest, dist.ReduceOp.MAX)
if rank == 0: print(float(slowest))
addend.torch.close_all()
"""

# Steps of the demo's recommender: plain DDP, attached, attached with a server; all in turn.
TRAINING = """
import pathlib, sys, tempfile, time, torch, torch.distributed as dist
rank, world, count, key = *map(int, sys.argv[1:4]), sys.argv[4]
sys.path.insert(0, sys.argv[5])
import addend.torch
from demo.models import ncf
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="tcp://10.77.0.2:7603", rank=rank, world_size=world)
server = addend.Aggregator(f"10.77.{rank}.1:7700", job="training", identity="lab", key_file=key)
sides = []
for options in (None, {}, {"aggregator": server}):
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(ncf.build())
    if options is not None:
        addend.torch.attach(model, codec="exact", **options)
    sides.append((model, ncf.optimizer(model.module)))
times = torch.zeros(25, len(sides))
with tempfile.TemporaryDirectory() as folder:
    ncf.prepare(pathlib.Path(folder), 1)
    batches = ncf.batches(pathlib.Path(folder), rank, world, 1)
    for step in times:
        batch = next(batches)
        for side, (model, optimizer) in enumerate(sides):
            dist.barrier()
            start = time.monotonic()
            model(*batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            step[side] = time.monotonic() - start
for plain, *others in zip(*(model.parameters() for model, _ in sides)):
    assert all(torch.allclose(plain, other, rtol=1e-3, atol=1e-3) for other in others)
dist.all_reduce(times, dist.ReduceOp.MAX)
if rank == 0: print(*times[5:].median(dim=0).values.tolist())
addend.torch.close_all()
"""


def seconds_of(output: str, codecs: list[str]) -> dict[str, float]:
    """What `addend perf --json` says of each codec; answers were checked."""
    rows = json.loads(output)["results"]
    assert [row["codec"] for row in rows] == codecs, rows
    assert all(row["wrong"] == 0 for row in rows), rows
    return {row["codec"]: float(row["time_us"]) / 1e6 for row in rows}


class Bars:
    def __init__(self, addend: str, folder: Path, gbit: int = 1) -> None:
        """`gbit`: what `limit_link` allows."""
        self.addend, self.folder, self.gbit = addend, folder, gbit
        self.network = Network(WORLD)
        self.good = True

    def limit_link(self, space: str, device: str) -> None:
        burst = max(256, 128 * self.gbit)  # a millisecond of a fast link: timers are not finer
        self.network.inside(
            space,
            *shlex.split(
                f"tc qdisc add dev {device} root tbf rate {self.gbit}gbit burst {burst}kb limit 4mb"
            ),
        )

    def limit_links(self) -> None:
        for worker in range(WORLD):
            self.limit_link(self.network.server_space, f"s{worker}")
            self.limit_link(self.network.space(worker), "w")

    def serve_behind_one_link(self, device: str) -> str:
        """One more server, in a namespace of its own; where it is."""
        space, address = self.network.add_host(device)
        self.limit_link(self.network.server_space, device)
        self.limit_link(space, "w")
        Service(self.network, self.addend, self.folder, space=space)
        return f"{address}:7700"

    def connect_workers(self) -> None:
        """The ring goes from worker to worker through the server's namespace, a switch."""
        self.network.inside(
            self.network.server_space, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"
        )
        for worker in range(WORLD):
            self.network.inside(
                self.network.space(worker),
                *shlex.split(f"ip route add default via 10.77.{worker}.1"),
            )
            self.network.inside(self.network.space(worker), "ip", "link", "set", "lo", "up")

    def all_workers(self, command: Callable[[int], list[object]]) -> list[str]:
        processes = [
            self.network.start(self.network.space(worker), *command(worker))
            for worker in range(WORLD)
        ]
        outputs = []
        for process in processes:
            out, err = process.communicate(timeout=600)
            if process.returncode != 0:
                raise RuntimeError(out + err)
            outputs.append(out)
        return outputs

    def perf_seconds(
        self,
        codecs: list[str],
        size: int,
        piece: int,
        reducer: Callable[[int], list[object]],
        density: float = DENSITY,
    ) -> dict[str, float]:
        """By codec. Density is that of the union: the workers' non-zeros are at the same places."""

        def command(worker: int) -> list[object]:
            ours = self.perf_command(codecs, size, piece, density)
            return [*ours, "--worker", worker, *reducer(worker)]

        return seconds_of(self.all_workers(command)[0], codecs)

    def perf_command(
        self, codecs: list[str], size: int, piece: int, density: float
    ) -> list[object]:
        return [
            self.addend,
            "perf",
            *shlex.split(
                f"-b {size} -e {size} -w 1 -n 9 --density {density} --overlap full "
                f"--values integers --gbit {self.gbit} --piece {piece} --json"
            ),
            *(word for codec in codecs for word in ("-c", codec)),
        ]

    def service_seconds(
        self, codec: str, size: int = SIZE, piece: int = 0, server: str | None = None
    ) -> float:
        return self.perf_seconds(
            [codec],
            size,
            piece,
            lambda worker: [
                "--reducer",
                "service",
                "--aggregator",
                server or f"10.77.{worker}.1:7700",
                *shlex.split(f"--identity lab --key {self.key} --workers {WORLD}"),
            ],
        )[codec]

    def mesh_seconds(
        self, codecs: list[str], piece: int, density: float = DENSITY
    ) -> dict[str, float]:
        peers = ",".join(f"10.77.{worker}.2:7601" for worker in range(WORLD))
        return self.perf_seconds(
            codecs, SIZE, piece, lambda worker: ["--reducer", "mesh", "--peers", peers], density
        )

    def mpi_seconds(self, settings: str = "") -> float:
        """Dense, by Open MPI, whose daemons are in the workers' namespaces: for them each is a
        host of its own. Ranks share this machine's cores, which mpirun then cannot know."""
        enter = self.folder / "enter"
        inside = f'ip netns exec "{self.network.name}$host" unshare --uts sh -c'
        enter.write_text(f'#!/bin/sh\nhost=$1\nshift\nexec {inside} "hostname $host; $*"\n')
        enter.chmod(0o700)
        hosts = ",".join(f"w{worker}" for worker in range(WORLD))
        process = self.network.start(
            self.network.server_space,
            *shlex.split(f"mpirun --allow-run-as-root --bind-to none -H {hosts}"),
            *shlex.split(f"--mca plm_rsh_agent {enter} --mca plm_rsh_no_tree_spawn 1"),
            *shlex.split("--mca oob_tcp_if_include 10.77.0.0/16 --mca btl_tcp_if_include w"),
            *shlex.split("--mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1"),
            *shlex.split(settings),
            *self.perf_command(["dense"], SIZE, 0, DENSITY),
            *("--reducer", "mpi"),
        )
        out, err = process.communicate(timeout=600)
        if process.returncode != 0:
            raise RuntimeError(out + err)
        return seconds_of(out, ["dense"])["dense"]

    def script_seconds(self, python: str, text: str, *options: object) -> list[float]:
        script = self.folder / "script.py"
        script.write_text(text)
        # Torch takes no name of one letter, but a list of them.
        settings = ["OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=w,w"]
        outputs = self.all_workers(
            lambda worker: [
                *("env", *settings, python, script, worker, WORLD, SIZE // 4),
                *options,
            ]
        )
        return [float(word) for word in outputs[0].split()]

    def judge_torch(self, python: str, ring: float, perf: float) -> None:
        if subprocess.run([python, "-c", "import addend.torch"], check=False).returncode != 0:
            print(f"not run: {python} has no package addend, so nothing from PyTorch")
            return
        (seconds,) = self.script_seconds(python, TENSORS, DENSITY, self.key)
        print(
            f"all_reduce(aggregator=) from PyTorch: {seconds:.3f} s, ring / it {ring / seconds:.1f}"
        )
        self.judge("all_reduce over the service / perf", seconds / perf, 1.1, at_most=True)
        root = Path(__file__).resolve().parents[2]
        plain, mesh, server = self.script_seconds(python, TRAINING, self.key, root)
        print(
            f"a step of the demo's recommender: plain DDP {plain * 1e3:.1f} ms, exact "
            f"{mesh * 1e3:.1f} ms, with aggregator= {server * 1e3:.1f} ms"
        )
        self.judge("the same: exact without a server / with", mesh / server, 1.0, at_most=False)

    def judge(self, what: str, measured: float, bar: float, at_most: bool) -> None:
        holds = measured <= bar if at_most else measured >= bar
        self.good = self.good and holds
        print(
            f"{what:<58} {measured:8.3f}  {'<=' if at_most else '>='} {bar:<5} "
            f"{'PASS' if holds else 'FAIL'}",
            flush=True,
        )

    def run(self, python: str | None) -> bool:
        self.key = Service(self.network, self.addend, self.folder).keys["lab"]
        free = self.service_seconds("dense", 16 << 20)
        self.network.drop(10000, self.folder)
        lossy = self.service_seconds("dense", 16 << 20)
        for worker in range(WORLD):
            for space, device in (
                (self.network.server_space, f"s{worker}"),
                (self.network.space(worker), "w"),
            ):
                self.network.inside(space, "ip", "link", "set", "dev", device, "xdpgeneric", "off")
        print(f"links without a limit, 16 MiB: dense {free:.3f} s, with 1 % loss {lossy:.3f} s")
        self.judge(
            "1 % loss both ways: goodput / loss-free goodput", free / lossy, 0.5, at_most=False
        )
        self.limit_links()
        dense = self.service_seconds("dense")
        exact = self.service_seconds("exact", piece=PIECE)
        print(
            f"1 Gbit/s links, 64 MiB: dense {dense:.3f} s, exact at 5 % union in pieces of 4 MiB "
            f"{exact:.3f} s"
        )
        self.connect_workers()
        box, bay = self.serve_behind_one_link("box"), self.serve_behind_one_link("bay")
        lone_dense = self.service_seconds("dense", server=box)
        lone_exact = self.service_seconds("exact", piece=PIECE, server=box)
        print(
            f"the server behind one such link: dense {lone_dense:.3f} s, exact {lone_exact:.3f} s"
        )
        two_dense = self.service_seconds("dense", server=f"{box},{bay}")
        print(f"two such servers: dense {two_dense:.3f} s")
        self.judge(
            "two servers behind a link each: one's time / theirs",
            lone_dense / two_dense,
            1.8,
            at_most=False,
        )
        if python is not None:
            (ring,) = self.script_seconds(python, RING)
            print(
                f"Gloo's ring on the same links: {ring:.3f} s; with the server behind one link: "
                f"dense / ring {lone_dense / ring:.2f}, "
                f"ring / exact {ring / lone_exact:.1f}"
            )
            self.judge("dense over the service / ring", dense / ring, 0.8, at_most=True)
            self.judge("ring / exact over the service", ring / exact, 10, at_most=False)
            self.judge_torch(python, ring, exact)
        return self.good


def main() -> int:
    reason = why_not()
    if reason is not None:
        print("not run:", reason)
        return 0
    python = sys.argv[2] if len(sys.argv) > 2 else None
    if (
        python is None
        and subprocess.run(
            [sys.executable, "-c", "import torch"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        bars = Bars(sys.argv[1], Path(folder))
        try:
            return 0 if bars.run(python) else 1
        finally:
            bars.network.close()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""codec="adaptive" against plain DDP and fixed codecs in the demo's training, in turn, as root.

    bench/adaptive_bars.py [--models ncf words digits] [--rounds 3] [--floor safe]
    bench/adaptive_bars.py --models digits --speeds 10 0.1 10

A round is a run of each, so that a machine whose speed drifts treats all alike. Bars, by the median
of all rounds' medians of steps: adaptive takes at most 1.05 of the best fixed codec's, and at most
1.02 of plain DDP's. Beside it stand the median of its means, in which windows of a dense start and
of trials are, and how many of its steps each codec had. lowrank has no row: it keeps less than
floor=safe asks for.

With --speeds links are shaped anew while DDP processes train: 15 windows at the first speed, 3 at
each other one. The plan at the end of those is compared with that of a fresh run at that speed.
Bar: the same codec for the largest bucket, or steps of the next 5 windows that take at most 1.1 of
the fresh run's.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from demo_runs import ROOT, train
from torch.nn.parallel import DistributedDataParallel

import addend.torch

sys.path.insert(0, str(ROOT))

from demo.models import MODELS
from demo.network import open_network, reshape, run_ranks

FIXED = ("exact", "quant:bits=4,feedback=float", "cast:bf16")
WARM = 5  # steps that are in no median
OF_BEST, OF_DDP = 1.05, 1.02
SETTLING, MOVED, MEASURED = 15, 3, 5  # windows, where links are shaped anew
OF_FRESH = 1.1


def had(run: dict[str, Any]) -> str:
    """The largest bucket's codecs, and for how many steps."""
    steps: collections.Counter[str] = collections.Counter()
    begin, codec = 0, "dense"
    for one in run["decisions"]:
        steps[codec] += one["step"] - begin
        largest = max(range(len(one["elements"])), key=lambda i: one["elements"][i])
        begin, codec = one["step"], one["codecs"][largest]
    steps[codec] += len(run["step_s"]) - begin
    return ", ".join(f"{codec} {count}" for codec, count in steps.items() if count)


def compare(model: str, options: argparse.Namespace, folder: Path) -> bool:
    adaptive = f"adaptive:window=10,window_s=0,floor={options.floor}"
    medians: dict[str, list[float]] = collections.defaultdict(list)
    means: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(options.rounds):
        runs = train(model, [*FIXED, adaptive], folder, workers=options.workers, gbit=options.gbit)
        for run in runs:
            medians[run["codec"]].append(statistics.median(run["step_s"][WARM:]))
            means[run["codec"]].append(statistics.mean(run["step_s"]))
            if run["decisions"]:
                print(f"{model}: steps of adaptive: {had(run)}", flush=True)
    middle = {codec: statistics.median(values) for codec, values in medians.items()}
    for codec, values in medians.items():
        each = ", ".join(f"{1e3 * value:.1f}" for value in values)
        mean = f"{1e3 * statistics.median(means[codec]):.1f}"
        print(f"{model:7} {codec:42} {each} ms, mean {mean} ms", flush=True)
    best = min(FIXED, key=lambda codec: middle[codec])
    of_best, of_ddp = middle[adaptive] / middle[best], middle[adaptive] / middle["ddp"]
    held = of_best <= OF_BEST and of_ddp <= OF_DDP
    print(
        f"{'pass' if held else 'FAIL'}  {model}: adaptive takes {of_best:.2f} of {best} (bar"
        f" {OF_BEST:g}), {of_ddp:.2f} of plain DDP (bar {OF_DDP:g})",
        flush=True,
    )
    return held


# ---- links that are shaped anew


def train_on(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A rank's part: what the plan was at each speed, and what steps took with it."""
    torch.set_num_threads(1)
    rank, world = options.rank, len(options.namespaces)
    rendezvous = f"file://{options.folder}/rendezvous-{options.models[0]}-{options.run}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    model = MODELS[options.models[0]]
    torch.manual_seed(1)
    ddp = DistributedDataParallel(model.build())
    optimizer = model.optimizer(ddp.module)
    codec = f"adaptive:window=10,window_s=0,floor={options.floor}"
    handle = addend.torch.attach(ddp, codec=codec, optimizer=optimizer)
    batches = model.batches(Path(options.folder), rank, world, 1)
    said = []

    def go(windows: int) -> list[float]:
        steps, until = [], len(handle.decisions()) + windows
        while len(handle.decisions()) < until:  # on all ranks alike
            begin = time.perf_counter()
            optimizer.zero_grad()
            ddp(*next(batches)).backward()
            optimizer.step()
            steps.append(time.perf_counter() - begin)
        return steps

    for number, gbit in enumerate(options.speeds):
        if number > 0:
            dist.barrier()
            if rank == 0:
                reshape(options.namespaces, gbit)
            dist.barrier()
        go(SETTLING if number == 0 else MOVED)
        last = handle.decisions()[-1]
        largest = max(range(len(last["elements"])), key=lambda i: last["elements"][i])
        step_s = statistics.median(go(MEASURED))
        said.append({"gbit": gbit, "codec": last["codecs"][largest], "step_s": step_s})
    handle.close()
    dist.barrier()
    dist.destroy_process_group()
    return said


def reshaped(model: str, options: argparse.Namespace, folder: Path) -> bool:
    MODELS[model].prepare(folder, 1)

    def run(number: int, speeds: list[float]) -> list[dict[str, Any]]:
        with open_network(options.workers, speeds[0]) as network:
            if network.gbit is None:
                sys.exit(f"links are not shaped: {network.note}")
            command = [sys.executable, __file__, "--models", model, "--folder", str(folder)]
            command += ["--run", str(number), "--floor", options.floor]
            command += ["--speeds", *map(str, speeds), "--namespaces"]
            command += [place.prefix[-1] for place in network.places]
            text = run_ranks(network, command)
        if text is None:
            sys.exit(f"{model}: a worker failed")
        said: list[dict[str, Any]] = json.loads(text)
        return said

    speeds = dict.fromkeys(options.speeds)
    fresh = {gbit: run(number, [gbit])[0] for number, gbit in enumerate(speeds)}
    held = True
    for one in run(len(fresh), options.speeds):
        other = fresh[one["gbit"]]
        ratio = one["step_s"] / other["step_s"]
        good = one["codec"] == other["codec"] or ratio <= OF_FRESH
        held = held and good
        print(
            f"{'pass' if good else 'FAIL'}  {model}, {one['gbit']:g} Gbit/s: {one['codec']}, a"
            f" fresh run {other['codec']}; {1e3 * one['step_s']:.1f} ms a step, {ratio:.2f} of its",
            flush=True,
        )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--floor", choices=("exact", "safe", "fast"), default="safe")
    parser.add_argument("--speeds", nargs="+", type=float, help="Gbit/s, one after the other")
    # Of a rank, which --speeds starts.
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)  # by which its ranks meet
    parser.add_argument("--namespaces", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        said = train_on(options)
        if options.rank == 0:
            print(json.dumps(said))
        return 0
    measure = reshaped if options.speeds else compare
    with tempfile.TemporaryDirectory(prefix="addend-adaptive-") as name:
        held = [measure(model, options, Path(name)) for model in options.models]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())

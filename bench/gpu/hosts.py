#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of several ranks that share one device and have a link each.

    bench/gpu/hosts.py [--ranks 4] [--gbit 10] [--models NCF LSTM] [--steps 7] [--out bench/results]
    bench/gpu/hosts.py --cpu --gbit 1      small models without a device, to see that it runs

Every rank lives in a network namespace of its own (demo/network.py), so it is a host as far as the
network goes. NCCL takes one rank a device: plain DDP and torch's hooks go over Gloo, which copies
gradients of a device to the host; ours are encoded on the device, and only planes leave it. The
first step of each way is compared with plain DDP's gradients (of PowerSGD, whose first steps are
plain, that says nothing), then steps of all ways are timed in turn, forward and backward pass, from
when the last rank begins until the last is done; batches are fresh in every step. Processes that
share a device take turns there, unless NVIDIA's MPS runs (say so with --label): with small
gradients that shows. Writes hosts.json and hosts.md into --out after each model, with what a step
of ours spent its time on, and leaves models there that it did not run, each with its own date and
commit. Ends with an error where a bar is missed; needs root, and `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from models import NAMES, Shape
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from demo import hooks  # noqa: E402
from demo.network import open_network, run_ranks  # noqa: E402

import addend.torch  # noqa: E402

FP16, POWER = "torch:fp16", hooks.POWERSGD
INDEXED, WHOLE = "quant:index=auto", " in one bucket"
WAYS = {
    "NCF": ("DDP", FP16, POWER, "exact", INDEXED, INDEXED + WHOLE),
    "NCF, large batch": ("DDP", "exact", INDEXED),
    "LSTM": ("DDP", "exact", INDEXED),  # a replica more on each rank would not fit the device
    "VGG19": ("DDP", FP16, POWER, "exact", "quant"),
    "BERT-base": ("DDP", FP16, POWER, "exact", "quant"),
}
# Times as fast as plain DDP, at least.
BARS = {
    ("NCF", "exact"): 8.0,
    ("NCF", INDEXED): 18.0,
    ("NCF", INDEXED + WHOLE): 18.0,
    ("LSTM", "exact"): 25.0,
    ("VGG19", "quant"): 4.0,
    ("BERT-base", "quant"): 3.0,
}
MOST_STEPS = {"LSTM": 3}  # of plain DDP one takes seconds
MOST_ERROR = 0.05  # of a lossy sum: its squared error by the sum's square
ROUNDING = 1e-4  # of an exact one, by the largest element: floats are added in another order


class Way:
    """A replica of a model whose gradients are summed in one way."""

    def __init__(self, name: str, model: torch.nn.Module, device: torch.device) -> None:
        options: dict[str, Any] = {"gradient_as_bucket_view": True, **hooks.ddp_options(name)}
        if name.endswith(WHOLE):
            options["bucket_cap_mb"] = hooks.ONE_BUCKET_MB
        if device.type == "cuda":
            options["device_ids"] = [0]
        self.name, self.handle = name, None
        self.model = DistributedDataParallel(model, **options)
        if name in hooks.NAMES:
            hooks.register(self.model, name)
        elif name != "DDP":  # a lossy codec has the embedding tables, too
            codec = name.replace(WHOLE, "")
            self.handle = addend.torch.attach(self.model, "exact", overrides={"*": codec})

    def step(self, batch: tuple[torch.Tensor, ...]) -> None:
        self.model(*batch).backward()
        if batch[0].device.type == "cuda":
            torch.cuda.synchronize()

    def gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]


def error_of(way: Way, plain: Way) -> dict[str, float]:
    """How far a way's gradients are from plain DDP's; and raises if ranks have different ones."""
    square = energy = worst = 0.0
    for got, expected in zip(way.gradients(), plain.gradients()):
        difference = got - expected
        square += float(difference.square().sum(dtype=torch.float64))
        energy += float(expected.square().sum(dtype=torch.float64))
        largest = float(expected.abs().max())
        worst = max(worst, float(difference.abs().max()) / max(largest, 1e-30))
    bits = [g.view(torch.int32).sum(dtype=torch.int64).item() for g in way.gradients()]
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, bits)
    if any(one != said[0] for one in said):
        raise SystemExit(f"{way.name}: ranks have different gradients")
    return {"nmse": square / energy, "worst": worst}


def check(way: Way, error: dict[str, float]) -> None:
    if way.name in ("DDP", FP16, POWER):
        return
    lossless = way.name == "exact"
    good = error["worst"] < ROUNDING if lossless else error["nmse"] < MOST_ERROR
    if not good:
        raise SystemExit(f"{way.name}: gradients are not plain DDP's: {error}")


def timed(call: Callable[[], None]) -> float:
    """Seconds from when the last rank begins until the last is done: one host, one clock."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    latest = torch.tensor([begin, time.perf_counter()], dtype=torch.float64)
    dist.all_reduce(latest, op=dist.ReduceOp.MAX)
    return float(latest[1] - latest[0])


def per_step(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Totals as a mean over the steps between; whatever is no total as it is."""
    steps = after["step"] - before["step"]
    totals = ("time/", "mode/", "fallback/", "wire_bytes", "dense_bytes", "hook_calls")
    return {
        key: round((value - before.get(key, 0.0)) / steps, 6) if key.startswith(totals) else value
        for key, value in after.items()
    }


def run_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    rank, device = options.rank, torch.device("cpu" if options.cpu else "cuda")
    shape = Shape(small=options.cpu)
    ways = []
    for way in options.ways or WAYS[name]:
        torch.manual_seed(1)
        with device:
            ways.append(Way(way, shape.build(name), device))

    def batch(step: int) -> tuple[torch.Tensor, ...]:
        seed = 1000 * step + rank
        return tuple(t.to(device) for t in shape.batch(name, ways[0].model.module, seed))

    plain = ways[0]
    plain.step(batch(0))
    errors = {}
    for way in ways[1:]:
        way.step(batch(0))
        errors[way.name] = error_of(way, plain)
        check(way, errors[way.name])
    steps = min(options.steps, MOST_STEPS.get(name, options.steps))
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    before: dict[str, dict[str, float]] = {}
    for step in range(1, 1 + options.warm + steps):
        inputs = batch(step)
        for way in ways:
            if step == 1 + options.warm and way.handle is not None:
                before[way.name] = way.handle.metrics()
                if options.traces and rank == 0:
                    label = re.sub("[^A-Za-z0-9.]+", "-", f"{name}.{way.name}")
                    way.handle.start_trace(os.path.join(options.traces, f"{label}.json"), 2)
            for parameter in way.model.parameters():
                parameter.grad = None
            seconds = timed(lambda way=way, inputs=inputs: way.step(inputs))  # type: ignore[misc]
            if step > options.warm:
                times[way.name].append(1e3 * seconds)
    spent = {}
    for way in ways:
        if way.handle is not None:
            spent[way.name] = per_step(before[way.name], way.handle.metrics())
            way.handle.close()
    result = {"ms": times, "errors": errors, "a_step": spent}
    if rank == 0:
        print(table(name, result), file=sys.stderr, flush=True)
    return result


def missed(name: str, times: dict[str, list[float]]) -> list[str]:
    """Bars that a model's ways do not pass."""
    plain = statistics.median(times["DDP"])
    said = []
    for way, one in times.items():
        bar, reached = BARS.get((name, way)), plain / statistics.median(one)
        if bar is not None and reached < bar:
            said.append(f"{name}, {way}: {reached:.2f} times plain DDP, the bar is {bar}")
    return said


def table(name: str, result: dict[str, Any]) -> str:
    """One model's rows."""
    middle = {way: statistics.median(times) for way, times in result["ms"].items()}
    lines = [
        f"| {name} | step, ms | least, most | times plain DDP | bar | squared error | union |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, times in result["ms"].items():
        bar = BARS.get((name, way))
        times_ddp = middle["DDP"] / middle[way]
        told = "" if bar is None else str(bar) + (": **missed**" if times_ddp < bar else "")
        error = result["errors"].get(way)
        density = result["a_step"].get(way, {}).get("union_density")
        lines.append(
            f"| {way} | {middle[way]:.1f} | {min(times):.1f}, {max(times):.1f} |"
            f" {times_ddp:.2f} | {told} |"
            f" {'' if error is None else format(error['nmse'], '.2g')} |"
            f" {'' if density is None else format(density, '.3f')} |"
        )
    return "\n".join(lines) + "\n"


def page(models: dict[str, Any]) -> str:
    """Every model that was ever kept, each below the run that it is of."""
    parts = ["# Ranks that share a device\n\n`bench/gpu/hosts.py`.\n"]
    said = ""
    for kept in models.values():
        steps = max(len(times) for times in kept["ms"].values())
        about = (
            f"{kept['device']}, {kept['date']}, commit {kept['commit']}: {kept['ranks']} ranks on "
            f"one device, {kept['network']}; torch {kept['torch']}, {kept['cores']} cores, median "
            f"of {steps} steps{kept['label'] and ', ' + kept['label']}.\n"
        )
        if about != said:
            parts.append(about)
        said = about
        parts.append(table(kept["model"], kept))
    return "\n".join(parts)


def run_rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{options.folder}/rendezvous",
        rank=options.rank,
        world_size=options.ranks,
    )
    result = {}
    for name in options.models:
        result[name] = run_model(name, options)
        if not options.cpu:
            torch.cuda.empty_cache()
    addend.torch.close_all()
    dist.destroy_process_group()
    if options.rank == 0:
        print(json.dumps(result))


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model, with processes of its own."""
    with open_network(options.ranks, options.gbit) as network, tempfile.TemporaryDirectory() as at:
        print(network.note, file=sys.stderr, flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--folder", at, "--models", name]
        said = run_ranks(network, command)
        if said is None:
            sys.exit("a rank ended with an error")
        return {"network": network.note, **json.loads(said.splitlines()[-1])[name]}


def keep(key: str, result: dict[str, Any], folder: Path) -> None:
    """Puts one model's figures in place of those that were there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hosts.json"
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    models[key] = result
    path.write_text(json.dumps({"models": models}, indent=1) + "\n")
    (folder / "hosts.md").write_text(page(models))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--models", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--ways", nargs="*", help="DDP first; instead of each model's own")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--traces", help="a folder for rank 0's traces of two steps")
    parser.add_argument("--commit", default="")
    parser.add_argument("--label", default="", help="what else is so: 'with MPS'")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options)
        return
    about = {
        "device": "CPU" if options.cpu else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "ranks": options.ranks,
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "label": options.label,
    }
    below = []
    for name in options.models:
        result = {"model": name, **about, **run(name, options)}
        print(table(name, result), flush=True)
        if options.out is not None:
            keep(f"{name} {options.label}".strip(), result, options.out)
        below += [] if options.cpu else missed(name, result["ms"])
    if below:
        sys.exit("\n".join(["missed:", *below]))


if __name__ == "__main__":
    main()

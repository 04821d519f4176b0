#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`addend plan` against the demo: step times predicted and measured over shaped links, as root.

    bench/plan_bars.py PATH_OF_ADDEND [--full]

Bars: the median error of predicted step times is at most 15 %, and what is recommended is measured
best, or within 5 % of it. Plain DDP and torch's fp16 hook are a ring, codecs a mesh, and once more
with a server, whose link is shaped as the workers' are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_runs import ROOT, train

sys.path.insert(0, str(ROOT))

from demo.models import MODELS

from addend.torch import record_job

MOST_ERROR, NEARLY_BEST = 0.15, 1.05
STEPS = 40
LATENCY_US = 100  # of a message between two of this machine's namespaces
# The demo's name of a run: engine and codec of a plan.
RUNS = {
    "ddp": ("ring", "dense"),
    "torch:fp16": ("ring", "cast:to=f16"),
    "dense": ("mesh", "dense"),
    "exact": ("mesh", "exact"),
    "quant": ("mesh", "quant"),
    "cast:bf16": ("mesh", "cast:to=bf16"),
}
SERVED = {"exact": ("server", "exact"), "quant": ("server", "quant")}
KEYS = {**RUNS, **{f"server {name}": key for name, key in SERVED.items()}}


@dataclass(frozen=True)
class Place:
    model: str
    gbit: float
    workers: int


def places(full: bool) -> Iterator[Place]:
    for model in MODELS:
        for gbit in (0.1, 1.0, 10.0) if full else (1.0,):
            for workers in (2, 4, 8) if full else (2, 4):
                yield Place(model, gbit, workers)


def train_at(
    place: Place, codecs: Iterable[str], folder: Path, **options: object
) -> dict[str, Any]:
    """The demo's runs of one model, by name."""
    options |= {"workers": place.workers, "gbit": place.gbit, "steps": STEPS}
    return {run["codec"]: run for run in train(place.model, list(codecs), folder, **options)}


def measure(addend: str, place: Place, folder: Path) -> dict[str, Any]:
    """All runs, by name; those over a server in front of which it says so."""
    runs = train_at(place, (name for name in RUNS if name != "ddp"), folder)
    served = train_at(place, SERVED, folder, server=addend)
    return {**runs, **{f"server {name}": served[name] for name in SERVED}}


def job_of(place: Place, runs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """When gradients are ready, as one process shows it, in the time that computing takes where
    all workers share the cores."""
    model = MODELS[place.model]
    model.prepare(folder, 1)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = model.build()
    optimizer = model.optimizer(module)
    batches = model.batches(folder, 0, 1, 1)

    def step() -> None:
        module(*next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    job = record_job(module, step, 12)
    ddp = runs["ddp"]
    scale = ddp["alone_s"] / job["buckets"][-1]["ready_s"]
    for bucket in job["buckets"]:
        bucket["ready_s"] *= scale
    # A step without what the demo calls exposed, and without computing: the optimizer.
    job["rest_s"] = max(0.0, ddp["median_step_s"] - ddp["exposed_s"] - ddp["alone_s"])
    job["union_density"] = runs["exact"]["metrics"].get("union_density")
    return job


def predict(addend: str, place: Place, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    path, costs = folder / "job.json", folder / f"costs-{place.workers}.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    cores = len(os.sched_getaffinity(0))
    asked: list[object] = ["--job", path, "--workers", place.workers, "--gbit", place.gbit]
    asked += ["--latency-us", LATENCY_US, "--cores", cores / place.workers]
    asked += ["--engine", "ring", "--engine", "mesh", "--engine", "server", "--floor", "fast"]
    asked += ["--json"]
    if costs.exists():
        asked += ["--calibration", costs]
    else:
        asked += ["--save-calibration", costs, "--threads", 1, "--largest", "16M"]
        asked += [word for _, codec in RUNS.values() if codec != "dense" for word in ("-c", codec)]
    done = subprocess.run(
        [addend, "plan", *map(str, asked)], check=True, text=True, stdout=subprocess.PIPE
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def compare(place: Place, runs: dict[str, Any], plan: dict[str, Any]) -> tuple[list[float], bool]:
    """Errors of all runs, and whether the advice was good; prints both."""
    rows = {(row["engine"], row["codec"]): row for row in plan["rows"]}
    errors = []
    for name, key in KEYS.items():
        measured, predicted = runs[name]["median_step_s"], rows[key]["step_s"]
        errors.append(abs(predicted - measured) / measured)
        print(
            f"{place.model:7} {place.gbit:5g} {place.workers:2}  {name:13} {key[0]:6} "
            f"{1e3 * measured:9.1f} {1e3 * predicted:9.1f}  {errors[-1]:6.1%}  "
            f"{rows[key]['limit']}",
            flush=True,
        )
    advised = plan["codec"] if plan["pays"] else "dense"
    chosen = min(run["median_step_s"] for name, run in runs.items() if KEYS[name][1] == advised)
    good = chosen <= NEARLY_BEST * min(run["median_step_s"] for run in runs.values())
    print(f"{'':19}advised {advised}: {'good' if good else 'NOT the best'}", flush=True)
    return errors, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("addend", help="the command")
    parser.add_argument("--full", action="store_true", help="0.1 to 10 Gbit/s, 2 to 8 workers")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    print("model   Gbit/s workers run       engine  measured predicted   error  limit   (ms)")
    errors: list[float] = []
    verdicts: list[bool] = []
    with tempfile.TemporaryDirectory(prefix="addend-plan-") as name:
        folder = Path(name)
        for place in places(options.full):
            if place.model not in options.models:
                continue
            runs = measure(options.addend, place, folder)
            plan = predict(options.addend, place, job_of(place, runs, folder), folder)
            now, good = compare(place, runs, plan)
            errors += now
            verdicts.append(good)
    median = statistics.median(errors)
    held = median <= MOST_ERROR and all(verdicts)
    print(
        f"median error {median:.1%} (at most {MOST_ERROR:.0%}); advice within 5 % of the best "
        f"{sum(verdicts)} of {len(verdicts)} times: {'pass' if held else 'FAIL'}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds, verifies and times what runs on a CUDA device, in one call.

    bench/gpu/run.py [--out bench/results] [--build DIR | --binaries DIR] [--log2 27] [--runs 25]

Builds the kernels, the tests that compare them with the CPU byte for byte, and gpu_phases (or takes
them from --binaries), runs the tests, times every codec's phases, torch's own operations and hooks
of DDP (hook.py) in the same run. Writes gpu.json and gpu.md into --out: device, driver, commit,
date, every median in microseconds, and the rate in TB/s of the dense gradient next to the bar it
has to pass. Needs a device, and torch for what it is compared with.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = [
    "cuda_cast_test",
    "cuda_exact_test",
    "cuda_fold_test",
    "cuda_quant_index_test",
    "cuda_quant_test",
    "cuda_staged_test",
]

# Spec, type, density, workers in the union, name, phases that are added up, the bar in TB/s of
# dense input.
QUANT, OWING = "quant:bits=4,carrier=indices", "quant:bits=4,feedback=float,carrier=indices"
PACKED, BLOCKS = "exact:mode=packed", "exact:mode=two-level"
BARS: list[tuple[str, str, float, int, str, list[int], float]] = [
    (QUANT, "f32", 1, 1, "norm", [0], 4.0),
    (QUANT, "f32", 1, 1, "rotate + round", [1], 2.5),
    (QUANT, "f32", 1, 1, "norm, rotate + round", [0, 1], 1.55),
    (OWING, "f32", 1, 1, "rotate + round + residual", [1], 1.1),
    (OWING, "f32", 1, 1, "with its norm", [0, 1], 0.7),
    ("quant:bits=4", "f32", 1, 1, "decode", [2], 2.5),
    (PACKED, "f32", 0.05, 1, "index + kept", [0], 3.5),
    (PACKED, "f32", 0.05, 1, "whole encode", [0, 1], 2.6),
    (PACKED, "f32", 0.05, 1, "unpack in place", [2], 4.3),
    (PACKED, "f32", 0.05, 8, "whole encode, union of 8", [0, 1], 2.1),
    (PACKED, "f32", 0.05, 8, "unpack in place, union of 8", [2], 2.6),
    (PACKED, "bf16", 0.05, 1, "whole encode", [0, 1], 1.8),
    (BLOCKS, "f32", 0.05, 1, "encode", [0, 1], 3.2),
    (BLOCKS, "f32", 0.05, 1, "decode", [2], 20),
]
FOLD_SHARE = 0.95  # of a copy's rate that folds have to reach
HOST_BAR_US = 25


def output(*command: str) -> str:
    """What a command says, or an empty text where it is not there."""
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:
        return ""


def build(folder: pathlib.Path) -> None:
    """Kernels, tests and the timing program."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DADDEND_DEVELOPER=ON", "-DADDEND_CUDA=ON"]
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(folder), *options], check=True)
    known = output("cmake", "--build", str(folder), "--target", "help")
    targets = [
        name
        for name in [*TESTS, "gpu_phases", "addend_cuda_kernels", "addend_c"]
        if f"{name}:" in known or f" {name}" in known
    ]
    subprocess.run(["cmake", "--build", str(folder), "-j", "--target", *targets], check=True)


def find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """The program of this name below a folder."""
    return next((path for path in sorted(folder.rglob(name)) if path.is_file()), None)


def verify(folder: pathlib.Path) -> dict[str, str]:
    """The last line of every test program that there is; a failure ends the run."""
    said = {}
    for name in TESTS:
        program = find(folder, name)
        if program is None:
            continue
        done = subprocess.run(
            [str(program), "--gtest_brief=1"], capture_output=True, text=True, check=False
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        said[name] = lines[-1] if lines else ""
        print(f"{name}: {said[name]}", flush=True)
        if done.returncode != 0:
            sys.exit("\n".join(lines[-40:]))
    return said


def time_torch(log2: int, runs: int) -> dict[str, float]:
    """Medians in microseconds of what torch has, f32, 5 % of elements not zero."""
    try:
        import torch
    except ImportError:
        return {}
    count = 1 << log2
    generator = torch.Generator(device="cuda").manual_seed(3)
    x = torch.randn(count, device="cuda", generator=generator)
    sparse = x * (torch.rand(count, device="cuda", generator=generator) < 0.05)
    other = torch.empty_like(x)
    operations: dict[str, Callable[[], Any]] = {
        "device copy": lambda: other.copy_(x),
        "masked_select(x != 0), 5 %": lambda: sparse.masked_select(sparse != 0),
        "nonzero, 5 %": lambda: sparse.nonzero(),
        "to_sparse, 5 %": lambda: sparse.to_sparse(),
        "topk 1 %": lambda: x.topk(count // 100),
        "fp16 cast": lambda: x.half(),
        "bf16 cast": lambda: x.bfloat16(),
    }
    medians = {}
    for name, operation in operations.items():
        times = []
        for run in range(3 + runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            operation()
            end.record()
            torch.cuda.synchronize()
            if run >= 3:
                times.append(start.elapsed_time(end) * 1e3)
        medians[name] = round(statistics.median(times), 1)
    return medians


def time_hooks(folder: pathlib.Path, runs: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of each model, each way of summing its gradients."""
    library = find(folder, "libaddend.so")
    if library is None:
        return {}
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "gpu" / "hook.py"), "--runs", str(runs)],
        env={**os.environ, "ADDEND_LIBRARY": str(library), "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print("hook.py failed: no figures of hooks", file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every bar with what was reached."""
    rows = []
    for spec, dtype, density, workers, name, numbers, bar in BARS:
        for case in phases:
            found = (case["spec"], case["dtype"], case["density"], case["workers"])
            if found != (spec, dtype, density, workers) or len(case.get("us", [])) <= max(numbers):
                continue
            us = sum(case["us"][number] for number in numbers)
            rate = round(case["bytes"] / us / 1e6, 2)
            what = f"{spec} {dtype}: {name}"
            rows.append({"what": what, "us": round(us, 1), "TB/s": rate, "bar": bar})
    return rows


def table_of_folds(folds: list[dict[str, Any]]) -> list[str]:
    """Folds beside a copy, which comes first."""
    if not folds:
        return []
    rates = [fold["moved"] / fold["us"] / 1e6 for fold in folds]
    lines = [
        "",
        f"| fold | us | TB/s moved | of a copy's (bar {FOLD_SHARE:.0%}) |",
        "|---|---|---|---|",
    ]
    for fold, rate in zip(folds, rates):
        lines.append(f"| {fold['fold']} | {fold['us']} | {rate:.2f} | {rate / rates[0]:.0%} |")
    return lines


def table(result: dict[str, Any]) -> str:
    """The page of a run."""
    lines = [f"# {result['device']}, {result['date']}", ""]
    lines.append(
        f"Driver {result['driver']}, commit {result['commit']}, 2^{result['log2']} elements,"
    )
    lines.append(f"median of {result['runs']} runs, fresh data. `bench/gpu/run.py`.")
    lines += ["", "| what | us | TB/s of dense input | bar |", "|---|---|---|---|"]
    for row in result["bars"]:
        lines.append(f"| {row['what']} | {row['us']} | {row['TB/s']} | {row['bar']} |")
    lines += ["", "| codec | type | density | workers | phases, us | as the CPU's |"]
    lines.append("|---|---|---|---|---|---|")
    for case in result["phases"]:
        told = case.get("refused") or case.get("failed") or ", ".join(str(us) for us in case["us"])
        same = {True: "yes", False: "NO", None: ""}[case.get("same_as_cpu")]
        given = f"| {case['spec']} | {case['dtype']} | {case['density']} | {case['workers']}"
        lines.append(f"{given} | {told} | {same} |")
    lines += table_of_folds(result["folds"])
    for wait in result["host"]:
        lines += ["", f"On the host, {wait['host']}: {wait['us']} us (at most {HOST_BAR_US})."]
    if result["torch"]:
        lines += ["", "| torch | us |", "|---|---|"]
        lines += [f"| {name} | {us} |" for name, us in result["torch"].items()]
    for model, ways in result["hooks"].items():
        lines += ["", f"| {model}, one rank on NCCL | step, ms | more than DDP |", "|---|---|---|"]
        for way, ms in ways.items():
            lines.append(f"| {way} | {ms:.2f} | {ms - ways['DDP']:+.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gpu")
    parser.add_argument(
        "--binaries", type=pathlib.Path, help="take the programs from here and build nothing"
    )
    parser.add_argument("--commit", default=output("git", "rev-parse", "--short", "HEAD"))
    parser.add_argument("--log2", type=int, default=27)
    parser.add_argument("--runs", type=int, default=25)
    options = parser.parse_args()
    if options.binaries is None:
        build(options.build)
    folder = options.binaries or options.build
    tests = verify(folder)
    program = find(folder, "gpu_phases")
    if program is None:
        sys.exit("no gpu_phases: it needs nvcc")
    timed = subprocess.run(
        [str(program), str(options.log2), str(options.runs)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = [json.loads(line) for line in timed.stdout.splitlines()]
    phases = [line for line in told if "spec" in line]
    asked = ["--query-gpu=name,driver_version", "--format=csv,noheader"]
    device, _, driver = output("nvidia-smi", *asked).partition(", ")
    result = {
        "device": device,
        "driver": driver,
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "log2": options.log2,
        "runs": options.runs,
        "tests": tests,
        "bars": compare(phases),
        "phases": phases,
        "folds": [line for line in told if "fold" in line],
        "host": [line for line in told if "host" in line],
        "torch": time_torch(options.log2, options.runs),
        "hooks": time_hooks(folder, options.runs),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "gpu.md").write_text(table(result))
    print(table(result))
    if any(case.get("same_as_cpu") is False or "failed" in case for case in phases):
        sys.exit("a codec's bytes are not the CPU's")


if __name__ == "__main__":
    main()

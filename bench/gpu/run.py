#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds, verifies and times what runs on a CUDA device, in one call.

    bench/gpu/run.py [--out bench/results] [--build DIR | --binaries DIR] [--log2 27] [--runs 25]
                     [--hosts] [--note TEXT ...]

Builds the kernels, the tests that compare them with the CPU byte for byte, and gpu_phases (or takes
them from --binaries), runs the tests, times every codec's phases, torch's own operations and hooks
of DDP (hook.py) in the same run. Writes gpu.json and gpu.md into --out: device, driver, commit,
date, every median in microseconds, and the rate in TB/s of the dense gradient next to the bar it
has to pass; both again after each part, so that a run that is cut short leaves what it had. Notes
are what a reader has to know of the run beside that, and stand at the top of its page. With
--hosts it goes on with four ranks on the device (hosts.py). Ends with an error, and says which,
where a test fails or is skipped, a figure is missing, or one misses its bar. Needs a device, and
torch for what it is compared with.
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
TESTS = sorted(f"cuda_{path.stem}" for path in (ROOT / "tests" / "cuda").glob("*_test.cc"))
LEAST_RUNS = 20  # whose median is a figure

# Spec, type, density, workers in the union, name, phases that are added up (of those that there
# are), the bar in TB/s of dense input.
QUANT, OWING = "quant:bits=4,carrier=indices", "quant:bits=4,feedback=float,carrier=indices"
PACKED, BLOCKS, SKETCH = "exact:mode=packed", "exact:mode=two-level", "exact:mode=sketch"
BARS: list[tuple[str, str, float, int, str, slice, float]] = [
    (QUANT, "f32", 1, 1, "norm", slice(1), 4.0),
    (QUANT, "f32", 1, 1, "rotate + round", slice(1, 2), 2.5),
    (QUANT, "f32", 1, 1, "norm, rotate + round", slice(2), 1.55),
    (OWING, "f32", 1, 1, "rotate + round + residual", slice(1, 2), 1.1),
    (OWING, "f32", 1, 1, "with its norm", slice(2), 0.7),
    ("quant:bits=4", "f32", 1, 1, "decode", slice(2, 3), 2.5),
    (PACKED, "f32", 0.05, 1, "index + kept", slice(1), 3.5),
    (PACKED, "f32", 0.05, 1, "whole encode", slice(2), 2.6),
    (PACKED, "f32", 0.05, 1, "unpack in place", slice(2, 3), 4.3),
    (PACKED, "f32", 0.05, 8, "whole encode, union of 8", slice(2), 2.1),
    (PACKED, "f32", 0.05, 8, "unpack in place, union of 8", slice(2, 3), 2.6),
    (PACKED, "bf16", 0.05, 1, "whole encode", slice(2), 1.8),
    (BLOCKS, "f32", 0.05, 1, "encode", slice(2), 3.2),
    (BLOCKS, "f32", 0.05, 1, "decode", slice(2, 3), 20),
    (SKETCH, "f32", 0.05, 1, "encode", slice(1), 1.3),
    # A step with stuck keys has one round more.
    (SKETCH, "f32", 0.05, 1, "decode", slice(1, None), 0.55),
]
FOLD_SHARE = 0.95  # of a copy's rate that folds have to reach
HOST_BAR_US = 25
HOOK_BAR_MS = 1.0  # more than DDP's own step
HOOKS_WITH_BAR = ("exact", "quant:bits=4")


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
    """ "passed" of every test program, or why it did not."""
    said = {}
    for name in TESTS:
        program = find(folder, name)
        if program is None:
            said[name] = "was not built"
            continue
        done = subprocess.run(
            [str(program), "--gtest_brief=1"], capture_output=True, text=True, check=False
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        said[name] = lines[-1] if lines else "said nothing"
        if done.returncode != 0:
            print("\n".join(lines[-40:]), flush=True)
        elif not any("SKIPPED" in line for line in lines):
            said[name] = "passed"
        print(f"{name}: {said[name]}", flush=True)
    return said


def time_phases(program: pathlib.Path, log2: int, runs: int) -> list[dict[str, Any]]:
    """What gpu_phases printed: one object a line, up to where it ended."""
    done = subprocess.run(
        [str(program), str(log2), str(runs)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        print("gpu_phases failed: figures end there", file=sys.stderr)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
    return [dict(line) for line in told]


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


def with_our_library(folder: pathlib.Path) -> dict[str, str] | None:
    """The environment for programs of the Python front; none where it was not built."""
    library = find(folder, "libaddend.so")
    if library is None:
        return None
    return {**os.environ, "ADDEND_LIBRARY": str(library), "PYTHONPATH": str(ROOT / "python")}


def time_hooks(folder: pathlib.Path, runs: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds of a step of each model, each way of summing its gradients (hook.py)."""
    environment = with_our_library(folder)
    if environment is None:
        return {}
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "gpu" / "hook.py"), "--runs", str(runs)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print("hook.py failed: no figures of hooks", file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def time_hosts(folder: pathlib.Path, options: argparse.Namespace) -> bool:
    """hosts.json and hosts.md; whether all was well."""
    environment = with_our_library(folder)
    if environment is None:
        return False
    program = [sys.executable, str(ROOT / "bench" / "gpu" / "hosts.py")]
    arguments = ["--out", str(options.out), "--commit", options.commit]
    return subprocess.run([*program, *arguments], env=environment, check=False).returncode == 0


def compare(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every bar with what was reached; one without a figure is missed."""
    rows: list[dict[str, Any]] = []
    for spec, dtype, density, workers, name, chosen, bar in BARS:
        row: dict[str, Any] = {"what": f"{spec} {dtype}: {name}", "bar": bar, "missed": True}
        for case in phases:
            if (case["spec"], case["dtype"], case["density"], case["workers"]) != (
                (spec, dtype, density, workers)
            ):
                continue
            us = sum(case.get("us", [])[chosen])
            if us > 0 and "failed" not in case:
                rate = case["bytes"] / us / 1e6
                row |= {"us": round(us, 1), "TB/s": round(rate, 2), "missed": rate < bar}
        rows.append(row)
    return rows


def added_by_hook(ways: dict[str, dict[str, float]], way: str) -> float:
    """Over the shorter of DDP's own two medians, first and last of the run."""
    return ways[way]["median"] - min(
        ways[name]["median"] for name in ways if name.startswith("DDP")
    )


def fold_shares(folds: list[dict[str, Any]]) -> dict[str, float]:
    """What folds move, of what a copy does, which comes first."""
    rates = {fold["fold"]: fold["moved"] / fold["us"] for fold in folds}
    return {name: rate / rates["copy"] for name, rate in rates.items() if name != "copy"}


def faults(result: dict[str, Any]) -> list[str]:
    """Whatever this run does not show, or shows to be wrong."""
    said = [f"{name}: {how}" for name, how in result["tests"].items() if how != "passed"]
    for case in result["phases"]:
        what = f"{case['spec']} {case['dtype']}"
        if case.get("same_as_cpu") is False:
            said.append(f"{what}: bytes are not the CPU's")
        said += [f"{what}: {case[key]}" for key in ("refused", "failed") if key in case]
    said += [
        f"{row['what']}: {row.get('TB/s', 'no figure')}, the bar is {row['bar']} TB/s"
        for row in result["bars"]
        if row["missed"]
    ]
    shares = fold_shares(result["folds"])
    said += [
        f"fold {name}: {share:.1%} of a copy, the bar is {FOLD_SHARE:.0%}"
        for name, share in shares.items()
        if share < FOLD_SHARE
    ]
    said += [] if shares else ["no figures of folds"]
    said += [
        f"{wait['host']}: {wait['us']} us, the bar is {HOST_BAR_US}"
        for wait in result["host"]
        if wait["us"] > HOST_BAR_US
    ]
    said += [] if result["host"] else ["no figure of the host's wait"]
    for model, ways in result["hooks"].items():
        for way in HOOKS_WITH_BAR:
            more = added_by_hook(ways, way)
            if more > HOOK_BAR_MS:
                said.append(f"{model}, {way}: {more:+.2f} ms a step, the bar is {HOOK_BAR_MS}")
    said += [f"no figures of {part}" for part in ("torch", "hooks") if not result[part]]
    return said


def table_of_folds(folds: list[dict[str, Any]]) -> list[str]:
    """Folds beside a copy."""
    if not folds:
        return []
    shares = {"copy": 1.0, **fold_shares(folds)}
    lines = [
        "",
        f"| fold | us | TB/s moved | of a copy's (bar {FOLD_SHARE:.0%}) |",
        "|---|---|---|---|",
    ]
    for fold in folds:
        rate, share = fold["moved"] / fold["us"] / 1e6, shares[fold["fold"]]
        missed = " **missed**" if share < FOLD_SHARE else ""
        lines.append(f"| {fold['fold']} | {fold['us']} | {rate:.2f} | {share:.1%}{missed} |")
    return lines


def table_of_hooks(model: str, ways: dict[str, dict[str, float]]) -> list[str]:
    """One model's steps, one rank on NCCL."""
    lines = [
        "",
        f"| {model}, one rank on NCCL | step, ms | least | more than DDP (bar {HOOK_BAR_MS}) |",
        "|---|---|---|---|",
    ]
    for way, ms in ways.items():
        more = added_by_hook(ways, way)
        missed = " **missed**" if way in HOOKS_WITH_BAR and more > HOOK_BAR_MS else ""
        lines.append(f"| {way} | {ms['median']:.2f} | {ms['least']:.2f} | {more:+.2f}{missed} |")
    return lines


def table(result: dict[str, Any]) -> str:
    """The page of a run."""
    lines = [f"# {result['device']}, {result['date']}", ""]
    lines.append(
        f"Driver {result['driver']}, commit {result['commit']}, 2^{result['log2']} elements,"
    )
    lines.append(f"median of {result['runs']} runs, fresh data. `bench/gpu/run.py`.")
    for note in result.get("notes", []):
        lines += ["", f"**Note.** {note}"]
    lines += ["", "| what | us | TB/s of dense input | bar |", "|---|---|---|---|"]
    for row in result["bars"]:
        bar = f"{row['bar']}: **missed**" if row["missed"] else row["bar"]
        lines.append(f"| {row['what']} | {row.get('us', '')} | {row.get('TB/s', '')} | {bar} |")
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
        lines += table_of_hooks(model, ways)
    lines += ["", "Tests: " + ", ".join(f"{name} {how}" for name, how in result["tests"].items())]
    lines[-1] += "."
    if result["faults"]:
        lines += ["", "Missed, failed or not there:", ""]
        lines += [f"* {fault}" for fault in result["faults"]]
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
    parser.add_argument("--note", action="append", default=[], help="at the top of the page")
    parser.add_argument("--hosts", action="store_true", help="four ranks on the device, too")
    options = parser.parse_args()
    if options.runs < LEAST_RUNS:
        parser.error(f"medians are of {LEAST_RUNS} runs at least")
    if options.binaries is None:
        build(options.build)
    folder = options.binaries or options.build
    asked = ["--query-gpu=name,driver_version", "--format=csv,noheader"]
    device, _, driver = output("nvidia-smi", *asked).partition(", ")
    result: dict[str, Any] = {
        "device": device,
        "driver": driver,
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "log2": options.log2,
        "runs": options.runs,
        "notes": options.note,
        "tests": {},
        **{part: [] for part in ("bars", "phases", "folds", "host")},
        **{part: {} for part in ("torch", "hooks")},
    }

    def keep(**parts: Any) -> None:
        result.update(parts)
        result["bars"] = compare(result["phases"])
        result["faults"] = faults(result)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "gpu.md").write_text(table(result))

    keep(tests=verify(folder))
    program = find(folder, "gpu_phases")
    if program is None:
        sys.exit("no gpu_phases: it needs nvcc")
    told = time_phases(program, options.log2, options.runs)
    keep(
        phases=[line for line in told if "spec" in line],
        folds=[line for line in told if "fold" in line],
        host=[line for line in told if "host" in line],
    )
    keep(torch=time_torch(options.log2, options.runs))
    keep(hooks=time_hooks(folder, options.runs))
    print(table(result), flush=True)
    wrong = list(result["faults"])
    if options.hosts and not time_hosts(folder, options):
        wrong.append("hosts.py: see above")
    if wrong:
        sys.exit("\n".join(["missed, failed or not there:", *wrong]))


if __name__ == "__main__":
    main()

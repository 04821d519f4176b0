#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which policy reaches a loss first: dense, fixed codecs or adaptive ones; shaped links, as root.

    bench/time_to_loss.py [--models words digits] [--gbit 1] [--steps 300] [--out FILE.json]

Trains as the demo does: the same start and batches for all, four DDP processes in namespaces. The
target is what plain DDP's loss, averaged over TRAILING steps, comes to at TARGET_AT of its steps.
Time is all that ran until then, also what a policy spent on probing; bytes are what the kernel saw
leave a worker's link, indices and headers with it. Regret: time against the best fixed codec in
hindsight.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo_runs import train

MODELS = ("words", "digits")
DENSE = ("ddp", "torch:fp16")
SELECTOR = "topk"
FIXED = (
    "exact",
    "cast:bf16",
    "quant:bits=4,feedback=float",
    f"{SELECTOR}:density=0.1",
    f"{SELECTOR}:density=0.01",
)
WINDOWS = "window=10,window_s=0"
POLICIES = (
    f"adaptive:policy=gravac,{WINDOWS}",
    f"adaptive:policy=accordion,{WINDOWS}",
    f"adaptive:policy=auto,{WINDOWS}",
)
TRAILING, TARGET_AT = 20, 0.8


def smoothed(losses: Sequence[float]) -> list[float]:
    """The mean of the last TRAILING losses at each step from the first that has so many."""
    sums = list(itertools.accumulate(losses, initial=0.0))
    return [(b - a) / TRAILING for a, b in zip(sums, sums[TRAILING:])]


def steps_to(losses: Sequence[float], target: float) -> int | None:
    for step, loss in enumerate(smoothed(losses), TRAILING):
        if loss <= target:
            return step
    return None


def judge(model: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    dense = runs[0]["losses"]
    target = smoothed(dense)[int(TARGET_AT * len(dense)) - TRAILING]
    rows = []
    for run in runs:
        steps = steps_to(run["losses"], target)
        rows.append(
            {
                "model": model,
                "codec": run["codec"],
                "target": target,
                "steps": steps,
                "seconds": steps and sum(run["step_s"][:steps]),
                "link_bytes": steps and sum(run["step_link_bytes"][:steps]),
                "last": smoothed(run["losses"])[-1],
                "score": run["score"],
                "decisions": len(run["decisions"] or []),
            }
        )
    fixed = [r["seconds"] for r in rows if r["codec"] in (*DENSE, *FIXED) and r["seconds"]]
    for row in rows:
        row["regret"] = row["seconds"] and row["seconds"] / min(fixed) - 1
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{rows[0]['model']}: to a loss of {rows[0]['target']:.3f}")
    print(f"{'':48} steps       s      MB  regret    last    score")
    for row in rows:
        until = "     not reached              "
        if row["steps"]:
            until = f"{row['steps']:6}{row['seconds']:8.2f}{row['link_bytes'] / 1e6:8.1f}"
            until += f"{row['regret']:8.0%}"
        print(f"{row['codec']:48}{until}{row['last']:8.3f}{row['score']:9.3f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="specs beside fixed ones")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the rows, as JSON")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="addend-loss-") as name:
        for model in options.models:
            runs = train(
                model,
                [*DENSE[1:], *FIXED, *options.policies],
                Path(name),
                workers=options.workers,
                gbit=options.gbit,
                steps=options.steps,
                seed=options.seed,
            )
            now = judge(model, runs)
            show(now)
            rows += now
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

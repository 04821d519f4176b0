#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""codec="adaptive" against plain DDP and fixed codecs in the demo's training, in turn, as root.

    bench/adaptive_bars.py [--models ncf words digits] [--rounds 3] [--floor safe]

A round is a run of each, so that a machine whose speed drifts treats all alike. Bars, by the median
of all rounds' medians of steps: adaptive takes at most 1.05 of the best fixed codec's, and at most
1.02 of plain DDP's. Beside it stand the median of its means, in which windows of a dense start and
of trials are, and how many of its steps each codec had. lowrank has no row: it keeps less than
floor=safe asks for.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from demo_runs import ROOT, train

sys.path.insert(0, str(ROOT))

from demo.models import MODELS

FIXED = ("exact", "quant:bits=4,feedback=float", "cast:bf16")
WARM = 5  # steps that are in no median
OF_BEST, OF_DDP = 1.05, 1.02


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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="addend-adaptive-") as name:
        held = [compare(model, options, Path(name)) for model in options.models]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())

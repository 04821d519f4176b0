# SPDX-License-Identifier: Apache-2.0
"""Runs of the demo for benchmarks: over shaped links, as root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def train(model: str, codecs: Sequence[str], folder: Path, **options: object) -> list[Any]:
    """Plain DDP and these codecs, one after the other: the report's runs. `options`: the demo's."""
    if os.geteuid() != 0:
        sys.exit("links are shaped by network namespaces: run this as root")
    out = folder / "report.html"
    command = [sys.executable, "-m", "demo", "--models", model, "--out", str(out)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(
        [*command, "--codecs", *codecs], cwd=ROOT, check=False, stdout=subprocess.DEVNULL
    )
    if done.returncode not in (
        0,
        1,
    ):  # 1: a loss away from DDP's, say, which is the caller's to see
        sys.exit(done.returncode)
    document = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    out.with_suffix(".json").unlink()
    if not document["gbit"]:
        sys.exit(f"links are not shaped: {document['network']}")
    (trained,) = document["models"]
    runs: list[Any] = trained["runs"]
    if not all(run["replicas_identical"] for run in runs):
        sys.exit(f"{model}: workers ended with different parameters")
    return runs

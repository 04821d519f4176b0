#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mesh against Gloo's ring and MPI on the same links: 64 MiB between four worker namespaces,
each behind one link to a switch; all in turn, answers checked. Bars are about links of 1 and 10
Gbit/s for dense sums, of 1 Gbit/s for the codecs; what those do at 10 is shown. Selectors get dense
data. Needs torch for the ring, and Open MPI, which is asked twice: as it is, and for its ring.
Usage: mesh_bars.py PATH_OF_ADDEND [PYTHON_WITH_TORCH] [--gbit 1 10] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from bars import PIECE, RING, Bars
from network import run, why_not

CODECS = {"dense": 1 / 1.05, "exact": 9, "quant:carrier=indices": 4.5}  # ring / mesh, at least
SELECTORS = {"topk:density=0.01": 4, "random:density=0.01": 10}
RINGS = "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4"
MPI = {"MPI": "", "MPI, ring": RINGS}


def why_no_mpi(addend: str) -> str | None:
    said = run("mpirun", "--version", check=False).stdout if shutil.which("mpirun") else ""
    if "Open MPI" not in said:
        return "no mpirun of Open MPI is on the path"
    if not json.loads(run(addend, "doctor", "--json").stdout)["mpi"]:
        return f"{addend} has no MPI"
    return None


def measure(bars: Bars, python: str, turns: int, mpi: dict[str, str]) -> dict[str, list[float]]:
    """Seconds, by what was measured."""
    names = ("ring", *mpi, "dense, whole", *CODECS, *SELECTORS)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(turns):
        found["ring"] += bars.script_seconds(python, RING)
        for name, settings in mpi.items():
            found[name].append(bars.mpi_seconds(settings))
        found["dense, whole"].append(bars.mesh_seconds(["dense"], piece=0)["dense"])
        for codec, seconds in bars.mesh_seconds(list(CODECS), PIECE).items():
            found[codec].append(seconds)
        for codec, seconds in bars.mesh_seconds(list(SELECTORS), PIECE, density=1).items():
            found[codec].append(seconds)
    return found


def judge(bars: Bars, gbit: int, found: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, seconds in found.items():
        shown = ", ".join(f"{one * 1e3:.1f}" for one in seconds)
        print(f"{gbit} Gbit/s, {name}: {middle[name] * 1e3:.1f} ms ({shown})")
    whole = middle["dense, whole"] / middle["ring"]
    print(f"{gbit} Gbit/s: dense in one piece / ring {whole:.3f}")
    dense = middle["dense"] / middle["ring"]
    bars.judge(f"{gbit} Gbit/s: dense over the mesh / ring", dense, 1.05, at_most=True)
    if "MPI" in middle:
        what = f"{gbit} Gbit/s: dense over the mesh / the faster MPI"
        best = min(middle[name] for name in MPI)
        bars.judge(what, middle["dense"] / best, 1.05, at_most=True)
    at_least = {**CODECS, **SELECTORS}
    for codec in ("exact", "quant:carrier=indices", *SELECTORS):
        ratio, what = middle["ring"] / middle[codec], f"{gbit} Gbit/s: ring / {codec} over the mesh"
        if gbit == 1:
            bars.judge(what, ratio, at_least[codec], at_most=False)
        else:
            print(f"{what:<58} {ratio:8.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("addend")
    parser.add_argument("python", nargs="?", default=sys.executable)
    parser.add_argument("--gbit", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print("not run:", reason)
        return 0
    good = True
    reason = why_no_mpi(options.addend)
    if reason is not None:
        print("MPI not run:", reason)
    mpi = MPI if reason is None else {}
    for gbit in options.gbit:
        with tempfile.TemporaryDirectory() as folder:
            bars = Bars(options.addend, Path(folder), gbit)
            try:
                bars.limit_links()
                bars.connect_workers()
                judge(bars, gbit, measure(bars, options.python, options.turns, mpi))
            finally:
                bars.network.close()
            good = good and bars.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

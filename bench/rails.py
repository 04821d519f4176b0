#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each guard rail of the controller is worth: simulated jobs with all rails, and without one.

    bench/rails.py

A rail is left out as tests/mutants.toml does it (control.no-...). Progress per second, against a
job that goes dense throughout, of the job on which leaving it out costs most, and of the one on
which it gains most.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "control.no-"
COMPILE = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", "-Isrc", "-Iinclude"]


def compile_all(folder: Path) -> dict[str, Path]:
    """Objects of the controller and of the jobs, by source."""
    sources = [p for p in (folder / "src/control").glob("*.cc") if not p.stem.endswith("_test")]
    objects = {}
    for source in sources:
        objects[source.name] = source.with_suffix(".o")
        command = [*COMPILE, "-c", str(source), "-o", str(objects[source.name])]
        subprocess.run(command, cwd=folder, check=True)
    return objects


def run(folder: Path, objects: dict[str, Path]) -> dict[str, float]:
    program = folder / "rails"
    subprocess.run(["g++", *map(str, objects.values()), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], check=True, text=True, stdout=subprocess.PIPE)
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {name: float(progress) for name, progress in rows}


def main() -> int:
    listed = tomllib.loads((ROOT / "tests/mutants.toml").read_text(encoding="utf-8"))["mutant"]
    rails = [one for one in listed if one["name"].startswith(PREFIX)]
    with tempfile.TemporaryDirectory(prefix="addend-rails-") as name:
        folder = Path(name)
        for part in ("src", "include"):
            shutil.copytree(ROOT / part, folder / part)
        objects = compile_all(folder)
        whole = run(folder, objects)
        print("progress per second against dense, all rails:")
        for job, progress in whole.items():
            print(f"  {job:54}{progress:7.2f}")
        print(f"{'left out':20}{'costs most with':56}{'with':>6}{'without':>9}")
        for rail in rails:
            source = folder / rail["file"]
            text = source.read_text(encoding="utf-8")
            if text.count(rail["old"]) != 1:
                sys.exit(
                    f"rails: {rail['name']}: its text stands there {text.count(rail['old'])} times"
                )
            source.write_text(text.replace(rail["old"], rail["new"]), encoding="utf-8")
            target = objects[source.name]
            subprocess.run([*COMPILE, "-c", str(source), "-o", str(target)], cwd=folder, check=True)
            without = run(folder, objects)
            source.write_text(text, encoding="utf-8")
            for pick, what in ((min, ""), (max, "  gains most with ")):
                job = pick(whole, key=lambda one: without[one] / whole[one])
                if what and without[job] < 1.01 * whole[job]:
                    continue
                label = rail["name"].removeprefix(PREFIX) if not what else ""
                print(f"{label:20}{what + job:56}{whole[job]:6.2f}{without[job]:9.2f}", flush=True)
            subprocess.run([*COMPILE, "-c", str(source), "-o", str(target)], cwd=folder, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

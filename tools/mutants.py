#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests notice mistakes: puts each mutation of a list into a copy of the tree,
builds what it names, runs the test that it names, and expects that test to fail.

A mutation is an entry [[mutant]] of a TOML file:

  name    how --only finds it
  file    the source that changes
  old     text that stands there exactly once; white space may differ, so reformatting does not
          matter
  new     what takes its place
  build   CMake targets to build first (left out: none)
  run     the test: a command, in the copy's root; {build} is the build folder, {python} the tests'
          Python

Verdicts: killed (the test failed or hung), SURVIVED (it passed), STALE (`old` is not there once),
INVALID (the mutation does not build, or the test fails without it). Exit code 1 unless every
mutation was killed.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import tomllib

PRESET = "dev"
# An editable installation goes before PYTHONPATH and would have the unchanged package tested.
NOT_EDITABLE = """\
import sys
sys.meta_path = [one for one in sys.meta_path if "editable" not in type(one).__module__]
"""


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    run: str
    build: tuple[str, ...] = ()

    def pattern(self) -> re.Pattern[str]:
        return re.compile(r"\s+".join(map(re.escape, self.old.split())))

    def stale(self, tree: Path) -> str:
        """Why the mutation cannot be put in; empty if it can."""
        path = tree / self.file
        if not path.is_file():
            return "there is no such file"
        found = len(self.pattern().findall(path.read_text()))
        return "" if found == 1 else f"its text stands there {found} times"


def read_list(path: Path) -> list[Mutant]:
    with path.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    mutants = []
    for entry in entries:
        build = entry.get("build", [])
        entry["build"] = tuple([build] if isinstance(build, str) else build)
        mutants.append(Mutant(**entry))
    names = [mutant.name for mutant in mutants]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"mutants: two entries are named {', '.join(sorted(twice))}")
    return mutants


class Workbench:
    """A copy of the tracked files as they are in the working tree, with its own build folder."""

    def __init__(self, source: Path, work: Path, jobs: int, timeout: float) -> None:
        self.source, self.tree, self.jobs, self.timeout = source, work / "tree", jobs, timeout
        self.build_folder = self.tree / "build" / PRESET
        self.log = work / "log.txt"
        work.mkdir(parents=True, exist_ok=True)
        self.lock = (work / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"mutants: another run works in {work}")
        self.environment = os.environ | {
            "ADDEND_LIBRARY": str(self.build_folder / "src/capi/libaddend.so"),
            "ADDEND_COMMAND": str(self.build_folder / "apps/addend/addend"),
            "PYTHONPATH": f"{self.tree / 'python'}:{work / 'site'}",
            "PYTHONDONTWRITEBYTECODE": "1",  # a mutated .py may keep its size and its second
        }
        (work / "site").mkdir(exist_ok=True)
        (work / "site/sitecustomize.py").write_text(NOT_EDITABLE)
        if shutil.which("ccache"):
            for language in ("C", "CXX"):
                self.environment.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
        python = source / ".venv/bin/python"
        self.python = str(python) if python.exists() else sys.executable

    def refresh(self) -> None:
        """Copies what differs, so that a build goes on from the last one."""
        command = ["git", "-C", str(self.source), "ls-files", "-z"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True)
        files = {
            name for name in listed.stdout.split("\0") if name and (self.source / name).is_file()
        }
        for name in sorted(files):
            self.restore(name)
        if self.tree.is_dir():
            for path in self.tree.rglob("*"):
                name = str(path.relative_to(self.tree))
                if path.is_file() and name not in files and not name.startswith("build/"):
                    path.unlink()

    def restore(self, name: str) -> None:
        source, copy = self.source / name, self.tree / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            return
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        shutil.copymode(source, copy)

    def call(self, command: list[str], timeout: float | None = None) -> bool:
        """Whether the command succeeds in time; what it printed is in the log, which has the last
        command only.
        """
        with self.log.open("w") as log:
            print("$", shlex.join(command), file=log, flush=True)
            with subprocess.Popen(
                command,
                cwd=self.tree,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process:
                try:
                    return process.wait(timeout) == 0
                except subprocess.TimeoutExpired:
                    return False
                finally:
                    if process.poll() is None:
                        os.killpg(process.pid, 9)

    def configure(self) -> bool:
        return self.call(["cmake", "--preset", PRESET])

    def build(self, targets: tuple[str, ...]) -> bool:
        if not targets:
            return True
        return self.call(
            ["cmake", "--build", str(self.build_folder), "-j", str(self.jobs), "--target", *targets]
        )

    def test(self, mutant: Mutant) -> bool:
        command = mutant.run.format(build=self.build_folder, python=self.python)
        return self.call(shlex.split(command), self.timeout)

    def verdict(self, mutant: Mutant) -> tuple[str, str]:
        path = self.tree / mutant.file
        try:
            path.write_text(mutant.pattern().sub(lambda _: mutant.new, path.read_text()))
            if not self.build(mutant.build):
                return "INVALID", "it does not build: " + self.last_words()
            return ("SURVIVED", "") if self.test(mutant) else ("killed", "")
        finally:
            self.restore(mutant.file)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line for line in lines if "error:" in line), lines[-1]).strip()[:150]


def check_unmutated(bench: Workbench, mutants: list[Mutant]) -> dict[str, str]:
    """Builds and runs every test once as the sources are: what fails here shows nothing. Why, by
    command.
    """
    targets = tuple(sorted({target for mutant in mutants for target in mutant.build}))
    if targets:
        print(f"building {', '.join(targets)} without a mutation", flush=True)
        if not bench.configure() or not bench.build(targets):
            sys.exit(f"mutants: the tree does not build without a mutation: {bench.last_words()}")
    broken = {}
    for mutant in mutants:
        if mutant.run not in broken:
            broken[mutant.run] = (
                "" if bench.test(mutant) else "fails without the mutation: " + bench.last_words()
            )
    return broken


def run(bench: Workbench, mutants: list[Mutant]) -> list[tuple[Mutant, str, str]]:
    broken = check_unmutated(bench, mutants)
    results = []
    for number, mutant in enumerate(mutants, 1):
        begin = time.monotonic()
        print(f"[{number}/{len(mutants)}] {mutant.name} ", end="", flush=True)
        why = broken[mutant.run]
        verdict, why = ("INVALID", why) if why else bench.verdict(mutant)
        print(f"{verdict} ({time.monotonic() - begin:.1f} s)", flush=True)
        results.append((mutant, verdict, why))
    return results


def print_table(results: list[tuple[Mutant, str, str]]) -> None:
    width = max(len(mutant.name) for mutant, _, _ in results)
    print(f"\n{'mutation':{width}}  verdict   where")
    for mutant, verdict, why in results:
        print(f"{mutant.name:{width}}  {verdict:8}  {mutant.file}{': ' + why if why else ''}")
    killed = sum(verdict == "killed" for _, verdict, _ in results)
    print(f"{killed} of {len(results)} killed")


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="mutations whose name has TEXT"
    )
    parser.add_argument(
        "--check", action="store_true", help="only look for stale mutations; builds nothing"
    )
    parser.add_argument(
        "--source", type=Path, default=root, metavar="DIR", help="the tree to copy, a git work tree"
    )
    parser.add_argument(
        "--list", type=Path, metavar="FILE", help="default: tests/mutants.toml of the tree"
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="where the copy stands, default: build/mutants"
    )
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="of the build")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="a test that runs longer hangs",
    )
    options = parser.parse_args()
    source = options.source.resolve()
    mutants = read_list(options.list or source / "tests/mutants.toml")
    wanted = options.only or [""]
    mutants = [mutant for mutant in mutants if any(text in mutant.name for text in wanted)]
    if not mutants:
        sys.exit("mutants: none has that name")
    reasons = {mutant: mutant.stale(source) for mutant in mutants}
    results = [(mutant, "STALE", why) for mutant, why in reasons.items() if why]
    if not options.check:
        bench = Workbench(
            source,
            (options.work or source / "build/mutants").resolve(),
            options.jobs,
            options.timeout,
        )
        bench.refresh()
        results += run(bench, [mutant for mutant, why in reasons.items() if not why])
    if results:
        print_table(results)
    elif options.check:
        print(f"{len(mutants)} mutations fit the sources")
    return 0 if all(verdict == "killed" for _, verdict, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every file with kernels has every SIMD target that another has, so what is forced is what runs.

Highway runs the plainest target of a file that lacks the one that was forced, and tells nobody: a
test of that target would test another. Each object's targets are read from its symbols; base_test
shows that a kernel which has them all runs on the forced one.

usage: simd_targets_test.py ARCHIVE...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MEMBER = re.compile(r"^(\S+\.o):$")
TARGET = re.compile(r"\bN_([A-Z0-9_]+)::")


def targets_of_members(archive: Path) -> dict[str, set[str]]:
    """Per object with kernels, the targets that its functions are in."""
    command = ["nm", "--demangle", str(archive)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, set[str]] = {}
    member = archive.name
    for line in listing.splitlines():
        if name := MEMBER.match(line):
            member = f"{archive.name}({name[1]})"
        elif targets := TARGET.findall(line):
            found.setdefault(member, set()).update(targets)
    return found


def main(arguments: list[str]) -> int:
    kernels: dict[str, set[str]] = {}
    for archive in map(Path, arguments):
        kernels |= targets_of_members(archive)
    every = set().union(*kernels.values())
    lacking = {name: every - targets for name, targets in kernels.items() if targets != every}
    for name, targets in lacking.items():
        print(f"{name} lacks {sorted(targets)}")
    print(f"{len(kernels)} files with kernels, {len(lacking)} without all of {sorted(every)}")
    return 1 if lacking or len(kernels) < 2 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

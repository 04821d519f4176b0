#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever sums planes cannot decode them: no module that may not decode knows a name of a codec.

The linker shows half of it: ADDER holds all of these modules and no codec. Their symbols show the
rest, such as a function that takes a codec and calls only what is virtual. Which names are a
codec's is read from the codec's own archive. PLANTED is an object that breaks the rule in every way
we know; the search must find each, or it proves nothing of the others.

usage: no_codec_symbols_test.py CODEC_ARCHIVE PLANTED ADDER ARCHIVE...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PLANTED_NAMES = {"Codec", "Stepped", "create_codec", "decode_snapshot", "exact", "quant"}
# A symbol with a place of its own (T, D, B, R), or what stands for a class (V). Other weak symbols
# are inline functions and templates: some are the codec's, some come from headers that all share.
DEFINED = re.compile(r"^\S+ (?:[TDBR] |V (?:vtable|typeinfo) for )addend::(\w+)", re.M)


def symbols(path: Path) -> str:
    command = ["nm", "--demangle", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def known(path: Path, names: set[str]) -> set[str]:
    """Those of `names` that a symbol of this file mentions, defined there or asked for."""
    return names & set(re.findall(r"\baddend::(\w+)", symbols(path)))


def main(arguments: list[str]) -> int:
    codec, planted, adder, *archives = map(Path, arguments)
    names = set(DEFINED.findall(symbols(codec)))
    if missed := PLANTED_NAMES - known(planted, names):
        print(f"the search does not find {sorted(missed)} in {planted}: this test cannot fail")
        return 1
    guilty = {path: found for path in (adder, *archives) if (found := known(path, names))}
    for path, found in guilty.items():
        print(f"{path} knows of codecs: {sorted(found)}")
    subprocess.run([adder], check=True)
    print(f"{len(archives)} modules, {len(names)} names of codecs, {len(guilty)} modules know one")
    return 1 if guilty or not archives else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

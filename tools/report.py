#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON of `make demo` or `addend demo --out FILE` into one self-contained HTML page.

    tools/report.py report.json -o report.html

Python's standard library only; the page loads nothing from anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import report_codecs
import report_training

PAGES = {
    "addend demo": report_codecs.render,
    "addend training": report_training.render,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("json", type=Path, help="what a demo wrote")
    parser.add_argument("-o", "--out", type=Path, required=True, help="HTML file to write")
    options = parser.parse_args(arguments)
    try:
        document = json.loads(options.json.read_text(encoding="utf-8"))
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind not in PAGES:
            raise ValueError("it does not say so")
        page = PAGES[kind](document)
    except (OSError, ValueError, KeyError) as error:
        print(f"report: {options.json} is not the JSON of a demo: {error!r}", file=sys.stderr)
        return 1
    options.out.write_text(page, encoding="utf-8")
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run on a device that misses a bar, fails a test or lacks a figure ends with an error."""

from __future__ import annotations

import copy
import json
import sys
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "gpu"))

import run  # noqa: E402


def good() -> dict[str, Any]:
    """A run in which everything is just good enough."""
    phases: dict[tuple[str, str, float, int], dict[str, Any]] = {}
    for spec, dtype, density, workers, _, _, _ in run.BARS:
        phases[spec, dtype, density, workers] = {
            "spec": spec,
            "dtype": dtype,
            "density": density,
            "workers": workers,
            "bytes": 1 << 29,
            "us": [10.0, 5.0, 5.0],
        }
    step = {"median": 20.0, "least": 19.0}
    hooks = {"DDP": step, **dict.fromkeys(run.HOOKS_WITH_BAR, step), "DDP, last": step}
    return {
        "device": "a device",
        "driver": "1",
        "date": "2026-11-19",
        "commit": "0",
        "log2": 27,
        "runs": 25,
        "tests": dict.fromkeys(run.TESTS, "passed"),
        "phases": list(phases.values()),
        "folds": [{"fold": name, "moved": 100, "us": 1.0} for name in ("copy", "or_u64")],
        "host": [{"host": "size of a union", "us": run.HOST_BAR_US}],
        "torch": {"device copy": 1.0},
        "hooks": {"BERT-base": hooks},
    }


def faults(result: dict[str, Any]) -> list[str]:
    result["bars"] = run.compare(result["phases"])
    result["faults"] = run.faults(result)
    for fault in result["faults"]:
        assert f"* {fault}" in run.table(result)
    return list(result["faults"])


class Faults(unittest.TestCase):
    def one(self, result: dict[str, Any]) -> str:
        said = faults(result)
        self.assertEqual(len(said), 1, said)
        return said[0]

    def test_a_good_run_has_none(self) -> None:
        result = good()
        self.assertEqual(faults(result), [])
        self.assertNotIn("missed", run.table(result))

    def test_every_program_of_tests_is_run(self) -> None:
        programs = (ROOT / "tests" / "cuda").glob("*_test.cc")
        self.assertEqual(set(run.TESTS), {f"cuda_{path.stem}" for path in programs})
        built = (ROOT / "tests" / "CMakeLists.txt").read_text()
        for name in run.TESTS:
            self.assertIn(f"addend_test({name} ", built)

    def test_a_test_that_does_not_pass(self) -> None:
        result = good()
        result["tests"][run.TESTS[0]] = "was not built"
        self.assertEqual(self.one(result), f"{run.TESTS[0]}: was not built")

    def test_every_bar_is_looked_at(self) -> None:
        for at, (spec, dtype, density, workers, name, chosen, bar) in enumerate(run.BARS):
            result = good()
            for case in result["phases"]:
                given = (case["spec"], case["dtype"], case["density"], case["workers"])
                if given == (spec, dtype, density, workers):
                    most_us = case["bytes"] / bar / 1e6
                    case["us"][chosen] = [most_us * 1.01] + [0.0] * (len(case["us"][chosen]) - 1)
            said = faults(result)
            self.assertTrue(result["bars"][at]["missed"])
            self.assertTrue(any(f"{spec} {dtype}: {name}: " in one for one in said), said)
            self.assertIn("**missed**", run.table(result))

    def test_a_codec_that_refuses_or_fails_has_no_figure(self) -> None:
        for key in ("refused", "failed"):
            result = good()
            case = next(case for case in result["phases"] if case["spec"] == run.SKETCH)
            case[key] = "why"
            if key == "refused":
                del case["us"]
            self.assertEqual(
                faults(result),
                [
                    f"{run.SKETCH} f32: why",
                    f"{run.SKETCH} f32: encode: no figure, the bar is 1.3 TB/s",
                    f"{run.SKETCH} f32: decode: no figure, the bar is 0.55 TB/s",
                ],
            )

    def test_other_bytes_than_the_cpu(self) -> None:
        result = good()
        result["phases"][0]["same_as_cpu"] = False
        self.assertIn("bytes are not the CPU's", self.one(result))

    def test_folds_the_host_and_hooks(self) -> None:
        result = good()
        result["folds"][1]["us"] = 1.06
        self.assertIn("fold or_u64: 94.3%", self.one(result))
        result = good()
        result["host"][0]["us"] = run.HOST_BAR_US + 0.1
        self.assertIn("size of a union", self.one(result))
        for way in run.HOOKS_WITH_BAR:
            result = good()
            ways = result["hooks"]["BERT-base"]
            ways[way] = {"median": 20.6, "least": 19.0}
            ways["DDP, last"] = {"median": 19.5, "least": 19.0}
            self.assertEqual(self.one(result), f"BERT-base, {way}: +1.10 ms a step, the bar is 1.0")

    def test_what_was_not_timed_is_said(self) -> None:
        for part, empty in (("folds", []), ("host", []), ("torch", {}), ("hooks", {})):
            result = good()
            result[part] = copy.copy(empty)
            self.assertIn("no figure", self.one(result))

    def test_the_run_that_is_kept(self) -> None:
        kept = json.loads((ROOT / "bench" / "results" / "gpu.json").read_text())
        for row in run.compare(kept["phases"]):
            said = next((old for old in kept["bars"] if old["what"] == row["what"]), None)
            self.assertEqual(row.get("TB/s"), said and said.get("TB/s"))
        page = (ROOT / "bench" / "results" / "gpu.md").read_text()
        for note in kept["notes"]:
            self.assertIn(f"\n**Note.** {note}\n", page)

    def test_notes_stand_at_the_top_of_the_page(self) -> None:
        result = good()
        faults(result)
        self.assertNotIn("**Note.**", run.table(result))
        result["notes"] = ["older than sketches", "a busy device"]
        before, _, tables = run.table(result).partition("| what |")
        self.assertIn("\n**Note.** older than sketches\n\n**Note.** a busy device\n", before)
        self.assertNotIn("**Note.**", tables)


if __name__ == "__main__":
    unittest.main()

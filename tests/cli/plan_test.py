#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`addend plan`: calibrated here, or from a file whose figures are round. Usage:
plan_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import array
import collections
import copy
import json
import struct
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
ENGINES = ["ring", "mesh", "server", "tree", "switch"]


def model(codec: str, seconds: float, nbytes: float, **other: Any) -> dict[str, Any]:
    """A codec with costs in proportion to elements."""
    cost = {
        "density": 1,
        "encode_s": [0, seconds],
        "decode_s": [0, seconds],
        "up_bytes": [0, nbytes],
        "down_bytes": [0, nbytes],
    }
    plain = {"loss": 0, "fidelity": 1, "keeps": 0, "same_positions": False, "rounds": 1}
    return {"codec": codec, **plain, "costs": [cost], **other}


ROUND = {
    "format": "addend-calibration",
    "version": 1,
    "add_s": [0, 0],
    "codecs": [
        model("dense", 0, 4),
        model("cast:to=f16", 1e-10, 2, loss=1, fidelity=0.9999),
        model("quant", 5e-10, 0.625, loss=1, fidelity=0.97),
        model("random:density=0.01", 1e-10, 0.04, loss=2, fidelity=0.01, keeps=0.01),
    ],
}


def addend(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ADDEND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )


def write_npy(path: Path, values: Sequence[float], kind: str = "f") -> None:
    header = f"{{'descr': '<f{4 if kind == 'f' else 8}', 'fortran_order': False, "
    header += f"'shape': ({len(values)},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    path.write_bytes(data + array.array(kind, values).tobytes())


class _Page(HTMLParser):
    """What is left open, what would be loaded from elsewhere, and how often each tag stands."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.count: collections.Counter[str] = collections.Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        self.loads += [name for name, _ in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


class PlanTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.calibration = self.folder / "calibration.json"
        self.calibration.write_text(json.dumps(ROUND))

    def plan(self, *arguments: object) -> Any:
        done = addend("plan", "--calibration", self.calibration, "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def row(self, document: Any, engine: str, codec: str) -> Any:
        (found,) = (
            row for row in document["rows"] if (row["engine"], row["codec"]) == (engine, codec)
        )
        return found

    def refused(self, words: str, code: int, *arguments: object) -> None:
        done = addend("plan", *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(words, done.stderr)


class AnswerTest(PlanTest):
    def test_steps_are_the_closed_form_where_nothing_overlaps(self) -> None:
        document = self.plan("--buckets", 10**6, "--workers", 8, "--gbit", 8, "--latency-us", 100)
        seconds = {
            "ring": 14e-4 + 2 * 4e6 * 7 / 8 / 1e9,
            "mesh": 2e-4 + 2 * 4e6 * 7 / 8 / 1e9,
            "server": 2e-4 + 8 * 4e6 / 1e9,
            "tree": 2e-4 + 8 * 4e6 / 1e9,
            "switch": 2e-4 + 2 * 4e6 / 1e9,
        }
        for engine, expected in seconds.items():
            row = self.row(document, engine, "dense")
            self.assertAlmostEqual(row["step_s"], expected, places=9)
            self.assertEqual(row["closed_form"], engine in ("tree", "switch"))
        mesh = self.row(document, "mesh", "cast:to=f16")
        self.assertAlmostEqual(mesh["step_s"], 2e-4 + 2e-4 + 2 * 2e6 * 7 / 8 / 1e9, places=9)
        self.assertAlmostEqual(mesh["link_bytes"], 2 * 2e6 * 7 / 8)

    def test_recommends_what_pays_within_the_floor(self) -> None:
        arguments = ["--elements", "25M", "--workers", 8, "--gbit", 1]
        safe = self.plan(*arguments)
        self.assertTrue(safe["pays"])
        self.assertEqual(safe["codec"], "quant")  # random keeps a hundredth of the progress
        self.assertIn("use quant over mesh", safe["verdict"])
        low, high = safe["band"]
        self.assertLessEqual(low, safe["gain"])
        self.assertLessEqual(safe["gain"], high)
        self.assertLess(low, high)
        exact = self.plan(*arguments, "--floor", "exact")
        self.assertFalse(exact["pays"])
        self.assertEqual(exact["codec"], "dense")

    def test_the_first_line_says_that_nothing_pays(self) -> None:
        arguments = ["--elements", 10**6, "--gbit", 100, "--backward-ms", 500]
        done = addend("plan", "--calibration", self.calibration, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout.splitlines()[0], "^nothing pays")

    def test_a_gain_of_four_percent_is_none(self) -> None:
        close = copy.deepcopy(ROUND)
        close["codecs"][1:] = [model("close", 0, 4 / 1.04)]  # type: ignore[index]
        self.calibration.write_text(json.dumps(close))
        arguments = ["--buckets", 10**8, "--gbit", 1, "--latency-us", 0, "--engine", "mesh"]
        document = self.plan(*arguments)
        self.assertAlmostEqual(document["gain"], 1.04, places=6)
        self.assertFalse(document["pays"])
        self.assertRegex(document["verdict"], r"^nothing pays: close over mesh would gain 4\.0 %")

    def test_what_was_never_measured_is_shown_but_not_recommended(self) -> None:
        document = self.plan("--elements", "25M", "--workers", 64, "--gbit", 1)
        self.assertEqual(sorted({row["engine"] for row in document["rows"]}), sorted(ENGINES))
        self.assertNotIn(document["engine"], ("tree", "switch"))
        alone = self.plan("--elements", "25M", "--gbit", 1, "--engine", "switch")
        self.assertRegex(alone["verdict"], "^use quant over switch, by a closed form alone:")

    def test_break_even_is_where_both_take_as_long(self) -> None:
        arguments = ["--buckets", 10**7, "--workers", 8, "--latency-us", 0, "--engine", "ring"]
        found = self.row(self.plan(*arguments), "ring", "quant")["break_even_gbit"]
        at = self.row(self.plan(*arguments, "--gbit", found), "ring", "quant")
        self.assertAlmostEqual(at["over_f32"], 1, places=4)
        slower = self.row(self.plan(*arguments, "--gbit", found / 2), "ring", "quant")
        self.assertGreater(slower["over_f32"], 1.1)

    def test_curves_are_the_table_at_other_links_and_workers(self) -> None:
        arguments = ["--elements", "5M", "--engine", "server", "--workers", 4]
        curves = self.plan(*arguments, "--gbit", 10)["curves"]
        (quant,) = (one for one in curves["codecs"] if one["codec"] == "quant")
        at = curves["gbit"].index(1)
        slow = self.row(self.plan(*arguments, "--gbit", 1), "server", "quant")
        self.assertAlmostEqual(quant["over_gbit"][at], slow["over_f32"], places=9)
        self.assertEqual([one["form"] for one in curves["forms"]], ["H0", "H1", "H2"])
        # Whoever adds has to decode each worker's: the more workers, the worse.
        h0, h1, h2 = (one["over_workers"] for one in curves["forms"])
        self.assertTrue(all(a < b <= c for a, b, c in zip(h0, h1, h2)))

    def test_the_speedup_model_adds_up_what_the_timeline_overlaps(self) -> None:
        arguments = ["--buckets", 10**6, "--latency-us", 0, "--gbit", 8, "--backward-ms", 3]
        forms = self.plan(*arguments)["curves"]["forms"]  # of quant, at a server
        dense, wire, codec = 8 * 4e-3, 8 * 0.625e-3, 0.5e-3  # seconds at 8 workers
        expected = [
            (3e-3 + dense) / (3e-3 + wire + 2 * codec + 9 * codec),
            (3e-3 + dense) / (3e-3 + wire + 2 * codec),
            (3e-3 + dense) / (3e-3 + wire + 2 * codec / 100),
        ]
        self.assertEqual(self.plan(*arguments)["curves"]["form_codec"], "quant")
        for form, speedup in zip(forms, expected):
            self.assertAlmostEqual(form["model_over_workers"][2], speedup, places=9)

    def test_the_document_is_written(self) -> None:
        out = self.folder / "plan.json"
        printed = self.plan("--elements", "1M", "--out", out)
        self.assertEqual(json.loads(out.read_text()), printed)


class PageTest(PlanTest):
    def test_says_the_verdict_first_and_marks_what_is_only_a_formula(self) -> None:
        unfriendly = copy.deepcopy(ROUND)
        unfriendly["codecs"][2]["codec"] = "a<b&c"  # type: ignore[index]
        self.calibration.write_text(json.dumps(unfriendly))
        out = self.folder / "plan.html"
        document = self.plan("--elements", "25M", "--gbit", 1, "--html", out)
        text = out.read_text(encoding="utf-8")
        found = _Page()
        found.feed(text)
        self.assertEqual(found.open, [])
        self.assertEqual(found.loads, [])
        self.assertLess(text.index("use a&lt;b&amp;c over mesh"), text.index("<table"))
        self.assertIn("switch (closed form)", text)
        self.assertEqual(found.count["tr"], 1 + len(document["rows"]))
        # Codecs over links and over workers; three forms, each as a timeline and as a model.
        self.assertEqual(found.count["polyline"], 2 * len(ROUND["codecs"]) + 6)  # type: ignore[arg-type]
        gbits, workers = document["curves"]["gbit"], document["curves"]["workers"]
        self.assertEqual((gbits[0], gbits[-1]), (0.1, 400))
        self.assertEqual((workers[0], workers[-1]), (2, 4096))

    def test_a_page_that_cannot_be_written_is_an_error(self) -> None:
        use = ["--elements", "1M", "--calibration", self.calibration]
        self.refused("nowhere", 1, *use, "--html", self.folder / "nowhere" / "plan.html")


class GradientsTest(PlanTest):
    def test_recorded_gradients_say_density_and_union(self) -> None:
        one, other = [0.0] * 1000, [0.0] * 1000
        one[0:10] = other[5:15] = [1.0] * 10
        files = [self.folder / "0.npy", self.folder / "1.npy"]
        write_npy(files[0], one)
        write_npy(files[1], other)
        document = self.plan("--gradients", *files, "--workers", 2)
        self.assertAlmostEqual(document["job"]["density"], 0.01)
        self.assertAlmostEqual(document["job"]["union_density"], 0.015)
        more = self.plan("--gradients", *files, "--workers", 8)
        self.assertIsNone(more["job"]["union_density"])
        self.assertTrue(any("independent" in note for note in more["notes"]))

    def test_says_what_is_wrong_with_a_file(self) -> None:
        good, wide, short = (self.folder / f"{name}.npy" for name in ("good", "wide", "short"))
        write_npy(good, [1.0, 2.0])
        write_npy(wide, [1.0], kind="d")
        write_npy(short, [1.0])
        use = ["--calibration", self.calibration, "--gradients"]
        self.refused("<f8", 1, *use, wide)
        self.refused("shape", 1, *use, good, short)
        self.refused("nowhere.npy", 1, *use, self.folder / "nowhere.npy")

    def test_reads_what_advise_records(self) -> None:
        job = self.folder / "job.json"
        buckets = [
            {"elements": 1e6, "ready_s": 0.01, "tables": 0.0},
            {"elements": 2e6, "ready_s": 0.05, "tables": 1e6},
        ]
        job.write_text(json.dumps({"buckets": buckets, "rest_s": 0.002, "density": 0.5}))
        document = self.plan("--job", job, "--engine", "mesh", "--gbit", 100)
        self.assertEqual(document["job"]["buckets"], buckets)
        # Both buckets are ready before the first would be missed: the last one's time counts.
        dense = self.row(document, "mesh", "dense")["step_s"]
        self.assertAlmostEqual(dense, 0.05 + 1e-4 + 2 * 8e6 * 3 / 4 / 12.5e9 + 0.002, places=9)
        job.write_text(json.dumps({"buckets": buckets[::-1]}))
        self.refused("order", 1, "--calibration", self.calibration, "--job", job)
        job.write_text("{}")
        self.refused("not a job", 1, "--calibration", self.calibration, "--job", job)


class CalibrationTest(PlanTest):
    def test_measures_saves_and_reads_the_same(self) -> None:
        saved = self.folder / "here.json"
        arguments = ["--elements", "1M", "--gbit", 1, "--engine", "mesh"]
        measure = ["--largest", "256K", "--save-calibration", saved]
        done = addend("plan", *arguments, *measure, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        again = addend("plan", *arguments, "--calibration", saved, "--json")
        self.assertEqual(json.loads(done.stdout), json.loads(again.stdout))
        models = {one["codec"]: one for one in json.loads(saved.read_text())["codecs"]}
        self.assertEqual(next(iter(models)), "dense")
        self.assertIn("leader:density=0.01", models)
        # Bytes are the codec's own, whatever the machine: 2 an element, and a lane of 8 bits.
        (cast,) = models["cast:to=f16"]["costs"]
        self.assertAlmostEqual(cast["up_bytes"][1], 2, places=3)
        (quant,) = models["quant"]["costs"]
        self.assertAlmostEqual(quant["up_bytes"][1], 1, places=1)
        # Four workers share the lane, so each has fewer levels than one alone.
        self.assertGreater(models["quant"]["fidelity"], 0.9)
        self.assertLess(models["quant"]["fidelity"], 0.9995)
        self.assertGreater(models["cast:to=f16"]["fidelity"], 0.99999)
        densities = [one["density"] for one in models["exact"]["costs"]]
        self.assertEqual(densities, sorted(densities))
        sparse, full = (models["exact"]["costs"][i]["up_bytes"][1] for i in (1, -1))
        self.assertLess(sparse, 0.5)
        self.assertAlmostEqual(full, 4, places=1)
        self.assertAlmostEqual(models["random:density=0.01"]["fidelity"], 0.01, places=2)

    def test_says_what_is_wrong_with_a_calibration(self) -> None:
        use = ["--elements", "1M", "--calibration", self.calibration]
        for text, words in (
            ("", "not a calibration"),
            ("{}", "format"),
            (json.dumps({**ROUND, "version": 2}), "this command reads 1"),
            (json.dumps({**ROUND, "codecs": []}), "dense is not in front"),
            (json.dumps({**ROUND, "add_s": [-1, 0]}), "below 0"),
        ):
            self.calibration.write_text(text)
            self.refused(words, 1, *use)
        self.calibration.unlink()
        self.refused("cannot be read", 1, *use)

    def test_refuses_what_it_has_no_model_of(self) -> None:
        self.refused("lowrank", 1, "--elements", "1M", "--codec", "lowrank")
        self.refused("zip", 1, "--elements", "1M", "--codec", "zip")


class CommandLineTest(PlanTest):
    def test_help_has_examples(self) -> None:
        done = addend("plan", "--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("Examples:", done.stdout)

    def test_wrong_command_lines(self) -> None:
        self.refused("--elements", 1, "--calibration", self.calibration)
        self.refused("--gbit", 2, "--elements", "1M", "--gbit", "0")
        self.refused("--workers", 2, "--elements", "1M", "--workers", "0")
        self.refused("carrier-pigeon", 2, "--elements", "1M", "--engine", "carrier-pigeon")
        self.refused("excludes", 2, "--elements", "1M", "--buckets", "5")


if __name__ == "__main__":
    unittest.main()

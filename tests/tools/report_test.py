#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTML report is well formed, complete and self-contained."""

import importlib.util
import json
import math
import re
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "report.py"
VOID = {"meta", "link", "br", "img", "hr", "input"}


def load_report():
    spec = importlib.util.spec_from_file_location("report", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = load_report()


def result(codec: str, wire_bytes: int, codec_us: float, wrong: int = 0) -> dict:
    return {
        "codec": codec, "modes": "packed x1, dense x1", "wire_bytes": wire_bytes, "step_wire_bytes": [wire_bytes] * 2,
        "ratio": 4e6 / wire_bytes, "time_us": 900.0, "step_us": [1000.0, 900.0], "times_dense": 1.1,
        "encode_us": codec_us / 2, "reduce_us": 50.0, "decode_us": codec_us / 2, "codec_us": codec_us,
        "answer": f"{wrong} WRONG" if wrong else "= dense", "wrong": wrong, "max_abs_error": 0.0, "relative_l2_error": 0.0,
        "bit_identical_to_dense": True, "replicas_identical": True, "lossy": False, "nmse": 1e-16,
        "estimates": [{"gbit_per_s": g, "step_us": codec_us + wire_bytes * 8e-3 / g} for g in (1, 10, 100)],
        "buckets": [{"name": "a<b>&table", "count": 1000, "union_density": 0.05, "mode": "packed", "fallback": "none",
                     "rounds": 2, "wire_bytes": wire_bytes, "dense_bytes": 4_000_000}],
    }


def lossy(codec: str, wire_bytes: int, nmse: float) -> dict:
    return {**result(codec, wire_bytes, 700.0), "answer": f"nmse {nmse:.2g}", "lossy": True, "nmse": nmse,
            "bit_identical_to_dense": False}


def document(**changes) -> dict:
    base = {
        "kind": "addend demo", "workers": 4, "steps": 2, "dtype": "f32", "scale": 1.0, "seed": 1,
        "hint": {"latency_us": 50, "gbit_per_s": 10},
        "machine": {"version": "0.1.0", "build_type": "Release", "cpu": "A <fast> CPU", "cores": 2, "simd": "AVX2",
                    "memory_bytes": 1 << 34, "huge_pages": "madvise", "kernel": "Linux 6.1"},
        "models": [
            {"name": name, "description": "rows & columns", "count": 1_000_000, "dense_bytes": 4_000_000,
             "results": [result("dense", 4_000_000, 10.0), result("exact", 400_000, 900.0),
                         result("exact:mode=sketch,values=reproducible", 500_000, 9000.0)]}
            for name in ("recommender", "vision")],
    }
    return {**base, **changes}


class TagChecker(HTMLParser):
    """Fails on a tag that closes what is not open."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            raise AssertionError(f"</{tag}> closes {self.open[-3:]}")
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def parse(page: str) -> TagChecker:
    checker = TagChecker()
    checker.feed(page)
    checker.close()
    return checker


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.page = report.render(document())
        self.parsed = parse(self.page)

    def test_tags_are_balanced(self):
        self.assertEqual(self.parsed.open, [])

    def test_names_every_model_and_codec(self):
        text = " ".join(self.parsed.text)
        for name in ("Recommender", "Vision", "dense", "exact", "exact:mode=sketch,values=reproducible", "a<b>&table",
                     "A <fast> CPU"):
            self.assertIn(name, text)

    def test_loads_nothing_from_elsewhere(self):
        self.assertEqual(self.parsed.links, [])
        self.assertIsNone(re.search(r"(https?:)?//|url\(|@import|<script", self.page))

    def test_plots_stand_in_the_page(self):
        self.assertEqual(self.page.count("<svg"), 2 * 4)
        self.assertEqual(self.page.count("<polyline"), 2 * 3)
        self.assertNotIn("nan", re.sub(r"[a-z]+nan[a-z]+", "", self.page.lower()))

    def test_says_where_compression_stops_paying(self):
        dense, exact, slow = document()["models"][0]["results"]
        limit = report.break_even(exact, dense)
        self.assertAlmostEqual(report.estimate_us(exact, limit), report.estimate_us(dense, limit), places=6)
        self.assertEqual(report.break_even_text(dense, dense), "-")
        self.assertEqual(report.break_even_text(result("bad", 5_000_000, 900.0), dense), "nowhere")
        self.assertTrue(math.isinf(report.break_even(result("good", 400, 1.0), dense)))
        self.assertEqual(report.break_even_text(result("none", 4_000_000, 5.0), dense), "same bytes")
        self.assertIn("dense beyond", report.fastest_sentence([dense, exact, slow]))

    def test_wrong_elements_cannot_be_missed(self):
        bad = document()
        bad["models"][0]["results"][1] = result("exact", 400_000, 900.0, wrong=7)
        page = report.render(bad)
        self.assertIn('class="bad">7 elements were wrong', page)
        self.assertIn('class="text bad">7 WRONG', page)

    def test_lossy_codecs_show_their_error(self):
        models = document()["models"]
        models[0]["results"] += [lossy("quant", 1_000_000, 0.0015), lossy("quant:carrier=indices", 500_000, 0.0015)]
        page = report.render(document(models=models))
        text = " ".join(parse(page).text)
        self.assertIn("nmse 0.0015", text)
        self.assertIn("Error against bytes", text)
        self.assertEqual(page.count("<circle"), 5)
        self.assertEqual(page.count("<svg"), 2 * 4 + 1)
        for cell in re.findall(r'c[xy]="([^"]+)"', page):
            self.assertTrue(math.isfinite(float(cell)))

    def test_error_plot_needs_an_error(self):
        self.assertNotIn("Error against bytes", self.page)
        perfect = {**document()["models"][0], "results": [lossy("quant", 12, 0.0)]}
        self.assertEqual(report.error_plot(perfect["results"], report.Palette(document(models=[perfect]))), "")

    def test_one_codec_alone_is_enough(self):
        models = [{**document()["models"][0], "results": [result("exact", 400_000, 900.0)]}]
        self.assertEqual(parse(report.render(document(models=models))).open, [])


class CommandTest(unittest.TestCase):
    def run_script(self, text: str):
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "in.json", Path(folder) / "out.html"
            source.write_text(text, encoding="utf-8")
            done = subprocess.run([sys.executable, SCRIPT, source, "-o", target], capture_output=True, text=True, check=False)
            return done, target.read_text(encoding="utf-8") if target.exists() else None

    def test_writes_the_page(self):
        done, page = self.run_script(json.dumps(document()))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(page.startswith("<!DOCTYPE html>"))

    def test_refuses_other_input_without_leaving_a_file(self):
        for text in ("{}", "not json", "[]"):
            done, page = self.run_script(text)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn("is not the JSON of", done.stderr)
            self.assertIsNone(page)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTML reports are well formed, complete and self-contained, and say what the numbers do."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import report_codecs as codecs  # noqa: E402
import report_page as page  # noqa: E402
import report_plots as plots  # noqa: E402
import report_training as training  # noqa: E402

Attributes = list[tuple[str, "str | None"]]
VOID = {"meta", "link", "br", "img", "hr", "input"}


def result(codec: str, wire_bytes: int, codec_us: float, wrong: int = 0) -> dict[str, Any]:
    return {
        "codec": codec,
        "modes": "packed x1, dense x1",
        "wire_bytes": wire_bytes,
        "step_wire_bytes": [wire_bytes] * 2,
        "ratio": 4e6 / wire_bytes,
        "time_us": 900.0,
        "step_us": [1000.0, 900.0],
        "times_dense": 1.1,
        "encode_us": codec_us / 2,
        "reduce_us": 50.0,
        "decode_us": codec_us / 2,
        "codec_us": codec_us,
        "answer": f"{wrong} WRONG" if wrong else "= dense",
        "wrong": wrong,
        "max_abs_error": 0.0,
        "relative_l2_error": 0.0,
        "bit_identical_to_dense": True,
        "replicas_identical": True,
        "lossy": False,
        "nmse": 1e-16,
        "estimates": [
            {"gbit_per_s": g, "step_us": codec_us + wire_bytes * 8e-3 / g} for g in (1, 10, 100)
        ],
        "buckets": [
            {
                "name": "a<b>&table",
                "count": 1000,
                "union_density": 0.05,
                "mode": "packed",
                "fallback": "none",
                "rounds": 2,
                "wire_bytes": wire_bytes,
                "dense_bytes": 4_000_000,
            }
        ],
    }


def lossy(codec: str, wire_bytes: int, nmse: float) -> dict[str, Any]:
    return {
        **result(codec, wire_bytes, 700.0),
        "answer": f"nmse {nmse:.2g}",
        "lossy": True,
        "nmse": nmse,
        "bit_identical_to_dense": False,
    }


def document(**changes: Any) -> dict[str, Any]:
    base = {
        "kind": "addend demo",
        "workers": 4,
        "steps": 2,
        "dtype": "f32",
        "scale": 1.0,
        "seed": 1,
        "hint": {"latency_us": 50, "gbit_per_s": 10},
        "machine": {
            "version": "0.1.0",
            "build_type": "Release",
            "cpu": "A <fast> CPU",
            "cores": 2,
            "simd": "AVX2",
            "memory_bytes": 1 << 34,
            "huge_pages": "madvise",
            "kernel": "Linux 6.1",
        },
        "models": [
            {
                "name": name,
                "description": "rows & columns",
                "count": 1_000_000,
                "dense_bytes": 4_000_000,
                "results": [
                    result("dense", 4_000_000, 10.0),
                    result("exact", 400_000, 900.0),
                    result("exact:mode=sketch,values=reproducible", 500_000, 9000.0),
                ],
            }
            for name in ("recommender", "vision")
        ],
    }
    return {**base, **changes}


class TagChecker(HTMLParser):
    """Fails on a tag that closes what is not open."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self.links += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "action")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            raise AssertionError(f"</{tag}> closes {self.open[-3:]}")
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> TagChecker:
    checker = TagChecker()
    checker.feed(page)
    checker.close()
    return checker


class CodecsPageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.page = codecs.render(document())
        self.parsed = parse(self.page)

    def test_tags_are_balanced(self) -> None:
        self.assertEqual(self.parsed.open, [])

    def test_names_every_model_and_codec(self) -> None:
        text = " ".join(self.parsed.text)
        for name in (
            "Recommender",
            "Vision",
            "dense",
            "exact",
            "exact:mode=sketch,values=reproducible",
            "a<b>&table",
            "A <fast> CPU",
        ):
            self.assertIn(name, text)

    def test_loads_nothing_from_elsewhere(self) -> None:
        self.assertEqual(self.parsed.links, [])
        self.assertIsNone(re.search(r"(https?:)?//|url\(|@import|<script", self.page))

    def test_plots_stand_in_the_page(self) -> None:
        self.assertEqual(self.page.count("<svg"), 2 * 4)
        self.assertEqual(self.page.count("<polyline"), 2 * 3)
        self.assertNotIn("nan", re.sub(r"[a-z]+nan[a-z]+", "", self.page.lower()))

    def test_says_where_compression_stops_paying(self) -> None:
        dense, exact, slow = document()["models"][0]["results"]
        limit = codecs.break_even(exact, dense)
        assert limit is not None
        self.assertAlmostEqual(
            codecs.estimate_us(exact, limit), codecs.estimate_us(dense, limit), places=6
        )
        self.assertEqual(codecs.break_even_text(dense, dense), "-")
        self.assertEqual(codecs.break_even_text(result("bad", 5_000_000, 900.0), dense), "nowhere")
        self.assertEqual(codecs.break_even(result("good", 400, 1.0), dense), math.inf)
        self.assertEqual(
            codecs.break_even_text(result("none", 4_000_000, 5.0), dense), "same bytes"
        )
        self.assertIn("dense beyond", codecs.fastest_sentence([dense, exact, slow]))

    def test_wrong_elements_cannot_be_missed(self) -> None:
        bad = document()
        bad["models"][0]["results"][1] = result("exact", 400_000, 900.0, wrong=7)
        html = codecs.render(bad)
        self.assertIn('class="bad">7 elements were wrong', html)
        self.assertIn('class="text bad">7 WRONG', html)

    def test_lossy_codecs_show_their_error(self) -> None:
        models = document()["models"]
        models[0]["results"] += [
            lossy("quant", 1_000_000, 0.0015),
            lossy("quant:carrier=indices", 500_000, 0.0015),
        ]
        html = codecs.render(document(models=models))
        text = " ".join(parse(html).text)
        self.assertIn("nmse 0.0015", text)
        self.assertIn("Error against bytes", text)
        self.assertEqual(html.count("<circle"), 5)
        self.assertEqual(html.count("<svg"), 2 * 4 + 1)
        for cell in re.findall(r'c[xy]="([^"]+)"', html):
            self.assertTrue(math.isfinite(float(cell)))

    def test_error_plot_needs_an_error(self) -> None:
        self.assertNotIn("Error against bytes", self.page)
        perfect = {**document()["models"][0], "results": [lossy("quant", 12, 0.0)]}
        self.assertEqual(codecs.error_plot(perfect["results"], page.Palette(["quant"])), "")

    def test_one_codec_alone_is_enough(self) -> None:
        models = [{**document()["models"][0], "results": [result("exact", 400_000, 900.0)]}]
        self.assertEqual(parse(codecs.render(document(models=models))).open, [])


def trained(codec: str, step_s: float, wire_bytes: int, **changes: Any) -> dict[str, Any]:
    metrics = (
        {}
        if codec == "ddp"
        else {
            "step": 20.0,
            "wire_bytes": 20.0 * wire_bytes,
            "dense_bytes": 2e7,
            "time/encode_s": 0.02,
            "time/agree_s": 0.1,
            "time/reduce_s": 0.4,
            "time/decode_s": 0.02,
            "time/exposed_s": 0.5,
            "union_density": 0.05,
            "nmse": 0.0,
            "mode/two-level": 20.0,
            "fallback/first-step": 1.0,
        }
    )
    run = {
        "codec": codec,
        "losses": [1 / (i + 1) for i in range(20)],
        "step_s": [step_s] * 20,
        "median_step_s": step_s,
        "exposed_s": step_s / 2,
        "wire_bytes": wire_bytes,
        "link_bytes": 1.5 * wire_bytes,
        "metrics": metrics,
        "score": 0.9,
        "replicas_identical": True,
    }
    if codec.startswith("exact"):
        run["loss_difference"] = 2e-7
    return {**run, **changes}


def trainings(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    base = {
        "kind": "addend training",
        "workers": 4,
        "gbit": 1.0,
        "network": "links of <1> Gbit/s",
        "seed": 1,
        "baseline": "ddp",
        "machine": {
            "cpu": "A <fast> CPU",
            "cores": 2,
            "memory_bytes": 1 << 34,
            "kernel": "Linux 6.1",
            "python": "3.11",
            "torch": "2.13",
            "addend": "0.1.0",
        },
        "models": [
            {
                "name": "ncf",
                "description": "rows & columns",
                "score": "hits",
                "parameters": 250_000,
                "dense_bytes": 1_000_000,
                "runs": list(runs),
            }
        ],
        "checks": [{"claim": "same <losses>", "passed": True, "detail": "all"}],
    }
    return {**base, **changes}


DDP = trained("ddp", 0.2, 1_000_000)


class TrainingPageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.exact = trained("exact", 0.05, 50_000)
        self.quant = trained("quant:bits=4", 0.3, 250_000, losses=[2 / (i + 1) for i in range(20)])
        self.document = trainings(DDP, self.exact, self.quant)
        self.page = training.render(self.document)
        self.parsed = parse(self.page)

    def words(self, run: dict[str, Any]) -> str:
        return training.judgement(run, DDP, self.document)

    def test_is_well_formed_and_loads_nothing(self) -> None:
        self.assertEqual(self.parsed.open, [])
        self.assertEqual(self.parsed.links, [])
        self.assertIsNone(re.search(r"(https?:)?//|url\(|@import|<script", self.page))

    def test_says_what_was_run(self) -> None:
        text = " ".join(self.parsed.text)
        for words in (
            "Ncf",
            "ddp",
            "exact",
            "quant:bits=4",
            "Rows & columns",
            "links of <1> Gbit/s",
            "A <fast> CPU",
            "two-level x20",
            "first-step x1",
        ):
            self.assertIn(words, text)

    def test_shows_every_curve_over_steps_and_over_time(self) -> None:
        self.assertEqual(self.page.count("<polyline"), 2 * 3)
        self.assertEqual(self.page.count("<svg"), 5)

    def test_a_diverged_run_leaves_its_curve_out_where_it_has_no_number(self) -> None:
        diverged = trained("quant", 0.1, 1000, losses=[0.5] * 10 + [math.nan] * 5 + [math.inf] * 5)
        page_of_it = training.render(trainings(DDP, diverged))
        for points in re.findall(r'points="([^"]*)"', page_of_it):
            for value in re.split("[ ,]", points):
                self.assertTrue(math.isfinite(float(value)))

    def test_judges_by_the_measured_step(self) -> None:
        self.assertIn(
            "pays: steps are 4.00 times as fast, bytes 20.0 times fewer", self.words(self.exact)
        )
        self.assertIn("does not pay: steps take 1.50 times as long", self.words(self.quant))
        self.assertIn("neither pays nor costs", self.words(trained("exact", 0.2, 1_000_000)))
        self.assertIn("nothing to save", self.words(trained("exact", 0.2, 1_000_000)))

    def test_break_even_is_where_codec_time_is_what_the_saved_bytes_take(self) -> None:
        limit = training.break_even_gbit(self.exact, DDP, workers=4)
        saved_bits = (1_000_000 - 50_000) * 8 * 1.5
        self.assertAlmostEqual(saved_bits / (limit * 1e9), training.codec_seconds(self.exact))

    def test_says_what_the_saved_bytes_are_worth_on_this_link(self) -> None:
        # 950,000 bytes less, half as much again in a ring of four: 11.4 ms at 1 Gbit/s.
        self.assertIn("on this link the saved bytes take 11.4 ms", self.words(self.exact))
        self.assertIn("above 5.70 Gbit/s less than the codec", self.words(self.exact))
        self.document["gbit"] = None
        self.assertIn("nothing limits these links", self.words(self.exact))

    def test_says_at_the_top_what_paid_and_what_did_not(self) -> None:
        text = " ".join(" ".join(self.parsed.text).split())
        self.assertIn("Compression pays here for: exact on ncf.", text)
        self.assertIn("It does not pay for: quant:bits=4 on ncf.", text)

    def test_the_first_lossless_curve_lies_on_top(self) -> None:
        over_steps = self.page.split("<h3>Loss over steps</h3>")[1].split("</svg>")[0]
        titles = re.findall(r"<title>([^<]*)</title>", over_steps)
        self.assertEqual(titles, ["ddp", "quant:bits=4", "exact"])

    def test_time_to_loss_ends_where_the_mean_of_a_tenth_arrives(self) -> None:
        target = training.final_loss(DDP)
        for run, loss, seconds in (
            (DDP, target, 20 * 0.2),
            (self.exact, target, 20 * 0.05),
            (DDP, 0.75, 2 * 0.2),
        ):
            took = training.seconds_to_loss(run, loss)
            assert took is not None
            self.assertAlmostEqual(took, seconds)
        self.assertIsNone(training.seconds_to_loss(self.quant, target))

    def test_failed_checks_cannot_be_missed(self) -> None:
        failed = [{"claim": "ncf, exact: same losses", "passed": False, "detail": "differ by 0.5"}]
        split = trained("exact", 0.05, 50_000, replicas_identical=False)
        bad = training.render(trainings(DDP, split, checks=failed))
        self.assertIn('<p class="bad">Failed', bad)
        self.assertIn("differ by 0.5", bad)
        self.assertIn('class="text bad">DIFFER', bad)
        self.assertNotIn("bit for bit", bad)

    def test_unshaped_links_have_no_counter(self) -> None:
        self.assertIn(
            "not seen", training.render(trainings(trained("ddp", 0.2, 1000, link_bytes=None)))
        )

    def test_baseline_alone_is_enough(self) -> None:
        self.assertEqual(parse(training.render(trainings(DDP))).open, [])


def decided(step: int, *codecs: str) -> dict[str, Any]:
    return {
        "step": step,
        "codecs": list(codecs),
        "elements": [1000] * len(codecs),
        "why": ["best"] * len(codecs),
        "realised_s": 0.2,
        "predicted_s": 0.1,
        "predicted_dense_s": 0.2,
        "phi": 0.97,
        "gbit_per_s": 1.0,
        "steps": 10,
        "reference_steps": 0,
    }


class DecisionsTest(unittest.TestCase):
    def panel(self, *decisions: dict[str, Any]) -> str:
        run = trained("adaptive", 0.05, 50_000, decisions=list(decisions))
        text = training.render(trainings(DDP, run))
        self.assertEqual(parse(text).open, [])
        return text[text.index("What adaptive decided") :]

    def test_each_bucket_has_a_bar_from_each_decision_to_the_next(self) -> None:
        panel = self.panel(
            decided(5, "dense", "exact"),
            decided(9, "quant", "exact"),
            decided(14, "quant", "quant"),
        )
        titles = re.findall(r"<title>(steps [^<]+)</title>", panel)
        self.assertEqual(len(titles), 6)
        self.assertIn("steps 5 to 8: dense, best", titles)
        self.assertIn("steps 14 to 19: quant, best", titles)

    def test_a_plan_that_is_kept_is_one_row(self) -> None:
        panel = self.panel(
            decided(5, "exact", "exact"),
            decided(9, "exact", "exact"),
            decided(14, "quant", "exact"),
        )
        self.assertEqual(panel.count("exact x2"), 1)
        self.assertIn("quant, exact", panel)

    def test_a_run_without_a_decision_says_so(self) -> None:
        self.assertIn("no window ended", self.panel())

    def test_runs_that_decide_nothing_have_no_panel(self) -> None:
        text = training.render(trainings(DDP, trained("exact", 0.05, 50_000)))
        self.assertNotIn("decided, bucket by bucket", text)


class PlotTest(unittest.TestCase):
    def test_linear_ticks_are_round_and_inside(self) -> None:
        self.assertEqual(plots.LinearPlot.ticks((0.0, 120.0)), [0, 20, 40, 60, 80, 100, 120])
        self.assertEqual(plots.LinearPlot.ticks((0.49, 0.71)), [0.5, 0.55, 0.6, 0.65, 0.7])
        self.assertEqual(plots.LinearPlot.ticks((0.0, 0.3)), [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])

    def test_axes_run_from_end_to_end(self) -> None:
        for plot in (plots.LinearPlot((2, 4), (10, 20)), plots.LogPlot((2, 4), (10, 20))):
            self.assertAlmostEqual(plot.x(2), plot.left)
            self.assertAlmostEqual(plot.x(4), plot.width - plot.right)
            self.assertAlmostEqual(plot.y(10), plot.height - plot.bottom)
            self.assertAlmostEqual(plot.y(20), plot.top)

    def test_pale_part_is_cut_off_the_solid_bar(self) -> None:
        chart = page.bar_chart(
            "t",
            [{"codec": "a", "v": 4.0}],
            lambda r: r["v"],
            lambda r: "",
            page.Palette(["a"]),
            pale=lambda r: 1.0,
        )
        self.assertEqual(re.findall(r'width="([^"]+)"', chart), ["250.0", "187.5"])


class CommandTest(unittest.TestCase):
    def run_script(self, text: str) -> tuple[subprocess.CompletedProcess[str], str | None]:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "in.json", Path(folder) / "out.html"
            source.write_text(text, encoding="utf-8")
            done = subprocess.run(
                [sys.executable, TOOLS / "report.py", source, "-o", target],
                capture_output=True,
                text=True,
                check=False,
            )
            return done, target.read_text(encoding="utf-8") if target.exists() else None

    def test_writes_the_page(self) -> None:
        for written in (document(), trainings(DDP)):
            done, text = self.run_script(json.dumps(written))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(text is not None and text.startswith("<!DOCTYPE html>"))

    def test_refuses_other_input_without_leaving_a_file(self) -> None:
        for text in ("{}", "not json", "[]"):
            done, html = self.run_script(text)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn("is not the JSON of", done.stderr)
            self.assertIsNone(html)


if __name__ == "__main__":
    unittest.main()

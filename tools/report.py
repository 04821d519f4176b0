#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON of `addend demo --out FILE` into one self-contained HTML page with plots.

    tools/report.py report.json -o report.html

Python's standard library only; the page loads nothing from anywhere.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import sys
from pathlib import Path

LINK_RANGE = (0.1, 1000.0)  # Gbit/s, of the plot against link speed
SAME = 0.03  # differences below this are noise, and no claim is made from them
COLOURS = 8  # in STYLE, used in turn

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1c2024; --soft: #60666d; --line: #d9dde2; --panel: #f6f7f9;
  --c0: #7a828c; --c1: #0b6bcb; --c2: #c2410c; --c3: #15803d; --c4: #9333ea; --c5: #be185d; --c6: #a16207; --c7: #0e7490; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e6e9ec; --soft: #9aa3ac; --line: #343b42; --panel: #1c2126;
    --c0: #98a2ad; --c1: #5aa9f5; --c2: #fb923c; --c3: #4ade80; --c4: #c084fc; --c5: #f472b6; --c6: #facc15; --c7: #22d3ee; } }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .2rem; } h3 { font-size: .95rem; margin: 0 0 .4rem; }
p { margin: .3rem 0 .8rem; max-width: 60rem; } .soft { color: var(--soft); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: 1rem; margin: 1rem 0; }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem; }
.wide { grid-column: 1 / -1; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
.axis { stroke: var(--line); stroke-width: 1; } .curve { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin-top: .5rem; font-size: .85rem; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; vertical-align: -1px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; width: 100%; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th, td.wrap { white-space: normal; } th { color: var(--soft); font-weight: 600; vertical-align: bottom; } td.text, th.text { text-align: left; } .bad { color: var(--c2); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; } dt { color: var(--soft); } dd { margin: 0; }
"""


def escape(value: object) -> str:
    return html.escape(str(value), quote=True)


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(value: float) -> str:
    """Three significant digits, no exponent for the sizes met here."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def byte_text(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{number(value)} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def time_text(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{number(microseconds / 1e6)} s"
    if microseconds >= 1e3:
        return f"{number(microseconds / 1e3)} ms"
    return f"{number(microseconds)} us"


def decade_text(microseconds: float) -> str:
    scale, unit = next((s, u) for s, u in ((1e6, "s"), (1e3, "ms"), (0, "us")) if microseconds >= s * 0.999)
    return f"{microseconds / (scale or 1):g} {unit}"


def estimate_us(result: dict, gbit_per_s: float) -> float:
    """Codec time plus transmission time of one worker's bytes; the formula of `addend demo`."""
    return result["codec_us"] + result["wire_bytes"] * 8 / gbit_per_s * 1e-3


def break_even(result: dict, dense: dict) -> float | None:
    """Link speed in Gbit/s above which dense is faster; None if it is at every speed, infinity if at none."""
    saved = dense["wire_bytes"] - result["wire_bytes"]
    cost = result["codec_us"] - dense["codec_us"]
    if saved <= 0:
        return None
    return saved * 8e-3 / cost if cost > 0 else math.inf


def break_even_text(result: dict, dense: dict | None) -> str:
    if dense is None or result is dense:
        return "-"
    if abs(result["ratio"] - 1) < SAME:
        return "same bytes"
    limit = break_even(result, dense)
    if limit is None:
        return "nowhere"
    if math.isinf(limit):
        return "everywhere"
    return f"up to {number(limit)} Gbit/s"


class Palette:
    """One colour a codec, the same in every plot of the page."""

    def __init__(self, document: dict):
        names = [r["codec"] for model in document["models"] for r in model["results"]]
        self.index = {name: i % COLOURS for i, name in enumerate(dict.fromkeys(names))}

    def __getitem__(self, codec: str) -> str:
        return f"var(--c{self.index[codec]})"


def text_element(x: float, y: float, content: str, anchor: str = "start", css: str = "") -> str:
    style = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(content)}</text>'


def bar_chart(title: str, results: list[dict], value, label, palette: Palette) -> str:
    """Horizontal bars, one a codec; the name stands above its bar so that long names fit."""
    width, row, top = 340, 34, 4
    largest = max((value(r) for r in results), default=0) or 1
    parts = []
    for i, result in enumerate(results):
        y = top + i * row
        length = max(1.0, (width - 90) * value(result) / largest)
        parts.append(text_element(0, y + 11, result["codec"], css="soft"))
        parts.append(f'<rect x="0" y="{y + 15}" width="{length:.1f}" height="12" rx="2" fill="{palette[result["codec"]]}"/>')
        parts.append(text_element(length + 6, y + 25, label(result)))
    height = top + len(results) * row
    return (f'<div class="panel"><h3>{escape(title)}</h3><svg viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(title)}">{"".join(parts)}</svg></div>')


class LogPlot:
    """Both axes logarithmic, with decade lines."""

    width, height, left, right, top, bottom = 900, 380, 70, 20, 14, 72
    x_title = "link speed, Gbit/s"
    x_text = staticmethod("{:g}".format)
    y_text = staticmethod(decade_text)

    def __init__(self, x_range: tuple[float, float], y_range: tuple[float, float]):
        self.x_range, self.y_range = x_range, y_range

    def x(self, value: float) -> float:
        low, high = map(math.log10, self.x_range)
        return self.left + (math.log10(value) - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = map(math.log10, self.y_range)
        return self.height - self.bottom - (math.log10(value) - low) / (high - low) * (self.height - self.top - self.bottom)

    def decades(self, limits: tuple[float, float]) -> list[float]:
        first, last = math.ceil(math.log10(limits[0]) - 1e-9), math.floor(math.log10(limits[1]) + 1e-9)
        return [10.0**k for k in range(first, last + 1)]

    def axes(self) -> str:
        parts = []
        x0, x1 = self.left, self.width - self.right
        y0, y1 = self.height - self.bottom, self.top
        for value in self.decades(self.x_range):
            x = self.x(value)
            parts.append(f'<line class="axis" x1="{x:.1f}" y1="{y0}" x2="{x:.1f}" y2="{y1}"/>')
            parts.append(text_element(x, y0 + 16, self.x_text(value), "middle", "soft"))
        for value in self.decades(self.y_range):
            y = self.y(value)
            parts.append(f'<line class="axis" x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}"/>')
            parts.append(text_element(x0 - 8, y + 4, self.y_text(value), "end", "soft"))
        parts.append(text_element((x0 + x1) / 2, y0 + 34, self.x_title, "middle", "soft"))
        return "".join(parts)


def decade_range(values: list[float]) -> tuple[float, float]:
    """Whole decades around positive values, at least one."""
    values = [v for v in values if v > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def link_samples() -> list[float]:
    low, high = map(math.log10, LINK_RANGE)
    return [10 ** (low + (high - low) * i / 240) for i in range(241)]


def fastest_spans(results: list[dict]) -> list[tuple[float, float, dict]]:
    """(from, to, codec): who is estimated to be fastest over which link speeds. Dense keeps what nobody clearly wins."""
    dense = next((r for r in results if r["codec"] == "dense"), None)
    spans: list[tuple[float, float, dict]] = []
    for speed in link_samples():
        best = min(results, key=lambda r: estimate_us(r, speed))
        if dense and estimate_us(dense, speed) <= estimate_us(best, speed) * (1 + SAME):
            best = dense
        if spans and spans[-1][2] is best:
            spans[-1] = (spans[-1][0], speed, best)
        else:
            start = spans[-1][1] if spans else speed
            spans.append((start, speed, best))
    return spans


def link_plot(results: list[dict], palette: Palette) -> str:
    samples = link_samples()
    times = [estimate_us(r, s) for r in results for s in samples]
    low, high = min(times), max(times)
    plot = LogPlot(LINK_RANGE, decade_range([low, high]))
    parts = [plot.axes()]
    for result in results:
        points = " ".join(f"{plot.x(s):.1f},{plot.y(estimate_us(result, s)):.1f}" for s in samples)
        dash = ' stroke-dasharray="7 4"' if result["codec"] == "dense" else ""
        parts.append(f'<polyline class="curve" points="{points}" stroke="{palette[result["codec"]]}"{dash}>'
                     f'<title>{escape(result["codec"])}</title></polyline>')
    y = plot.height - 22
    parts.append(text_element(plot.left - 8, y + 10, "fastest", "end", "soft"))
    for start, end, best in fastest_spans(results):
        x, span = plot.x(start), plot.x(end) - plot.x(start)
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{max(span, 1):.1f}" height="12" fill="{palette[best["codec"]]}">'
                     f'<title>{escape(best["codec"])}</title></rect>')
    return (f'<svg viewBox="0 0 {plot.width} {plot.height}" role="img" aria-label="estimated step time against link '
            f'speed">{"".join(parts)}</svg>')


def legend(results: list[dict], palette: Palette) -> str:
    items = (f'<span><span class="swatch" style="background:{palette[r["codec"]]}"></span>{escape(r["codec"])}</span>'
             for r in results)
    return f'<div class="legend">{"".join(items)}</div>'


def fastest_sentence(results: list[dict]) -> str:
    words = []
    spans = fastest_spans(results)
    for i, (_, end, best) in enumerate(spans):
        reach = f"up to {number(end)} Gbit/s"
        if i == len(spans) - 1:
            reach = "beyond" if i > 0 else "at every speed shown"
        words.append(f"{best['codec']} {reach}")
    return "Estimated fastest: " + ", ".join(words) + "."


def answer_cell(result: dict) -> str:
    css = "text bad" if result["wrong"] > 0 else "text"
    return f'<td class="{css}">{escape(result["answer"])}</td>'


def is_lossy(result: dict) -> bool:
    return result.get("lossy", False)


def error_text(result: dict) -> str:
    """Error of the mean; what exact codecs round is not called one."""
    return f"{result['nmse']:.2g}" if is_lossy(result) else "-"


def error_plot(results: list[dict], palette: Palette) -> str:
    """Error against bytes; codecs that lose nothing stand on a line of their own below the axis."""
    errors = [r["nmse"] for r in results if is_lossy(r) and r["nmse"] > 0]
    if not errors:
        return ""
    plot = LogPlot(decade_range([r["wire_bytes"] for r in results]), decade_range(errors))
    plot.x_title, plot.x_text, plot.y_text = "MB on the wire, one worker and step", lambda v: f"{v / 1e6:g}", "{:g}".format
    none = plot.height - 24
    parts = [plot.axes(), text_element(plot.left - 8, none + 4, "none", "end", "soft")]
    for r in results:
        x = plot.x(max(r["wire_bytes"], 1))
        y = plot.y(r["nmse"]) if is_lossy(r) and r["nmse"] > 0 else none
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{palette[r["codec"]]}">'
                     f'<title>{escape(r["codec"])}: {byte_text(r["wire_bytes"])}, {escape(r["answer"])}</title></circle>')
    return ('<div class="panel wide"><h3>Error against bytes: squared error of the mean / mean squared norm of the gradients</h3>'
            f'<svg viewBox="0 0 {plot.width} {plot.height}" role="img" aria-label="error against bytes on the wire">'
            f'{"".join(parts)}</svg>{legend(results, palette)}</div>')


def result_table(results: list[dict], dense: dict | None) -> str:
    heads = ["codec", "ran", "answer", "error", "on the wire", "ratio", "step", "x dense", "codec time"]
    heads += [f"est. {e['gbit_per_s']:g}G" for e in results[0]["estimates"]] + ["faster than dense"]
    left = {"codec", "ran", "answer", "faster than dense"}
    head = "".join(f'<th{" class=text" if h in left else ""}>{escape(h)}</th>' for h in heads)
    rows = []
    for r in results:
        cells = [error_text(r), byte_text(r["wire_bytes"]), f"{number(r['ratio'])}x", time_text(r["time_us"]),
                 f"{r['times_dense']:.2f}x" if dense else "-", time_text(r["codec_us"]) if r["codec_us"] else "-"]
        cells += [time_text(e["step_us"]) for e in r["estimates"]]
        rows.append(f'<tr><td class="text">{escape(r["codec"])}</td><td class="text wrap">{escape(r["modes"])}</td>'
                    + answer_cell(r) + "".join(f"<td>{escape(c)}</td>" for c in cells)
                    + f'<td class="text">{escape(break_even_text(r, dense))}</td></tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def bucket_table(results: list[dict]) -> str:
    """What the automatic choice did, bucket by bucket; the first compressing codec if `exact` was not run."""
    chosen = next((r for r in results if r["codec"] == "exact"), None)
    chosen = chosen or next((r for r in results if r["codec"] != "dense"), None)
    if chosen is None:
        return ""
    rows = "".join(
        f'<tr><td class="text">{escape(b["name"])}</td><td>{b["count"]:,}</td><td>{100 * b["union_density"]:.2f} %</td>'
        f'<td class="text">{escape(b["mode"])}</td><td>{byte_text(b["wire_bytes"])}</td><td>{byte_text(b["dense_bytes"])}</td></tr>'
        for b in chosen["buckets"])
    return (f'<div class="panel wide"><h3>Buckets, as {escape(chosen["codec"])} sent them in the last step</h3>'
            '<div class="scroll"><table><thead><tr><th class="text">bucket</th><th>elements</th><th>union density</th>'
            f'<th class="text">ran</th><th>on the wire</th><th>dense</th></tr></thead><tbody>{rows}</tbody></table></div></div>')


def model_section(model: dict, palette: Palette) -> str:
    results = model["results"]
    dense = next((r for r in results if r["codec"] == "dense"), None)
    charts = [
        bar_chart("Bytes on the wire, one worker and step", results, lambda r: r["wire_bytes"],
                  lambda r: byte_text(r["wire_bytes"]), palette),
        bar_chart("Ratio: dense bytes / bytes on the wire", results, lambda r: r["ratio"],
                  lambda r: f"{number(r['ratio'])}x", palette),
        bar_chart("Step time, threads of this machine", results, lambda r: r["time_us"],
                  lambda r: time_text(r["time_us"]), palette),
    ]
    return (f'<h2>{escape(capitalize(model["name"]))}</h2><p class="soft">{escape(capitalize(model["description"]))}; '
            f'{model["count"] / 1e6:.1f} million parameters, {byte_text(model["dense_bytes"])} dense.</p>'
            f'{result_table(results, dense)}<div class="grid">{"".join(charts)}'
            '<div class="panel wide"><h3>Estimated step time against link speed: codec time + wire bytes / bandwidth</h3>'
            f'{link_plot(results, palette)}{legend(results, palette)}<p class="soft">{escape(fastest_sentence(results))} '
            'An estimate from measured codec time and bytes: no latency, no overlap with computation, no '
            'congestion. Dense counts its bytes only, as an engine would reduce it in place.</p></div>'
            f'{error_plot(results, palette)}{bucket_table(results)}</div>')


def machine_section(document: dict) -> str:
    machine = document["machine"]
    entries = {
        "addend": f"{machine['version']}, {machine['build_type']} build",
        "processor": f"{machine['cpu']}, {machine['cores']} usable cores, {machine['simd']} kernels",
        "memory": f"{byte_text(machine['memory_bytes'])}, huge pages: {machine['huge_pages'] or 'unknown'}",
        "kernel": machine["kernel"],
        "run": f"{document['workers']} workers as threads, {document['steps']} steps (the first is not timed), "
               f"{document['dtype']}, seed {document['seed']}, scale {document['scale']:g}",
        "planner's hint": f"{document['hint']['latency_us']:g} us a round, {document['hint']['gbit_per_s']:g} Gbit/s",
    }
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items())
    return f'<h2>Machine and run</h2><div class="panel"><dl>{items}</dl></div>'


def verdict(document: dict) -> str:
    wrong = sum(r["wrong"] for model in document["models"] for r in model["results"])
    if wrong:
        return f'<p class="bad">{wrong:,} elements were wrong.</p>'
    return ("<p>Every element of every step on every worker was checked against a double-precision sum: none was wrong. "
            "<em>exact</em>: the true sum, rounded once. <em>= dense</em>: bit for bit what a dense all-reduce gave. "
            "<em>as dense</em>: within what adding floats one by one may round. <em>nmse</em>: a lossy codec, within its error and the "
            "same on all workers; squared error of the mean / mean squared norm of the workers' gradients. <em>est. 1G, 10G, 100G</em>: estimated time of a "
            "step on such a link in Gbit/s. <em>faster than dense</em>: the link speeds for which that estimate beats dense's.</p>")


def render(document: dict) -> str:
    palette = Palette(document)
    sections = "".join(model_section(model, palette) for model in document["models"])
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Addend demo</title>'
            f"<style>{STYLE}</style></head><body><h1>Gradients that add while compressed</h1>"
            '<p class="soft">Workers encode their gradients, the encoded forms are summed without decoding, workers decode '
            f"the sum. All numbers below come from one run on one machine.</p>{verdict(document)}{sections}"
            f"{machine_section(document)}</body></html>\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("json", type=Path, help="what `addend demo --out` wrote")
    parser.add_argument("-o", "--out", type=Path, required=True, help="HTML file to write")
    options = parser.parse_args(arguments)
    try:
        document = json.loads(options.json.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("kind") != "addend demo":
            raise ValueError("it does not say so")
        page = render(document)
    except (OSError, ValueError, KeyError) as error:
        print(f"report: {options.json} is not the JSON of `addend demo`: {error!r}", file=sys.stderr)
        return 1
    options.out.write_text(page, encoding="utf-8")
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The page of `addend demo`: every codec on gradients of realistic shape, nothing trained."""

from __future__ import annotations

import math
from typing import Any

from report_page import (
    SAME,
    Palette,
    bar_chart,
    byte_text,
    capitalize,
    definitions,
    drawing,
    escape,
    legend,
    number,
    table,
    text_element,
    time_text,
    whole_page,
)
from report_plots import LogPlot, decade_range

Result = dict[str, Any]

LINK_RANGE = (0.1, 1000.0)  # Gbit/s, of the plot against link speed


def estimate_us(result: Result, gbit_per_s: float) -> float:
    """Codec time plus transmission time of one worker's bytes; the formula of `addend demo`."""
    return float(result["codec_us"] + result["wire_bytes"] * 8 / gbit_per_s * 1e-3)


def break_even(result: Result, dense: Result) -> float | None:
    """Gbit/s above which dense is faster; None if it is at every speed, infinity if at none."""
    saved = dense["wire_bytes"] - result["wire_bytes"]
    cost = result["codec_us"] - dense["codec_us"]
    if saved <= 0:
        return None
    return saved * 8e-3 / cost if cost > 0 else math.inf


def break_even_text(result: Result, dense: Result | None) -> str:
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


def link_samples() -> list[float]:
    low, high = map(math.log10, LINK_RANGE)
    return [10 ** (low + (high - low) * i / 240) for i in range(241)]


def fastest_spans(results: list[Result]) -> list[tuple[float, float, Result]]:
    """(from, to, codec): who is estimated to be fastest over which link speeds.

    Dense keeps what nobody clearly wins.
    """
    dense = next((r for r in results if r["codec"] == "dense"), None)
    spans: list[tuple[float, float, Result]] = []
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


def link_plot(results: list[Result], palette: Palette) -> str:
    samples = link_samples()
    times = [estimate_us(r, s) for r in results for s in samples]
    low, high = min(times), max(times)
    plot = LogPlot(LINK_RANGE, decade_range([low, high]))
    plot.x_title = "link speed, Gbit/s"
    parts = [plot.axes()]
    for result in results:
        points = plot.points(samples, [estimate_us(result, s) for s in samples])
        dash = ' stroke-dasharray="7 4"' if result["codec"] == "dense" else ""
        parts.append(
            f'<polyline class="curve" points="{points}" stroke="{palette[result["codec"]]}"{dash}>'
            f"<title>{escape(result['codec'])}</title></polyline>"
        )
    y = plot.height - 22
    parts.append(text_element(plot.left - 8, y + 10, "fastest", "end", "soft"))
    for start, end, best in fastest_spans(results):
        x, span = plot.x(start), plot.x(end) - plot.x(start)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(span, 1):.1f}" height="12" '
            f'fill="{palette[best["codec"]]}">'
            f"<title>{escape(best['codec'])}</title></rect>"
        )
    return drawing(
        plot.width, plot.height, "estimated step time against link speed", "".join(parts)
    )


def fastest_sentence(results: list[Result]) -> str:
    words = []
    spans = fastest_spans(results)
    for i, (_, end, best) in enumerate(spans):
        reach = f"up to {number(end)} Gbit/s"
        if i == len(spans) - 1:
            reach = "beyond" if i > 0 else "at every speed shown"
        words.append(f"{best['codec']} {reach}")
    return "Estimated fastest: " + ", ".join(words) + "."


def answer_cell(result: Result) -> str:
    css = "text bad" if result["wrong"] > 0 else "text"
    return f'<td class="{css}">{escape(result["answer"])}</td>'


def is_lossy(result: Result) -> bool:
    return bool(result.get("lossy", False))


def error_text(result: Result) -> str:
    """Error of the mean; what exact codecs round is not called one."""
    return f"{result['nmse']:.2g}" if is_lossy(result) else "-"


def error_plot(results: list[Result], palette: Palette) -> str:
    """Error against bytes; codecs that lose nothing stand on a line of their own below the axis."""
    errors = [r["nmse"] for r in results if is_lossy(r) and r["nmse"] > 0]
    if not errors:
        return ""
    plot = LogPlot(decade_range([r["wire_bytes"] for r in results]), decade_range(errors))
    plot.x_title = "MB on the wire, one worker and step"
    plot.x_text, plot.y_text = lambda v: f"{v / 1e6:g}", "{:g}".format
    none = plot.height - 24
    parts = [plot.axes(), text_element(plot.left - 8, none + 4, "none", "end", "soft")]
    for r in results:
        x = plot.x(max(r["wire_bytes"], 1))
        y = plot.y(r["nmse"]) if is_lossy(r) and r["nmse"] > 0 else none
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{palette[r["codec"]]}">'
            f"<title>{escape(r['codec'])}: {byte_text(r['wire_bytes'])}, "
            f"{escape(r['answer'])}</title></circle>"
        )
    svg = drawing(plot.width, plot.height, "error against bytes on the wire", "".join(parts))
    return (
        '<div class="panel wide"><h3>Error against bytes: squared error of the mean / mean squared '
        f"norm of the gradients</h3>{svg}{legend(results, palette)}</div>"
    )


def result_table(results: list[Result], dense: Result | None) -> str:
    heads = [
        "codec",
        "ran",
        "answer",
        "error",
        "on the wire",
        "ratio",
        "step",
        "x dense",
        "codec time",
    ]
    heads += [f"est. {e['gbit_per_s']:g}G" for e in results[0]["estimates"]] + ["faster than dense"]
    rows = []
    for r in results:
        cells = [
            error_text(r),
            byte_text(r["wire_bytes"]),
            f"{number(r['ratio'])}x",
            time_text(r["time_us"]),
            f"{r['times_dense']:.2f}x" if dense else "-",
            time_text(r["codec_us"]) if r["codec_us"] else "-",
        ]
        cells += [time_text(e["step_us"]) for e in r["estimates"]]
        rows.append(
            f'<tr><td class="text">{escape(r["codec"])}</td>'
            f'<td class="text wrap">{escape(r["modes"])}</td>'
            + answer_cell(r)
            + "".join(f"<td>{escape(c)}</td>" for c in cells)
            + f'<td class="text">{escape(break_even_text(r, dense))}</td></tr>'
        )
    return table(heads, rows, text_heads=("codec", "ran", "answer", "faster than dense"))


def bucket_table(results: list[Result]) -> str:
    """What `exact`, or the first compressing codec that was run, did bucket by bucket."""
    chosen = next((r for r in results if r["codec"] == "exact"), None)
    chosen = chosen or next((r for r in results if r["codec"] != "dense"), None)
    if chosen is None:
        return ""
    rows = [
        f'<tr><td class="text">{escape(b["name"])}</td><td>{b["count"]:,}</td>'
        f'<td>{100 * b["union_density"]:.2f} %</td><td class="text">{escape(b["mode"])}</td>'
        f"<td>{byte_text(b['wire_bytes'])}</td><td>{byte_text(b['dense_bytes'])}</td></tr>"
        for b in chosen["buckets"]
    ]
    heads = ("bucket", "elements", "union density", "ran", "on the wire", "dense")
    title = f"Buckets, as {chosen['codec']} sent them in the last step"
    return (
        f'<div class="panel wide"><h3>{escape(title)}</h3>'
        f"{table(heads, rows, text_heads=('bucket', 'ran'))}</div>"
    )


def model_section(model: Result, palette: Palette) -> str:
    results = model["results"]
    dense = next((r for r in results if r["codec"] == "dense"), None)
    charts = [
        bar_chart(
            "Bytes on the wire, one worker and step",
            results,
            lambda r: r["wire_bytes"],
            lambda r: byte_text(r["wire_bytes"]),
            palette,
        ),
        bar_chart(
            "Ratio: dense bytes / bytes on the wire",
            results,
            lambda r: r["ratio"],
            lambda r: f"{number(r['ratio'])}x",
            palette,
        ),
        bar_chart(
            "Step time, threads of this machine",
            results,
            lambda r: r["time_us"],
            lambda r: time_text(r["time_us"]),
            palette,
        ),
    ]
    size = f"{model['count'] / 1e6:.1f} million parameters, {byte_text(model['dense_bytes'])} dense"
    return (
        f"<h2>{escape(capitalize(model['name']))}</h2>"
        f'<p class="soft">{escape(capitalize(model["description"]))}; {size}.</p>'
        f'{result_table(results, dense)}<div class="grid">{"".join(charts)}<div class="panel wide">'
        "<h3>Estimated step time against link speed: codec time + wire bytes / bandwidth</h3>"
        f"{link_plot(results, palette)}{legend(results, palette)}"
        f'<p class="soft">{escape(fastest_sentence(results))} An estimate from measured codec time '
        "and bytes: no latency, no overlap with computation, no congestion. Dense counts its bytes "
        "only, as an engine would reduce it in place.</p></div>"
        f"{error_plot(results, palette)}{bucket_table(results)}</div>"
    )


def machine_section(document: Result) -> str:
    machine = document["machine"]
    hint = document["hint"]
    entries = {
        "addend": f"{machine['version']}, {machine['build_type']} build",
        "processor": f"{machine['cpu']}, {machine['cores']} usable cores, "
        f"{machine['simd']} kernels",
        "memory": f"{byte_text(machine['memory_bytes'])}, "
        f"huge pages: {machine['huge_pages'] or 'unknown'}",
        "kernel": machine["kernel"],
        "run": f"{document['workers']} workers as threads, {document['steps']} steps (the first is "
        f"not timed), {document['dtype']}, seed {document['seed']}, scale {document['scale']:g}",
        "planner's hint": f"{hint['latency_us']:g} us a round, {hint['gbit_per_s']:g} Gbit/s",
    }
    return f"<h2>Machine and run</h2>{definitions(entries)}"


def verdict(document: Result) -> str:
    wrong = sum(r["wrong"] for model in document["models"] for r in model["results"])
    if wrong:
        return f'<p class="bad">{wrong:,} elements were wrong.</p>'
    return (
        "<p>Every element of every step on every worker was checked against a double-precision "
        "sum: none was wrong. <em>exact</em>: the true sum, rounded once. <em>= dense</em>: bit "
        "for bit what a dense all-reduce gave. <em>as dense</em>: within what adding floats one "
        "by one may round. <em>nmse</em>: a lossy codec, within its error and the same on all "
        "workers; squared error of the mean / mean squared norm of the workers' gradients. "
        "<em>est. 1G, 10G, 100G</em>: estimated time of a step on such a link in Gbit/s. "
        "<em>faster than dense</em>: the link speeds for which that estimate beats dense's.</p>"
    )


def render(document: Result) -> str:
    palette = Palette(r["codec"] for model in document["models"] for r in model["results"])
    sections = "".join(model_section(model, palette) for model in document["models"])
    return whole_page(
        "Addend demo",
        '<h1>Gradients that add while compressed</h1><p class="soft">Workers encode their '
        "gradients, the encoded forms are summed without decoding, workers decode the sum. All "
        f"numbers below come from one run on one machine.</p>{verdict(document)}{sections}"
        f"{machine_section(document)}",
    )

# SPDX-License-Identifier: Apache-2.0
"""The page of `addend plan --out FILE`: what to do, the table, curves over links and workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from report_page import (
    Palette,
    byte_text,
    definitions,
    drawing,
    escape,
    legend,
    number,
    seconds_text,
    table,
    whole_page,
)
from report_plots import LogPlot, decade_range

Document = dict[str, Any]

HOW_TO_READ = {
    "step": "The end of a timeline with one lane each for backward pass, encoding, network, adding "
    "and decoding; buckets go through the lanes in the order in which they are ready.",
    "x fp32, x fp16": "Step time of overlapped dense fp32, and of cast:f16, by this one, on the "
    "same engine.",
    "fidelity": "The part of a step's progress that is left; the verdict weighs it.",
    "limit": "The lane without which the step would be shortest.",
    "pays below": "Link speed up to which it is faster than dense.",
    "closed form": "Tree and switch: from formulas alone, nothing of ours was measured.",
    "H0, H1, H2": "A server that decodes what each worker sent and encodes the sum; that adds the "
    "compressed form (Addend); and an optimizer that works on it, too, so that codecs run once in "
    "100 steps (the speedup model of arXiv 1711.10123).",
}


def factor_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def break_even_text(row: Document) -> str:
    if row["codec"] == "dense":
        return ""
    if row["pays_on_any_link"]:
        return "any link"
    gbit = row["break_even_gbit"]
    return f"{number(gbit)} Gbit/s" if gbit else "none"


def workers_text(row: Document) -> str:
    first, last = row["workers"]
    if row["codec"] == "dense" or not first:
        return "" if row["codec"] == "dense" else "none"
    return f"{first} to {last}"


def row_html(row: Document) -> str:
    engine = row["engine"] + (" (closed form)" if row["closed_form"] else "")
    cells = [
        seconds_text(row["step_s"]),
        factor_text(row["over_f32"]),
        factor_text(row["over_f16"]),
        byte_text(row["link_bytes"]),
        f"{row['fidelity']:.4g}",
        row["limit"],
        break_even_text(row),
        workers_text(row),
    ]
    return (
        f'<tr><td class="text">{escape(engine)}</td><td class="text">{escape(row["codec"])}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


class FactorPlot(LogPlot):
    """Speedups over something, both logarithmic."""

    y_text = staticmethod("{:g}x".format)


def curve_plot(title: str, x_title: str, xs: Sequence[float], curves: list[Document]) -> str:
    """`curves`: a name ("codec") and values ("ys") each."""
    palette = Palette(one["codec"] for one in curves)
    values = [y for one in curves for y in one["ys"] if y and math.isfinite(y)]
    plot = FactorPlot(decade_range(xs), decade_range(values))
    plot.x_title = x_title
    lines = "".join(
        f'<polyline class="curve" points="{plot.points(xs, one["ys"])}" '
        f'stroke="{palette[one["codec"]]}"><title>{escape(one["codec"])}</title></polyline>'
        for one in curves
    )
    svg = drawing(plot.width, plot.height, title, plot.axes() + lines)
    return f'<div class="panel"><h3>{escape(title)}</h3>{svg}{legend(curves, palette)}</div>'


def plots(document: Document) -> str:
    curves = document["curves"]

    def of(key: str) -> list[Document]:
        return [{"codec": one["codec"], "ys": one[key]} for one in curves["codecs"]]

    engine = curves["engine"]
    forms = [{"codec": one["form"], "ys": one["over_workers"]} for one in curves["forms"]]
    at = document["network"]
    return (
        '<div class="grid halves">'
        + curve_plot(
            f"Speedup over link speed: {engine}, {at['workers']} workers",
            "Gbit/s",
            curves["gbit"],
            of("over_gbit"),
        )
        + curve_plot(
            f"Speedup over workers: {engine}, {number(at['gbit'])} Gbit/s",
            "workers",
            curves["workers"],
            of("over_workers"),
        )
        + curve_plot(
            f"What the form allows: {curves['form_codec']} at a server",
            "workers",
            curves["workers"],
            forms,
        )
        + "</div>"
    )


def render(document: Document) -> str:
    network, job = document["network"], document["job"]
    elements = sum(bucket["elements"] for bucket in job["buckets"])
    low, high = document["band"]
    entries = {
        "workers": number(network["workers"]),
        "links": f"{number(network['gbit'])} Gbit/s, {number(network['latency_us'])} us; servers "
        f"{number(network['server_gbit'])} Gbit/s",
        "gradient": f"{elements / 1e6:.4g} million elements in {len(job['buckets'])} buckets, "
        f"{100 * job['density']:.3g} % of them non-zero on a worker",
        "backward pass": seconds_text(job["buckets"][-1]["ready_s"]),
        "gain": f"{document['gain']:.2f}; {low:.2f} to {high:.2f} if links are 20 % off",
    }
    notes = "".join(f"<li>{escape(note)}</li>" for note in document["notes"])
    heads = ["engine", "codec", "step", "x fp32", "x fp16", "link/step", "fidelity", "limit"]
    heads += ["pays below", "pays at workers"]
    rows = map(row_html, document["rows"])
    return whole_page(
        "Addend plan",
        f"<h1>Whether compression pays</h1><p><b>{escape(document['verdict'])}</b></p>"
        f"<ul>{notes}</ul>{definitions(entries)}"
        f"{plots(document)}{table(heads, rows, text_heads=('engine', 'codec'))}"
        f"<h2>How to read this</h2>{definitions(HOW_TO_READ)}",
    )

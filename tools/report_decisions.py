# SPDX-License-Identifier: Apache-2.0
"""What an adaptive run decided when, and why: a panel of the demo's page."""

from __future__ import annotations

import itertools
from typing import Any

from report_page import (
    Palette,
    drawing,
    escape,
    legend,
    number,
    seconds_text,
    table,
    text_element,
)
from report_plots import LinearPlot

Document = dict[str, Any]
Run = dict[str, Any]


def spans(run: Run) -> list[tuple[int, int, Document]]:
    """(first step, step after the last, decision) of each; before the first everything is dense."""
    decided = run["decisions"]
    ends = [one["step"] for one in decided[1:]] + [len(run["losses"])]
    return [(one["step"], end, one) for one, end in zip(decided, ends)]


def in_runs(words: list[str]) -> str:
    """ "exact x3, dense": what buckets have, in their order."""
    groups = ((word, len(list(group))) for word, group in itertools.groupby(words))
    return ", ".join(f"{word} x{count}" if count > 1 else word for word, count in groups)


def decision_strips(run: Run, palette: Palette) -> str:
    """A line for each bucket over the steps of the run, in the colour of its codec."""
    buckets = max(len(one["codecs"]) for one in run["decisions"])
    plot = LinearPlot((0.0, float(len(run["losses"]))), (0.0, 1.0))
    row, top = 22, 6
    parts = []
    for bucket in range(buckets):
        y = top + bucket * row
        parts.append(text_element(0, y + 12, f"bucket {bucket}", css="soft"))
        for begin, end, decision in spans(run):
            if bucket >= len(decision["codecs"]):
                continue
            codec, why = decision["codecs"][bucket], decision["why"][bucket]
            left, right = plot.x(begin), plot.x(end)
            size = f'x="{left:.1f}" y="{y}" width="{max(1.0, right - left - 1):.1f}" height="16"'
            title = f"steps {begin} to {end - 1}: {codec}, {why}"
            parts.append(
                f'<rect {size} rx="2" fill="{palette[codec]}"><title>{escape(title)}</title></rect>'
            )
    height = top + buckets * row
    for step in plot.ticks(plot.x_range):
        parts.append(text_element(plot.x(step), height + 14, f"{step:g}", "middle", "soft"))
    return drawing(plot.width, height + 20, "codec of each bucket over steps", "".join(parts))


def decision_rows(run: Run) -> list[str]:
    """One row for each plan, however many windows it held."""
    rows: list[str] = []
    before: list[str] | None = None
    for begin, _, one in spans(run):
        if one["codecs"] == before:
            continue
        before = one["codecs"]
        cells = [
            f"{begin}",
            *(seconds_text(one[key]) for key in ("realised_s", "predicted_s", "predicted_dense_s")),
            f"{one['phi']:.3g}",
            number(one["gbit_per_s"]),
        ]
        rows.append(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + f'<td class="text wrap">{escape(in_runs(one["codecs"]))}</td>'
            + f'<td class="text wrap">{escape(in_runs(one["why"]))}</td></tr>'
        )
    return rows


def decisions_panel(run: Run) -> str:
    """What an adaptive run did when, and why."""
    title = f"<h3>What {escape(run['codec'])} decided, bucket by bucket, over steps</h3>"
    if not run["decisions"]:
        return f'<div class="panel wide">{title}<p>Nothing: no window ended in this run.</p></div>'
    names = dict.fromkeys(codec for one in run["decisions"] for codec in one["codecs"])
    palette = Palette(["dense", *names])
    heads = ["from step", "step before", "predicted", "dense predicted", "phi", "Gbit/s"]
    heads += ["buckets have", "why"]
    rows = table(heads, decision_rows(run), text_heads=("buckets have", "why"))
    colours = legend([{"codec": name} for name in names], palette)
    return (
        f'<div class="panel wide">{title}<p class="soft">Dense before the first decision. Predicted'
        " and dense predicted are steps of the window that begins; step before is what one of the "
        f"window just over took.</p>{decision_strips(run, palette)}{colours}{rows}</div>"
    )

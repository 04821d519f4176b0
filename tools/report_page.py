# SPDX-License-Identifier: Apache-2.0
"""What the pages of tools/report.py share: style, units, and plots as inline SVG."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

SAME = 0.03  # differences below this are noise, and no claim is made from them
COLOURS = 8  # in STYLE, used in turn

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1c2024; --soft: #60666d; --line: #d9dde2;
  --panel: #f6f7f9; --c0: #7a828c; --c1: #0b6bcb; --c2: #c2410c; --c3: #15803d; --c4: #9333ea;
  --c5: #be185d; --c6: #a16207; --c7: #0e7490; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e6e9ec; --soft: #9aa3ac; --line: #343b42; --panel: #1c2126;
    --c0: #98a2ad; --c1: #5aa9f5; --c2: #fb923c; --c3: #4ade80; --c4: #c084fc; --c5: #f472b6;
    --c6: #facc15; --c7: #22d3ee; } }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .2rem; }
h3 { font-size: .95rem; margin: 0 0 .4rem; }
p { margin: .3rem 0 .8rem; max-width: 60rem; } .soft { color: var(--soft); }
ul { margin: .3rem 0 .8rem; padding-left: 1.2rem; max-width: 60rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: 1rem;
  margin: 1rem 0; }
.halves { grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: .9rem 1rem; }
.wide { grid-column: 1 / -1; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
.axis { stroke: var(--line); stroke-width: 1; } polyline { fill: none; }
.curve { stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin-top: .5rem; font-size: .85rem; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .35rem; vertical-align: -1px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; width: 100%; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th, td.wrap { white-space: normal; } th { color: var(--soft); font-weight: 600;
  vertical-align: bottom; } td.text, th.text { text-align: left; }
.bad { color: var(--c2); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; }
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


def seconds_text(seconds: float) -> str:
    return time_text(1e6 * max(0.0, seconds))


class Palette:
    """One colour a codec, the same in every plot of the page."""

    def __init__(self, codecs: Iterable[str]):
        self.index = {name: i % COLOURS for i, name in enumerate(dict.fromkeys(codecs))}

    def __getitem__(self, codec: str) -> str:
        return f"var(--c{self.index[codec]})"


def text_element(x: float, y: float, content: str, anchor: str = "start", css: str = "") -> str:
    style = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(content)}</text>'


def drawing(width: float, height: float, title: str, content: str) -> str:
    frame = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"'
    return f"<svg {frame}>{content}</svg>"


def bar_chart(
    title: str,
    results: Sequence[dict[str, Any]],
    value: Callable[[dict[str, Any]], float],
    label: Callable[[dict[str, Any]], str],
    palette: Palette,
    pale: Callable[[dict[str, Any]], float] = lambda result: 0.0,
) -> str:
    """Horizontal bars, one a codec; the name stands above its bar so that long names fit.

    `pale` is the part at a bar's end that is drawn pale.
    """
    width, row, top = 340, 34, 4
    scale = (width - 90) / (max((value(r) for r in results), default=0) or 1)
    parts = []
    for i, result in enumerate(results):
        y = top + i * row
        length = max(1.0, scale * value(result))
        solid = max(0.0, length - scale * pale(result))
        bar = f'y="{y + 15}" height="12" rx="2" fill="{palette[result["codec"]]}"'
        parts.append(text_element(0, y + 11, result["codec"], css="soft"))
        if solid < length:
            parts.append(f'<rect x="0" width="{length:.1f}" {bar} opacity="0.35"/>')
        parts.append(f'<rect x="0" width="{solid:.1f}" {bar}/>')
        parts.append(text_element(length + 6, y + 25, label(result)))
    svg = drawing(width, top + len(results) * row, title, "".join(parts))
    return f'<div class="panel"><h3>{escape(title)}</h3>{svg}</div>'


def legend(results: Sequence[dict[str, Any]], palette: Palette) -> str:
    items = (
        f'<span><span class="swatch" style="background:{palette[r["codec"]]}"></span>'
        f"{escape(r['codec'])}</span>"
        for r in results
    )
    return f'<div class="legend">{"".join(items)}</div>'


def definitions(entries: dict[str, str]) -> str:
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items())
    return f'<div class="panel"><dl>{items}</dl></div>'


def table(heads: Sequence[str], rows: Iterable[str], text_heads: Iterable[str]) -> str:
    """`rows` are whole <tr> elements; heads in `text_heads` stand left, as their cells do."""
    left = set(text_heads)
    head = "".join(f"<th{' class=text' if h in left else ''}>{escape(h)}</th>" for h in heads)
    parts = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table>{parts}</table></div>'


def whole_page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )

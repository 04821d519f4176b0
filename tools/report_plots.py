# SPDX-License-Identifier: Apache-2.0
"""Axes of plots, as inline SVG: logarithmic or linear."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from report_page import text_element

Range = tuple[float, float]


def decade_text(microseconds: float) -> str:
    units = ((1e6, "s"), (1e3, "ms"), (0, "us"))
    scale, unit = next((s, u) for s, u in units if microseconds >= s * 0.999)
    return f"{microseconds / (scale or 1):g} {unit}"


def decade_range(values: Sequence[float]) -> Range:
    """Whole decades around positive values, at least one."""
    values = [v for v in values if v > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


class Plot:
    """A frame with two axes. A kind of plot says how values lie on an axis and which are named."""

    width, height, left, right, top, bottom = 900, 380, 70, 20, 14, 72
    x_title = ""
    x_text: Callable[[float], str] = staticmethod("{:g}".format)
    y_text: Callable[[float], str] = staticmethod("{:g}".format)

    def __init__(self, x_range: Range, y_range: Range):
        self.x_range, self.y_range = x_range, y_range

    @staticmethod
    def place(value: float, limits: Range) -> float:
        """Where `value` lies between the limits: 0 to 1."""
        raise NotImplementedError

    @staticmethod
    def ticks(limits: Range) -> list[float]:
        raise NotImplementedError

    def x(self, value: float) -> float:
        return self.left + self.place(value, self.x_range) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        span = self.height - self.top - self.bottom
        return self.height - self.bottom - self.place(value, self.y_range) * span

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys))

    def axes(self) -> str:
        parts = []
        x0, x1 = self.left, self.width - self.right
        y0, y1 = self.height - self.bottom, self.top
        for value in self.ticks(self.x_range):
            x = self.x(value)
            parts.append(f'<line class="axis" x1="{x:.1f}" y1="{y0}" x2="{x:.1f}" y2="{y1}"/>')
            parts.append(text_element(x, y0 + 16, self.x_text(value), "middle", "soft"))
        for value in self.ticks(self.y_range):
            y = self.y(value)
            parts.append(f'<line class="axis" x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}"/>')
            parts.append(text_element(x0 - 8, y + 4, self.y_text(value), "end", "soft"))
        if self.x_title:
            parts.append(text_element((x0 + x1) / 2, y0 + 34, self.x_title, "middle", "soft"))
        return "".join(parts)


class LogPlot(Plot):
    """Both axes logarithmic, with a line a decade."""

    y_text = staticmethod(decade_text)

    @staticmethod
    def place(value: float, limits: Range) -> float:
        low, high = map(math.log10, limits)
        return (math.log10(value) - low) / (high - low)

    @staticmethod
    def ticks(limits: Range) -> list[float]:
        first = math.ceil(math.log10(limits[0]) - 1e-9)
        last = math.floor(math.log10(limits[1]) + 1e-9)
        return [10.0**k for k in range(first, last + 1)]


class LinearPlot(Plot):
    """Both axes linear, with lines at round numbers."""

    width, height, left, bottom = 560, 300, 50, 24

    @staticmethod
    def place(value: float, limits: Range) -> float:
        low, high = limits
        return (value - low) / (high - low)

    @staticmethod
    def ticks(limits: Range) -> list[float]:
        low, high = limits
        rough = (high - low) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        gap = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
        first = math.ceil(low / gap - 1e-9)
        last = math.floor(high / gap + 1e-9)
        # Rounded, since multiples of a binary 0.1 show their last digits.
        return [round(k * gap, 12) for k in range(first, last + 1)]

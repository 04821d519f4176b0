# SPDX-License-Identifier: Apache-2.0
"""A bar a run on a terminal; a line a run elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

BAR = 24
CLEAR_LINE = "\r\x1b[K"


class Progress:
    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._name, self._steps = "", 0

    def start(self, name: str, steps: int) -> None:
        self._name, self._steps = name, steps
        self.step(0, "")

    def step(self, step: int, text: str) -> None:
        if self._terminal:
            filled = BAR * step // self._steps
            bar = "#" * filled + "." * (BAR - filled)
            self._write(f"{CLEAR_LINE}{self._name} [{bar}] {step}/{self._steps}  {text}")

    def done(self, text: str) -> None:
        clear = CLEAR_LINE if self._terminal else ""
        self._write(f"{clear}{self._name} {self._steps} steps  {text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

# SPDX-License-Identifier: Apache-2.0
"""Follows all workers through all runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from demo.models import MODELS
from demo.processes import Message
from demo.progress import Progress
from demo.results import combine, dense_bytes
from demo.training import Run


def collect(
    messages: Iterable[tuple[int, Message]], runs: list[Run], world: int
) -> list[dict[str, Any]]:
    """What the report needs of each model, from the messages of all workers."""
    collector = Collector(runs, world)
    for number, message in messages:
        collector.take(number, message)
    return list(collector.models.values())


class Collector:
    """Workers go through the runs in the same order, but their messages may overtake each other."""

    def __init__(self, runs: list[Run], world: int) -> None:
        self.models: dict[str, dict[str, Any]] = {}
        self._runs, self._world = runs, world
        self._current = 0
        self._ended: list[dict[int, Message]] = [{} for _ in runs]
        self._progress = Progress()
        self._announce()

    def take(self, number: int, message: Message) -> None:
        if message["event"] == "done":
            self._ended[message["run"]][number] = message
            while self._current < len(self._runs) and self._complete():
                self._finish()
                self._current += 1
                self._announce()
        elif message["run"] == self._current:
            text = f"loss {message['loss']:.3f}  {1e3 * message['seconds']:.0f} ms/step"
            self._progress.step(message["step"], text)

    def _announce(self) -> None:
        if self._current < len(self._runs):
            run = self._runs[self._current]
            self._progress.start(f"{run.model:8}{run.codec:28}", run.steps)

    def _complete(self) -> bool:
        return len(self._ended[self._current]) == self._world

    def _finish(self) -> None:
        name = self._runs[self._current].model
        messages = [message for _, message in sorted(self._ended[self._current].items())]
        model = self.models.setdefault(name, _describe(name, messages[0]))
        run = combine(self._runs[self._current].codec, messages)
        model["runs"].append(run)
        self._progress.done(
            f"loss {run['losses'][-1]:.3f}  {1e3 * run['median_step_s']:.0f} ms/step, "
            f"{1e3 * max(0.0, run['exposed_s']):.0f} ms of it exposed communication, "
            f"{run['wire_bytes'] / 1e6:.2f} MB"
        )


def _describe(name: str, message: Message) -> dict[str, Any]:
    model = MODELS[name]
    return {
        "name": name,
        "description": model.DESCRIPTION,
        "score": model.SCORE,
        "parameters": message["parameters"],
        "dense_bytes": dense_bytes(message),
        "runs": [],
    }

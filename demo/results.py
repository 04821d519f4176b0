# SPDX-License-Identifier: Apache-2.0
"""From the messages of all workers to one run of the report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from demo.processes import Message
from demo.training import BASELINE, warm_up

BYTES_PER_PARAMETER = 4  # all models are float32


def combine(codec: str, messages: Sequence[Message]) -> dict[str, Any]:
    """One run, from the `done` message of each worker, worker 0 first."""
    steps = len(messages[0]["losses"])
    settled = warm_up(steps)
    step_s = [statistics.fmean(times) for times in zip(*(m["step_s"] for m in messages))]
    links = [m["link_bytes"] for m in messages]
    return {
        "codec": codec,
        "losses": [statistics.fmean(losses) for losses in zip(*(m["losses"] for m in messages))],
        "step_s": step_s,
        "median_step_s": statistics.median(step_s[settled:]),
        "exposed_s": exposed_seconds(messages),
        "alone_s": _typical([m["alone_s"] for m in messages]),
        "wire_bytes": _wire_bytes(codec, messages[0]),
        "link_bytes": None if links[0] is None else _mean([_mean(b[settled:]) for b in links]),
        "step_link_bytes": None if links[0] is None else [_mean(sent) for sent in zip(*links)],
        "metrics": messages[0]["metrics"],
        "decisions": messages[0].get("decisions"),
        "score": messages[0]["score"],
        "replicas_identical": len({m["digest"] for m in messages}) == 1,
    }


def exposed_seconds(messages: Sequence[Message]) -> float:
    """Forward and backward as trained, minus forward and backward without communication.

    Medians over steps of the workers' mean, as the step's time is. Noise can make it negative.
    """
    settled = warm_up(len(messages[0]["together_s"]))
    together = _typical([m["together_s"][settled:] for m in messages])
    return together - _typical([m["alone_s"] for m in messages])


def _typical(times: Sequence[Sequence[float]]) -> float:
    """The median over steps of the mean over workers."""
    return float(statistics.median(map(statistics.fmean, zip(*times))))


def dense_bytes(message: Message) -> int:
    return int(message["parameters"]) * BYTES_PER_PARAMETER


def _wire_bytes(codec: str, message: Message) -> float:
    """What one worker hands to the engine in a step, on average over all steps."""
    if codec == BASELINE:
        return dense_bytes(message)
    return float(message["metrics"]["wire_bytes"]) / len(message["losses"])


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)

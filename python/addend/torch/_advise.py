# SPDX-License-Identifier: Apache-2.0
"""Whether compression would pay for a model: records a few live steps, and asks `addend plan`."""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from addend.errors import InvalidArgument, Unsupported
from addend.reducer import Link
from addend.torch import _group
from addend.torch._specs import tables_of
from addend.torch._start import start

_STEPS = 20
_WARM_UPS, _LOOKS = 2, 3  # of the steps: first ones not timed; last ones that count non-zeros
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20  # as DDP cuts gradients


@dataclass(frozen=True)
class Advice:
    """What `addend plan` says. `print` it for the verdict."""

    verdict: str
    pays: bool
    codec: str  # for attach, if it pays
    engine: str
    gain: float  # in progress per second, over the best engine's dense
    band: tuple[float, float]  # of the gain, if links are 20 % off
    document: dict[str, Any]  # everything, as `addend plan --json` prints it

    def __str__(self) -> str:
        return self.verdict


def advise(
    model: nn.Module,
    step_fn: Callable[[], Any],
    *,
    steps: int = _STEPS,
    workers: int | None = None,
    link: Link | None = None,
    calibration: str | None = None,
    options: Sequence[str] = (),
    command: str = "addend",
) -> Advice:
    """Runs `step_fn` (a whole training step, as it is) `steps` times, records when each gradient of
    `model` is ready and how dense it is, and says whether a codec would pay, which, and by how
    much. Training goes on as it would without.

    workers, link: those of the process group, measured as `attach` does, unless given.
    calibration: a file that `addend plan --save-calibration` wrote; else codecs are measured here,
    which takes some ten seconds. options: more of the command's, see docs/plan.md. command: where
    it is.

    Collective if there is a process group: all ranks call it and get rank 0's answer.
    """
    _check_steps(steps)
    group = dist.is_available() and dist.is_initialized()
    world = dist.get_world_size() if group else 1
    workers = workers or world
    if link is None:
        if world < 2:
            raise InvalidArgument("there is no process group: give workers= and link=")
        link = _measure_link(next(model.parameters()).device)
    if workers < 2:
        raise InvalidArgument("one worker has nothing to sum: give workers=")
    found = _from_rank_0(group, lambda: shutil.which(command))
    if found is None:
        raise Unsupported(
            f"advise asks the command `{command}`, which is not there: build it, or say command="
        )
    job = record_job(model, step_fn, steps)
    arguments = ["--workers", str(workers), "--gbit", str(link.gbit_per_s)]
    arguments += ["--latency-us", str(link.latency_us), *options]
    if calibration is not None:
        arguments += ["--calibration", calibration]
    return _advice(_from_rank_0(group, lambda: _ask(found, job, arguments)))


def _measure_link(device: torch.device) -> Link:
    """The process group's, by an engine that lives no longer."""
    engine = start(dist.group.WORLD, _group.timeout_s(dist.group.WORLD), device)
    engine.close()
    return engine.link


def _from_rank_0(group: bool, find: Callable[[], Any]) -> Any:
    """What rank 0 finds, on all ranks of a group."""
    answers = [find() if not group or dist.get_rank() == 0 else None]
    if group:
        dist.broadcast_object_list(answers, src=0)
    return answers[0]


def _ask(command: str, job: dict[str, Any], arguments: Sequence[str]) -> tuple[str, str]:
    """What the command printed, or else its complaint: ranks that wait for it get one or the
    other."""
    try:
        return _run(command, job, arguments)
    except OSError as error:
        return "", str(error)


def _run(command: str, job: dict[str, Any], arguments: Sequence[str]) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="addend-advise-") as folder:
        path = Path(folder, "job.json")
        path.write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [command, "plan", "--job", str(path), "--json", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr.strip())


def _advice(answer: tuple[str, str]) -> Advice:
    text, complaint = answer
    if complaint:
        raise InvalidArgument(f"addend plan: {complaint}")
    document = json.loads(text)
    return Advice(
        document["verdict"],
        document["pays"],
        document["codec"],
        document["engine"],
        document["gain"],
        (document["band"][0], document["band"][1]),
        document,
    )


def record_job(model: nn.Module, step_fn: Callable[[], Any], steps: int = _STEPS) -> dict[str, Any]:
    """What `advise` records of `steps` live steps, as `addend plan --job` reads it from a file:
    json.dump it. Of this process alone, with or without a process group."""
    _check_steps(steps)
    recorder = _Recorder()
    with recorder.listening(model):
        for step in range(steps):
            recorder.step(step_fn, looks=step >= steps - _LOOKS)
    return recorder.job()


def _check_steps(steps: int) -> None:
    if steps < _WARM_UPS + _LOOKS + 1:
        raise InvalidArgument(f"steps={steps}: at least {_WARM_UPS + _LOOKS + 1} are needed")


class _Recorder:
    """When gradients are ready, from the step's begin, and how many of their elements are not 0."""

    def __init__(self) -> None:
        self._begin = 0.0
        self._looks = False
        self._ready: dict[int, list[float]] = collections.defaultdict(list)  # by parameter
        self._now: dict[int, float] = {}
        self._sizes: dict[int, int] = {}
        self._tables: set[int] = set()  # parameters that lossy codecs leave to `exact`
        self._nonzeros = self._counted = 0
        self._optimizing: float | None = None
        self._rests: list[float] = []
        self._timed = -_WARM_UPS

    @contextlib.contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise InvalidArgument("the model has no parameter that is trained")
        removes = [register_optimizer_step_pre_hook(self._begins_to_optimize)]
        tables = tables_of(model)
        for number, parameter in enumerate(parameters):
            self._sizes[number] = parameter.numel()
            if id(parameter) in tables:
                self._tables.add(number)
            removes.append(parameter.register_hook(self._hook(number)))
        try:
            yield
        finally:
            for one in removes:
                one.remove()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def ready(gradient: torch.Tensor) -> None:
            self._now[number] = time.perf_counter() - self._begin
            if self._looks:
                self._nonzeros += _nonzeros(gradient)
                self._counted += gradient.numel()

        return ready

    def _begins_to_optimize(self, *_: Any) -> None:
        if self._optimizing is None:
            self._optimizing = time.perf_counter()

    def step(self, step_fn: Callable[[], Any], *, looks: bool) -> None:
        self._looks, self._now, self._optimizing = looks, {}, None
        self._begin = time.perf_counter()
        step_fn()
        end = time.perf_counter()
        self._timed += 1
        if looks or self._timed <= 0:  # counting takes time
            return
        for number, seconds in self._now.items():
            self._ready[number].append(seconds)
        if self._optimizing is not None:
            self._rests.append(end - self._optimizing)

    def job(self) -> dict[str, Any]:
        """Parameters in the order they are ready in, cut into buckets as DDP cuts them."""
        if not self._ready:
            raise InvalidArgument("step_fn gave no parameter of the model a gradient")
        ready = {number: statistics.median(times) for number, times in self._ready.items()}
        buckets: list[dict[str, float]] = []
        elements = tables = last = 0.0
        for number in sorted(ready, key=lambda one: ready[one]):
            elements += self._sizes[number]
            tables += self._sizes[number] if number in self._tables else 0
            last = max(last, ready[number])
            if 4 * elements >= (_BUCKET_BYTES if buckets else _FIRST_BUCKET_BYTES):
                buckets.append({"elements": elements, "tables": tables, "ready_s": last})
                elements = tables = 0.0
        if elements:
            buckets.append({"elements": elements, "tables": tables, "ready_s": last})
        return {
            "buckets": buckets,
            "rest_s": statistics.median(self._rests) if self._rests else 0.0,
            "density": self._nonzeros / self._counted if self._counted else 1.0,
        }


def _nonzeros(gradient: torch.Tensor) -> int:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return int(torch.count_nonzero(values))

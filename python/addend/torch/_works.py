# SPDX-License-Identifier: Apache-2.0
"""What jobs wait for: collectives of the backend, and what goes on over the mesh."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable

import torch

from addend import Timeout

_SET_UP_S = 60.0


@dataclass
class Wait:
    """Collectives in flight. `final`: the job issues no more of them."""

    works: list[Any]
    final: bool = False
    watched: bool = False  # somebody asked to be told of completion

    def done(self) -> bool:
        """Whether works can be waited for without blocking for longer than a moment."""
        return all(_ends(work) for work in self.works)

    @property
    def polled(self) -> bool:
        """Whether completion must be asked for: a device tells nobody."""
        return any(isinstance(work, Staged) and work.polled for work in self.works)

    def watch(self, tell: Callable[[Any], None]) -> None:
        """Has `tell` called when a work ends, for works that can. Once is enough."""
        if not self.watched:
            self.watched = True
            for work in self.works:
                if not isinstance(work, MeshWork):
                    work.get_future().add_done_callback(tell)

    def on_mesh(self) -> list[MeshWork]:
        """Works that are not done, and whose end is found by waiting for them."""
        return [work for work in self.works if isinstance(work, MeshWork) and not work.ended]


Steps = Generator[Wait, None, None]


def _ends(work: Any) -> bool:
    # Gloo completes a work's future, which wakes whoever sleeps, a moment before the work itself.
    if isinstance(work, MeshWork) or (isinstance(work, Staged) and work.polled):
        return work.is_completed()
    return bool(work.is_completed() or work.get_future().done())


class MeshWork:
    """Something that goes on over the mesh while it is waited for, in the manner of torch's
    works. `go_on(timeout_s)` says whether it is done."""

    def __init__(self, go_on: Callable[[float], bool]) -> None:
        self._go_on = go_on
        self.ended = False  # as far as somebody has asked

    def is_completed(self) -> bool:
        return self._wait(0.0)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Ends early when the mesh's bell rings."""
        if timeout is not None:
            return self._wait(timeout.total_seconds())
        until = time.monotonic() + _SET_UP_S  # the worker waits by slices, with its own deadline
        while not self._wait(1.0):
            if time.monotonic() > until:
                raise Timeout(f"no answer over the mesh within {_SET_UP_S:g} s")
        return True

    def _wait(self, timeout_s: float) -> bool:
        self.ended = self.ended or self._go_on(timeout_s)
        return self.ended


class HaulWork(MeshWork):
    """A haul: it goes on by itself, but who waits for it waits as for the mesh."""


class Staged:
    """A work whose result must be copied to where the caller wants it."""

    def __init__(self, work: Any, source: torch.Tensor, target: torch.Tensor) -> None:
        self._work, self._source, self._target = work, source, target
        self._event: Any | None = None
        self._copied = False
        self.polled = source.device.type == "cuda"
        devices = [t.device for t in (source, target) if t.device.type == "cuda"]
        # Whoever starts a work on a stream reads the result there.
        self._stream = torch.cuda.current_stream(devices[0]) if devices else None

    def _copy(self, *timeout: Any) -> None:
        if self._copied:
            return
        with torch.cuda.stream(self._stream):  # None: no stream
            self._work.wait(*timeout)  # on a device: orders the stream, does not block
            self._target.copy_(self._source, non_blocking=True)
            self._copied = True
            if self.polled:
                self._event = torch.cuda.Event()
                self._event.record()

    def is_completed(self) -> bool:
        if self.polled:
            self._copy()
            return bool(self._event is None or self._event.query())
        if not self._work.is_completed():
            return False
        self._copy()
        return True

    def wait(self, *timeout: Any) -> bool:
        self._copy(*timeout)
        if self._event is not None:
            self._event.synchronize()
        return True

    def get_future(self) -> Any:
        """Of the work; on a device it is no sign of completion (see `polled`)."""
        return self._work.get_future()


def run(steps: Steps) -> None:
    """Runs steps to their end in this thread: for set-up and tests."""
    for wait in steps:
        for work in wait.works:
            work.wait()

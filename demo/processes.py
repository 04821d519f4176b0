# SPDX-License-Identifier: Apache-2.0
"""Worker processes: started together, heard in JSON lines, ended together."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from demo.network import Place

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 10.0  # for processes that were asked to end
TAIL_LINES = 15  # of a failed worker's stderr

Message = dict[str, Any]


class WorkerFailed(RuntimeError):
    pass


class Workers:
    """One process a place. Each gets its task as one JSON line and is told by the end of its
    standard input that nobody listens any more, so none outlives this process."""

    def __init__(self, places: list[Place], tasks: list[Message]) -> None:
        self._messages: queue.Queue[tuple[int, Message | None]] = queue.Queue()
        # Closed with the processes that write there, not by a block of code.
        self._errors = [tempfile.TemporaryFile("w+") for _ in places]  # noqa: SIM115
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for place, task, errors in zip(places, tasks, self._errors):
                self._processes.append(_start(place, task, errors.fileno()))
        except BaseException:
            self.close()
            raise
        for number in range(len(self._processes)):
            threading.Thread(target=self._listen, args=(number,), daemon=True).start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def messages(self) -> Iterator[tuple[int, Message]]:
        """(worker, message) as they come, until all workers have ended well."""
        running = len(self._processes)
        while running > 0:
            number, message = self._messages.get()
            if message is not None:
                yield number, message
                continue
            if self._processes[number].wait() != 0:
                raise WorkerFailed(self._complaint(number))
            running -= 1

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for errors in self._errors:
            errors.close()

    def _listen(self, number: int) -> None:
        stream = self._processes[number].stdout
        assert stream is not None
        for line in stream:
            self._messages.put((number, json.loads(line)))
        self._messages.put((number, None))

    def _complaint(self, number: int) -> str:
        self._errors[number].seek(0)
        tail = "".join(self._errors[number].readlines()[-TAIL_LINES:])
        return f"worker {number} ended with {self._processes[number].returncode}:\n{tail}"


def _start(place: Place, task: Message, errors: int) -> subprocess.Popen[str]:
    # One thread each: the workers share the machine's cores.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": place.interface,
    }
    process = subprocess.Popen(
        [*place.prefix, sys.executable, "-m", "demo.worker"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C is for us, who then end them in order
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(task) + "\n")
    process.stdin.flush()
    return process

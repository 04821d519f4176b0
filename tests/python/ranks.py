# SPDX-License-Identifier: Apache-2.0
"""Real ranks: one process each, joined by gloo over loopback.

    def body(rank, world, *args): ...            # at module level, returns what pickles

    values = run_ranks(4, body, *args)           # by rank; fails the test if any rank failed

    with Ranks(4, body, *args) as ranks:         # for tests that hurt a rank
        ranks.notes.wait(["ready"])              # set by a rank: notes().set("ready", "")
        ranks.send_signal(2, signal.SIGKILL)
        survivors = [ranks.outcome(rank) for rank in (0, 1, 3)]

A rank that has returned stays alive, its process group open, until every rank has ended. Ranks that
take longer than `timeout_s` are ended with the stacks of all their threads in the report.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Callable

import torch
import torch.distributed as dist

# Processes fork from a server that has imported what is slow to import. Addend is not among it: it
# reads its environment when it is imported, and that differs from test to test.
_CONTEXT = multiprocessing.get_context("forkserver")
# DDP imports torch._dynamo, which takes as long as all the rest.
_CONTEXT.set_forkserver_preload(["numpy", "pytest", "torch", "torch.distributed", "torch._dynamo"])

# For what should take no time, on a machine that is busy:
_DYING_S = 10.0  # to follow a rank that failed, or to write stacks
_EXIT_S = 60.0


@dataclass
class Outcome:
    """How a rank ended."""

    rank: int
    value: Any = None
    error: str = ""  # a traceback, or how the process died; empty if the function returned


class Ranks:
    """Ranks that run `function(rank, world, *args)`; a context that leaves no process behind."""

    def __init__(
        self,
        world: int,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.world = world
        self._ends_at = time.monotonic() + timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._outcomes: dict[int, Outcome] = {}
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        folder = Path(self._folder.name)
        self.notes = _open_notes(folder, timeout_s)
        job = pickle.dumps((function, args))
        for rank in range(world):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(
                target=_main,
                args=(rank, world, folder, timeout_s, dict(env or {}), theirs, job),
                name=f"rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def pid(self, rank: int) -> int:
        return int(self._processes[rank].pid)

    def send_signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pid(rank), number)

    def outcome(self, rank: int) -> Outcome:
        """Waits for one rank to end; one that does not end in time is killed."""
        self._wait([rank], self._ends_at)
        return self._outcomes[rank]

    def values(self) -> list[Any]:
        """What every rank returned. Fails with the report of all ranks if one did not return."""
        everyone = range(self.world)
        while len(self._outcomes) < self.world:
            self._wait(everyone, self._ends_at, first=True)
            if any(outcome.error for outcome in self._outcomes.values()):
                # The others wait for it in vain, or are about to fail too.
                self._wait(everyone, min(self._ends_at, time.monotonic() + _DYING_S))
        outcomes = [self._outcomes[rank] for rank in everyone]
        report = "\n".join(f"--- rank {o.rank}: {o.error}" for o in outcomes if o.error)
        assert not report, "ranks failed\n" + report
        return [outcome.value for outcome in outcomes]

    def _wait(self, ranks: Any, until: float, first: bool = False) -> None:
        """Collects outcomes of `ranks`, or of the first of them; kills them when it is late."""
        left = [rank for rank in ranks if rank not in self._outcomes]
        while left:
            ready = wait([self._pipes[r] for r in left], max(until - time.monotonic(), 0.0))
            for rank in left:
                if self._pipes[rank] in ready:
                    self._outcomes[rank] = self._receive(rank)
                elif not ready:
                    self._outcomes[rank] = Outcome(rank, error="stuck\n" + self._end(rank))
            if first:
                return
            left = [rank for rank in left if rank not in self._outcomes]

    def _receive(self, rank: int) -> Outcome:
        try:
            value, error = pickle.loads(self._pipes[rank].recv_bytes())
            return Outcome(rank, value, error)
        except (EOFError, ConnectionError):
            process = self._processes[rank]
            process.join(_DYING_S)
            return Outcome(rank, error=f"exit code {process.exitcode}\n{self._stacks(rank)}")

    def _end(self, rank: int) -> str:
        """Kills a rank; returns its stacks."""
        process = self._processes[rank]
        if process.is_alive():
            self.send_signal(rank, signal.SIGABRT)  # faulthandler writes the stacks
            self.send_signal(rank, signal.SIGCONT)
            process.join(_DYING_S)
            process.kill()
        process.join()
        return self._stacks(rank)

    def _stacks(self, rank: int) -> str:
        path = _stacks_path(Path(self._folder.name), rank)
        return path.read_text() if path.exists() else ""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # lets ranks that have returned go
        late = []
        for rank, process in enumerate(self._processes):
            ended = rank in self._outcomes
            process.join(_EXIT_S if ended else 0.0)
            if process.is_alive():
                stacks = self._end(rank)
                if ended:
                    late.append(f"--- rank {rank} returned but does not exit\n{stacks}")
            process.close()
        self._folder.cleanup()
        if late and kind is None:
            raise AssertionError("\n".join(late))


def run_ranks(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 120.0,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """What `function(rank, world, *args)` returned on each of `world` ranks."""
    with Ranks(world, function, *args, timeout_s=timeout_s, env=env) as ranks:
        return ranks.values()


_notes: Any = None


def notes() -> Any:
    """In a rank: the store that it shares with the test."""
    return _notes


def _open_notes(folder: Path, timeout_s: float) -> Any:
    store = dist.FileStore(str(folder / "notes"), -1)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=timeout_s))
    return store


def _stacks_path(folder: Path, rank: int) -> Path:
    return folder / f"stacks-{rank}"


def _main(
    rank: int,
    world: int,
    folder: Path,
    timeout_s: float,
    env: dict[str, str],
    pipe: Connection,
    job: bytes,
) -> None:
    global _notes
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(env)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    _notes = _open_notes(folder, timeout_s)
    with _stacks_path(folder, rank).open("w") as stacks:
        faulthandler.enable(stacks)
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder / 'rendezvous'}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout_s),
            )
            function, args = pickle.loads(job)
            answer = pickle.dumps((function(rank, world, *args), ""))
        except BaseException:
            answer = pickle.dumps((None, traceback.format_exc()))
        pipe.send_bytes(answer)
        _wait_for_the_others(pipe)
        if "addend.torch" in sys.modules:
            sys.modules["addend.torch"].close_all()
        if dist.is_initialized():
            dist.destroy_process_group()
        faulthandler.disable()


def _wait_for_the_others(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.recv_bytes()

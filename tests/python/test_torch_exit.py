# SPDX-License-Identifier: Apache-2.0
"""Interpreters that end by themselves, whatever is under way."""

from __future__ import annotations

import ctypes
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable

import pytest
import torch
import torch.distributed as dist
from failing import DEADLINE_S, TwoBuckets, attach_two_buckets, await_news, engine_of, one_step
from ranks import Ranks, notes
from torch import nn

import addend.torch
from addend.torch import _group


def leave_a_stuck_rank(rank: int, model: nn.Module) -> None:
    """The others have collectives in flight with a rank that will never answer."""
    if rank == 1:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    one_step(model)


def leave_half_of_a_message(rank: int, model: nn.Module) -> None:
    """The same with more in flight than the kernel holds, to a rank that had begun to read."""
    for fd in _group._connections_of[engine_of()._groups[-1]]:
        with _group._borrowed(fd) as (connection, _):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    if rank == 1:
        send: Any = dist.all_to_all_single

        def stop_within(out: torch.Tensor, *args: Any, **named: Any) -> Any:
            work = send(out.fill_(255), *args, **named, async_op=True)
            while out.numel() > 1 << 18:
                if (out[:64] != 255).any():
                    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            work.wait()

        dist.all_to_all_single = stop_within  # type: ignore[assignment]
    addend.torch.all_reduce(torch.randn(8 << 20), codec="quant:bits=4")


def leave_with_buckets_in_flight(rank: int, model: nn.Module) -> None:
    """Rank 1 fails inside backward, when its first bucket waits for the others."""
    if rank == 1:

        def fail(_: torch.Tensor) -> None:
            notes().set("in flight", "")
            raise ValueError("a user's mistake")

        assert isinstance(model.module, TwoBuckets)
        model.module.first.weight.register_hook(fail)
    else:
        notes().wait(["in flight"])
    one_step(model)


def leave_without_waiting(rank: int, model: nn.Module) -> None:
    """Rank 1 ends with a sum pending that the others never joined."""
    if rank == 1:
        addend.torch.all_reduce(torch.ones(100), async_op=True)
        return
    await_news(engine_of())
    addend.torch.all_reduce(torch.ones(100))


def leave_early(rank: int, model: nn.Module) -> None:
    """Rank 1 ends between two steps."""
    if rank == 0:
        one_step(model)


# It says so by itself; or it is asked, if the backend notices first that it is gone. Where rank 0
# was quick, the first bucket was summed before rank 1 ended, with nothing in flight, and the second
# one finds nobody.
IN_FLIGHT = (
    "rank 1 (gave up|failed): rank 1 of 2, step 2, bucket 0, round [012]: closed with buckets in "
    "flight|step 2, bucket 1, round [01]: rank 1 is dead"
)
# What happens, and how each rank ends: exit code and what it says. Nobody calls close.
LEAVING: dict[str, tuple[Callable[..., None], list[tuple[int | None, str]]]] = {
    "a stuck rank": (leave_a_stuck_rank, [(1, "rank 1 is stuck"), (None, "")]),
    "half of a message": (leave_half_of_a_message, [(1, "rank 1 is stuck"), (None, "")]),
    "with buckets in flight": (
        leave_with_buckets_in_flight,
        [(1, IN_FLIGHT), (1, "a user's mistake")],
    ),
    "a stuck rank, of sums left to the backend": (
        leave_a_stuck_rank,
        [(1, "rank 1 is stuck"), (None, "")],
    ),
    "with sums left to the backend in flight": (
        leave_with_buckets_in_flight,
        [(1, IN_FLIGHT), (1, "a user's mistake")],
    ),
    "without waiting": (leave_without_waiting, [(1, "rank 1 gave up"), (0, "")]),
    "early": (leave_early, [(1, "rank 1 is dead"), (0, "")]),
}


def act_and_leave(rank: int, world: int, name: str) -> None:
    left = "left to the backend" in name
    if name != "half of a message" and not left:
        # Nothing that goes over the mesh may have to wait for the backend's own timeout.
        make_own = _group.make_own

        def patient(group: Any, timeout_s: float, device_type: str = "cpu") -> Any:
            return make_own(group, 600.0, device_type)

        _group.make_own = patient
    model, handle = attach_two_buckets(DEADLINE_S, left=left)
    addend.torch.all_reduce(torch.zeros(100), deadline=DEADLINE_S)
    for _ in range(2):
        one_step(model)
    assert handle._engine.way == ("group" if name == "half of a message" else "mesh")
    code, said = 0, ""
    try:
        LEAVING[name][0](rank, model)
    except Exception as error:
        code, said = 1, str(error)
    notes().set(f"leaving/{rank}", said)
    # As at the end of a program: a process of multiprocessing would skip all that can hang.
    ctypes.pythonapi.Py_Exit(code)


@dataclass
class Departure:
    """How an interpreter ended, and how long that took from its last act on."""

    end: str
    said: str
    seconds: float


def leave(name: str) -> list[Departure | None]:
    endings = LEAVING[name][1]
    env = {"ADDEND_MESH": "off" if name == "half of a message" else "on"}  # of the backend's
    with (
        Ranks(len(endings), act_and_leave, name, timeout_s=120.0, env=env) as ranks,
        ThreadPoolExecutor(len(endings)) as pool,
    ):

        def watch(rank: int) -> Departure | None:
            if endings[rank][0] is None:
                return None
            said = ranks.notes.get(f"leaving/{rank}").decode()
            begin = time.monotonic()
            end = ranks.outcome(rank).error
            return Departure(end, said, time.monotonic() - begin)

        return list(pool.map(watch, range(len(endings))))


@pytest.fixture(scope="module")
def departures(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """Of all cases that tests ask for, several at a time: most of them wait most of the time."""
    chosen = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {spec.params["case"] for spec in chosen if spec and "case" in spec.params}
    with ThreadPoolExecutor(4) as pool:
        yield {name: pool.submit(leave, name) for name in LEAVING if name in wanted}


@pytest.mark.parametrize("case", LEAVING)
def test_a_process_ends_by_itself_soon_and_with_its_own_exit_code(
    case: str, departures: dict[str, Future[Any]]
) -> None:
    found: list[Departure | None] = departures[case].result()
    for departure, (code, words) in zip(found, LEAVING[case][1]):
        if departure is None:
            continue
        assert departure.end == f"exit code {code}\n"
        assert re.search(words, departure.said), departure.said
        assert departure.seconds < 60.0

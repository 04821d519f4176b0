# SPDX-License-Identifier: Apache-2.0
"""A unit test of one private module, `_peers`: ranks that ask each other where they are, and what
they do with answers that nobody should give."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Callable

import pytest

pytest.importorskip("torch")

from addend.torch import _peers
from addend.torch._peers import Answer, Peers, Place, describe

PATIENCE_S = 5.0  # long, so that a slow machine is not taken for a dead rank


@pytest.fixture(autouse=True)
def _on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def meet(world: int) -> Callable[[int], Callable[[bytes], list[bytes]]]:
    """For each rank, an exchange among threads."""
    messages: list[bytes] = [b""] * world
    everyone = threading.Barrier(world)

    def exchange_of(rank: int) -> Callable[[bytes], list[bytes]]:
        def exchange(message: bytes) -> list[bytes]:
            messages[rank] = message
            everyone.wait(timeout=60)
            return list(messages)

        return exchange

    return exchange_of


@contextlib.contextmanager
def ranks(world: int, patience_s: float = PATIENCE_S) -> Iterator[list[Peers]]:
    exchange_of = meet(world)
    with ThreadPoolExecutor(world) as pool:
        made = list(pool.map(lambda r: Peers(r, world, exchange_of(r), patience_s), range(world)))
    try:
        yield made
    finally:
        for one in made:
            one.close()


def record_aborts(peers: Peers) -> list[tuple[int, str]]:
    aborts: list[tuple[int, str]] = []
    peers.on_abort(lambda rank, text: aborts.append((rank, text)))
    return aborts


def say(peers: Peers, data: bytes, hang_up: bool = False) -> bytes:
    """Sends bytes to a rank; what it answers until it closes the connection."""
    with socket.create_connection(peers._peers[peers.rank], timeout=60) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # it closed with bytes of ours unread
            connection.sendall(data)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(4096):
                answer += piece
        return answer


def request(peers: Peers, kind: int, text: bytes = b"", length: int | None = None) -> bytes:
    length = len(text) if length is None else length
    return _peers._REQUEST.pack(peers.token, kind, 1, length) + text


def test_everyone_says_where_it_is() -> None:
    with ranks(4) as everyone:
        everyone[0].where = lambda: Place(7, 3, 1)
        everyone[2].where = lambda: Place(2**40, 2**20, 9)
        everyone[2].fail("out of memory: größer")
        assert everyone[1].neighbour_answers()
        assert everyone[1].ask_all() == [
            Answer(0, "working", Place(7, 3, 1)),
            Answer(2, "failed", Place(2**40, 2**20, 9), "out of memory: größer"),
            Answer(3, "working", Place()),
        ]


def test_a_rank_that_gives_up_is_heard() -> None:
    with ranks(3) as everyone:
        heard = [record_aborts(peers) for peers in everyone]
        everyone[2].abort([0, 1], "because")
        assert heard == [[(2, "because")], [(2, "because")], []]
        everyone[0].abort([1], "x" * 5000)
        assert heard[1][1:] == [(0, "x" * _peers._MOST_TEXT)]


def test_what_was_said_counts_even_if_the_asker_does_not_wait() -> None:
    with ranks(2) as everyone:
        heard = threading.Event()
        everyone[0].on_abort(lambda *_: heard.set())
        with socket.create_connection(everyone[0]._peers[0]) as connection:
            connection.sendall(request(everyone[0], _peers._ABORT, b"gone"))
        assert heard.wait(timeout=60)
        assert everyone[1].ask_all()[0].verdict == "working"


BAD_REQUESTS: dict[str, Callable[[Peers], bytes]] = {
    "nothing": lambda peers: b"",
    "garbage": lambda peers: os.urandom(300),
    "wrong token": lambda peers: os.urandom(16) + request(peers, _peers._ABORT, b"no")[16:],
    "token off by one bit": lambda peers: (
        bytes([peers.token[0] ^ 1]) + request(peers, _peers._ABORT, b"no")[1:]
    ),
    "truncated head": lambda peers: request(peers, _peers._ABORT)[:-1],
    "truncated text": lambda peers: request(peers, _peers._ABORT, b"no", length=3),
    "oversized text": lambda peers: request(peers, _peers._ABORT, b"n" * (_peers._MOST_TEXT + 1)),
    "http": lambda peers: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("bad", BAD_REQUESTS)
def test_bad_requests_change_nothing_and_get_no_answer(bad: str) -> None:
    with ranks(2) as everyone:
        aborts = record_aborts(everyone[0])
        everyone[0].where = lambda: Place(1, 2, 3)
        assert say(everyone[0], BAD_REQUESTS[bad](everyone[0]), hang_up=True) == b""
        assert everyone[1].ask_all() == [Answer(0, "working", Place(1, 2, 3))]
        assert aborts == []


def test_an_unknown_kind_of_request_is_only_answered() -> None:
    with ranks(2) as everyone:
        aborts = record_aborts(everyone[0])
        assert len(say(everyone[0], request(everyone[0], 77))) == _peers._ANSWER.size
        assert aborts == []


def test_those_who_connect_and_say_nothing_hold_nobody_up_and_are_shown_out() -> None:
    with ranks(2, patience_s=2.0) as everyone, contextlib.ExitStack() as open_ones:
        idle = [
            open_ones.enter_context(socket.create_connection(everyone[0]._peers[0], timeout=60))
            for _ in range(_peers._MOST_VISITORS + 50)
        ]
        idle[-1].sendall(everyone[0].token[:5])
        assert everyone[1].ask_all()[0].verdict == "working"
        for connection in idle:  # ends when the rank has closed all of them
            assert connection.recv(1) == b""


def test_many_may_ask_at_once() -> None:
    with ranks(2) as everyone, ThreadPoolExecutor(64) as pool:
        everyone[0].where = lambda: Place(5)
        asked = [pool.submit(everyone[1].ask_all) for _ in range(256)]
        assert {answer for one in asked for answer in one.result()} == {
            Answer(0, "working", Place(5))
        }


def test_nobody_listens_is_dead() -> None:
    with ranks(3) as everyone:
        everyone[1].close()
        assert [a.verdict for a in everyone[0].ask_all()] == ["dead", "working"]
        assert not everyone[0].neighbour_answers()


def test_a_rank_that_dies_while_asked_is_dead() -> None:
    with ranks(2) as everyone:
        listener = socket.create_server(("127.0.0.1", 0))
        everyone[0]._peers[1] = listener.getsockname()[:2]

        def die() -> None:
            connection, _ = listener.accept()
            listener.close()  # as a kernel does, in whatever order
            connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        assert everyone[0].ask_all() == [Answer(1, "dead")]
        thread.join()


def _be_rank_1(pipe: Connection) -> None:
    def exchange(message: bytes) -> list[bytes]:
        pipe.send_bytes(message)
        return [pipe.recv_bytes(), message]

    peers = Peers(1, 2, exchange)
    pipe.send_bytes(b"ready")
    pipe.recv_bytes()
    peers.close()


@contextlib.contextmanager
def rank_1_elsewhere(patience_s: float) -> Iterator[tuple[Peers, Any]]:
    """This process as rank 0, and the process that is rank 1."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_be_rank_1, args=(theirs,), daemon=True)
    process.start()
    theirs.close()

    def exchange(message: bytes) -> list[bytes]:
        ours.send_bytes(message)
        return [message, ours.recv_bytes()]

    peers = Peers(0, 2, exchange, patience_s)
    try:
        assert ours.recv_bytes() == b"ready"
        yield peers, process
    finally:
        peers.close()
        process.kill()
        process.join()


def stop(process: Any) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    # Each thread stops when it comes to it.
    while not all(") T " in (task / "stat").read_text() for task in tasks.iterdir()):
        time.sleep(0.001)


def test_a_stopped_process_is_stuck_and_a_killed_one_dead() -> None:
    with rank_1_elsewhere(patience_s=PATIENCE_S) as (peers, process):
        assert peers.ask_all()[0].verdict == "working"
        peers._patience = 1.0
        stop(process)
        begin = time.monotonic()
        assert peers.ask_all() == [Answer(1, "stuck")]
        assert time.monotonic() - begin >= 1.0
        peers._patience = PATIENCE_S
        os.kill(process.pid, signal.SIGCONT)
        assert peers.ask_all()[0].verdict == "working"
        process.kill()
        process.join()
        assert peers.ask_all() == [Answer(1, "dead")]


def test_a_stopped_process_costs_its_patience_once_whatever_the_number() -> None:
    """All are asked at once: several that do not answer take no longer than one."""
    with rank_1_elsewhere(patience_s=PATIENCE_S) as (peers, process):
        stop(process)
        peers._patience = 2.0
        peers._peers = [peers._peers[0]] + [peers._peers[1]] * 40
        begin = time.monotonic()
        answers = peers._ask(range(1, 41), _peers._ASK, "")
        assert time.monotonic() - begin < 20.0
        assert {answer.verdict for answer in answers} == {"stuck"}


def test_a_forked_child_does_not_keep_the_listener_alive() -> None:
    with ranks(2) as everyone:
        block, let_go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(let_go)
            os.read(block, 1)
            os._exit(0)
        try:
            os.close(block)
            assert everyone[0].ask_all()[0].verdict == "working"
            everyone[1].close()
            assert everyone[0].ask_all() == [Answer(1, "dead")]
        finally:
            os.close(let_go)
            os.waitpid(child, 0)


def test_closing_is_quick_and_final() -> None:
    with ranks(2) as everyone, socket.create_connection(everyone[0]._peers[0]):
        before = time.monotonic()
        everyone[0].close()
        everyone[0].close()
        assert time.monotonic() - before < PATIENCE_S
        assert not everyone[0]._thread.is_alive()


@pytest.mark.parametrize(
    ("answers", "here", "line"),
    [
        ([], Place(), ""),
        ([Answer(1, "working", Place(3, 1, 2))], Place(3, 1, 2), ""),
        ([Answer(1, "dead"), Answer(4, "dead")], None, "rank 1, 4 is dead (nobody listens)"),
        (
            [Answer(1, "stuck"), Answer(2, "dead"), Answer(3, "failed", Place(), "of them")],
            Place(),
            "rank 2 is dead (nobody listens); rank 1 is stuck (no answer)",
        ),
        ([Answer(2, "failed", Place(), "why"), Answer(3, "working")], None, "rank 2 failed: why"),
        (
            [Answer(1, "working", Place(3, 1, 1)), Answer(2, "working", Place(3, 2, 0))],
            Place(3, 1, 2),
            "rank 1 is late, at step 3, bucket 1, round 1",
        ),
        ([Answer(1, "working", Place(2, 9, 9))], None, ""),
    ],
)
def test_the_error_names_those_at_fault(
    answers: list[Answer], here: Place | None, line: str
) -> None:
    assert describe(answers, here) == line


def test_addresses_that_only_mean_this_host_are_not_given_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert not [a for a in list(_peers._candidates())[:-1] if a.startswith("127.")]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert list(_peers._candidates()) == ["127.0.0.1"]


def test_the_interface_of_the_backend_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface,lo")
    assert next(_peers._candidates()) == "127.0.0.1"


def test_an_address_of_another_host_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peers, "_candidates", lambda: iter(["192.0.2.7", "127.0.0.1"]))
    with _peers.listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"

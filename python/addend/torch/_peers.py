# SPDX-License-Identifier: Apache-2.0
"""Who is late, who is gone: ranks ask each other beside the collectives.

Backends report a lost peer by address, or not at all. Every rank therefore answers, in a thread of
its own, where it is: step, bucket, round. A rank whose work failed asks all others, tells them, and
its error names the ranks that are dead (nobody listens), stuck (no answer) or elsewhere. Messages
are fixed records behind a token that only members know; nothing is ever deserialised.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import ipaddress
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Callable, NamedTuple

from addend import Unavailable

_TOKEN_BYTES = 16
_ADDRESS_BYTES = 64
_ASK, _ABORT = 1, 2
# state, step, bucket, round, length of the text that follows
_ANSWER = struct.Struct("!BQIIH")
_REQUEST = struct.Struct(f"!{_TOKEN_BYTES}sBIH")  # token, kind, sender, length of the text
_MOST_TEXT = 2000
_MOST_VISITORS = 512  # further ones drive out the oldest
_SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address
_ELSEWHERE = "192.0.2.1"  # of no host (RFC 5737): only the route to it is asked for

WORKING, FAILED = 1, 2


class Place(NamedTuple):
    """Where a rank is. Rounds count from 1; 0: the bucket waits for its turn."""

    step: int = 0
    bucket: int = 0
    round: int = 0

    def __str__(self) -> str:
        return f"step {self.step}, bucket {self.bucket}, round {self.round}"


class Answer(NamedTuple):
    """What one rank said, or why it said nothing."""

    rank: int
    verdict: str  # "working", "failed", "dead", "stuck"
    place: Place = Place()
    text: str = ""


def _interface_address(name: str) -> str:
    """The IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.strip().encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])


def _address_towards(target: str) -> str:
    """The address from which this host would send to `target`."""
    family, _, _, _, there = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(there)  # sends nothing
        return str(probe.getsockname()[0])


def _candidates() -> Iterator[str]:
    """Addresses by which others may reach this host, the likeliest first."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for name in os.environ.get(variable, "").split(","):
            with contextlib.suppress(OSError):
                yield _interface_address(name)
    master = os.environ.get("MASTER_ADDR", "")
    if master not in ("localhost", "127.0.0.1", "::1"):  # then there is one host only
        for target in (master or socket.gethostname(), _ELSEWHERE):
            with contextlib.suppress(OSError):
                address = _address_towards(target)
                # Many hosts have their own name at loopback, where others find themselves.
                if not ipaddress.ip_address(address).is_loopback:
                    yield address
    yield "127.0.0.1"


def _make_socket(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


def listen() -> socket.socket:
    """A socket that other ranks can connect to."""
    for address in _candidates():
        listener = _make_socket(address)
        try:
            listener.bind((address, 0))
            listener.listen(1024)
            return listener
        except OSError:  # not an address of this network namespace
            listener.close()
    raise Unavailable("no address to listen on, not even loopback")


class _Call:
    """One question to one rank, as far as it has got."""

    def __init__(self, rank: int, peer: tuple[str, int], request: bytes) -> None:
        self.rank, self._peer, self._request = rank, peer, request
        self._redialled = False
        self.dial()

    def dial(self) -> None:
        self.socket = _make_socket(self._peer[0])
        self._unsent, self._received = self._request, b""
        self._refused = self.socket.connect_ex(self._peer)

    @property
    def events(self) -> int:
        return selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ

    def go_on(self) -> Answer | None:
        """Does what the socket is ready for; an answer if that settles the matter."""
        try:
            return self._talk()
        except ConnectionRefusedError:
            return Answer(self.rank, "dead")
        except BlockingIOError:
            return None
        except ConnectionError:
            if self._redialled:
                return Answer(self.rank, "stuck")
            # A process that dies closes its sockets one by one, and the listener may come last.
            self._redialled = True
            self.socket.close()
            self.dial()
            return None
        except OSError:
            return Answer(self.rank, "stuck")

    def _talk(self) -> Answer | None:
        error = self._refused if self._refused != errno.EINPROGRESS else 0
        error = error or self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        if self._unsent:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
            return None
        piece = self.socket.recv(_ANSWER.size + _MOST_TEXT)
        if not piece:
            raise ConnectionResetError("closed without an answer")
        self._received += piece
        if len(self._received) < _ANSWER.size:
            return None
        state, step, bucket, round_, length = _ANSWER.unpack_from(self._received)
        text = self._received[_ANSWER.size :]
        if len(text) < length:
            return None
        verdict = "failed" if state == FAILED else "working"
        said = text[:length].decode(errors="replace")
        return Answer(self.rank, verdict, Place(step, bucket, round_), said)


class _Visitor:
    """Somebody who connected and has not been dealt with."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection, self.until = connection, until
        self.received = b""


class Peers:
    """One rank's end. `exchange` swaps byte strings of one length with all ranks (collective).

    `patience_s`: how long a rank may take to answer.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        exchange: Callable[[bytes], list[bytes]],
        patience_s: float = 2.0,
    ) -> None:
        self.rank, self.world, self._patience = rank, world, patience_s
        self.where: Callable[[], Place] = Place  # this rank is
        self._failure: str | None = None
        self._on_abort: Callable[[int, str], None] | None = None
        self._listener = listen()
        address, port = self._listener.getsockname()[:2]
        token = os.urandom(_TOKEN_BYTES)
        text = f"{port} {address}".encode()[:_ADDRESS_BYTES]
        replies = exchange(token + text.ljust(_ADDRESS_BYTES))
        self.token = replies[0][:_TOKEN_BYTES]  # rank 0's
        self._peers: list[tuple[str, int]] = []
        for reply in replies:
            port_text, _, host = reply[_TOKEN_BYTES:].decode().strip().partition(" ")
            self._peers.append((host, int(port_text)))
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="addend-peers", daemon=True)
        self._thread.start()
        _open_peers.add(self)

    def on_abort(self, call: Callable[[int, str], None]) -> None:
        """`call(rank, text)`, in a thread of ours, when another rank gives up."""
        self._on_abort = call

    def fail(self, text: str) -> None:
        """From now on this rank answers that it failed, and why."""
        self._failure = text

    # ---- asking

    def neighbour_answers(self) -> bool:
        """Whether the next rank can be asked from here: tells of firewalls before it matters."""
        answer = self._ask([(self.rank + 1) % self.world], _ASK, "")[0]
        return answer.verdict in ("working", "failed")

    def ask_all(self) -> list[Answer]:
        """Where all others are, by rank. Takes as long as the slowest, at most `patience_s`."""
        return self._ask([rank for rank in range(self.world) if rank != self.rank], _ASK, "")

    def abort(self, ranks: Sequence[int], text: str) -> None:
        """Tells others that this rank gave up, so that they need not wait for their deadline."""
        self._ask(ranks, _ABORT, text)

    def _ask(self, ranks: Sequence[int], kind: int, text: str) -> list[Answer]:
        """Answers by rank."""
        body = text.encode()[:_MOST_TEXT]
        request = _REQUEST.pack(self.token, kind, self.rank, len(body)) + body
        until = time.monotonic() + self._patience
        answers: dict[int, Answer] = {}
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                call = _Call(rank, self._peers[rank], request)
                selector.register(call.socket, call.events, call)
            while selector.get_map() and time.monotonic() < until:
                for key, _ in selector.select(max(until - time.monotonic(), 0.0)):
                    call = key.data
                    selector.unregister(key.fileobj)
                    answer = call.go_on()
                    if answer is None:
                        selector.register(call.socket, call.events, call)
                    else:
                        answers[call.rank] = answer
                        call.socket.close()
            for key in list(selector.get_map().values()):
                key.data.socket.close()
        # Whoever is left was accepted by a kernel at most: the process does not run.
        return [answers.get(rank, Answer(rank, "stuck")) for rank in ranks]

    # ---- answering

    def _serve(self) -> None:
        visitors: dict[socket.socket, _Visitor] = {}
        with selectors.DefaultSelector() as selector:

            def dismiss(visitor: _Visitor) -> None:
                selector.unregister(visitor.connection)
                del visitors[visitor.connection]
                visitor.connection.close()

            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                oldest = next(iter(visitors.values()), None)
                timeout = max(oldest.until - time.monotonic(), 0.0) if oldest else None
                for key, _ in selector.select(timeout):
                    if key.fileobj is self._wake:
                        for visitor in list(visitors.values()):
                            dismiss(visitor)
                        return
                    if key.fileobj is self._listener:
                        new = self._admit()
                        if new is not None:
                            visitors[new.connection] = new
                            selector.register(new.connection, selectors.EVENT_READ, new)
                    elif self._hear(key.data):
                        dismiss(key.data)
                now = time.monotonic()
                excess = len(visitors) - _MOST_VISITORS
                for i, visitor in enumerate(list(visitors.values())):
                    if i >= excess and visitor.until > now:
                        break
                    dismiss(visitor)

    def _admit(self) -> _Visitor | None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None  # went away
        connection.setblocking(False)
        return _Visitor(connection, time.monotonic() + self._patience)

    def _hear(self, visitor: _Visitor) -> bool:
        """Reads, and answers a whole request of a member; True when the visitor may go."""
        try:
            piece = visitor.connection.recv(_REQUEST.size + _MOST_TEXT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        visitor.received += piece
        if len(visitor.received) >= _REQUEST.size:
            token, kind, sender, length = _REQUEST.unpack_from(visitor.received)
            text = visitor.received[_REQUEST.size :]
            if not hmac.compare_digest(token, self.token) or length > _MOST_TEXT:
                return True
            if len(text) >= length:
                self._answer(visitor.connection, kind, sender, text[:length])
                return True
        return not piece

    def _answer(self, connection: socket.socket, kind: int, sender: int, text: bytes) -> None:
        if kind == _ABORT and self._on_abort is not None:
            self._on_abort(sender, text.decode(errors="replace"))
        said = (self._failure or "").encode()[:_MOST_TEXT]
        place = self.where()
        state = WORKING if self._failure is None else FAILED
        answer = _ANSWER.pack(state, place.step, place.bucket, place.round, len(said)) + said
        with contextlib.suppress(OSError):  # the asker gave up waiting
            connection.send(answer)  # fits the buffer of a new connection

    def close(self) -> None:
        if self._thread.is_alive():
            self._waker.send(b"x")
            self._thread.join(timeout=2 * self._patience)
        for end in (self._listener, self._wake, self._waker):
            end.close()
        _open_peers.discard(self)


_open_peers: weakref.WeakSet[Peers] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # A forked child (a data loader, say) may outlive its parent, whose listener must not live on.
    for call in list(_open_peers):
        call._listener.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def describe(answers: Sequence[Answer], here: Place | None) -> str:
    """One line that names who is at fault, as far as their answers show; empty if nobody is.
    `here`: name ranks that have not come so far, too."""
    parts = []
    for verdict, words in (("dead", "is dead (nobody listens)"), ("stuck", "is stuck (no answer)")):
        ranks = [str(answer.rank) for answer in answers if answer.verdict == verdict]
        if ranks:
            parts.append(f"rank {', '.join(ranks)} {words}")
    if not parts:  # otherwise those failed because of these
        parts += [f"rank {a.rank} failed: {a.text}" for a in answers if a.verdict == "failed"]
    if not parts and here is not None:
        behind = [a for a in answers if a.verdict == "working" and a.place < here]
        parts += [f"rank {a.rank} is late, at {a.place}" for a in behind]
    return "; ".join(parts)

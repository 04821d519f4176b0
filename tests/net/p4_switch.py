#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A slow switch: interprets a program of src/dataplane/p4 between network devices, in the order of
its ports. Other processes tell it commands, as bmv2's command line does.

Usage: p4_switch.py run PROGRAM SOCKET DEVICE...  or  p4_switch.py tell SOCKET < COMMANDS
"""

from __future__ import annotations

import selectors
import socket
import sys
from collections import deque
from pathlib import Path

from p4_interpreter import Interpreter

ALL_PROTOCOLS = socket.htons(3)
# Datagrams of a port that wait for their turn; what comes beyond is lost, as in any switch. A queue
# of seconds would have the path's probes and TCP's own find nobody.
MOST_WAITING = 16


def device_socket(name: str) -> socket.socket:
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, ALL_PROTOCOLS)
    device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    device.bind((name, 0))
    return device


def answer(switch: Interpreter, listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rw") as stream:
        try:
            said = switch.tell(stream.read().splitlines())
        except (AssertionError, KeyError, ValueError) as error:
            said = f"Error: {error!r}\n"
        stream.write(said)


class Queues:
    """What has arrived, by port and frame. TCP, the control plane's, is little and goes first."""

    def __init__(self, devices: list[socket.socket]) -> None:
        self.devices = devices
        self.waiting = [0] * len(devices)
        self.first: deque[tuple[int, bytes]] = deque()
        self.others: deque[tuple[int, bytes]] = deque()

    def empty(self) -> bool:
        return not self.first and not self.others

    def fill(self, port: int) -> None:
        while True:
            try:
                data, address = self.devices[port].recvfrom(2048, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if address[2] == socket.PACKET_OUTGOING:
                continue
            if data[12:14] == b"\x08\x00" and data[23] == socket.IPPROTO_TCP:
                self.first.append((port, data))
            elif self.waiting[port] < MOST_WAITING:
                self.waiting[port] += 1
                self.others.append((port, data))

    def take(self) -> tuple[int, bytes]:
        if self.first:
            return self.first.popleft()
        port, data = self.others.popleft()
        self.waiting[port] -= 1
        return port, data


def run(program: str, path: str, names: list[str]) -> None:
    switch = Interpreter(Path(program).read_text())
    devices = [device_socket(name) for name in names]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    ready = selectors.DefaultSelector()
    for port, device in enumerate(devices):
        ready.register(device, selectors.EVENT_READ, port)
    ready.register(listener, selectors.EVENT_READ, None)
    print("ready", flush=True)
    queues = Queues(devices)
    while True:
        for key, _ in ready.select(None if queues.empty() else 0):
            if key.data is None:
                answer(switch, listener)
            else:
                queues.fill(key.data)
        if queues.empty():
            continue
        for port, frame in switch.send(*queues.take()):
            devices[port].send(frame)


def tell(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(sys.stdin.read().encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as stream:
            print(stream.read(), end="")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        tell(sys.argv[2])

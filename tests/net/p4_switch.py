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
from pathlib import Path

from p4_interpreter import Interpreter

ALL_PROTOCOLS = socket.htons(3)


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


def run(program: str, path: str, names: list[str]) -> None:
    switch = Interpreter(Path(program).read_text())
    devices = [device_socket(name) for name in names]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    waiting = selectors.DefaultSelector()
    for port, device in enumerate(devices):
        waiting.register(device, selectors.EVENT_READ, port)
    waiting.register(listener, selectors.EVENT_READ, None)
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.data is None:
                answer(switch, listener)
                continue
            data, (_, _, direction, *_rest) = devices[key.data].recvfrom(2048)
            if direction == socket.PACKET_OUTGOING:
                continue
            for port, frame in switch.send(key.data, data):
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

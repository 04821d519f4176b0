#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command as a systemd unit would, where no systemd runs: under the unit's system call
filters (to which libseccomp and `systemd-analyze syscall-filter` give names), with its limits, no
capabilities, a user of its own, and a read-only system but for the state directory. As root. Usage:
confine.py UNIT STATE_DIRECTORY COMMAND...
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

USER = 61234  # who need not exist
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EQUAL, MASKED_EQUAL, GREATER_EQUAL = 4, 7, 5
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_READ_ONLY = 442, -100, 0x8000, 1
PR_CAPBSET_DROP = 24
PROT_WRITE, PROT_EXEC, SHM_EXEC = 2, 4, 0o100000

libc = ctypes.CDLL(None, use_errno=True)


def read_unit(path: Path) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith(("#", ";")):
            name, value = line.split("=", 1)
            settings.setdefault(name.strip(), []).append(value.strip())
    return settings


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno() or -result, what)


def groups() -> dict[str, list[str]]:
    text = subprocess.run(
        ["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("@"):
            name = line.strip()
            found[name] = []
        elif line.strip() and not line.strip().startswith("#"):
            found[name].append(line.strip())
    return found


def allowed_calls(lines: list[str]) -> set[str]:
    """What is left of the lists of SystemCallFilter=, the first of which allows."""
    known = groups()

    def expand(word: str) -> set[str]:
        return set().union(*map(expand, known[word])) if word.startswith("@") else {word}

    calls: set[str] = set()
    for line in lines:
        words = set().union(*map(expand, line.lstrip("~").split()))
        calls = calls - words if line.startswith("~") else calls | words
    return calls


class Argument(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


class Filter:
    def __init__(self, otherwise: int) -> None:
        self.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(ctypes.c_uint32(otherwise)))

    def rule(self, action: int, call: str, *arguments: Argument) -> None:
        number = self.library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:  # not on this architecture
            return
        array = (Argument * len(arguments))(*arguments)
        check(
            self.library.seccomp_rule_add_array(
                self.context, ctypes.c_uint32(action), number, len(arguments), array
            ),
            call,
        )

    def load(self) -> None:
        check(self.library.seccomp_load(self.context), "seccomp")


def call_filter(unit: dict[str, list[str]]) -> Filter:
    calls = Filter(KILL)
    for call in allowed_calls(unit["SystemCallFilter"]):
        calls.rule(ALLOW, call)
    return calls


def argument_filter(unit: dict[str, list[str]]) -> Filter:
    arguments = Filter(ALLOW)
    if unit.get("MemoryDenyWriteExecute") == ["yes"]:
        both = PROT_WRITE | PROT_EXEC
        arguments.rule(ERRNO | errno.EPERM, "mmap", Argument(2, MASKED_EQUAL, both, both))
        for call in ("mprotect", "pkey_mprotect"):
            arguments.rule(
                ERRNO | errno.EPERM, call, Argument(2, MASKED_EQUAL, PROT_EXEC, PROT_EXEC)
            )
        arguments.rule(ERRNO | errno.EPERM, "shmat", Argument(2, MASKED_EQUAL, SHM_EXEC, SHM_EXEC))
    if families := unit.get("RestrictAddressFamilies"):
        kept = {int(getattr(socket, name)) for name in families[0].split()}
        for family in set(range(48)) - kept:
            arguments.rule(ERRNO | errno.EAFNOSUPPORT, "socket", Argument(0, EQUAL, family))
        arguments.rule(ERRNO | errno.EAFNOSUPPORT, "socket", Argument(0, GREATER_EQUAL, 48))
    return arguments


def set_read_only(path: str, flags: int, on: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(
        MOUNT_READ_ONLY if on else 0, 0 if on else MOUNT_READ_ONLY, 0, 0
    )
    check(
        libc.syscall(
            MOUNT_SETATTR,
            AT_FDCWD,
            path.encode(),
            flags,
            ctypes.byref(attributes),
            ctypes.sizeof(attributes),
        ),
        path,
    )


def protect_system(state: str) -> None:
    check(libc.unshare(CLONE_NEWNS), "unshare")
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "/")
    check(libc.mount(state.encode(), state.encode(), None, MS_BIND, None), state)
    set_read_only("/", AT_RECURSIVE, on=True)
    set_read_only(state, 0, on=False)


def main() -> None:
    unit, state, command = read_unit(Path(sys.argv[1])), sys.argv[2], sys.argv[3:]
    filters = [argument_filter(unit), call_filter(unit)]
    os.chown(state, USER, USER)
    if unit["ProtectSystem"] == ["strict"]:
        protect_system(state)
    for name, limit in (
        ("LimitNOFILE", resource.RLIMIT_NOFILE),
        ("LimitCORE", resource.RLIMIT_CORE),
    ):
        value = int(unit[name][0])
        resource.setrlimit(limit, (value, value))
    os.umask(int(unit["UMask"][0], 8))
    if unit["CapabilityBoundingSet"] == [""]:
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            check(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "capabilities")
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    for one in filters:  # which also forbid new privileges
        one.load()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""One exception class for each status code of the C ABI.

Every class takes a message alone, so that Python code raises them like native code does; `status`
is a property of the class. What a caller may assume after each: docs/architecture.md, "Errors".
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Status(enum.IntEnum):
    """The numbers of `addend_status`."""

    OK = 0
    INVALID_ARGUMENT = 1
    MALFORMED = 2
    UNDECODABLE = 3
    CAPACITY = 4
    MISMATCH = 5
    TIMEOUT = 6
    UNAVAILABLE = 7
    IO = 8
    UNSUPPORTED = 9
    OUT_OF_MEMORY = 10
    CHANGED = 11


class Error(Exception):
    """What every failure of Addend derives from."""

    status: ClassVar[Status]


class InvalidArgument(Error, ValueError):
    """The caller's input is wrong; nothing was changed."""

    status = Status.INVALID_ARGUMENT


class Malformed(Error, ValueError):
    """Bytes that claim to be Addend's are not."""

    status = Status.MALFORMED


class Undecodable(Error):
    """A sum contradicts itself: an adder lost or altered something."""

    status = Status.UNDECODABLE


class Capacity(Error):
    """More than the plan was made for."""

    status = Status.CAPACITY


class Mismatch(Error):
    """Workers, or a state and its codec, do not share one plan."""

    status = Status.MISMATCH


class Timeout(Error, TimeoutError):
    """A deadline passed."""

    status = Status.TIMEOUT


class Unavailable(Error):
    """A peer or an earlier failure stands in the way."""

    status = Status.UNAVAILABLE


class IoError(Error, OSError):
    """The operating system refused."""

    status = Status.IO


class Unsupported(Error):
    """Refused by name: this build does not do that."""

    status = Status.UNSUPPORTED


class OutOfMemory(Error, MemoryError):
    """An allocation failed."""

    status = Status.OUT_OF_MEMORY


class Changed(Error):
    """Workers came or went during a step: all begin it again."""

    status = Status.CHANGED


BY_STATUS: dict[int, type[Error]] = {int(kind.status): kind for kind in Error.__subclasses__()}

# SPDX-License-Identifier: Apache-2.0
"""The first message of every bucket: what all ranks must share before they add anything.

Every rank sees every rank's header, so a difference is found by all of them together and the error
names who differs in what. Small sparse tensors travel along.

Over a mesh a message is as long as it is. Without one, first messages of a group all have one size,
whatever they are for: a backend that is given different sizes may end the process, and then nobody
would be told anything. The size then follows what recent buckets asked for.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections import Counter, deque
from collections.abc import Sequence
from typing import Callable, NamedTuple

from addend import Mismatch
from addend.mesh import Bytes
from addend.torch._engine import Engine
from addend.torch._works import Steps

_FIELDS = struct.Struct("<QQQQdQQ")
HEADER_BYTES = 64
_SIZE = _FIELDS.size
# Beyond this, all ranks together, a payload is better sent when its size is known.
_MOST_ROOM_BYTES = 4 << 20
_RECENT = 16


ALIKE_BYTES = 40  # of the packed form: all but the last two fields


class Header(NamedTuple):
    """`rows` and `need` may differ between ranks; all else must be the same."""

    step: int
    bucket: int
    layout: int  # names, sizes, types, codecs: a digest
    plan: int  # the codecs' fingerprints: a digest
    loss_scale: float = 1.0
    rows: int = 0  # of a sparse tensor
    need: int = HEADER_BYTES  # bytes of a first message that holds the payload too


_WORDS = {
    "step": "step",
    "bucket": "bucket",
    "layout": "layout (parameter names, sizes, types, codecs)",
    "plan": "codec plan",
    "loss_scale": "loss scale",
}


def digest(text: str) -> int:
    """64 bits of a text; equal on all ranks and in all runs."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def roomy(count: int) -> int:
    """A little more than `count`, so that sizes that wander stay the same for a while."""
    step = max(64, 1 << max(count.bit_length() - 3, 0))
    return (count // step + 1) * step


class Greeter:
    """Exchanges first messages. One per group; all ranks greet in the same order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._needs: deque[int] = deque([0], maxlen=_RECENT)
        self._text = ctypes.create_string_buffer(HEADER_BYTES)
        self._text_bytes = Bytes(ctypes.addressof(self._text), HEADER_BYTES)

    @property
    def room(self) -> int:
        """Bytes that a first message may have; a function of what all ranks have seen."""
        if self.engine.mesh is not None:
            return _MOST_ROOM_BYTES // self.engine.world
        most = max(self._needs)
        return roomy(most) if most > HEADER_BYTES else HEADER_BYTES

    def pack(self, header: Header) -> Bytes:
        """The header as it travels, until the next call."""
        _FIELDS.pack_into(self._text, 0, *header)
        return self._text_bytes

    def greet(
        self,
        header: Header,
        payload: Sequence[Bytes],
        describe_layout: Callable[[], str],
        headers: list[Header],
        messages: list[Bytes],
    ) -> Steps:
        """Fills `headers` by rank, and `messages`, for use before the next wait, if everybody's
        payload fitted. Raises Mismatch."""
        room = self.room
        text = self.pack(header)
        pieces = [text, *payload] if header.need <= room else [text]
        replies: list[Bytes] = []
        yield from self.engine.exchange(pieces, room, replies)
        # A rank that is missing from this job says nothing, and no other can know what it would
        # say; one that is missing itself still compares its own header with the others'.
        missing = self.engine.missing
        headers += [
            header if missing >> rank & 1 else said for rank, said in enumerate(unpack(replies))
        ]
        check(headers, describe_layout)
        most = max(h.need for h in headers)
        self._needs.append(most if most * self.engine.world <= _MOST_ROOM_BYTES else 0)
        if most <= room:
            messages += replies


def unpack(messages: Sequence[Bytes]) -> list[Header]:
    """The headers with which messages begin."""
    return [Header(*_FIELDS.unpack(ctypes.string_at(m.address, _SIZE))) for m in messages]


def check(headers: Sequence[Header], describe_layout: Callable[[], str]) -> None:
    """Raises Mismatch with the ranks that differ from the most common header."""
    alike = headers[0][: len(_WORDS)]
    if all(header[: len(_WORDS)] == alike for header in headers):
        return
    for name, words in _WORDS.items():
        values = [getattr(header, name) for header in headers]
        if all(value == values[0] for value in values):
            continue
        common, _ = Counter(values).most_common(1)[0]
        odd = [rank for rank, value in enumerate(values) if value != common]
        shown = ", ".join(f"rank {rank} has {_show(values[rank])}" for rank in odd[:8])
        extra = f"; here: {describe_layout()}" if name == "layout" else ""
        raise Mismatch(f"ranks differ in {words}: most have {_show(common)}, {shown}{extra}")


def _show(value: object) -> str:
    return f"{value:#018x}" if isinstance(value, int) and value > 2**32 else str(value)

# SPDX-License-Identifier: Apache-2.0
"""The first message of every bucket: what all ranks must share before they add anything.

Every rank sees every rank's header, so a difference is found by all of them together and the error
names who differs in what. First messages of a group all have one size, whatever they are for: a
backend that is given different sizes may end the process, and then nobody would be told anything.
The size follows what recent buckets asked for, so that small sparse tensors fit in whole.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, deque
from collections.abc import Sequence
from typing import Callable, NamedTuple

import torch

from addend import Mismatch
from addend.torch._engine import Engine, Steps

_FIELDS = struct.Struct("<QQQQdQQ")
HEADER_BYTES = 64
# Beyond this, all ranks together, a payload is better sent when its size is known.
_MOST_ROOM_BYTES = 4 << 20
_RECENT = 16


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

    @property
    def room(self) -> int:
        """Bytes of the next first message; a function of what all ranks have seen."""
        most = max(self._needs)
        return roomy(most) if most > HEADER_BYTES else HEADER_BYTES

    def greet(
        self,
        header: Header,
        payload: torch.Tensor | None,
        describe_layout: Callable[[], str],
        headers: list[Header],
        payloads: list[torch.Tensor],
    ) -> Steps:
        """Fills `headers` by rank, and `payloads` if everybody's fitted. Raises Mismatch."""
        room = self.room
        message = torch.zeros(room, dtype=torch.uint8)
        message[:HEADER_BYTES] = torch.frombuffer(
            bytearray(_FIELDS.pack(*header).ljust(HEADER_BYTES)), dtype=torch.uint8
        )
        if payload is not None and HEADER_BYTES + payload.numel() <= room:
            message[HEADER_BYTES : HEADER_BYTES + payload.numel()] = payload
        replies: list[torch.Tensor] = []
        yield from self.engine.exchange(message, replies)
        # A rank that is missing from this job says nothing, and no other can know what it would
        # say; one that is missing itself still compares its own header with the others'.
        headers += [
            header
            if self.engine.missing >> rank & 1
            else Header(*_FIELDS.unpack_from(r[:HEADER_BYTES].numpy().tobytes()))
            for rank, r in enumerate(replies)
        ]
        check(headers, describe_layout)
        most = max(h.need for h in headers)
        self._needs.append(most if most * self.engine.world <= _MOST_ROOM_BYTES else 0)
        if most <= room:
            payloads += [reply[HEADER_BYTES:] for reply in replies]


def check(headers: Sequence[Header], describe_layout: Callable[[], str]) -> None:
    """Raises Mismatch with the ranks that differ from the most common header."""
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

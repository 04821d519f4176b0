# SPDX-License-Identifier: Apache-2.0
"""The codecs of one flat gradient, and the memory in which they find it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from addend import Codec
from addend.pipeline import Part, Parts

DTYPES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def digest(text: str) -> int:
    """64 bits of a text; equal on all ranks and in all runs."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def rows_of(parameter: torch.Tensor) -> int:
    """Rows of a parameter as a matrix, in the order in which DDP lays its gradient out: the
    outermost dimension by the rest. 0: it is none."""
    if parameter.dim() < 2 or parameter.numel() == 0:
        return 0
    return int(max(zip(parameter.stride(), parameter.shape))[1])


class Plan:
    """What all ranks must share about a gradient: names, sizes, types, codecs."""

    def __init__(self, description: str) -> None:
        self.text = description
        self.layout = digest(description)

    def describe(self) -> str:
        return self.text if len(self.text) < 400 else self.text[:400] + "..."


class Run(NamedTuple):
    """Consecutive elements with one codec."""

    begin: int
    codec: Codec
    elements: int


class Codecs:
    """Those of one gradient, in the order of its elements."""

    def __init__(
        self,
        runs: Sequence[Run],
        itemsize: int,
        on_device: bool = False,
        pieces: bool = False,
    ) -> None:
        """`on_device`: they encode where the gradient is. `pieces`: they travel one after the
        other, not at once."""
        self.runs, self.on_device, self.pieces = list(runs), on_device, pieces
        self._itemsize = itemsize
        self._parts: dict[int, Parts] = {}  # of the last gradient, by its address

    def parts(self, address: int) -> Parts:
        made = self._parts.get(address)
        if made is None:
            places = (address + run.begin * self._itemsize for run in self.runs)
            made = Parts(*(Part(run.codec, to) for run, to in zip(self.runs, places)))
            self._parts = {address: made}  # another thread may replace it again
        return made

    def all_dense(self) -> bool:
        """Whether the next step of all of them is a plain sum."""
        return all(run.codec.is_next_dense() for run in self.runs)

    def skip_step(self) -> None:
        for run in self.runs:
            run.codec.skip_step()

    def records(self) -> list[tuple[bytes, int]]:
        """What the last step did, for Meter; and elements."""
        return [(run.codec.record(), run.elements) for run in self.runs]

    def close(self) -> None:
        self._parts = {}  # what is submitted from now on is refused
        for run in self.runs:
            run.codec.close()


class Memory:
    """Where codecs find a gradient: itself, or pinned host memory that stands for a device's."""

    def __init__(self, tensor: torch.Tensor, encoded_there: bool = False) -> None:
        """`encoded_there`: codecs run where the gradient is, and give it its scale."""
        self.tensor = tensor
        self.on_device = tensor.device.type != "cpu"
        self.address = tensor.data_ptr()
        if not self.on_device:
            return
        self._ready = torch.cuda.Event()
        self.written_again()
        self.stream = side_stream(tensor.device)
        self._host: torch.Tensor | None = None
        if encoded_there:
            tensor.record_stream(self.stream)
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.address = self._host.data_ptr()

    def written_again(self) -> None:
        """Another gradient is there, once the caller's stream is. REQUIRES: no job has the last."""
        if self.on_device:
            self._callers = torch.cuda.current_stream(self.tensor.device)
            self._ready.record(self._callers)

    def fetch(self) -> None:
        """Makes a device's gradient readable at `address`, there in the order of the stream."""
        with self.order():
            if self._host is None:
                return
            self._host.copy_(self.tensor, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        copied.synchronize()

    def store(self, scale: float) -> None:
        """Puts the sum, times `scale`, where a device's gradient was."""
        if self._host is None:
            return
        with self.order():
            self.tensor.copy_(self._host, non_blocking=True)
            if scale != 1.0:
                self.tensor.mul_(scale)

    def put_back(self, before: torch.Tensor) -> None:
        """The gradient is as it was, for all that its owner does from now on: of what has failed
        there is no `done` to wait for. The host does not: what is before this may never end."""
        with self.order():
            self.tensor.copy_(before)
        if self.on_device:
            before.record_stream(self.stream)
            self._callers.wait_stream(self.stream)

    def follow(self) -> None:
        """What comes later in `order` comes after what the calling thread's stream has by now."""
        if self.on_device:
            self.stream.wait_stream(torch.cuda.current_stream(self.tensor.device))

    @property
    def ready(self) -> tuple[int, int] | None:
        """The event behind what writes a device's gradient, and that device. Whoever waits for it
        in a stream holds up what comes later there, so the pipeline does not."""
        if not self.on_device:
            return None
        return self._ready.cuda_event, self.stream.device.index

    @contextlib.contextmanager
    def order(self) -> Iterator[None]:
        """What a device does inside comes after the gradient and before `done`'s reader."""
        if not self.on_device:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self._ready)
            yield


_side_streams: dict[torch.device, torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """What we do on a device is in this order, beside what its owner does."""
    if device not in _side_streams:
        _side_streams[device] = torch.cuda.Stream(device=device, priority=-1)
    return _side_streams[device]

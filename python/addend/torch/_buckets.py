# SPDX-License-Identifier: Apache-2.0
"""The buckets of a model: layouts, codecs, and what those keep, which belongs to parameters.

DDP moves parameters between buckets, an adaptive run changes codecs, a restart brings residuals
along: each time what a bucket keeps is parked by parameter, and found again by its next bucket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import torch

from addend import Codec, InvalidArgument, Mismatch
from addend.torch import _log
from addend.torch._bucket import DTYPES, Codecs, Memory, Plan, Run, digest, rows_of
from addend.torch._engine import Engine
from addend.torch._specs import Specs, bare, keeps_residual, kind_of

# Codecs that spend long on every element take a bucket in pieces of whole parameters, about so
# large: one is encoded and another decoded while a third travels. Plain sums do, too: a mesh has no
# better way to fill a fast link.
_PIECED = ("quant", "cast")
PIECE_ELEMENTS = 1 << 20

# A bucket's parameters, which DDP makes a list of when it is asked.
Parameters = Callable[[], "list[torch.Tensor]"]


@dataclasses.dataclass
class Bucket:
    """One bucket's layout and what was made for it."""

    key: tuple[Any, ...]
    buffer: torch.Tensor  # DDP's own: as long as it is this one, it holds the same parameters
    names: list[str]
    sizes: list[int]  # elements of each
    plan: Plan
    codecs: Codecs | None  # None: none takes these elements
    owners: list[tuple[str, Codec, int]]  # parameter, its codec, its segment there
    spec: str = ""  # the controller's choice, where there is one
    owed: torch.Tensor | None = None  # what codecs before these kept; their first step sends it
    agreed: bool = False  # all ranks have been seen to have it; then nothing is owed
    sums: torch.Tensor | None = None  # where the backend adds what must not be written to
    memory: Memory | None = None  # of the last step


class _Parameter(NamedTuple):
    """What a codec has to know of one."""

    name: str
    size: int
    rows: int  # of a matrix; 0: none
    spec: str

    def segment(self) -> tuple[int, int, int]:
        return digest(self.name), self.size, self.rows


class _Residual(NamedTuple):
    """A codec's state of one parameter, and the loss scale in whose units it is."""

    state: bytes
    loss_scale: float


class Buckets:
    """By DDP's numbers. `choose`: the controller's codec for a bucket, if there is a controller."""

    def __init__(
        self,
        engine: Engine,
        specs: Specs,
        names: Mapping[int, str],
        seed: int,
        choose: Callable[[int], str] | None,
    ) -> None:
        self._engine, self._specs, self._names, self._choose = engine, specs, names, choose
        self.seed = seed
        self.step = -1
        self.loss_scale = 1.0
        self.known: dict[int, Bucket] = {}
        self._plain: dict[int, Bucket] = {}  # the same, for steps in which everything goes dense
        self._parked: dict[str, _Residual] = {}  # of parameters that are in no bucket now

    # ---- layouts

    def find(self, index: int, buffer: torch.Tensor, find_parameters: Parameters) -> Bucket:
        """What belongs to a bucket; made anew when DDP has moved parameters."""
        known = self.known.get(index)
        if known is not None and known.buffer is buffer:
            return known
        parameters = find_parameters()
        key = (buffer.numel(), buffer.dtype, buffer.device, tuple(map(id, parameters)))
        if known is not None and known.key == key:
            known.buffer = buffer
            return known
        here = {self._names.get(id(p)) for p in parameters}
        stale = [i for i, b in self.known.items() if i == index or here.intersection(b.names)]
        if stale:
            self._engine.drain()
            for old in stale:
                self._park(old)
                self._plain.pop(old, None)
        made = self.known[index] = self._make(index, key, buffer, parameters)
        return made

    def follow(self, index: int, parameters: Parameters) -> Bucket:
        """The bucket with the codec that the controller wants now; what it kept goes along."""
        known = self.known[index]
        if self._choose is not None and known.spec != self._choose(index):
            self._park(index)
            known = self._make(index, known.key, known.buffer, parameters())
            self.known[index] = known
        return known

    def plain(self, index: int, parameters: Parameters) -> Bucket:
        """The bucket as it travels where everything goes dense."""
        known, plain = self.known[index], self._plain.get(index)
        if plain is None or plain.key != known.key:
            plain = self._make(index, known.key, known.buffer, parameters(), plain=True)
            self._plain[index] = plain
        return plain

    def _make(
        self,
        index: int,
        key: tuple[Any, ...],
        buffer: torch.Tensor,
        parameters: list[torch.Tensor],
        plain: bool = False,
    ) -> Bucket:
        choice = self._choose(index) if self._choose is not None and not plain else None

        def describe(name: str, size: int, rows: int) -> _Parameter:
            return _Parameter(name, size, rows, "dense" if plain else self._specs.of(name, choice))

        shapes = [
            describe(self._names.get(id(p), f"unnamed.{index}.{i}"), p.numel(), rows_of(p))
            for i, p in enumerate(parameters)
        ]
        if sum(p.numel() for p in parameters) != buffer.numel():  # padded by an unknown release
            shapes = [describe(f"bucket.{index}", buffer.numel(), 0)]
        names, sizes = [p.name for p in shapes], [p.size for p in shapes]
        lines = "; ".join(f"{p.name} {p.size} {p.spec}" for p in shapes)
        plan = Plan(f"{buffer.dtype} {buffer.numel()} {buffer.device.type}: {lines}")
        dtype = DTYPES.get(buffer.dtype)
        if dtype is None:
            _log.PLAN.info("bucket %d: %s has no codec, travels as it is", index, buffer.dtype)
            return Bucket(key, buffer, names, sizes, plan, None, [])
        specs = {p.spec for p in shapes}
        there = self._engine.encodes_on_device(specs, dtype, buffer.device)
        slow = len(specs) == 1 and kind_of(shapes[0].spec) in _PIECED
        pieces = not there and (slow or plain)
        runs: list[Run] = []
        owners: list[tuple[str, Codec, int]] = []
        for begin, run in _cut(shapes, PIECE_ELEMENTS if pieces else buffer.numel()):
            codec = self._make_codec(buffer, run, there)
            runs.append(Run(begin, codec, sum(p.size for p in run)))
            owners += [(p.name, codec, i) for i, p in enumerate(run)]
        _log.PLAN.info(
            "bucket %d: %d elements of %d parameters, %s%s",
            index,
            buffer.numel(),
            len(names),
            ", ".join(sorted(specs)),
            ", encoded on the device" if there else "",
        )
        codecs = Codecs(runs, buffer.element_size(), there, pieces)
        made = Bucket(key, buffer, names, sizes, plan, codecs, owners, choice or "")
        if self._choose is not None and not plain:
            made.owed = self._owed(names, sizes)
        return made

    def _make_codec(self, buffer: torch.Tensor, run: list[_Parameter], there: bool) -> Codec:
        """`there`: it runs where the gradient is."""
        spec = run[0].spec
        codec = self._engine.make_codec(
            spec,
            buffer,
            sum(p.size for p in run),
            there,
            1.0 / self._engine.world,
            seed=self.seed,
            bucket=digest(" ".join(p.name for p in run)),
            first_step=self.step,
            segments=[p.segment() for p in run],
        )
        for i, parameter in enumerate(run if self._choose is None else []):
            parked = self._parked.pop(parameter.name, None)
            if parked is None or not parked.state:
                continue
            try:
                codec.load_segment(i, self._rescaled(parked, buffer, parameter))
            except Mismatch as error:  # another shape or type, say; a residual may be lost
                _log.STATE.warning("residual of %s dropped: %s", parameter.name, error)
        return codec

    # ---- what codecs keep

    def scale(self, factor: float) -> None:
        """Residuals are in units of the scaled gradient."""
        self._engine.drain()
        for known in self.known.values():
            for run in known.codecs.runs if known.codecs else []:
                run.codec.scale_residual(factor)
            if known.owed is not None:
                known.owed *= factor

    def kept(self, index: int) -> torch.Tensor | None:
        """What a bucket still has to send, in its own elements; None: nothing."""
        known = self.known[index]
        kept = None if known.owed is None else known.owed.clone()
        for run in known.codecs.runs if known.codecs is not None else []:
            if not keeps_residual(run.codec.spec):
                continue
            own = torch.empty(run.elements)
            run.codec.read_residual(own.data_ptr())
            if kept is None:
                kept = torch.zeros(known.buffer.numel())
            kept[run.begin : run.begin + run.elements] += own
        return kept

    def _residuals(self, index: int) -> dict[str, _Residual]:
        """What a bucket keeps, by parameter: states of its codecs, or plain floats where the next
        codec may be another."""
        known = self.known[index]
        if self._choose is None:
            return {
                name: _Residual(codec.save_segment(segment), self.loss_scale)
                for name, codec, segment in known.owners
            }
        kept = self.kept(index)
        return {
            name: _Residual(part.numpy().tobytes(), self.loss_scale)
            for name, part in zip(known.names, kept.split(known.sizes) if kept is not None else ())
            if bool(part.any())
        }

    def _park(self, index: int) -> None:
        self._parked.update(self._residuals(index))
        known = self.known.pop(index)
        if known.codecs is not None:
            known.codecs.close()

    def _owed(self, names: list[str], sizes: list[int]) -> torch.Tensor | None:
        """What was kept of these parameters, for the next step; None: nothing."""
        owed: torch.Tensor | None = None
        begin = 0
        for name, size in zip(names, sizes):
            parked = self._parked.pop(name, None)
            if parked is not None and parked.state:
                if len(parked.state) != 4 * size:
                    _log.STATE.warning("residual of %s dropped: it is of another size", name)
                else:
                    owed = torch.zeros(sum(sizes)) if owed is None else owed
                    part = torch.frombuffer(bytearray(parked.state), dtype=torch.float32)
                    owed[begin : begin + size] = part * (self.loss_scale / parked.loss_scale)
            begin += size
        return owed

    def _rescaled(self, parked: _Residual, buffer: torch.Tensor, parameter: _Parameter) -> bytes:
        """A parked residual in units of today's loss scale."""
        if parked.loss_scale == self.loss_scale:
            return parked.state
        named: Any = {"seed": self.seed, "first_step": self.step}
        with self._engine.make_codec(
            parameter.spec, buffer, parameter.size, segments=[parameter.segment()], **named
        ) as codec:
            codec.load_segment(0, parked.state)
            codec.scale_residual(self.loss_scale / parked.loss_scale)
            return codec.save_segment(0)

    # ---- over a restart

    def state(self) -> dict[str, Any]:
        """Residuals by parameter name. REQUIRES: nothing is under way."""
        residuals = dict(self._parked)
        for index in self.known:
            residuals.update(self._residuals(index))
        return {
            name: {
                "codec": self._specs.of(name),
                "loss_scale": residual.loss_scale,
                "residual": _bytes_tensor(residual.state),
            }
            for name, residual in residuals.items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Begins anew with what `Handle.state_dict` had. REQUIRES: nothing is under way."""
        rank, world = self._engine.rank, self._engine.world
        kept: dict[str, _Residual] = {}
        dropped: list[str] = []
        if int(state["rank"]) != rank:
            self._check_shared(state)
            _log.STATE.warning(
                "rank %d loads the state of rank %s: its residuals are dropped (save one per rank)",
                rank,
                state["rank"],
            )
        else:
            for name, saved in ((bare(n), one) for n, one in state["parameters"].items()):
                residual = bytes(saved["residual"].cpu().numpy().tobytes())
                # Whether a state of its kind fits, a codec says.
                if kind_of(saved["codec"]) == kind_of(self._specs.of(name)):
                    kept[name] = _Residual(residual, float(saved["loss_scale"]))
                elif residual:
                    dropped.append(name)
        if dropped:
            _log.STATE.warning("residuals dropped, the codec changed: %s", ", ".join(dropped[:20]))
        if int(state["world"]) != world:
            _log.STATE.warning(
                "world size was %s, is %d: rank %d keeps its residuals; those of ranks that are"
                " gone are lost, new ranks begin with none",
                state["world"],
                world,
                rank,
            )
        if int(state["seed"]) != self.seed:
            _log.STATE.warning("seed %s of the state replaces %d", state["seed"], self.seed)
        for known in self.known.values():
            if known.codecs is not None:
                known.codecs.close()
        self.known.clear()
        self._plain.clear()
        self._parked = kept
        self.seed, self.step = int(state["seed"]), int(state["step"]) - 1

    def _check_shared(self, state: Mapping[str, Any]) -> None:
        """Raises if a rank that drops this state would part from those that keep theirs."""
        if int(state["world"]) != self._engine.world:
            return  # nobody keeps what they share
        for name, saved in state["parameters"].items():
            if kind_of(saved["codec"]) == "lowrank" and saved["residual"].numel() > 0:
                raise InvalidArgument(
                    f"rank {self._engine.rank} loads the state of rank {state['rank']}: ranks share"
                    f" {name}'s basis, so each must load its own (save one per rank)"
                )


def _cut(shapes: list[_Parameter], largest: int) -> list[tuple[int, list[_Parameter]]]:
    """Runs of neighbours with one spec, and where each begins. One of several parameters has at
    most so many elements."""
    runs: list[tuple[int, list[_Parameter]]] = []
    begin = count = 0
    for one in shapes:
        full = count > 0 and count + one.size > largest
        if not runs or full or one.spec != runs[-1][1][0].spec:
            begin, count = begin + count, 0
            runs.append((begin, []))
        runs[-1][1].append(one)
        count += one.size
    return runs


def _bytes_tensor(state: bytes) -> torch.Tensor:
    if not state:  # not every torch makes a tensor of no bytes
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)

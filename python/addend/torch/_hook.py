# SPDX-License-Identifier: Apache-2.0
"""The hook of DistributedDataParallel, and the handle that stands for it.

No postponed annotations here: DDP compares the hook's annotations with the types themselves.
"""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

import addend
from addend import Codec, InvalidArgument, Mismatch
from addend.pipeline import Outcome
from addend.torch import _log
from addend.torch._adaptive import Adaptive, Shape
from addend.torch._bucket import (
    DTYPES,
    Codecs,
    Memory,
    Plan,
    Run,
    digest,
    rows_of,
    side_stream,
)
from addend.torch._engine import Engine, value_of
from addend.torch._meter import Meter, profiler_range
from addend.torch._peers import Place
from addend.torch._sparse import SparseSums
from addend.torch._specs import Specs, bare, keeps_residual, kind_of, names_of

STATE_FORMAT = 1
# Up to here a pass over a bucket costs backward less than another thread does.
_APART_BYTES = 4 << 20
# Codecs that spend long on every element take a bucket in pieces of whole parameters, about so
# large: one is encoded and another decoded while a third travels.
_PIECED = ("quant", "cast")
_PIECE_ELEMENTS = 1 << 20


@dataclasses.dataclass
class _Bucket:
    """One bucket's layout and what was made for it."""

    key: tuple[Any, ...]
    buffer: torch.Tensor  # DDP's own: as long as it is this one, it holds the same parameters
    names: list[str]
    sizes: list[int]  # elements of each
    plan: Plan
    codecs: Optional[Codecs]  # None: none takes these elements
    owners: list[tuple[str, Codec, int]]  # parameter, its codec, its segment there
    spec: str = ""  # the controller's choice, where there is one
    owed: Optional[torch.Tensor] = None  # what codecs before these kept; their first step sends it
    agreed: bool = False  # all ranks have been seen to have it; then nothing is owed
    sums: Optional[torch.Tensor] = None  # where the backend adds what must not be written to


class _Parameter(NamedTuple):
    """What a codec has to know of one."""

    name: str
    size: int
    rows: int  # of a matrix; 0: none

    def segment(self) -> tuple[int, int, int]:
        return digest(self.name), self.size, self.rows


class _Residual(NamedTuple):
    """A codec's state of one parameter, and the loss scale in whose units it is."""

    state: bytes
    loss_scale: float


def _bytes_tensor(state: bytes) -> torch.Tensor:
    if not state:  # not every torch makes a tensor of no bytes
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


class Hook:
    """What DDP holds of us: a handle, or none, and then sums are DDP's own.

    DDP keeps its hooks among what it copies and pickles. A copy of a model has no part in the
    exchange of the first, whose ranks know nothing of it: it gets a hook without a handle.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.handle: Optional[Handle] = None
        self.registered = False  # with a reducer, which keeps it for good

    def run(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's own stubs lack it
    ) -> torch.futures.Future[torch.Tensor]:
        if self.handle is not None:
            with profiler_range("addend::hook"):
                return self.handle._submit(bucket)
        # To the bit what DDP does where it has no hook.
        buffer, world = bucket.buffer(), dist.get_world_size(self._group)
        summed = buffer.div_(world) if buffer.is_sparse else buffer.mul_(1.0 / world)
        work = dist.all_reduce(summed, group=self._group, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(_first_value)
        return future

    def register(self, model: Any, handle: "Handle") -> None:
        if not self.registered:
            model.register_comm_hook(None, self.run)
            self.registered = True
        self.handle = handle

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()


def _first_value(future: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
    return future.value()[0]


def hook_of(model: Any) -> Hook:
    """The model's hook of ours, or a new one. A copy's is a stranger to the copy's reducer."""
    for hook, _ in getattr(model, "_comm_hooks", []):
        ours = getattr(hook, "__self__", None)
        if isinstance(ours, Hook) and ours.registered:
            return ours
    return Hook(model.process_group)


class Handle:
    """What `attach` returns: metrics, state and life of one model's gradient exchange."""

    def __init__(
        self,
        model: Any,
        specs: Specs,
        engine: Engine,
        *,
        seed: int,
        in_place: Optional[bool],
        scaler: Optional[Any],
        optimizer: Optional[Any] = None,
        fixed: bool = False,
    ) -> None:
        """`fixed`: plans follow from gradients alone."""
        self._specs, self._engine, self._seed, self._scaler = specs, engine, seed, scaler
        self._hook = hook_of(model)
        self._meter = Meter(self._engine.rank)
        # With views, the bucket is the gradients themselves, which must survive a failure.
        views = bool(getattr(model, "gradient_as_bucket_view", False))
        self._in_place = (not views) if in_place is None else in_place
        self._names = names_of(model.module)
        self._buckets: dict[int, _Bucket] = {}
        self._parked: dict[str, _Residual] = {}  # of parameters that are in no bucket now
        self._sparse: dict[str, SparseSums] = {}
        self._references: dict[int, _Bucket] = {}  # for steps in which everything goes dense
        self._adaptive: Optional[Adaptive] = None
        if specs.adaptive:
            self._adaptive = Adaptive(
                specs.default.partition(":")[2],
                engine,
                fixed=fixed,
                optimizer=optimizer,
                seed=seed,
                residual=lambda index: self._kept(self._buckets[index]),
            )
        self._step = -1
        self._last_index = -1
        self._loss_scale = 1.0
        self._last_submitted = 0.0
        self._counting = threading.Lock()
        self._unfinished = 0  # buckets of this step; guarded by _counting, as is the next
        self._all_submitted = False

        self._hook.register(model, self)

    # ---- what runs inside backward, so it only queues

    def _submit(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        begin = time.perf_counter()
        self._engine.check_open()
        index, buffer = bucket.index(), bucket.buffer()
        first = index <= self._last_index or self._step < 0
        if first:
            self._begin_step()
        self._last_index = index
        self._last_submitted = begin
        place = Place(self._step, index)
        self._watch_launches(place, first)
        with self._counting:
            self._unfinished += 1
            self._all_submitted = bucket.is_last()
        if buffer.is_sparse:
            promised = self._sum_rows(place, buffer, bucket.parameters())
        else:
            known = self._buckets.get(index)
            if known is None or known.buffer is not buffer:
                known = self._bucket(index, buffer, bucket.parameters())
            if self._adaptive is not None:
                known = self._adapt(place, known, buffer, bucket.parameters())
            if self._leaves(place, known, buffer):
                promised = self._leave(place, known, buffer)
            else:
                promised = self._encode(place, known, buffer)
        self._meter.count("hook_calls")
        self._meter.count("time/hook_s", time.perf_counter() - begin)
        return promised

    def _watch_launches(self, place: Place, first: bool) -> None:
        launches = self._engine.launches
        if launches is None:
            return
        if first:
            launches.begin()
            return
        try:
            launches.check()
        except addend.Unsupported as error:
            raise self._engine.fail(error, place) from None

    def _promise(
        self, buffer: torch.Tensor
    ) -> "tuple[torch.futures.Future[torch.Tensor], torch.futures.Future[torch.Tensor]]":
        """A future, and what DDP gets."""
        future: torch.futures.Future[torch.Tensor]
        if buffer.device.type == "cpu":
            future = torch.futures.Future()
        else:
            future = torch.futures.Future(devices=[buffer.device])
        return future, future.then(value_of)

    def _bucket_done(self, step: int) -> None:
        """Said before backward can return. The last bucket of a step may be done before others: the
        backend adds some, and our own thread the rest."""
        with self._counting:
            self._unfinished -= 1
            over = self._all_submitted and self._unfinished == 0
        if over:
            self._meter.step_done(step, time.perf_counter() - self._last_submitted)

    def _encode(
        self, place: Place, known: _Bucket, buffer: torch.Tensor
    ) -> "torch.futures.Future[torch.Tensor]":
        """The gradient travels as its codecs say."""
        future, promised = self._promise(buffer)
        codecs = known.codecs
        assert codecs is not None
        memory = Memory(buffer, codecs.on_device)

        def done(outcome: Outcome) -> None:
            known.agreed, known.owed = True, None
            if memory.on_device:
                memory.store(1.0 / self._engine.world)
            records = codecs.records()
            self._meter.job_done(outcome.record, records, place, outcome.repeats)
            if self._adaptive is not None:
                self._adaptive.ended(place, outcome.record, records)
            self._bucket_done(place.step)
            with memory.order():
                future.set_result(buffer)

        self._engine.run(
            place,
            known.plan,
            codecs.parts(memory.address),
            done,
            future.set_exception,  # type: ignore[arg-type]  # torch's stubs are wrong
            loss_scale=self._loss_scale,
            pieces=codecs.pieces,
            in_place=self._in_place and not self._engine.repeats,
            prepare=memory.fetch if memory.on_device else None,
        )
        return promised

    def _leaves(self, place: Place, known: _Bucket, buffer: torch.Tensor) -> bool:
        """Whether the backend adds this gradient as DDP itself would have it do: what no codec
        takes, and what would travel as it is anyway."""
        if known.codecs is not None:
            return known.agreed and self._engine.leaves(buffer) and known.codecs.all_dense()
        if not known.agreed:  # a backend that is given different sizes may end the process
            self._engine.agree_now(place, known.plan)
            known.agreed = True
        return True

    def _leave(
        self, place: Place, known: _Bucket, buffer: torch.Tensor
    ) -> "torch.futures.Future[torch.Tensor]":
        if known.codecs is not None:
            known.codecs.skip_step()
        scale = 1.0 / self._engine.world
        begin = time.perf_counter()
        nbytes = buffer.numel() * buffer.element_size()
        mode = "mode/dense" if known.codecs is not None else "fallback/dtype"

        def make() -> torch.Tensor:
            if scale == 1.0:  # one rank's gradients are sums already: its backend changes nothing
                return buffer
            if self._in_place:
                return buffer.mul_(scale)
            if known.sums is None:
                known.sums = torch.empty_like(buffer)
            return torch.mul(buffer, scale, out=known.sums)  # DDP copies it back when it is done

        def done() -> None:
            end = time.perf_counter()
            self._meter.left_done(begin, end, place, nbytes, mode)
            if self._adaptive is not None:
                self._adaptive.left(place, begin, end, nbytes)
            self._bucket_done(place.step)

        apart = buffer.device.type == "cpu" and nbytes >= _APART_BYTES
        future, promised = self._promise(buffer)
        self._engine.leave(make, place, done, future, apart=apart)
        return promised

    def _sum_rows(
        self, place: Place, buffer: torch.Tensor, parameters: list[torch.Tensor]
    ) -> "torch.futures.Future[torch.Tensor]":
        name = self._names.get(id(parameters[0]), str(place.bucket))
        sums = self._sparse.get(name)
        if sums is None:
            spec = self._specs.of(name, "exact" if self._adaptive is not None else None)
            sums = self._sparse[name] = SparseSums(self._engine, spec, name, self._seed)
        future, promised = self._promise(buffer)

        def done(result: torch.Tensor) -> None:
            self._bucket_done(place.step)
            future.set_result(result)

        sums.run(
            place,
            buffer,
            1.0 / self._engine.world,
            self._meter,
            done,
            future.set_exception,  # type: ignore[arg-type]  # torch's stubs are wrong
            loss_scale=self._loss_scale,
        )
        return promised

    def _begin_step(self) -> None:
        self._step += 1
        with self._counting:
            self._unfinished = 0  # a step that failed leaves some behind
        self._follow_scaler()
        if self._adaptive is not None:
            self._adaptive.begin_step(self._step, self._shapes())

    def _shapes(self) -> tuple[Shape, ...]:
        """Of the buckets that codecs take."""
        found = [(i, b.buffer) for i, b in sorted(self._buckets.items()) if b.codecs is not None]
        return tuple(
            Shape(i, t.numel(), t.numel() * t.element_size(), t.dtype, t.device.type)
            for i, t in found
        )

    def _follow_scaler(self) -> None:
        if self._scaler is None or not self._scaler.is_enabled():
            return
        scale = float(self._scaler.get_scale())
        if scale != self._loss_scale:
            # Residuals are in units of the scaled gradient.
            factor = scale / self._loss_scale
            self._engine.drain()
            for known in self._buckets.values():
                for run in known.codecs.runs if known.codecs else []:
                    run.codec.scale_residual(factor)
                if known.owed is not None:
                    known.owed *= factor
            self._loss_scale = scale

    # ---- plans that change

    def _adapt(
        self, place: Place, known: _Bucket, buffer: torch.Tensor, parameters: list[torch.Tensor]
    ) -> _Bucket:
        """The bucket as it is sent in this step. What it kept goes along to another codec."""
        adaptive = self._adaptive
        assert adaptive is not None
        if known.codecs is None:
            return known
        adaptive.submitted(place.step, place.bucket, buffer, parameters)
        if adaptive.is_reference(place.step):
            plain = self._references.get(place.bucket)
            if plain is None or plain.key != known.key:
                plain = self._make_bucket(place.bucket, known.key, buffer, parameters, "dense")
                self._references[place.bucket] = plain
            plain.buffer = buffer
            return plain
        if known.spec != adaptive.spec(place.bucket):
            self._park([place.bucket])
            known = self._make_bucket(place.bucket, known.key, buffer, parameters)
            self._buckets[place.bucket] = known
        if known.owed is not None:
            buffer += known.owed.to(buffer.device)
        return known

    def _kept(self, known: _Bucket) -> Optional[torch.Tensor]:
        """What a bucket still has to send, in its own elements; None: nothing."""
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

    def _split(self, known: _Bucket) -> dict[str, _Residual]:
        """The same by parameter."""
        kept = self._kept(known)
        if kept is None:
            return {}
        parts = kept.split(known.sizes)
        return {
            name: _Residual(part.numpy().tobytes(), self._loss_scale)
            for name, part in zip(known.names, parts)
            if bool(part.any())
        }

    def _owed(self, names: list[str], sizes: list[int]) -> Optional[torch.Tensor]:
        """What was kept of these parameters, for the next step; None: nothing."""
        owed: Optional[torch.Tensor] = None
        begin = 0
        for name, size in zip(names, sizes):
            parked = self._parked.pop(name, None)
            if parked is not None and parked.state:
                if len(parked.state) != 4 * size:
                    _log.STATE.warning("residual of %s dropped: it is of another size", name)
                else:
                    owed = torch.zeros(sum(sizes)) if owed is None else owed
                    part = torch.frombuffer(bytearray(parked.state), dtype=torch.float32)
                    owed[begin : begin + size] = part * (self._loss_scale / parked.loss_scale)
            begin += size
        return owed

    # ---- layouts

    def _bucket(self, index: int, buffer: torch.Tensor, parameters: list[torch.Tensor]) -> _Bucket:
        """What belongs to a bucket; made anew when DDP has moved parameters."""
        key = (buffer.numel(), buffer.dtype, buffer.device, tuple(map(id, parameters)))
        known = self._buckets.get(index)
        if known is not None and known.key == key:
            known.buffer = buffer
            return known
        here = {self._names.get(id(p)) for p in parameters}
        stale = [i for i, b in self._buckets.items() if i == index or here.intersection(b.names)]
        if stale:
            self._engine.drain()
            self._park(stale)
        self._buckets[index] = known = self._make_bucket(index, key, buffer, parameters)
        return known

    def _park(self, stale: list[int]) -> None:
        """Takes residuals out of buckets whose parameters have moved."""
        for index in stale:
            known = self._buckets.pop(index)
            self._parked.update(self._residuals(known))
            if known.codecs is not None:
                known.codecs.close()

    def _residuals(self, known: _Bucket) -> dict[str, _Residual]:
        """What a bucket keeps, by parameter: states of its codecs, or plain floats where the next
        codec may be another."""
        if self._adaptive is not None:
            return self._split(known)
        return {
            name: _Residual(codec.save_segment(segment), self._loss_scale)
            for name, codec, segment in known.owners
        }

    def _make_bucket(
        self,
        index: int,
        key: tuple[Any, ...],
        buffer: torch.Tensor,
        parameters: list[torch.Tensor],
        choice: Optional[str] = None,
    ) -> _Bucket:
        """`choice`: for a reference step; otherwise the controller's, if there is one."""
        refers = choice is not None
        if self._adaptive is not None and not refers:
            choice = self._adaptive.spec(index)
        names = [self._names.get(id(p), f"unnamed.{index}.{i}") for i, p in enumerate(parameters)]
        sizes = [p.numel() for p in parameters]
        rows = [rows_of(p) for p in parameters]
        if sum(sizes) != buffer.numel():  # padded by a release we do not know: one anonymous piece
            names, sizes, rows = [f"bucket.{index}"], [buffer.numel()], [0]
        dtype = DTYPES.get(buffer.dtype)
        specs = [choice if choice and refers else self._specs.of(name, choice) for name in names]
        lines = [f"{n} {s} {spec}" for n, s, spec in zip(names, sizes, specs)]
        plan = Plan(f"{buffer.dtype} {buffer.numel()} {buffer.device.type}: " + "; ".join(lines))
        if dtype is None:
            _log.PLAN.info("bucket %d: %s has no codec, travels as it is", index, buffer.dtype)
            return _Bucket(key, buffer, names, sizes, plan, None, [])
        there = self._engine.encodes_on_device(set(specs), dtype, buffer.device)
        pieces = not there and len(set(specs)) == 1 and kind_of(specs[0]) in _PIECED
        largest = _PIECE_ELEMENTS if pieces else buffer.numel()
        shapes = [_Parameter(*one) for one in zip(names, sizes, rows)]
        runs: list[Run] = []
        owners: list[tuple[str, Codec, int]] = []
        first = 0
        begin = 0
        while first < len(names):
            end, count = first, 0
            while end < len(names) and specs[end] == specs[first]:
                if count > 0 and count + sizes[end] > largest:
                    break
                count += sizes[end]
                end += 1
            codec = self._make_codec(specs[first], dtype, buffer.device, shapes[first:end], there)
            owners += [(name, codec, i) for i, name in enumerate(names[first:end])]
            runs.append(Run(begin, codec, count))
            begin += count
            first = end
        _log.PLAN.info(
            "bucket %d: %d elements of %d parameters, %s%s",
            index,
            buffer.numel(),
            len(names),
            ", ".join(sorted(set(specs))),
            ", encoded on the device" if there else "",
        )
        codecs = Codecs(runs, buffer.element_size(), there, pieces)
        known = _Bucket(key, buffer, names, sizes, plan, codecs, owners, choice or "")
        if self._adaptive is not None and not refers:
            known.owed = self._owed(names, sizes)
        return known

    def _make_codec(
        self,
        spec: str,
        dtype: str,
        device: torch.device,
        parameters: list[_Parameter],
        there: bool,
    ) -> Codec:
        """`there`: it runs where the gradient is."""
        engine = self._engine
        scaled = there or device.type == "cpu"
        codec = Codec(
            spec,
            dtype=dtype,
            count=sum(p.size for p in parameters),
            world=engine.world,
            worker=engine.rank,
            seed=self._seed,
            bucket=digest(" ".join(p.name for p in parameters)),
            # A device's gradient that the CPU encodes is divided when it is back.
            scale=1.0 / engine.world if scaled else 1.0,
            first_step=self._step,
            segments=[p.segment() for p in parameters],
            latency_us=engine.link.latency_us,
            gbit_per_s=engine.link.gbit_per_s,
            gathers=engine.way == "mesh",
            narrows=engine.way != "server",
            device="cuda" if there else "cpu",
            stream=side_stream(device).cuda_stream if there else 0,
        )
        for i, parameter in enumerate(parameters if self._adaptive is None else []):
            parked = self._parked.pop(parameter.name, None)
            if parked is None or not parked.state:
                continue
            try:
                codec.load_segment(i, self._rescaled(parked, spec, dtype, parameter))
            except Mismatch as error:  # another shape or type, say; a residual may be lost
                _log.STATE.warning("residual of %s dropped: %s", parameter.name, error)
        return codec

    def _rescaled(self, parked: _Residual, spec: str, dtype: str, parameter: _Parameter) -> bytes:
        """A parked residual in units of today's loss scale."""
        if parked.loss_scale == self._loss_scale:
            return parked.state
        with Codec(
            spec,
            dtype=dtype,
            count=parameter.size,
            world=self._engine.world,
            worker=self._engine.rank,
            seed=self._seed,
            first_step=self._step,
            segments=[parameter.segment()],
        ) as codec:
            codec.load_segment(0, parked.state)
            codec.scale_residual(self._loss_scale / parked.loss_scale)
            return codec.save_segment(0)

    # ---- what users call

    def metrics(self) -> dict[str, float]:
        """Totals since attach, with `/`-separated keys; docs/python.md lists them."""
        adaptive = self._adaptive.metrics() if self._adaptive is not None else {}
        return {**self._meter.snapshot(), **adaptive}

    def explain(self) -> str:
        """In words: what each bucket has, and why."""
        if self._adaptive is not None:
            return self._adaptive.explain()
        lines = [f"fixed: {self._specs}"]
        for index, known in sorted(self._buckets.items()):
            specs = sorted({self._specs.of(name) for name in known.names})
            lines.append(f"bucket {index}: {sum(known.sizes)} elements, {', '.join(specs)}")
        return "\n".join(lines)

    def decisions(self) -> list[dict[str, Any]]:
        """What an adaptive run decided so far: the step from which on it holds, the codec of each
        bucket, why, and the step times that were seen and predicted. The same on all ranks."""
        return self._deciding().decisions()

    def save_decisions(self, path: str) -> None:
        """Writes what an adaptive run saw and decided, for `addend replay`; the same on all ranks
        but for the file."""
        trace = self._deciding().trace()
        with open(path, "w") as file:
            file.write(trace)

    def _deciding(self) -> Adaptive:
        if self._adaptive is None:
            raise InvalidArgument(f"{self._specs} decides nothing: attach with codec='adaptive'")
        return self._adaptive

    def start_trace(self, path: str, steps: int = 10) -> None:
        """Records the next `steps` steps of this rank into a Chrome/Perfetto JSON file."""
        self._meter.start_trace(path, steps)

    def stop_trace(self) -> None:
        """Ends the trace early and writes its file."""
        self._meter.stop_trace()

    def state_dict(self) -> dict[str, Any]:
        """What a restarted rank needs: residuals by parameter name, step, seed, codec. Each rank
        has its own; call it between steps."""
        self._engine.drain()
        residuals = dict(self._parked)
        for known in self._buckets.values():
            residuals.update(self._residuals(known))
        return {
            "format": STATE_FORMAT,
            "step": self._step + 1,
            "seed": self._seed,
            "codec": str(self._specs),
            "world": self._engine.world,
            "rank": self._engine.rank,
            "parameters": {
                name: {
                    "codec": self._specs.of(name),
                    "loss_scale": residual.loss_scale,
                    "residual": _bytes_tensor(residual.state),
                }
                for name, residual in residuals.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; call it on every rank before the next step."""
        if state.get("format") != STATE_FORMAT:
            raise InvalidArgument(
                f"state of format {state.get('format')!r}, this is {STATE_FORMAT}"
            )
        self._engine.drain()
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
                if saved["codec"] == self._specs.of(name):
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
        if int(state["seed"]) != self._seed:
            _log.STATE.warning("seed %s of the state replaces %d", state["seed"], self._seed)
        for known in self._buckets.values():
            if known.codecs is not None:
                known.codecs.close()
        self._buckets.clear()
        self._references.clear()
        self._parked = kept
        self._seed = int(state["seed"])
        self._step = int(state["step"]) - 1
        self._last_index = 1 << 62  # the next bucket begins a step

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

    def detach(self) -> None:
        """Goes back to DDP's own sums; call it on every rank, between steps."""
        self._hook.handle = None
        self.close()

    def close(self) -> None:
        """Ends its threads. The model cannot run backward afterwards; `detach` lets it."""
        self._meter.stop_trace()
        self._engine.close()
        if self._adaptive is not None:
            self._adaptive.close()

    @property
    def failure(self) -> Optional[addend.Error]:
        """What ended the exchange, if something did."""
        return self._engine.failure

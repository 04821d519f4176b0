# SPDX-License-Identifier: Apache-2.0
"""The hook of DistributedDataParallel, and the handle that stands for it.

No postponed annotations here: DDP compares the hook's annotations with the types themselves.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Optional

import torch
import torch.distributed as dist

import addend
from addend import InvalidArgument
from addend.pipeline import Outcome
from addend.torch._adaptive import Adaptive
from addend.torch._bucket import Memory
from addend.torch._buckets import PIECE_ELEMENTS, Bucket, Buckets, Parameters
from addend.torch._engine import Engine, value_of
from addend.torch._look import Shape
from addend.torch._meter import Meter, profiler_range
from addend.torch._peers import Place
from addend.torch._sparse import SparseSums
from addend.torch._specs import Specs, names_of

STATE_FORMAT = 1


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
        in_place: bool,
        scaler: Optional[Any],
        optimizer: Optional[Any] = None,
        fixed: bool = False,
    ) -> None:
        """`fixed`: plans follow from gradients alone."""
        self._specs, self._engine, self._scaler = specs, engine, scaler
        self._hook = hook_of(model)
        self._meter = Meter(self._engine.rank)
        self._in_place = in_place
        self._names = names_of(model.module)
        self._sparse: dict[str, SparseSums] = {}
        self._adaptive: Optional[Adaptive] = None
        if specs.adaptive:
            self._adaptive = Adaptive(
                specs.default.partition(":")[2],
                engine,
                fixed=fixed,
                optimizer=optimizer,
                seed=seed,
                residual=lambda index: self._buckets.kept(index),
                tables={number for number, name in self._names.items() if name in specs.tables},
                device=next(model.module.parameters()).device.type,
            )
        choose = None if self._adaptive is None else self._adaptive.spec
        self._buckets = Buckets(engine, specs, self._names, seed, choose)
        self._last_index = -1
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
        index = bucket.index()
        first = index <= self._last_index or self._buckets.step < 0
        if first:
            self._buckets.step += 1
        place = Place(self._buckets.step, index)
        with self._engine.telling(place):
            if first:
                self._begin_step()
            self._last_index = index
            self._last_submitted = begin
            with self._counting:
                self._unfinished += 1
                self._all_submitted = bucket.is_last()
            self._watch_launches(place, first)
            promised = self._send(place, bucket)
            if self._adaptive is not None and bucket.is_last():
                self._adaptive.all_submitted(place.step)
        self._meter.hook_done(time.perf_counter() - begin)
        return promised

    def _send(
        self,
        place: Place,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if buffer.is_sparse:
            return self._sum_rows(place, buffer, bucket.parameters)
        known = self._buckets.find(place.bucket, buffer, bucket.parameters)
        if self._adaptive is not None:
            known = self._adapt(place, known, buffer, bucket.parameters)
        if self._leaves(place, known, buffer):
            return self._leave(place, known, buffer)
        return self._encode(place, known, buffer, bucket.parameters)

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
        self, place: Place, known: Bucket, buffer: torch.Tensor, parameters: Parameters
    ) -> "torch.futures.Future[torch.Tensor]":
        """The gradient travels as its codecs say."""
        future, promised = self._promise(buffer)
        sent = self._in_pieces(known, buffer, place.bucket, parameters) or known
        codecs = sent.codecs
        assert codecs is not None
        memory, before = self._remember(known, sent, buffer)

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

        def put_back() -> None:
            if before is not None:
                memory.put_back(before)

        def failed(error: Exception) -> None:
            try:
                put_back()
            finally:  # a device that is broken fails here, too
                future.set_exception(error)  # type: ignore[arg-type]  # torch's stubs are wrong

        try:
            self._engine.run(
                place,
                sent.plan,
                codecs.parts(memory.address),
                done,
                failed,
                loss_scale=self._buckets.loss_scale,
                pieces=codecs.pieces,
                in_place=self._in_place and not self._engine.repeats,
                prepare=memory.fetch if memory.on_device else None,
                ready=memory.ready,
            )
        except BaseException:
            put_back()
            raise
        return promised

    def _remember(
        self, known: Bucket, sent: Bucket, buffer: torch.Tensor
    ) -> "tuple[Memory, Optional[torch.Tensor]]":
        """Where its codecs find the gradient, to which is added what is owed; and a copy of what it
        was, which may be the parameters' own and must survive a failure."""
        codecs, before = sent.codecs, None
        assert codecs is not None
        memory = sent.memory
        if memory is None or memory.tensor is not buffer:
            memory = sent.memory = Memory(buffer, codecs.on_device)
        else:
            memory.written_again()
        if known.owed is not None:
            before = buffer.clone()
            try:
                buffer += known.owed.to(buffer.device)
            except Exception:
                buffer.copy_(before)
                raise
            memory.written_again()
        return memory, before

    def _in_pieces(
        self, known: Bucket, buffer: torch.Tensor, index: int, parameters: Parameters
    ) -> Optional[Bucket]:
        """A large gradient that goes as it is anyway goes in pieces, where that costs no copies."""
        codecs = known.codecs
        assert codecs is not None
        large = buffer.device.type == "cpu" and buffer.numel() > PIECE_ELEMENTS
        whole = large and self._in_place and self._engine.way == "mesh" and not codecs.pieces
        if not whole or not codecs.all_dense():
            return None
        codecs.skip_step()
        return self._buckets.plain(index, parameters)

    def _leaves(self, place: Place, known: Bucket, buffer: torch.Tensor) -> bool:
        """Whether the backend adds this gradient as DDP itself would have it do: what no codec
        takes, and what would travel as it is anyway."""
        if known.codecs is not None:
            # A controller learns what a link of the host does from our own rounds.
            learns = self._adaptive is not None and buffer.device.type == "cpu"
            leaves = known.agreed and not learns and self._engine.leaves(buffer)
            return leaves and known.codecs.all_dense()
        if not known.agreed:  # a backend that is given different sizes may end the process
            self._engine.agree_now(place, known.plan)
            known.agreed = True
        return True

    def _leave(
        self, place: Place, known: Bucket, buffer: torch.Tensor
    ) -> "torch.futures.Future[torch.Tensor]":
        if known.codecs is not None:
            known.codecs.skip_step()
        begin = time.perf_counter()
        nbytes = buffer.numel() * buffer.element_size()
        mode = "mode/dense" if known.codecs is not None else "fallback/dtype"

        def done() -> None:
            end = time.perf_counter()
            self._meter.left_done(begin, end, place, nbytes, mode)
            if self._adaptive is not None:
                self._adaptive.left(place, begin, end, nbytes)
            self._bucket_done(place.step)

        future, promised = self._promise(buffer)
        sums = self._scaled(known, buffer, 1.0 / self._engine.world)
        self._engine.leave(sums, place, done, future)
        return promised

    def _scaled(self, known: Bucket, buffer: torch.Tensor, scale: float) -> torch.Tensor:
        if scale == 1.0:  # one rank's gradients are sums already: its backend changes nothing
            return buffer
        if self._in_place:
            return buffer.mul_(scale)
        if known.sums is None:
            known.sums = torch.empty_like(buffer)
        return torch.mul(buffer, scale, out=known.sums)  # DDP copies it back when it is done

    def _sum_rows(
        self, place: Place, buffer: torch.Tensor, parameters: Parameters
    ) -> "torch.futures.Future[torch.Tensor]":
        name = self._names.get(id(parameters()[0]), str(place.bucket))
        sums = self._sparse.get(name)
        if sums is None:
            spec = self._specs.of(name, "exact" if self._adaptive is not None else None)
            sums = self._sparse[name] = SparseSums(self._engine, spec, name, self._buckets.seed)
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
            loss_scale=self._buckets.loss_scale,
        )
        return promised

    def _begin_step(self) -> None:
        with self._counting:
            self._unfinished = 0  # a step that failed leaves some behind
        self._follow_scaler()
        if self._adaptive is not None:
            self._adaptive.begin_step(self._buckets.step, self._shapes())

    def _shapes(self) -> tuple[Shape, ...]:
        """Of the buckets that codecs take."""
        known = sorted(self._buckets.known.items())
        found = [(i, bucket.buffer) for i, bucket in known if bucket.codecs is not None]
        return tuple(
            Shape(i, t.numel(), t.numel() * t.element_size(), t.dtype, t.device.type)
            for i, t in found
        )

    def _follow_scaler(self) -> None:
        if self._scaler is None or not self._scaler.is_enabled():
            return
        scale = float(self._scaler.get_scale())
        if scale != self._buckets.loss_scale:
            self._buckets.scale(scale / self._buckets.loss_scale)
            self._buckets.loss_scale = scale

    # ---- plans that change

    def _adapt(
        self, place: Place, known: Bucket, buffer: torch.Tensor, parameters: Parameters
    ) -> Bucket:
        """The bucket as it is sent in this step. What it kept goes along to another codec."""
        adaptive = self._adaptive
        assert adaptive is not None
        if known.codecs is None:
            return known
        adaptive.submitted(place.step, place.bucket, buffer, parameters)
        if adaptive.is_reference(place.step):
            return self._buckets.plain(place.bucket, parameters)
        return self._buckets.follow(place.bucket, parameters)

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
        for index, known in sorted(self._buckets.known.items()):
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
        return {
            "format": STATE_FORMAT,
            "step": self._buckets.step + 1,
            "seed": self._buckets.seed,
            "codec": str(self._specs),
            "world": self._engine.world,
            "rank": self._engine.rank,
            "parameters": self._buckets.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; call it on every rank before the next step."""
        if state.get("format") != STATE_FORMAT:
            raise InvalidArgument(
                f"state of format {state.get('format')!r}, this is {STATE_FORMAT}"
            )
        self._engine.drain()
        self._buckets.load(state)
        self._last_index = 1 << 62  # the next bucket begins a step

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

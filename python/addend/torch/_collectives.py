# SPDX-License-Identifier: Apache-2.0
"""all_reduce for dense and sparse tensors, on any process group."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from addend import Aggregator, InvalidArgument, Unsupported
from addend.pipeline import Outcome
from addend.reducer import Link
from addend.torch import _group, _log
from addend.torch._bucket import DTYPES, Codecs, Memory, Plan, Run, digest
from addend.torch._checks import (
    check_aggregator,
    check_call,
    check_group,
    check_order_is_nothing,
    check_seconds,
    check_tensor,
    check_threads,
    pinned,
)
from addend.torch._engine import GROUP_GONE, Engine, value_of
from addend.torch._meter import Meter, profiler_range
from addend.torch._peers import Place
from addend.torch._sparse import SparseSums
from addend.torch._specs import check, kind_of, tuned, with_option
from addend.torch._start import start

# Larger tensors go in pieces, so that one is encoded and another decoded while a third travels.
# Quantising takes longer than looking for zeros, and is worth hiding in smaller pieces.
_PIECE_ELEMENTS = 16 << 20
_QUANT_PIECE_ELEMENTS = 1 << 20
# A server's rounds take long, and cost no thread of ours meanwhile.
_SERVER_PIECE_ELEMENTS = 1 << 21
# Of how many shapes we remember what earlier sums showed, where tensors have no name.
_MOST_SHAPES = 64
_CPU = torch.device("cpu")


class Pending:
    """An all_reduce under way. `wait()` returns the tensor or raises what went wrong."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._error: Exception | None = None
        self._ended = False
        self._gate = threading.Lock()  # held until the end: an Event costs several times as much
        self._gate.acquire()
        self._streams: list[Any] = []

    def is_completed(self) -> bool:
        return self._ended

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        if not self._ended:
            if not self._gate.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
                raise TimeoutError("all_reduce is not done yet")
            self._gate.release()
        if self._error is not None:
            raise self._error
        for stream in self._streams:
            torch.cuda.current_stream(self._tensor.device).wait_stream(stream)
        return self._tensor

    # ---- called by the job

    def done(self, memory: Memory, result: torch.Tensor | None = None) -> None:
        """`result`: the sum, unless the tensor's own memory has it."""
        if memory.on_device:
            self._streams.append(memory.stream)
        if result is not None:
            mode = torch.inference_mode if self._tensor.is_inference() else torch.no_grad
            with memory.order(), mode():
                self._tensor.copy_(result)
        self._end()

    def replace(self, result: torch.Tensor) -> None:
        """A sparse tensor becomes its sum: its copy_ would copy what nobody else has."""
        self._tensor.data = result
        self._end()

    def failed(self, error: Exception) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._gate.release()


class _First(NamedTuple):
    """What the first call on a group decides for the later ones."""

    fixed: bool = False  # plans do not follow a measured link
    aggregator: Aggregator | None = None
    threads: int | None = None

    def check(self, tensor: torch.Tensor, spec: str) -> None:
        if self.aggregator is None:
            return
        if self.fixed:
            check_order_is_nothing("all_reduce", spec)
        if self.aggregator.quorum > 0 and (tensor.is_sparse or tensor.dtype not in DTYPES):
            what = "sparse tensors" if tensor.is_sparse else str(tensor.dtype)
            raise Unsupported(
                f"{what}: no sums without late ranks (quorum={self.aggregator.quorum})"
            )


_PLAIN = _First()


def _by(aggregator: Aggregator | None) -> str:
    if aggregator is None:
        return "without a server"
    return f"at {aggregator.address}, job {aggregator.job!r}"


class _Call(NamedTuple):
    """What is asked for, apart from the tensor."""

    spec: str
    scale: float


class _Dense(NamedTuple):
    """What calls for dense tensors of one shape share."""

    call: _Call
    plan: Plan
    codecs: Codecs | None  # None: none takes the elements


class _Sparse(NamedTuple):
    """The same for sparse tensors."""

    call: _Call
    sums: SparseSums


class _Kind(NamedTuple):
    """What is right for one tensor is right for the next of its kind."""

    codec: str
    op: str
    dtype: torch.dtype
    layout: torch.layout
    device: torch.device
    shape: torch.Size
    sparse_dim: int

    def __str__(self) -> str:
        where = f"{self.dtype} {tuple(self.shape)} on {self.device}"
        sparse = f", sparse in {self.sparse_dim} dimensions" if self.sparse_dim else ""
        return f"{where}{sparse}, codec {self.codec!r}, op {self.op!r}"


class _Context:
    """What calls on one group share: the engine, and codecs that learn from call to call.

    State belongs to names, which live as long as the context. Calls without one share what holds
    for any tensor of their kind, and as much of it as is used often.
    """

    def __init__(self, group: Any, deadline: float, device: torch.device, first: _First) -> None:
        link = Link() if first.fixed else None
        self.engine: Engine = start(group, deadline, device, link, first.aggregator, first.threads)
        self.first = first
        self.engine.close_with(group, GROUP_GONE)
        self.meter = Meter(self.engine.rank)
        self.calls = 0
        self.known: dict[_Kind, _Dense | _Sparse] = {}
        self.named: dict[str, tuple[_Kind, _Dense | _Sparse]] = {}

    def check(self, fixed: bool, aggregator: Aggregator | None) -> None:
        """Whether a later call asks for what the first one asked for."""
        if fixed and not self.first.fixed:
            raise InvalidArgument(
                "sums of this group began with a measured link: deterministic=True (or"
                " torch.use_deterministic_algorithms) must be asked for from the first one on"
            )
        if aggregator is not None and aggregator != self.first.aggregator:
            raise InvalidArgument(
                f"sums of this group began {_by(self.first.aggregator)}: aggregator= must be said"
                f" from the first one on; here: {_by(aggregator)}"
            )

    def recall(self, name: str | None, kind: _Kind) -> _Dense | _Sparse | None:
        """What earlier calls learnt, if we still have it."""
        if name is None:
            found = self.known.pop(kind, None)
            if found is not None:
                self.known[kind] = found  # the latest used
            return found
        stands_for, known = self.named.get(name, (kind, None))
        if stands_for != kind:
            raise InvalidArgument(
                f"name {name!r} stands for {stands_for}; here it is {kind}: another tensor needs"
                " another name"
            )
        return known

    def learn(
        self, name: str | None, kind: _Kind, tensor: torch.Tensor, call: _Call
    ) -> _Dense | _Sparse:
        """For the first call of a name, or of a kind. The least recently used kind is forgotten;
        jobs that still need it keep it alive."""
        found: _Dense | _Sparse
        if tensor.layout == torch.sparse_coo:
            found = _Sparse(call, SparseSums(self.engine, call.spec, name or "tensor"))
        else:
            found = self._make_dense(name, tensor, call)
        if name is not None:
            self.named[name] = kind, found
            return found
        self.known[kind] = found
        if len(self.known) > _MOST_SHAPES:
            self.known.pop(next(iter(self.known)))
        return found

    def _make_dense(self, name: str | None, tensor: torch.Tensor, call: _Call) -> _Dense:
        text = (
            f"{name or 'tensor'}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device.type},"
            f" codec {call.spec}, times {call.scale:g}"
        )
        if tensor.dtype in DTYPES:
            return _Dense(call, Plan(text), self._make_codecs(name, tensor, call))
        _log.PLAN.info("%s has no codec, travels as it is", tensor.dtype)
        return _Dense(call, Plan(text), None)

    def _make_codecs(self, name: str | None, flat: torch.Tensor, call: _Call) -> Codecs:
        engine = self.engine
        kind = kind_of(call.spec)
        largest = _QUANT_PIECE_ELEMENTS if kind == "quant" else _PIECE_ELEMENTS
        there = engine.encodes_on_device({call.spec}, DTYPES[flat.dtype], flat.device)
        matrix = kind == "lowrank"  # has no pieces, nor has a device's tensor: its planes have
        whole = matrix or there
        rows = flat.shape[0] if flat.dim() > 1 and flat.numel() > 0 else 0
        own = 0 if name is None else digest(name)  # names draw numbers of their own
        runs: list[Run] = []
        begin = 0
        if engine.way == "server":
            largest = min(largest, _SERVER_PIECE_ELEMENTS)
        for count in [flat.numel()] if whole else piece_sizes(flat.numel(), largest):
            codec = engine.make_codec(
                call.spec,
                flat,
                count,
                there,
                call.scale,
                bucket=own ^ len(runs),
                segments=[(own, count, rows)] if matrix else (),
            )
            runs.append(Run(begin, codec, count))
            begin += count
        return Codecs(runs, flat.element_size(), there)


def piece_sizes(count: int, largest: int) -> list[int]:
    """Small pieces first and last: nothing travels before the first is encoded, and nothing is left
    to hide behind when the last is decoded."""
    if count <= 2 * largest:
        return [count]
    ramp = [largest // 4, largest // 4, largest // 2]
    middle, rest = divmod(count - 2 * largest, largest)
    return [*ramp, *[largest] * middle, *([rest] if rest else []), *reversed(ramp)]


_contexts: weakref.WeakKeyDictionary[Any, _Context] = weakref.WeakKeyDictionary()


def _known_context(group: Any) -> _Context | None:
    try:
        found = _contexts.get(dist.group.WORLD if group is None else group)
    except TypeError:  # there is no group, or this rank is not in it
        return None
    return found if found is not None and not found.engine.closed else None


def _context(
    group: Any, deadline: float | None, device: torch.device = _CPU, first: _First = _PLAIN
) -> _Context:
    found = _known_context(group)
    if found is not None:
        return found
    group = check_group(group)
    if deadline is None:
        deadline = _group.timeout_s(group)
    made = _contexts[group] = _Context(group, deadline, device, first)
    return made


def all_reduce(
    tensor: torch.Tensor,
    op: str = "sum",
    *,
    codec: str = "exact",
    name: str | None = None,
    group: Any | None = None,
    async_op: bool = False,
    deadline: float | None = None,
    aggregator: str | Aggregator | None = None,
    deterministic: bool | None = None,
    threads: int | None = None,
) -> Any:
    """Sums (or averages) a dense or sparse COO tensor over a group, in place. Collective.

    Returns the tensor, or with `async_op` a `Pending` whose `wait()` returns it. A sparse result is
    coalesced. On failure the tensor is as it was. All ranks pass the same shape, type, op, codec
    and name; a difference is an error on all of them. The first call on a group makes a group of
    our own beside it and measures the link; its `deadline`, seconds that a sum may wait for another
    rank, by default the timeout of the group, counts for the later calls too.

    `name`: whose sum this is, of all the sums that are made again and again. What is kept from call
    to call belongs to it: the residual of a codec with feedback, which is refused without a name,
    and how dense the tensor was. A name stands for one shape, type, op and codec for as long as the
    group is used.

    `aggregator`: "host:port" of an aggregation server (docs/service.md) that does the sums, its key
    in the file that ADDEND_KEY_FILE names, or an addend.Aggregator with everything said. A group's
    first call says which; later ones go there, too, and need not say it again.

    `deterministic`: plans follow from the tensors alone, not from a measured link, so that runs end
    with the same bits; by default if torch.use_deterministic_algorithms asks for that. To be asked
    for from a group's first call on.

    `threads`: that encode and decode one tensor; by default this rank's share of the host's cores,
    at most 4. No result depends on it. The first call's counts for the later calls too.
    """
    if torch.is_inference_mode_enabled():  # what is kept here is used outside of it, too
        asked = locals()
        with torch.inference_mode(False):
            return all_reduce(**asked)
    check_tensor(tensor)
    check_threads(threads)
    if deadline is not None:
        check_seconds("deadline", deadline)
    sparse = tensor.layout == torch.sparse_coo
    plain = sparse or (tensor.layout == torch.strided and tensor.is_contiguous())
    sparse_dim = tensor.sparse_dim() if sparse else 0
    kind = _Kind(codec, op, tensor.dtype, tensor.layout, tensor.device, tensor.shape, sparse_dim)
    known: _Dense | _Sparse | None = None
    context = _known_context(group)
    fixed = pinned(deterministic)
    server = None if aggregator is None else check_aggregator(aggregator)
    if context is not None and (fixed or server is not None):
        context.check(fixed, server)
    usual = isinstance(codec, str) and isinstance(op, str) and isinstance(name, (str, type(None)))
    if context is not None and plain and usual:
        known = context.recall(name, kind)
    if context is None or known is None:
        check_call(tensor, op, codec, name)
        call = _make_call(codec, name, op, dist.get_world_size(check_group(group)))
        first = context.first if context is not None else _First(fixed, server, threads)
        first.check(tensor, call.spec)
        context = _context(group, deadline, tensor.device, first)
        known = context.recall(name, kind)
        if known is None:
            with context.engine.telling(Place(context.calls + 1)):
                known = context.learn(name, kind, tensor, call)
    context.calls += 1
    with profiler_range("addend::all_reduce"):
        return _sum(context, tensor, known, async_op)


def _sum(context: _Context, tensor: torch.Tensor, known: _Dense | _Sparse, async_op: bool) -> Any:
    place, pending = Place(context.calls), Pending(tensor)
    with context.engine.telling(place):
        if isinstance(known, _Sparse):
            known.sums.run(
                place,
                tensor.detach(),
                known.call.scale,
                context.meter,
                pending.replace,
                pending.failed,
                here=not async_op,
            )
        elif known.codecs is None:
            _sum_plain(context, tensor, known, place, pending, here=not async_op)
        else:
            _sum_dense(context, tensor, known, place, pending, here=not async_op)
    if async_op:
        return pending
    try:
        return pending.wait()
    except KeyboardInterrupt as interrupt:  # the others would wait for this rank
        context.engine.fail(interrupt, place)
        raise


def _make_call(codec: str, name: str | None, op: str, world: int) -> _Call:
    """With the spec as it travels. Without a name, the next tensor of a kind may be another one,
    and what was dense may be sparse: so `exact` looks every time."""
    spec = tuned(codec)
    if name is None and kind_of(spec) == "exact":
        spec = with_option(spec, "probe", "0")
    check(spec, world)
    return _Call(spec, 1.0 / world if op == "mean" else 1.0)


def _stand_in(tensor: torch.Tensor) -> torch.Tensor | None:
    """A contiguous copy of a tensor that cannot be summed where it is. Torch lets a tensor of
    inference mode be written to in that mode alone."""
    if tensor.is_inference() or not tensor.is_contiguous():
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    return None


def _sum_dense(
    context: _Context,
    tensor: torch.Tensor,
    known: _Dense,
    place: Place,
    pending: Pending,
    here: bool,
) -> None:
    codecs = known.codecs
    assert codecs is not None
    stand_in = _stand_in(tensor)
    memory = Memory(tensor.detach() if stand_in is None else stand_in, codecs.on_device)

    def done(outcome: Outcome) -> None:
        if memory.on_device:
            memory.store(known.call.scale)
        context.meter.job_done(outcome.record, codecs.records(), place, outcome.repeats)
        pending.done(memory, stand_in)

    context.engine.run(
        place,
        known.plan,
        codecs.parts(memory.address),
        done,
        pending.failed,
        here=here and not memory.on_device,
        pieces=len(codecs.runs) > 1,
        in_place=stand_in is not None and not context.engine.repeats,
        prepare=memory.fetch if memory.on_device else None,
        ready=memory.ready,
    )


def _sum_plain(
    context: _Context,
    tensor: torch.Tensor,
    known: _Dense,
    place: Place,
    pending: Pending,
    here: bool,
) -> None:
    """The backend adds elements that no codec takes, once all ranks have brought the same: in the
    order in which jobs end."""
    engine, memory = context.engine, Memory(tensor)
    with memory.order():
        sums = tensor.detach().clone(memory_format=torch.contiguous_format)

    def agreed(outcome: Outcome) -> None:
        def added() -> None:
            memory.follow()
            nbytes = sums.numel() * sums.element_size()
            context.meter.raw_bytes(nbytes, nbytes)
            context.meter.job_done(outcome.record, [], place, outcome.repeats)

        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.add_done_callback(ended)
        with memory.order():
            if known.call.scale != 1.0:
                sums.mul_(known.call.scale)
            engine.leave(sums, place, added, future)

    def ended(future: torch.futures.Future[torch.Tensor]) -> None:
        try:  # not before: until here a failure of another rank may still end it
            pending.done(memory, value_of(future))
        except Exception as error:
            pending.failed(engine.fail(error, place))

    engine.agree(place, known.plan, agreed, pending.failed, here=here)


def metrics(group: Any | None = None) -> dict[str, float]:
    """Totals of all_reduce calls on a group, as Handle.metrics has them."""
    found = _contexts.get(group if group is not None else dist.group.WORLD)
    return found.meter.snapshot() if found is not None else {}

# SPDX-License-Identifier: Apache-2.0
"""codec="adaptive": what a handle shows its controller, and what it is told.

Decisions are the native controller's (addend.controller), and equal on all ranks because every rank
feeds it the signals of all. Here they are collected and exchanged, once a window:

   step 0 settles | reference steps go dense | the plan's steps are measured | the last one looks
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

import torch

from addend import Codec, Error, Unsupported
from addend.controller import (
    BIASED,
    BUCKET_SIGNALS,
    LOSSLESS,
    STEP_SIGNALS,
    UNBIASED,
    Candidate,
    Controller,
    Decision,
    factors,
)
from addend.pipeline import spans_of
from addend.reducer import alone
from addend.report import from_record
from addend.torch import _log
from addend.torch._bucket import DTYPES, Plan, rows_of
from addend.torch._engine import Engine
from addend.torch._peers import Place
from addend.torch._specs import check, keeps_residual, tuned

# Of a bucket: elements by which ranks see how much of it is non-zero somewhere, and how far their
# gradients agree; and elements of the block on which candidates are tried.
_SAMPLE = 1 << 14
_BLOCK = 1 << 16
_LARGEST_MATRIX = 1 << 20  # that a candidate for matrices is tried on
_SIGNALS_PLACE = 1 << 20  # where others have the number of a bucket
# Seconds an element that candidates are taken to need where plans follow from gradients alone.
_FIXED_COST = {"dense": 0.0, "cast": 2e-10, "exact": 4e-10, "quant": 6e-10}
_FIXED_OTHER = 1e-9


def _topk(factor: float) -> Candidate:
    return Candidate(f"topk:density={1 / factor:g}", BIASED, 2, factor, 1.0, 40.0)


_DENSE = Candidate("dense")
_CANDIDATES = (
    _DENSE,
    Candidate("exact", LOSSLESS, 2, 1.0, 1.0, 40.0),
    Candidate("quant:index=auto", UNBIASED, 3, 1.0, 1.0, 6.0),
    Candidate("quant", UNBIASED, 2, 1.0, 6.0),
    Candidate("cast:bf16", UNBIASED, 1, 1.0, 16.0),
    Candidate("lowrank:rank=4", BIASED, 2),
    *map(_topk, (10, 20, 40)),
)
_REMEMBERED = 10_000  # decisions
_EVERY = 5  # steps between gravac's decisions: one settles, one looks, those between are timed


def candidates_for(options: str, world: int) -> tuple[Candidate, ...]:
    """Those that the policy goes through, as far as this library has them for so many ranks."""
    wanted = _CANDIDATES
    if policy_of(options) != "auto":
        wanted = (_DENSE, *map(_topk, factors(options)))
    found = []
    for one in wanted:
        spec = tuned(one.spec)
        try:
            check(spec, world)
            if one.loss == BIASED:
                _check_residual(spec, world)
        except Error as error:
            _log.PLAN.info("adaptive does without %s: %s", spec, error)
            continue
        found.append(one._replace(spec=spec))
    return tuple(found)


def _check_residual(spec: str, world: int) -> None:
    """Raises if what a codec keeps could not go along to another."""
    if not keeps_residual(spec):
        raise Unsupported("what it leaves out is not known to be kept")
    named: dict[str, Any] = {"dtype": "float32", "count": 256, "world": world, "worker": 0}
    residual = torch.empty(256)
    with Codec(spec, segments=[(1, 256, 16)], **named) as codec:
        codec.read_residual(residual.data_ptr())


def policy_of(options: str) -> str:
    named = dict(part.partition("=")[::2] for part in options.split(","))
    return named.get("policy", "auto")


class Shape(NamedTuple):
    """A bucket, as far as plans depend on it."""

    bucket: int
    elements: int
    nbytes: int
    dtype: torch.dtype
    device: str


@dataclasses.dataclass
class _Seen:
    """What one bucket did in one step."""

    ready: float = math.nan
    encode_s: float = math.nan
    begin: float = math.nan  # on the wire
    end: float = math.nan
    decode_s: float = math.nan
    nbytes: float = math.nan
    energy: float = 0.0
    error: float = 0.0


class _Look(NamedTuple):
    """What a gradient is like, at the end of a window."""

    sample: torch.Tensor
    scale: float  # elements of the bucket for each of the sample
    nonfinite: bool
    probes: dict[int, tuple[float, float, float, float]]  # encode, decode, bytes, error
    gains: dict[int, float]  # of candidates that select: energy they keep of gradient and residual


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


class Adaptive:
    """The controller of one handle, from the hook's thread; `ended` and `left` from any."""

    def __init__(
        self,
        options: str,
        engine: Engine,
        *,
        fixed: bool,
        optimizer: Any | None,
        seed: int,
        residual: Callable[[int], torch.Tensor | None],
    ) -> None:
        """`fixed`: plans follow from gradients alone, so times are not measured. `residual`: what
        a bucket still has to send; None: nothing."""
        self._policy = policy_of(options)
        if self._policy == "gravac" and "every=" not in options:
            options += f",every={_EVERY}"
        if any(part in ("every=1", "every=2") for part in options.split(",")):
            raise Unsupported("every= below 3: one step settles, one looks, none would be timed")
        self._options, self._engine, self._fixed = options, engine, fixed
        self._optimizer, self._seed = optimizer, seed
        self._residual = residual
        self._candidates = candidates_for(options, engine.world)
        # Also says what is wrong with the options, before anything depends on them.
        self._controller = self._make_controller(())
        self._shapes: tuple[Shape, ...] = ()
        self._alone = alone()
        self._latest: Decision | None = None
        self._history: collections.deque[dict[str, Any]] = collections.deque(maxlen=_REMEMBERED)
        self._switches = 0
        self._begin_window(0, self._controller.first_steps)

    def _make_controller(self, shapes: Sequence[Shape]) -> Controller:
        link = self._engine.link
        return Controller(
            self._options,
            world=self._engine.world,
            candidates=self._candidates,
            buckets=[(shape.elements, shape.nbytes) for shape in shapes],
            latency_us=link.latency_us,
            gbit_per_s=link.gbit_per_s,
        )

    def _begin_window(self, step: int, steps: int, references: int = 0) -> None:
        self._first, self._steps, self._references = step, steps, references
        self._begun: dict[int, float] = {}
        self._seen: dict[int, dict[int, _Seen]] = collections.defaultdict(dict)
        self._looks: dict[int, _Look] = {}
        self._broken: set[int] = set()  # buckets whose sums were not finite, on all ranks alike

    # ---- what the hook asks

    def spec(self, index: int) -> str:
        """What a bucket has now."""
        if self._latest is None or index in self._broken:
            return self._candidates[0].spec
        for shape, choice in zip(self._shapes, self._latest.plan):
            if shape.bucket == index and self._may_have(self._candidates[choice], shape):
                return self._candidates[choice].spec
        return self._candidates[0].spec

    def is_reference(self, step: int) -> bool:
        """Whether everything goes dense in this step, to compare with."""
        return 1 <= step - self._first <= self._references

    def begin_step(self, step: int, shapes: tuple[Shape, ...]) -> None:
        """Before the first bucket of a step; buckets are those of the step before. Collective at
        the end of a window."""
        now = time.perf_counter()
        self._begun[step] = now
        if shapes != self._shapes:  # nothing holds of other buckets
            possible = not shapes or any(self._may_have(_topk(10), one) for one in shapes)
            if self._policy != "auto" and not possible:
                raise Unsupported(f"policy={self._policy} needs gradients of float32 on the host")
            self._shapes, self._latest = shapes, None
            self._controller = self._make_controller(shapes)
            self._begin_window(step, self._controller.first_steps)
        elif shapes and step - self._first >= self._steps:
            if all(shape.bucket in self._looks for shape in shapes):
                self._decide(step)
            else:  # on all ranks alike: this step looks
                self._steps = step - self._first + 1
        self._begun[step] = time.perf_counter() if step == self._first else now

    # ---- what the hook tells

    def submitted(
        self,
        step: int,
        index: int,
        buffer: torch.Tensor,
        parameters: Sequence[torch.Tensor],
    ) -> None:
        """A gradient is ready, and will be sent."""
        seen = self._seen[step].setdefault(index, _Seen())
        seen.ready = time.perf_counter() - self._begun.get(step, math.nan)
        if step - self._first == self._steps - 1:
            self._looks[index] = self._look(index, buffer, parameters)

    def ended(self, place: Place, spans: bytes, records: Sequence[tuple[bytes, int]]) -> None:
        """A gradient's sum is there."""
        seen = self._seen[place.step].setdefault(place.bucket, _Seen())
        seen.encode_s = seen.decode_s = 0.0
        for stage, begin, end in spans_of(spans):
            if stage == "encode":
                seen.encode_s += end - begin
            elif stage == "decode":
                seen.decode_s += end - begin
            else:
                seen.begin = begin if math.isnan(seen.begin) else min(begin, seen.begin)
                seen.end = end if math.isnan(seen.end) else max(end, seen.end)
        reports = [from_record(record) for record, _ in records]
        seen.nbytes = sum(report.wire_bytes for report in reports)
        seen.energy = sum(report.sampled_energy for report in reports)
        seen.error = sum(report.sampled_error for report in reports)
        if any(report.nonfinite for report in reports):
            self._broken.add(place.bucket)

    def left(self, place: Place, begin: float, end: float, nbytes: int) -> None:
        """The backend has added a gradient as it is."""
        seen = self._seen[place.step].setdefault(place.bucket, _Seen())
        seen.begin, seen.end, seen.nbytes = begin, end, nbytes
        seen.encode_s = seen.decode_s = 0.0

    # ---- what a gradient is like

    def _look(self, index: int, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> _Look:
        flat = buffer.detach()
        stride = max(1, -(-flat.numel() // _SAMPLE))
        sample = flat[::stride].to("cpu", torch.float32)
        shape = Shape(index, flat.numel(), flat.nbytes, flat.dtype, flat.device.type)
        asked = self._asked(index)
        probes = {}
        for number, candidate in enumerate(self._candidates):
            if number in asked and self._may_have(candidate, shape):
                found = self._probe(candidate, flat, parameters)
                if found is not None:
                    probes[number] = found
        finite = bool(torch.isfinite(sample).all())
        gains = self._gains(index, sample, stride) if self._policy == "gravac" else {}
        return _Look(sample, flat.numel() / max(1, sample.numel()), not finite, probes, gains)

    def _gains(self, index: int, sample: torch.Tensor, stride: int) -> dict[int, float]:
        """The part of the energy that each candidate's share of the largest elements has."""
        kept = self._residual(index)
        fed = sample if kept is None else sample + kept[::stride]
        energies = fed.double().square().sort(descending=True).values.cumsum(0)
        if not energies.numel() or not energies[-1] > 0:
            return {}
        return {
            number: float(energies[max(1, round(fed.numel() / one.factor)) - 1] / energies[-1])
            for number, one in enumerate(self._candidates)
            if one.factor > 1
        }

    def _asked(self, index: int) -> set[int]:
        """Candidates to probe: all of them at first, then those that the controller names."""
        count = len(self._candidates)
        if self._latest is None:
            return set(range(1, count))
        places = [i for i, shape in enumerate(self._shapes) if shape.bucket == index]
        if not places:  # DDP has just made it
            return set()
        position = places[0]
        asked = self._latest.probe[position * count : (position + 1) * count]
        return {number for number, flag in enumerate(asked) if flag}

    def _may_have(self, candidate: Candidate, shape: Shape) -> bool:
        """What is kept from step to step moves between codecs as host floats."""
        if shape.dtype not in DTYPES:
            return False
        if candidate.loss == LOSSLESS:
            return True
        if shape.dtype != torch.float32:
            return False
        return candidate.loss == UNBIASED or shape.device == "cpu"

    def _probe(
        self, candidate: Candidate, flat: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> tuple[float, float, float, float] | None:
        """Seconds, bytes and relative error of a candidate for the bucket, by a block of it."""
        block, rows = self._block(candidate, flat, parameters)
        if block is None:
            return None
        own, count = block.clone(), block.numel()
        began = time.perf_counter()
        try:
            with Codec(
                candidate.spec,
                dtype=DTYPES[block.dtype],
                count=count,
                world=1,
                worker=0,
                seed=self._seed,
                segments=[(1, count, rows)] if rows else (),
            ) as codec:
                for _ in range(2):  # the first one warms up
                    own.copy_(block)
                    began = time.perf_counter()
                    codec.begin(own.data_ptr())
                    while (planes := codec.next_round()) is not None:
                        self._alone.reduce(planes.planes, 1.0)
                    encoded = time.perf_counter()
                    codec.finish(own.data_ptr())
                    decoded = time.perf_counter()
                nbytes = codec.report().wire_bytes
        except Error as error:  # not for this bucket, then
            _log.PLAN.info("adaptive cannot try %s: %s", candidate.spec, error)
            return None
        energy = float(block.double().square().sum())
        lost = float((block.double() - own.double()).square().sum())
        relative = lost / energy if energy > 0 else 0.0
        share = flat.numel() / count
        return (encoded - began) * share, (decoded - encoded) * share, nbytes * share, relative

    def _block(
        self, candidate: Candidate, flat: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, int]:
        if not candidate.spec.startswith("lowrank"):
            middle = max(0, (flat.numel() - _BLOCK) // 2)
            return flat[middle : middle + _BLOCK].cpu(), 0
        begin, best, rows = 0, None, 0
        for parameter in parameters:
            size, own_rows = parameter.numel(), rows_of(parameter)
            fits = own_rows > 1 and size <= _LARGEST_MATRIX and begin + size <= flat.numel()
            if fits and (best is None or size > best.numel()):
                best, rows = flat[begin : begin + size], own_rows
            begin += size
        return (None if best is None else best.cpu()), rows

    # ---- decisions

    def _decide(self, step: int) -> None:
        before = self._latest
        self._engine.drain()
        own = self._signals()
        samples = torch.cat([self._looks[shape.bucket].sample for shape in self._shapes])
        sums, all_ranks = self._exchange(step, samples, own)
        self._fill_in(sums, all_ranks)
        decision = self._controller.decide(all_ranks)
        self._latest = decision
        self._history.append(self._entry(step, decision))
        plan_before = before.plan if before is not None else (0,) * len(self._shapes)
        if decision.plan != plan_before:
            self._switches += 1
            _log.PLAN.info("rank %d, step %d: %s", self._engine.rank, step, self.explain())
        self._begin_window(step, decision.steps, decision.reference_steps)

    def _signals(self) -> list[float]:
        """This rank's, but for what only all samples together show."""
        plan_steps = [
            step
            for step in range(self._first + 1, self._first + self._steps - 1)
            if not self.is_reference(step)
        ]
        references = range(self._first + 1, self._first + 1 + self._references)
        lanes = {step: self._lanes(step) for step in (*plan_steps, *references)}
        measured = not self._fixed
        values = [
            float(self._engine.world),
            float(self._steps),
            self._step_s(plan_steps) if measured else 0.0,
            self._step_s(references) if measured else math.nan,
            _median(sum(lanes[s].values()) for s in references) if measured else math.nan,
            self._learning_rate(),
        ]
        for position, shape in enumerate(self._shapes):
            seen = [
                self._seen[s][shape.bucket] for s in plan_steps if shape.bucket in self._seen[s]
            ]
            network = _median(lanes[s].get(shape.bucket, math.nan) for s in plan_steps)
            values += self._bucket_signals(shape, seen, network)
            values += self._candidate_signals(position, shape)
        return values

    def _step_s(self, steps: Iterable[int]) -> float:
        begun = self._begun
        return _median(begun[s + 1] - begun[s] for s in steps if s in begun and s + 1 in begun)

    def _lanes(self, step: int) -> dict[int, float]:
        """Seconds that each bucket had the wire to itself, behind the one before it."""
        out: dict[int, float] = {}
        free = -math.inf
        for index, seen in sorted(self._seen[step].items(), key=lambda item: item[1].end):
            if math.isnan(seen.end):
                continue
            out[index] = max(0.0, seen.end - max(seen.begin, free))
            free = seen.end
        return out

    def _bucket_signals(self, shape: Shape, seen: list[_Seen], network: float) -> list[float]:
        look = self._looks[shape.bucket]
        energy = sum(one.energy for one in seen)
        error = sum(one.error for one in seen) / energy if energy > 0 else math.nan
        squares = float(look.sample.double().square().sum())
        times = [
            _median(one.ready for one in seen),
            _median(one.encode_s for one in seen),
            network,
            _median(one.decode_s for one in seen),
            _median(one.nbytes for one in seen),
        ]
        if self._fixed:
            times = [0.0, math.nan, math.nan, math.nan, math.nan]
        if shape.bucket in self._broken:  # these steps were not the plan's, or not like others
            times[1:], error = [math.nan] * 4, math.nan
        return [
            *times,
            squares * look.scale,
            math.nan,  # |mean g|^2 and
            math.nan,  # the union's density: see _fill_in
            error,
            self._residual_ratio(shape.bucket, math.sqrt(squares * look.scale)),
            float(look.nonfinite or shape.bucket in self._broken),
        ]

    def _residual_ratio(self, index: int, norm: float) -> float:
        kept = self._residual(index)
        return float(kept.double().norm()) / norm if kept is not None and norm > 0 else 0.0

    def _candidate_signals(self, position: int, shape: Shape) -> list[float]:
        values: list[float] = []
        probes, gains = self._looks[shape.bucket].probes, self._looks[shape.bucket].gains
        for number, candidate in enumerate(self._candidates):
            encode, decode, nbytes, error = probes.get(number, (math.nan,) * 4)
            if number in probes and self._fixed:
                kind = candidate.spec.partition(":")[0]
                encode = decode = _FIXED_COST.get(kind, _FIXED_OTHER) * shape.elements
            # What a union takes is the controller's to say: a block of one rank's knows none.
            wire = nbytes if number in probes and candidate.union_bits == 0 else math.nan
            kept = gains.get(number, 1 - error if candidate.loss == BIASED else math.nan)
            values += [encode, decode, wire, error, kept]
        return values

    def _learning_rate(self) -> float:
        if self._optimizer is None:
            return math.nan
        return max((float(group["lr"]) for group in self._optimizer.param_groups), default=math.nan)

    def _exchange(
        self, step: int, samples: torch.Tensor, own: list[float]
    ) -> tuple[torch.Tensor, list[float]]:
        """The sum of all ranks' samples, and all ranks' signals, by the engine that sums gradients:
        each rank has a place of its own, where the others have zeros."""
        engine, size = self._engine, samples.numel()
        buffer = torch.zeros(size + engine.world * len(own))
        buffer[:size] = samples
        begin = size + engine.rank * len(own)
        buffer[begin : begin + len(own)] = torch.tensor(own, dtype=torch.float64).float()
        plan = Plan(f"signals of {len(self._shapes)} buckets, {size} samples, {len(own)} a rank")
        with Codec(
            "dense",
            dtype="float32",
            count=buffer.numel(),
            world=engine.world,
            worker=engine.rank,
        ) as codec:
            engine.sum_now(Place(step, _SIGNALS_PLACE), plan, codec, buffer)
        return buffer[:size], buffer[size:].double().tolist()

    def _fill_in(self, sums: torch.Tensor, all_ranks: list[float]) -> None:
        """What the sum of samples shows, into every rank's signals."""
        per_rank = len(all_ranks) // self._engine.world
        per_bucket = (per_rank - len(STEP_SIGNALS)) // len(self._shapes)
        begin = 0
        for position, shape in enumerate(self._shapes):
            look = self._looks[shape.bucket]
            part = sums[begin : begin + look.sample.numel()].double()
            begin += look.sample.numel()
            mean = part / self._engine.world
            # Every rank works this out for itself, and a tensor's sum() has an order of its own on
            # every kind of CPU.
            mean_energy = math.fsum(mean.square().tolist()) * look.scale
            density = float((part != 0).double().mean()) if part.numel() else 0.0
            for rank in range(self._engine.world):
                at = rank * per_rank + len(STEP_SIGNALS) + position * per_bucket
                all_ranks[at + BUCKET_SIGNALS.index("mean_energy")] = mean_energy
                all_ranks[at + BUCKET_SIGNALS.index("union_density")] = density

    # ---- what users ask

    def metrics(self) -> dict[str, float]:
        out = {"adaptive/switches": float(self._switches), "adaptive/windows": 0.0}
        if self._latest is not None:
            latest = self._latest
            out["adaptive/windows"] = float(latest.window + 1)
            out["adaptive/realised_s"] = latest.realised_s
            out["adaptive/predicted_s"] = latest.predicted_s
            out["adaptive/predicted_dense_s"] = latest.predicted_dense_s
            out["adaptive/phi"] = latest.phi
            out["adaptive/gbit_per_s"] = latest.gbit_per_s
        return out

    def explain(self) -> str:
        latest = self._latest
        if latest is None:
            left = f"the first window has {self._steps} steps"
            return f"adaptive ({self._options or 'policy=auto'}): everything is dense, {left}"
        lines = [
            f"after window {latest.window}: a step took {latest.realised_s * 1e3:.3g} ms, a step of"
            f" the next is predicted to take {latest.predicted_s * 1e3:.3g} ms, dense"
            f" {latest.predicted_dense_s * 1e3:.3g} ms; link {latest.gbit_per_s:.3g} Gbit/s;"
            f" phi {latest.phi:.3g}"
        ]
        for shape, why in zip(self._shapes, latest.why):
            spec = self.spec(shape.bucket)
            lines.append(f"bucket {shape.bucket}: {shape.elements} elements, {spec}: {why}")
        return "\n".join(lines)

    def decisions(self) -> list[dict[str, Any]]:
        return [dict(one) for one in self._history]

    def _entry(self, step: int, decision: Decision) -> dict[str, Any]:
        """A decision as users see it."""
        return {
            "step": step,
            "codecs": [self._candidates[choice].spec for choice in decision.plan],
            "elements": [shape.elements for shape in self._shapes],
            "why": list(decision.why),
            "realised_s": decision.realised_s,
            "predicted_s": decision.predicted_s,
            "predicted_dense_s": decision.predicted_dense_s,
            "phi": decision.phi,
            "gbit_per_s": decision.gbit_per_s,
            "steps": decision.steps,
            "reference_steps": decision.reference_steps,
        }

    def trace(self) -> str:
        return self._controller.trace()

    def close(self) -> None:
        self._alone.close()

# SPDX-License-Identifier: Apache-2.0
"""codec="adaptive": what a handle shows its controller, and what it is told.

Decisions are the native controller's (addend.controller), and equal on all ranks because every rank
feeds it the signals of all. Here they are collected and exchanged, once a window:

   step 0 settles | reference steps go dense | the plan's steps are measured | the last one looks

The last step's signals travel behind its gradients, while the optimizer and the next step's forward
pass are at work; the next step decides when its first gradient is there.

A window that is longer than some steps ends early where a learning rate changed on any rank.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Callable, NamedTuple

import torch

from addend import Codec, Unsupported
from addend.controller import (
    BIASED,
    BUCKET_SIGNALS,
    CANDIDATE_SIGNALS,
    STEP_SIGNALS,
    Controller,
    Decision,
)
from addend.pipeline import spans_of
from addend.report import from_record
from addend.torch import _log
from addend.torch._bucket import Plan
from addend.torch._buckets import Parameters
from addend.torch._engine import QUESTIONS, Engine
from addend.torch._look import Look, Looker, Shape, candidates_for, policy_of, selector_of
from addend.torch._peers import Place

# Where others have the number of a bucket: behind a step's gradients.
_SIGNALS_PLACE, _RATES_PLACE = QUESTIONS, QUESTIONS + 1
# Seconds an element that candidates are taken to need where plans follow from gradients alone.
_FIXED_COST = {"dense": 0.0, "cast": 2e-10, "exact": 4e-10, "quant": 6e-10}
_FIXED_OTHER = 1e-9


# Of a decision, as users see it.
_SHOWN = ("realised_s", "predicted_s", "predicted_dense_s", "phi", "gbit_per_s")
_REMEMBERED = 10_000  # decisions
_LITTLE = 0.25  # of the energy, so that less than a gradient is kept
_RATES_EVERY = 10  # steps between questions whether some rank's learning rate changed
_EVERY = 5  # steps between gravac's decisions: one settles, one looks, those between are timed


class _Exchange(NamedTuple):
    """Of signals, under way. Each rank has a place of its own, where the others have zeros."""

    wait: Callable[[], None]
    codec: Codec
    buffer: torch.Tensor
    samples: int  # in front, which are summed

    def result(self) -> tuple[torch.Tensor, list[float]]:
        """The sum of all ranks' samples, and all ranks' signals."""
        self.wait()
        self.codec.close()
        return self.buffer[: self.samples], self.buffer[self.samples :].double().tolist()


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
        tables: Collection[int],
        device: str,
    ) -> None:
        """`fixed`: plans follow from gradients alone, so times are not measured. `residual`: what
        a bucket still has to send; None: nothing. `tables`: ids of parameters that codecs which
        would fill their zeros leave to `exact`. `device`: the type of that of its gradients."""
        selector_of(options)  # which says what is wrong with it
        self._policy = policy_of(options)
        if self._policy == "gravac" and "every=" not in options:
            options += f",every={_EVERY}"
        if any(part in ("every=1", "every=2") for part in options.split(",")):
            raise Unsupported("every= below 3: one step settles, one looks, none would be timed")
        self._options, self._engine, self._fixed = options, engine, fixed
        self._optimizer = optimizer
        self._candidates = candidates_for(options, engine.world, device)
        fed = self._policy == "gravac"
        self._looker = Looker(self._candidates, seed, residual, tables, fed)
        # Also says what is wrong with the options, before anything depends on them.
        self._controller = self._make_controller(())
        self._shapes: tuple[Shape, ...] = ()
        self._latest: Decision | None = None
        self._history: collections.deque[dict[str, Any]] = collections.deque(maxlen=_REMEMBERED)
        self._switches = 0
        self._rates_known = False  # of some rank
        self._changed = torch.zeros(1)  # ranks whose learning rate did; of the last question
        self._all_asked: Callable[[], None] | None = None  # which waits for it
        self._question = engine.make_codec("dense", self._changed, 1)
        self._rate = self._learning_rate()  # as others know it
        self._exchange: _Exchange | None = None
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
        self._looks: dict[int, Look] = {}
        self._broken: set[int] = set()  # buckets whose sums were not finite, on all ranks alike

    # ---- what the hook asks

    def spec(self, index: int) -> str:
        """What a bucket has now."""
        if self._latest is None or index in self._broken:
            return self._candidates[0].spec
        for shape, choice in zip(self._shapes, self._latest.plan):
            if shape.bucket == index and shape.may_have(self._candidates[choice]):
                return self._candidates[choice].spec
        return self._candidates[0].spec

    def is_reference(self, step: int) -> bool:
        """Whether everything goes dense in this step, to compare with."""
        return 1 <= step - self._first <= self._references

    def begin_step(self, step: int, shapes: tuple[Shape, ...]) -> None:
        """Before the first bucket of a step; buckets are those of the step before."""
        now = time.perf_counter()
        self._begun[step] = now
        changed = self._rates_changed()
        seen = None if self._exchange is None else self._exchange.result()
        self._exchange = None
        if shapes != self._shapes:  # nothing holds of other buckets
            possible = not shapes or any(one.may_select() for one in shapes)
            if self._policy != "auto" and not possible:
                raise Unsupported(f"policy={self._policy} needs gradients of float32 on the host")
            self._shapes, self._latest = shapes, None
            self._controller = self._make_controller(shapes)
            self._begin_window(step, self._controller.first_steps)
        elif seen is not None:
            self._decide(step, *seen)
        elif changed or step - self._first >= self._steps:  # on all ranks alike: this step looks
            self._steps = step - self._first + 1
        self._ask_for_rates(step)
        self._begun[step] = time.perf_counter() if step == self._first else now

    def _ask_for_rates(self, step: int) -> None:
        """In order before the step's gradients, so that by the next step it is answered."""
        passed = step - self._first
        due = passed > 0 and passed % _RATES_EVERY == 0 and passed + 2 < self._steps
        if not due or not self._rates_known or self._policy != "auto":  # nobody else heeds it
            return
        own = self._learning_rate()
        self._changed[0] = float(own != self._rate and self._controller.rate_changed(own))
        plan = Plan("ranks whose learning rate changed")
        place = Place(step - 1, _RATES_PLACE)  # which comes before this step's gradients
        self._all_asked = self._engine.sum_soon(place, plan, self._question, self._changed)

    def _rates_changed(self) -> bool:
        """Of any rank, by the step before; on all of them alike."""
        if self._all_asked is None:
            return False
        wait, self._all_asked = self._all_asked, None
        wait()
        return float(self._changed[0]) > 0

    # ---- what the hook tells

    def submitted(
        self,
        step: int,
        index: int,
        buffer: torch.Tensor,
        parameters: Parameters,
    ) -> None:
        """A gradient is ready, and will be sent."""
        seen = self._seen[step].setdefault(index, _Seen())
        seen.ready = time.perf_counter() - self._begun.get(step, math.nan)
        if step - self._first == self._steps - 1:
            asked = self._asked(index)
            self._looks[index] = self._looker.look(index, buffer, parameters(), asked)

    def all_submitted(self, step: int) -> None:
        """The last gradient of a step is on its way, too. Collective at the end of a window."""
        looked = all(shape.bucket in self._looks for shape in self._shapes)
        if self._shapes and looked and step - self._first == self._steps - 1:
            self._engine.drain()  # whose sums this step waits for anyway
            self._exchange = self._send_signals(step)
            if self._engine.launches is not None:  # nothing of ours is launched after backward
                self._exchange.wait()

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

    # ---- decisions

    def _asked(self, index: int) -> list[int]:
        """Candidates to probe: all of them at first, then those that the controller names."""
        count = len(self._candidates)
        if self._latest is None:
            return list(range(1, count))
        for position, shape in enumerate(self._shapes):
            if shape.bucket == index:
                flags = self._latest.probe[position * count : (position + 1) * count]
                return [number for number, flag in enumerate(flags) if flag]
        return []  # DDP has just made it

    def _decide(self, step: int, sums: torch.Tensor, all_ranks: list[float]) -> None:
        before = self._latest
        self._fill_in(sums, all_ranks)
        per_rank = len(all_ranks) // self._engine.world
        rates = all_ranks[STEP_SIGNALS.index("learning_rate") :: per_rank]
        self._rates_known = not all(map(math.isnan, rates))
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
        self._rate = self._learning_rate()
        values = [
            float(self._engine.world),
            float(self._steps),
            self._step_s(plan_steps) if measured else 0.0,
            self._step_s(references) if measured else math.nan,
            _median(sum(lanes[s].values()) for s in references) if measured else math.nan,
            self._rate,
        ]
        for shape in self._shapes:
            seen = [
                self._seen[s][shape.bucket] for s in plan_steps if shape.bucket in self._seen[s]
            ]
            network = _median(lanes[s].get(shape.bucket, math.nan) for s in plan_steps)
            values += self._bucket_signals(shape, seen, network)
            values += self._candidate_signals(shape)
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
        sampled = sum(one.energy for one in seen)
        error = sum(one.error for one in seen) / sampled if sampled > 0 else math.nan
        energy = look.energy()
        residual = self._residual_ratio(shape.bucket, error, math.sqrt(energy))
        error = look.error_with(self.spec(shape.bucket), error)
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
            energy,
            math.nan,  # |mean g|^2 and
            math.nan,  # the union's density: see _fill_in
            error,
            residual,
            float(look.nonfinite or shape.bucket in self._broken),
            look.whole_energy,
        ]

    def _residual_ratio(self, index: int, error: float, norm: float) -> float:
        """Of what is kept to the gradient. Steps that each lose the part `error` of the energy of g
        + r leave |r| <= sqrt(error) (|g| + |r|); where that is little, nothing is read."""
        if error <= _LITTLE:
            return math.sqrt(error) / (1 - math.sqrt(error))
        return self._looker.residual_ratio(index, norm)

    def _candidate_signals(self, shape: Shape) -> list[float]:
        values: list[float] = []
        look = self._looks[shape.bucket]
        for number, candidate in enumerate(self._candidates):
            probed = number in look.probes
            encode, decode, nbytes, error, took = look.probes.get(number, (math.nan,) * 5)
            if self._fixed:
                took = math.nan
            if probed and self._fixed:
                kind = candidate.spec.partition(":")[0]
                encode = decode = _FIXED_COST.get(kind, _FIXED_OTHER) * shape.elements
            # What a union takes is the controller's to say: a block of one rank's knows none.
            wire = nbytes if probed and candidate.union_bits == 0 else math.nan
            kept = look.gains.get(number, 1 - error if candidate.loss == BIASED else math.nan)
            values += [encode, decode, wire, error, kept, took]
        return values

    def _learning_rate(self) -> float:
        if self._optimizer is None:
            return math.nan
        return max((float(group["lr"]) for group in self._optimizer.param_groups), default=math.nan)

    def _send_signals(self, step: int) -> _Exchange:
        """By the engine that sums gradients."""
        engine, own = self._engine, self._signals()
        samples = torch.cat([self._looks[shape.bucket].sample for shape in self._shapes])
        size = samples.numel()
        buffer = torch.zeros(size + engine.world * len(own))
        buffer[:size] = samples
        begin = size + engine.rank * len(own)
        buffer[begin : begin + len(own)] = torch.tensor(own, dtype=torch.float64).float()
        plan = Plan(f"signals of {len(self._shapes)} buckets, {size} samples, {len(own)} a rank")
        codec = engine.make_codec("dense", buffer, buffer.numel())
        wait = engine.sum_soon(Place(step, _SIGNALS_PLACE), plan, codec, buffer)
        return _Exchange(wait, codec, buffer, size)

    def _fill_in(self, sums: torch.Tensor, all_ranks: list[float]) -> None:
        """What the sum of samples shows, into every rank's signals."""
        world = self._engine.world
        per_rank = len(all_ranks) // world
        per_bucket = (per_rank - len(STEP_SIGNALS)) // len(self._shapes)
        begin = 0
        for position, shape in enumerate(self._shapes):
            look = self._looks[shape.bucket]
            part = sums[begin : begin + look.sample.numel()]
            begin += look.sample.numel()
            mean_energy = look.mean_energy(part, world)
            density = float((part != 0).double().mean()) if part.numel() else 0.0
            for rank in range(world):
                at = rank * per_rank + len(STEP_SIGNALS) + position * per_bucket
                all_ranks[at + BUCKET_SIGNALS.index("mean_energy")] = mean_energy
                all_ranks[at + BUCKET_SIGNALS.index("union_density")] = density
                at += len(BUCKET_SIGNALS) + CANDIDATE_SIGNALS.index("bytes")
                for candidate in self._candidates:
                    all_ranks[at] = look.bytes_with(candidate, part, world, all_ranks[at])
                    at += len(CANDIDATE_SIGNALS)

    # ---- what users ask

    def metrics(self) -> dict[str, float]:
        out = {"adaptive/switches": float(self._switches), "adaptive/windows": 0.0}
        if self._latest is not None:
            out["adaptive/windows"] = float(self._latest.window + 1)
            out.update({f"adaptive/{name}": getattr(self._latest, name) for name in _SHOWN})
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
            **{name: getattr(decision, name) for name in (*_SHOWN, "steps", "reference_steps")},
        }

    def trace(self) -> str:
        return self._controller.trace()

    def close(self) -> None:
        self._looker.close()
        self._question.close()

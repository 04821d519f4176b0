# SPDX-License-Identifier: Apache-2.0
"""What a gradient is like, as far as codec="adaptive" asks: a sample of it, and what each of the
candidates would make of it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Callable, NamedTuple

import torch

from addend import Codec, Error, InvalidArgument, Unsupported
from addend.controller import BIASED, LOSSLESS, UNBIASED, Candidate, factors
from addend.reducer import alone
from addend.torch import _log
from addend.torch._bucket import DTYPES, rows_of
from addend.torch._specs import check, keeps_residual, takes_tables, tuned, with_option

# Of a bucket: elements by which ranks see how much of it is non-zero somewhere, and how far their
# gradients agree; and elements of the block on which candidates are tried.
_SAMPLE = 1 << 14
_BLOCK = 1 << 16
_LARGEST_MATRIX = 1 << 20  # that a candidate for matrices is tried on
# Times that each is tried: the first one warms up, of the others the fastest counts. Ranks share
# cores, and what disturbs one block would count for all.
_TRIES = 4


# Of policy=gravac and policy=accordion: those that send what is largest of what one rank has to
# send. A gain says nothing of others.
SELECTORS = ("topk", "threshold", "redsync")
_REFUSED = {
    "dgc": "selects of velocities, of which a gain of gradient and residual says nothing",
    "random": "keeps 1 / factor of the energy of whatever there is, so its gain tells nothing",
    "leader": "keeps what is large on another rank, so no rank knows its own gain before",
}


def _selecting(factor: float, selector: str = "topk") -> Candidate:
    return Candidate(f"{selector}:density={1 / factor:g}", BIASED, 2, factor, 1.0, 32.0)


_DENSE = Candidate("dense")
_EXACT = Candidate("exact", LOSSLESS, 2, 1.0, 1.0, 32.0)
# Those that round keep nothing by themselves. On the host they are given error feedback, so that
# nothing is lost when plans change (decision 0142).
_CANDIDATES = (
    _DENSE,
    _EXACT,
    Candidate("quant:index=auto", UNBIASED, 3, 1.0, 1.0, 6.0),
    Candidate("quant", UNBIASED, 2, 1.0, 6.0),
    Candidate("cast:bf16", UNBIASED, 1, 1.0, 16.0),
    Candidate("lowrank:rank=4", BIASED, 2),
    *map(_selecting, (10, 20, 40)),
)


def _fed(one: Candidate) -> Candidate:
    """With error feedback, if it keeps nothing by itself."""
    if one.loss != UNBIASED:
        return one
    return one._replace(spec=with_option(one.spec, "feedback", "float"), loss=BIASED)


def candidates_for(options: str, world: int, device: str = "cpu") -> tuple[Candidate, ...]:
    """Those that the policy goes through, as far as this library has them for so many ranks.
    `device`: the type of gradients'. What codecs keep moves between them on the host."""
    wanted = _CANDIDATES
    if policy_of(options) != "auto":
        selector = selector_of(options)
        wanted = (_DENSE, *(_selecting(factor, selector) for factor in factors(options)))
    found = []
    for one in wanted:
        tried = one._replace(spec=tuned(one.spec))
        if device == "cpu":
            tried = _fed(tried)
        try:
            check(tried.spec, world)
            if tried.loss == BIASED:
                _check_residual(tried.spec, world)
        except Error as error:
            _log.PLAN.info("adaptive does without %s: %s", tried.spec, error)
            continue
        found.append(tried)
    return tuple(found)


def _check_residual(spec: str, world: int) -> None:
    """Raises if what a codec keeps could not go along to another."""
    if not keeps_residual(spec):
        raise Unsupported("what it leaves out is not known to be kept")
    named: dict[str, Any] = {"dtype": "float32", "count": 256, "world": world, "worker": 0}
    residual = torch.empty(256)
    with Codec(spec, segments=[(1, 256, 16)], **named) as codec:
        codec.read_residual(residual.data_ptr())


def _named(options: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in options.split(","))


def policy_of(options: str) -> str:
    return _named(options).get("policy", "auto")


def selector_of(options: str) -> str:
    """What selects, for the policies that go through factors. Raises what is wrong with it."""
    selector = _named(options).get("selector")
    if selector is not None and policy_of(options) == "auto":
        raise InvalidArgument("selector= is for policy=gravac and policy=accordion")
    if selector in _REFUSED:
        raise Unsupported(f"selector={selector}: it {_REFUSED[selector]}")
    if selector not in (None, *SELECTORS):
        raise InvalidArgument(f"selector={selector} is not one of {', '.join(SELECTORS)}")
    return selector or "topk"


class Shape(NamedTuple):
    """A bucket, as far as plans depend on it."""

    bucket: int
    elements: int
    nbytes: int
    dtype: torch.dtype
    device: str

    def may_have(self, candidate: Candidate) -> bool:
        """What is kept from step to step moves between codecs as host floats."""
        if candidate.loss == LOSSLESS:
            return self.dtype in DTYPES
        if self.dtype != torch.float32:
            return False
        return candidate.loss == UNBIASED or self.device == "cpu"

    def may_select(self) -> bool:
        return self.may_have(_selecting(10))


class Probe(NamedTuple):
    """What a candidate would take for a bucket, and lose of it."""

    encode_s: float
    decode_s: float
    nbytes: float
    error: float
    took_s: float  # to find this out


class Look(NamedTuple):
    sample: torch.Tensor
    scale: float  # elements of the bucket for each of the sample
    nonfinite: bool
    probes: dict[int, Probe]
    gains: dict[int, float]  # of candidates that select: the share they keep
    whole_energy: float  # of what
    tables: torch.Tensor | None = None  # which of the sample are of embedding tables

    def energy(self) -> float:
        return float(self.sample.double().square().sum()) * self.scale

    def lossy_energy(self) -> float:
        """The part of the energy that codecs get which leave tables to `exact`."""
        squares = self.sample.double().square()
        if self.tables is None or not squares.sum() > 0:
            return 1.0
        return float(squares[~self.tables].sum() / squares.sum())

    def error_with(self, spec: str, error: float) -> float:
        """Of the whole bucket, where a codec lost this part of the energy of what it got."""
        return error if takes_tables(spec) else error * self.lossy_energy()

    # By `sums`, those of all ranks' samples:

    def mean_energy(self, sums: torch.Tensor, world: int) -> float:
        """Of the mean gradient. Every rank works this out for itself, and a tensor's sum() has an
        order of its own on every kind of CPU, but for integers': here of 40 bits."""
        squares = (sums.double() / world).square()
        largest = float(squares.max()) if squares.numel() else 0.0
        if largest == 0 or not math.isfinite(largest):
            return largest
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 40)
        return int((squares / unit).round().long().sum()) * unit * self.scale

    def bytes_with(
        self, candidate: Candidate, sums: torch.Tensor, world: int, nbytes: float
    ) -> float:
        """What would be sent of a bucket with tables, of which the candidate had `nbytes` to send
        of all that it takes."""
        if self.tables is None or takes_tables(candidate.spec):
            return nbytes
        rest = self._union_bytes(candidate, sums, world) if candidate.union_bits > 0 else nbytes
        some = sums[self.tables] != 0
        bits = some.numel() * _EXACT.bits + int(some.sum()) * _EXACT.union_bits
        return rest + bits / 8 * self.scale

    def _union_bytes(self, candidate: Candidate, sums: torch.Tensor, world: int) -> float:
        """What a candidate would send of all but the tables."""
        some = sums != 0 if self.tables is None else sums[~self.tables] != 0
        density = float(some.double().mean())
        if candidate.factor > 1:
            density = min(density, 1 - (1 - 1 / candidate.factor) ** world)
        bits = some.numel() * (candidate.bits + candidate.union_bits * density)
        return bits / 8 * self.scale


class Looker:
    """Looks at gradients of the buckets of one handle."""

    def __init__(
        self,
        candidates: tuple[Candidate, ...],
        seed: int,
        residual: Callable[[int], torch.Tensor | None],
        tables: Collection[int],
        fed: bool,
    ) -> None:
        """`residual`: what a bucket still has to send; None: nothing. `tables`: ids of parameters
        that `exact` takes where their bucket has a codec that would fill their zeros. `fed`: gains
        are of gradient and residual, and not of a gradient alone."""
        self._candidates, self._seed, self._tables = candidates, seed, tables
        self._exact: dict[int, Probe] = {}  # the latest of each bucket
        self._residual, self._fed = residual, fed
        self._alone = alone()

    def look(
        self,
        index: int,
        buffer: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        asked: Iterable[int],
    ) -> Look:
        """`asked`: candidates to try."""
        flat = buffer.detach()
        stride = max(1, -(-flat.numel() // _SAMPLE))
        # A copy: where sums are made in place, there is another thing soon.
        sample = flat[::stride].to("cpu", torch.float32, copy=True)
        shape = Shape(index, flat.numel(), flat.nbytes, flat.dtype, flat.device.type)
        tables = self._table_ranges(parameters)
        mask = _mask(tables, flat.numel())[::stride] if tables else None
        finite = bool(torch.isfinite(sample).all())
        kept = self._residual(index) if self._fed else None
        whole = sample if kept is None else sample + kept[::stride]
        scale = flat.numel() / max(1, sample.numel())
        energy = float(whole.double().square().sum()) * scale
        seen = Look(sample, scale, not finite, {}, self._gains(whole, mask), energy, mask)
        for number in asked:
            candidate = self._candidates[number]
            found = None
            if shape.may_have(candidate):
                found = self._probe(candidate, flat, parameters, tables)
            if found is None:
                continue
            if candidate.spec == _EXACT.spec:
                self._exact[index] = found
            elif tables and not takes_tables(candidate.spec):
                found = self._beside_tables(found, index, tables, flat.numel(), seen)
            seen.probes[number] = found
        return seen

    def _table_ranges(self, parameters: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
        begin, found = 0, []
        for parameter in parameters:
            end = begin + parameter.numel()
            if id(parameter) in self._tables:
                found.append((begin, end))
            begin = end
        return found

    def _beside_tables(
        self, found: Probe, index: int, tables: list[tuple[int, int]], count: int, seen: Look
    ) -> Probe:
        """A candidate for all of a bucket but its tables, which go by `exact`."""
        exact = self._exact.get(index)
        if exact is None:
            return found
        share = sum(end - begin for begin, end in tables) / count
        return Probe(
            found.encode_s + share * exact.encode_s,
            found.decode_s + share * exact.decode_s,
            found.nbytes,  # of tables: see Look.bytes_with
            found.error * seen.lossy_energy(),
            found.took_s,
        )

    def residual_ratio(self, index: int, norm: float) -> float:
        kept = self._residual(index)
        return float(kept.double().norm()) / norm if kept is not None and norm > 0 else 0.0

    def _gains(self, whole: torch.Tensor, tables: torch.Tensor | None) -> dict[int, float]:
        """The share of the energy that each candidate keeps, by its part of the largest elements
        in their order. Tables are no part of that: `exact` keeps all of them."""
        rest = whole if tables is None else whole[~tables]
        by_exact = 0.0 if tables is None else float(whole[tables].double().square().sum())
        energy = float(rest.double().square().sum()) + by_exact
        sent = {
            number: min(rest.numel(), max(1, round(rest.numel() / one.factor)))
            for number, one in enumerate(self._candidates)
            if one.factor > 1
        }
        if not energy > 0 or not sent:
            return {}
        largest = rest.abs().topk(max(sent.values())).values.double().square()
        # With none of them, the largest, the two largest, and so on.
        energies = torch.cat([largest.new_zeros(1), largest]).cumsum(0) + by_exact
        return {number: min(1.0, float(energies[count]) / energy) for number, count in sent.items()}

    def _probe(
        self,
        candidate: Candidate,
        flat: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        tables: list[tuple[int, int]],
    ) -> Probe | None:
        """Seconds, bytes and relative error of a candidate for what it gets of the bucket, by a
        block of that."""
        asked = time.perf_counter()
        avoided = [] if takes_tables(candidate.spec) else tables
        elements = flat.numel() - sum(end - begin for begin, end in avoided)
        if elements == 0:  # it would be `exact` under another name
            return None
        block, rows = self._block(candidate, flat, parameters, avoided)
        if block is None:
            return None
        own, count = block.clone(), block.numel()
        encode_s = decode_s = math.inf
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
                for number in range(_TRIES):
                    own.copy_(block)
                    began = time.perf_counter()
                    codec.begin(own.data_ptr())
                    while (planes := codec.next_round()) is not None:
                        self._alone.reduce(planes.planes, 1.0)
                    encoded = time.perf_counter()
                    codec.finish(own.data_ptr())
                    decoded = time.perf_counter()
                    if number > 0:
                        encode_s = min(encode_s, encoded - began)
                        decode_s = min(decode_s, decoded - encoded)
                report = codec.report()
        except Error as error:  # not for this bucket, then
            _log.PLAN.info("adaptive cannot try %s: %s", candidate.spec, error)
            return None
        energy = float(block.double().square().sum())
        lost = float((block.double() - own.double()).square().sum())
        if keeps_residual(candidate.spec):  # of gradient and what the step before left, as in steps
            energy, lost = report.sampled_energy, report.sampled_error
        share = elements / count
        return Probe(
            encode_s * share,
            decode_s * share,
            report.wire_bytes * share,
            lost / energy if energy > 0 else 0.0,
            time.perf_counter() - asked,
        )

    def _block(
        self,
        candidate: Candidate,
        flat: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        avoided: list[tuple[int, int]],
    ) -> tuple[torch.Tensor | None, int]:
        if not candidate.spec.startswith("lowrank"):
            ends = [0, *(at for one in avoided for at in one), flat.numel()]
            begin, end = max(zip(ends[::2], ends[1::2]), key=lambda gap: gap[1] - gap[0])
            middle = max(begin, (begin + end - _BLOCK) // 2)
            return flat[middle : min(end, middle + _BLOCK)].cpu(), 0
        begin, best, rows = 0, None, 0
        for parameter in parameters:
            size, own_rows = parameter.numel(), rows_of(parameter)
            fits = own_rows > 1 and size <= _LARGEST_MATRIX and begin + size <= flat.numel()
            fits = fits and id(parameter) not in self._tables
            if fits and (best is None or size > best.numel()):
                best, rows = flat[begin : begin + size], own_rows
            begin += size
        return (None if best is None else best.cpu()), rows

    def close(self) -> None:
        self._alone.close()


def _mask(ranges: Sequence[tuple[int, int]], count: int) -> torch.Tensor:
    mask = torch.zeros(count, dtype=torch.bool)
    for begin, end in ranges:
        mask[begin:end] = True
    return mask

# SPDX-License-Identifier: Apache-2.0
"""Which codec a parameter gets."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Collection, Mapping

import torch

from addend import Codec, InvalidArgument

MOST_INDEX_BITS = 4
# Codecs that always keep a residual: what they leave out in one step travels in a later one.
_KEEPERS = ("lowrank", "topk", "threshold", "dgc", "redsync", "random", "leader")
ADAPTIVE = "adaptive"  # no codec: a controller chooses among several
_LOSSLESS = ("exact", "dense")
# What these keep, on a device or as a velocity, cannot go along to another codec.
_STAYERS = ("quant", "cast", "dgc")


def tuned(spec: str) -> str:
    """The spec as it travels best between ranks: quantised values of up to 4 bits go as indices,
    half a byte each, because here every rank can do table sums."""
    if not isinstance(spec, str):
        raise InvalidArgument(f"codec {spec!r} is not a spec such as 'exact' or 'quant:bits=4'")
    if kind_of(spec) != "quant":
        return spec
    bits = options_of(spec).get("bits", "4")
    if not bits.isdigit() or int(bits) > MOST_INDEX_BITS:
        return spec
    return with_option(spec, "carrier", "indices")


def kind_of(spec: str) -> str:
    return spec.partition(":")[0]


def options_of(spec: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in spec.partition(":")[2].split(",") if part)


def takes_tables(spec: str) -> bool:
    """Whether rows of a table that no rank looked up cost next to nothing and come back as zero: it
    says where the union is, and adds nothing elsewhere, what it keeps neither."""
    indexed = kind_of(spec) == "quant" and options_of(spec).get("index", "none") != "none"
    return indexed or kind_of(spec) in _LOSSLESS


def with_option(spec: str, name: str, value: str) -> str:
    """The spec with an option, unless it says something of its own there."""
    if name in options_of(spec):
        return spec
    return f"{spec}{',' if options_of(spec) else '' if ':' in spec else ':'}{name}={value}"


def keeps_residual(spec: str) -> bool:
    return kind_of(spec) in _KEEPERS or options_of(spec).get("feedback", "none") != "none"


@functools.lru_cache(maxsize=256)
def check(spec: str, world: int) -> None:
    """Raises what is wrong with a spec, before anything depends on it."""
    Codec(spec, dtype="float32", count=1, world=world, worker=0).close()


def bare(name: str) -> str:
    """A parameter's name without what torch.compile adds, around a model or any part of it."""
    return name.replace("_orig_mod.", "")


def names_of(module: torch.nn.Module) -> dict[int, str]:
    """Parameters' names by id."""
    return {id(p): bare(name) for name, p in module.named_parameters()}


def tables_of(module: torch.nn.Module) -> set[int]:
    """Ids of parameters that are embedding tables and nothing else. One that another layer uses,
    too (an output projection tied to it, say) has a gradient in every row."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    tables: set[int] = set()
    others: set[int] = set()
    for one in module.modules():
        found = tables if isinstance(one, kinds) else others
        found.update(id(p) for p in one.parameters(recurse=False) if p.requires_grad)
    return tables - others


class Specs:
    """The default and the overrides by name pattern; the first pattern that matches counts.

    With "adaptive", buckets have a codec of the controller's choice wherever no override matches.
    A lossy default, or choice, leaves `tables`, by name, to `exact` unless it has an index: most
    rows of an embedding have no gradient in a step, and the error that a lossy codec spreads over
    its blocks would move them. Tables of `rows`, whose gradients say themselves which rows there
    are, are left to `exact` by every lossy one: it would look for zeros in them, and keep nothing.
    """

    def __init__(
        self,
        default: str,
        overrides: Mapping[str, str],
        world: int,
        tables: Collection[str] = (),
        rows: Collection[str] = (),
    ) -> None:
        self.default = tuned(default)
        self._overrides = {bare(pattern): tuned(spec) for pattern, spec in overrides.items()}
        self.adaptive = kind_of(default) == ADAPTIVE
        for spec in (*(() if self.adaptive else (self.default,)), *self._overrides.values()):
            check(spec, world)
            if self.adaptive and kind_of(spec) in _STAYERS and keeps_residual(spec):
                raise InvalidArgument(
                    f"{spec}: what this codec keeps cannot move between plans, so not beside"
                    " adaptive"
                )
        mine = {name for name in tables if self._override(name) is None}
        self._rows = mine & set(rows)
        self.tables = frozenset(mine)  # that have the default, or `exact` if that is not for them
        self.spared = frozenset(name for name in mine if self._spares(name, self.default))

    def _override(self, name: str) -> str | None:
        for pattern, spec in self._overrides.items():
            if fnmatch.fnmatchcase(name, pattern):
                return spec
        return None

    def _spares(self, name: str, spec: str) -> bool:
        lossy = kind_of(spec) not in (*_LOSSLESS, ADAPTIVE)
        return lossy and name in self.tables and (name in self._rows or not takes_tables(spec))

    def of(self, name: str, choice: str | None = None) -> str:
        """`choice`: the controller's for its bucket, where there is one."""
        spec = choice or self.default
        return self._override(name) or ("exact" if self._spares(name, spec) else spec)

    def unmatched(self, names: Collection[str]) -> list[str]:
        """Patterns that no name matches."""
        return [p for p in self._overrides if not any(fnmatch.fnmatchcase(n, p) for n in names)]

    def __str__(self) -> str:
        rules = "".join(f", {pattern}: {spec}" for pattern, spec in self._overrides.items())
        left = "" if self.spared == self.tables else " of sparse gradients"
        return self.default + rules + (f", embedding tables{left}: exact" if self.spared else "")

# SPDX-License-Identifier: Apache-2.0
"""Which codec a parameter gets."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping

from addend import Codec, InvalidArgument

MOST_INDEX_BITS = 4


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


def with_option(spec: str, name: str, value: str) -> str:
    """The spec with an option, unless it says something of its own there."""
    if name in options_of(spec):
        return spec
    return f"{spec}{',' if options_of(spec) else '' if ':' in spec else ':'}{name}={value}"


def keeps_residual(spec: str) -> bool:
    return options_of(spec).get("feedback", "none") != "none"


@functools.lru_cache(maxsize=256)
def check(spec: str, world: int) -> None:
    """Raises what is wrong with a spec, before anything depends on it."""
    Codec(spec, dtype="float32", count=1, world=world, worker=0).close()


class Specs:
    """The default and the overrides by name pattern; the first pattern that matches counts."""

    def __init__(self, default: str, overrides: Mapping[str, str], world: int) -> None:
        self.default = tuned(default)
        self._overrides = {pattern: tuned(spec) for pattern, spec in overrides.items()}
        for spec in (self.default, *self._overrides.values()):
            check(spec, world)

    def of(self, name: str) -> str:
        for pattern, spec in self._overrides.items():
            if fnmatch.fnmatchcase(name, pattern):
                return spec
        return self.default

    def __str__(self) -> str:
        rules = "".join(f", {pattern}: {spec}" for pattern, spec in self._overrides.items())
        return self.default + rules

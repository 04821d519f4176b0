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
    name, _, options = spec.partition(":")
    if name != "quant":
        return spec
    given = dict(part.partition("=")[::2] for part in options.split(",") if part)
    bits = given.get("bits", "4")
    if "carrier" in given or not bits.isdigit() or int(bits) > MOST_INDEX_BITS:
        return spec
    return f"{name}:{options}{',' if options else ''}carrier=indices"


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

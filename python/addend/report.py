# SPDX-License-Identifier: Apache-2.0
"""What a step did."""

from __future__ import annotations

from typing import NamedTuple

from addend import _native


class Report(NamedTuple):
    """One worker's view of its last finished step. Counts that a mode does not know are None."""

    rounds: int
    wire_bytes: int  # handed to the reducer by this worker
    dense_bytes: int  # what dense would have handed over
    round_bytes: tuple[int, ...]
    local_nonzeros: int | None
    union_nonzeros: int | None
    cells: int
    stuck_keys: int
    escaped_values: int
    # "dense", "cast", "packed", "two-level", "bloom", "gather", "sketch", "quant", "lowrank",
    # or the name of a codec that selects
    mode: str
    fallback: str  # "none", "first-step", "fix-up", "refined", "packed", "dense"
    sampled_energy: float  # of this worker's gradient with its residual, or of a sample (lossy)
    sampled_error: float  # what this worker's own contribution lost of it
    nonfinite: int  # elements in blocks that came back non-finite (quant)
    contributors: int  # workers in the sum
    missing: int  # those that are not, as far as the codec was told: bit w is worker w

    @property
    def ratio(self) -> float:
        """Dense bytes over bytes sent."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else 1.0

    @property
    def nmse(self) -> float | None:
        """Relative squared error of this worker's contribution, estimated; None if not sampled."""
        return self.sampled_error / self.sampled_energy if self.sampled_energy > 0 else None


def _known(count: int) -> int | None:
    return None if count == _native.UNKNOWN else count


def from_native(native: _native.Report) -> Report:
    values = {name: getattr(native, name) for name in Report._fields}
    reported = min(native.rounds, _native.MAX_REPORTED_ROUNDS)
    values["round_bytes"] = tuple(native.round_bytes[:reported])
    values["local_nonzeros"] = _known(native.local_nonzeros)
    values["union_nonzeros"] = _known(native.union_nonzeros)
    values["mode"], values["fallback"] = native.mode.decode(), native.fallback.decode()
    return Report(**values)


def from_record(record: bytes) -> Report:
    return from_native(_native.Report.from_buffer_copy(record))
